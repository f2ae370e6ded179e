"""The commands that say why: what they print adds up, as data and as text."""

from __future__ import annotations

import json
import re

import pytest

from workbench.cli import main
from workbench.gpu import gpu_files, read_gpu
from workbench.models import load_program
from workbench.predict import ALL_CAUSES

MODEL = ("demo_tts", "--device", "epyc-2core")


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def test_the_path_by_operator_sums_to_the_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(said(capsys, "predict", *MODEL, "--composition", "per-stage", "--why", "--json"))
    assert sum(row["ns"] for row in data["path"]) == data["ttfo_ns"]
    for cause in ALL_CAUSES:
        assert sum(row[cause] for row in data["path"]) == data["causes_ns"][cause]
    operators = set(load_program("demo_tts").operators())
    assert {row["operator"] for row in data["path"] if row["stage"] and row["calls"]} <= operators


def test_the_path_in_text_shows_the_longest_first_and_how_much_it_leaves_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = json.loads(said(capsys, "predict", *MODEL, "--why", "--json"))
    text = said(capsys, "predict", *MODEL, "--why")
    table = text[text.index("the critical path by operator") :]
    longest = sorted(data["path"], key=lambda row: -row["ns"])
    shown = [row["operator"] for row in longest if re.search(rf"\b{re.escape(row['operator'])}\b", table)]
    assert shown == [row["operator"] for row in longest[: len(shown)]]
    rest = longest[len(shown) :]
    assert f"and {len(rest)} more rows: {sum(row['ns'] for row in rest) / 1e3:,.1f} µs" in table


@pytest.mark.parametrize(("one", "other"), [("per-stage", "monolith"), ("monolith", "per-stage")])
def test_against_another_the_steps_sum_to_the_difference(
    capsys: pytest.CaptureFixture[str], one: str, other: str
) -> None:
    data = json.loads(said(capsys, "predict", *MODEL, "--composition", one, "--against", other, "--json"))
    found = data["against"]
    assert found["difference_ns"] == data["ttfo_ns"] - found["prediction"]["ttfo_ns"] != 0
    for split in ("by_place", "by_stage"):
        assert sum(row["difference_ns"] for row in found[split]) == found["difference_ns"]
        assert all(row["b_ns"] - row["a_ns"] == row["difference_ns"] for row in found[split])
    text = said(capsys, "predict", *MODEL, "--composition", one, "--against", other)
    steps = {}
    for line in text[text.index("µs more:") :].splitlines()[1:]:
        label, ns = line.rsplit(maxsplit=1)
        steps[label.rstrip()] = float(ns.replace(",", ""))
    total = steps.pop("all")
    assert total == pytest.approx(found["difference_ns"] / 1e3)
    assert sum(us for label, us in steps.items() if not label.startswith(" ")) == pytest.approx(total, abs=1e-2)


def test_against_itself_nothing_differs(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "predict", *MODEL, "--composition", "monolith", "--against", "monolith")
    assert re.search(r"µs more:\nall +\+0\.000$", text.rstrip())


def test_against_what_is_no_composition_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *MODEL, "--against", "nonsense"]) == 2
    error = capsys.readouterr().err
    assert "nonsense" in error
    assert error.count("\n") == 1


def test_sensitivity_is_a_sentence_and_a_row_a_quantity(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(said(capsys, "select", *MODEL, "--sensitivity", "--json"))
    found = data["sensitivity"]
    claim, *sentences = found["sentences"]
    assert "each quantity scaled alone" in claim
    assert len(sentences) == len(found["table"]) > 0
    for sentence, row in zip(sentences, found["table"], strict=True):
        assert row["low"] < row["value"] < row["high"]
        winners = [row[side] for side in ("below", "above") if row[side] is not None]
        assert ("the choice flips" in sentence) == bool(winners)
        assert all(winner in sentence for winner in winners)
        slower = [
            side for side in ("low", "high")
            if row[f"fastest_{side}_ns"] < min(row[f"best_{side}_ns"], row[f"rival_{side}_ns"])
        ]  # fmt: skip
        assert sentence.count("the fastest of all is") == len(slower)
        assert ("no flip to these" in sentence) == (bool(slower) and not winners)
    assert said(capsys, "select", *MODEL, "--sensitivity").rstrip().endswith("\n".join(found["sentences"]))


def test_a_gpus_path_has_what_a_run_has_once(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(
        said(capsys, "predict", "demo_tts", "--device", "h100_sxm", "--composition", "graph", "--why", "--json")
    )
    once = next(row for row in data["path"] if row["operator"] == "(once a run)")
    assert once["host"] == once["ns"] == read_gpu(gpu_files()["h100_sxm"])["launch_ns"]
    assert sum(row["ns"] for row in data["path"]) == data["ttfo_ns"]
