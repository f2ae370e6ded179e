"""Published rows: each is covered or says why not, its prediction is the pricer's own, and its value reaches none."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.calibrate import GRAPH_PDL_NS, MEGAKERNEL_NS, step_of, with_value
from workbench.cli import main
from workbench.compose import Configuration, conventional, monolith
from workbench.cost import Roofline
from workbench.errors import CompositionError, MeasureError, ProgramError
from workbench.gpu import gpu_files, read_gpu
from workbench.models import llama, load_program
from workbench.models.decoder import Decoder
from workbench.models.llama import DecoderConfig
from workbench.predict import Pricer
from workbench.program import Operator, Program, Work
from workbench.published import (
    REASONS,
    Check,
    Predictor,
    Row,
    case_of,
    composition_ns,
    duplicates,
    mapping,
    pair_records,
    published_check,
    read_rows,
    rows_of,
)
from workbench.published.analytic import treatments
from workbench.published.cases import EAGER, GRAPH, MEGAKERNEL, MONOLITH, Case, How, Term
from workbench.published.check import published_value
from workbench.published.parts import LANGUAGE_MODELS, part, step
from workbench.published.rows import FOLDER
from workbench.shapes import Matmul

ROWS = read_rows()


@cache
def check() -> Check:
    return published_check()


def row(table: str, line: int) -> Row:
    return next(r for r in ROWS if (r.table, r.line) == (table, line))


# -- the tables --------------------------------------------------------------------------------------------------------


def test_every_line_of_both_tables_is_a_row() -> None:
    for table in ("megakernel", "tts"):
        frame = pd.read_csv(FOLDER / f"{table}.csv", dtype=str, keep_default_na=False)
        mine = [r for r in ROWS if r.table == table]
        assert [r.value for r in mine] == frame["value"].tolist()
        assert [r.system for r in mine] == frame["system"].tolist()
        assert [r.line for r in mine] == list(range(2, len(frame) + 2))
    assert any("225 cooperative grid.sync, empty" in r.system for r in ROWS)


def test_a_comma_without_quotes_is_refused_with_its_line(tmp_path: Path) -> None:
    for table in ("megakernel", "tts"):
        (tmp_path / f"{table}.csv").write_text((FOLDER / f"{table}.csv").read_text())
    path = tmp_path / "megakernel.csv"
    lines = path.read_text().splitlines()
    lines[3] = lines[3].replace('"', "")
    path.write_text("\n".join(lines))
    with pytest.raises(MeasureError, match=r"line 4: 12 fields under 11 columns"):
        read_rows(tmp_path)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "megakernel.csv").write_text("model,gpu\n")
    with pytest.raises(MeasureError, match="column 'batch' is missing"):
        read_rows(tmp_path)


def test_the_same_fact_of_one_author_counts_once() -> None:
    first = row("megakernel", 121)
    again = replace(first, table="tts", line=999, unit="us", value="990", system="the same", source="AlpinDale, blog")
    stranger = replace(again, line=1000, source="somebody/else")
    slower = replace(again, line=1001, value="991")
    assert duplicates([first, again, stranger, slower]) == {again: first}
    assert row("tts", 294) in duplicates(ROWS)  # AlpinDale's 8.11 ms, in both tables


# -- every row is covered, or says why not -----------------------------------------------------------------------------


def test_counts_add_up_and_every_row_has_its_status() -> None:
    assert [entry.row for entry in check().entries] == ROWS
    assert sum(check().counts.values()) == len(ROWS)
    assert {entry.status for entry in check().entries} <= {"predicted", "calibration", "duplicate", *REASONS}
    for entry in check().entries:
        assert (entry.predicted is not None) == (entry.status in ("predicted", "calibration"))
    assert len(check().table) == check().counts["predicted"] + check().counts["calibration"]


def test_what_constants_were_fitted_to_is_shown_and_not_counted() -> None:
    table = check().table
    fitted = table[table["published"].isin([GRAPH_PDL_NS / 1e3, MEGAKERNEL_NS / 1e3])]
    assert len(fitted) == 2
    assert not fitted["counted"].any()
    assert len(check().counted) == check().counts["predicted"]
    assert check().summary().loc[0, "rows"] == check().counts["predicted"]
    assert not set(check().pairs["source"]) & {"msaroufim/megakernels-vs-cuda-graphs"}
    assert str(check()).count("\ncalibration: ") == check().counts["calibration"] == 4


def test_no_pattern_is_idle() -> None:
    assert {reason for reason, _ in mapping.REFUSALS} <= set(REASONS)
    wheres = [where for _, where in mapping.REFUSALS] + [where for where, _, _ in mapping.HOWS]
    wheres += [where for _, where, *_ in mapping.SUBJECTS]
    wheres += [{"gpu": pattern} for pattern, _, _ in mapping.DEVICES]
    wheres += [{"model": pattern} for pattern, _, _ in mapping.MODELS]
    assert [where for where in wheres if not any(mapping.found(where, r) for r in ROWS)] == []
    assert {key for _, key, _ in mapping.DEVICES} <= set(gpu_files())


def test_what_cannot_be_predicted_is_refused_for_what_it_is() -> None:
    reasons = Counter(case for r in ROWS if isinstance(case := case_of(r), str))
    assert set(reasons) == set(REASONS) - {"illegal"}
    for r in ROWS:
        if "int8" in r.system or "NVFP4" in r.model:
            assert case_of(r) == "precision"
        if "Jetson" in r.gpu and "host" not in r.what:
            assert case_of(r) == "device"
        if "qps" in r.batch:
            assert case_of(r) == "concurrency"


# -- predictions -------------------------------------------------------------------------------------------------------


def qwen3_8b() -> DecoderConfig:
    stack = Decoder(hidden=4096, layers=36, heads=32, kv_heads=8, head_dim=128, ff=12_288, head_norm=True)
    return DecoderConfig(name="qwen3_8b", stack=stack, vocab=151_936)


def test_a_rows_prediction_is_the_pricers() -> None:
    program = step_of(llama.program(qwen3_8b(), prompt=256))
    gpu = read_gpu(gpu_files()["a100_80"])
    pricer = Pricer(program, gpu.device(), Roofline(gpu), 1)
    graph = pricer.predict(conventional(program, "graph"))
    mono = min(
        (pricer.predict(monolith(program, c)) for c in pricer.configurations), key=lambda prediction: prediction.ttfo_ns
    )
    table = check().table.set_index(["table", "line"])
    for line, prediction, kind in ((14, graph, "graph"), (15, mono, "monolith")):
        mine = table.loc[("megakernel", line)]
        assert mine["kind"] == kind
        assert mine["predicted"] == pytest.approx(prediction.ttfo_ns / 1e3)
        assert [mine["low"], mine["high"]] == pytest.approx([ns / 1e3 for ns in prediction.interval_ns], rel=1e-3)


def test_a_ratio_is_that_of_two_predictions_and_a_sum_is_a_sum() -> None:
    predictor = Predictor()
    timed = step("smollm2_135m", 1)
    below, above = Term(timed, MONOLITH), Term(timed, GRAPH)
    one = predictor.predict(Case("l4", 1, "", (below,)))
    other = predictor.predict(Case("l4", 1, "", (above,)))
    ratio = predictor.predict(Case("l4", 1, "", (below,), over=(above,)))
    assert ratio.value == other.value / one.value
    low, high = ratio.interval
    assert low <= ratio.value <= high
    both = predictor.predict(Case("l4", 1, "", (replace(below, times=3), above)))
    assert both.value == 3 * one.value + other.value
    assert both.below.launches == Counter({MEGAKERNEL: 3}) + other.below.launches
    assert both.below.floor_ns == pytest.approx(4 * one.below.floor_ns)
    assert both.below.kind == "mixed"


def test_a_row_whose_kind_cannot_run_is_not_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Predictor, case: Case) -> None:
        raise CompositionError("no block of it fits")

    monkeypatch.setattr(Predictor, "predict", refuse)
    refused = published_check([row("megakernel", 15)])
    assert refused.counts["illegal"] == 1
    with pytest.raises(MeasureError, match="none of 1 published rows is covered"):
        refused.summary()


def test_no_published_value_reaches_a_case() -> None:
    assert all(case_of(replace(r, value="7")) == case_of(r) for r in ROWS)


def test_no_published_value_reaches_a_prediction() -> None:
    mine = [r for r in ROWS if not isinstance(case_of(r), str) and r.model.startswith(("Qwen3-8B", "Llama"))]
    changed = [replace(r, value=f"{3.7 * r.number:.6g}") for r in mine if r.number is not None]
    assert len(changed) == len(mine)
    before, after = published_check(mine).table, published_check(changed).table
    names = ["predicted", "low", "high", "naive", "naive_whole", "floor", "kind", "subject", "note"]
    pd.testing.assert_frame_equal(before[names], after[names])
    assert after["published"].tolist() == pytest.approx((before["published"] * np.where(
        before["metric"] == "decode_throughput", 1 / 3.7, 3.7)).tolist(), rel=1e-5)  # fmt: skip


def test_published_values_are_compared_as_times() -> None:
    case = Case("h100_sxm", 1, "", (), audio_ns=640_000_000)
    for unit, metric, value, expected in (
        ("ms", "tpot", "2.5", 2.5e6),
        ("us", "decode_step", "979.51", 979_510),
        ("ms (about)", "tpot", "25", 25e6),
        ("ms/frame", "stage", "179", 179e6),
        ("tok/s", "decode_throughput", "500", 2e6),
        ("audio_s/wall_s", "xRT", "4", 160e6),
        ("x", "speed_x_realtime", "4", 160e6),
        ("wall_s/audio_s", "RTF_mean", "0.25", 160e6),
        ("x (almost)", "speedup_vs_vllm", "2.5", 2.5),
    ):
        assert published_value(replace(ROWS[0], unit=unit, metric=metric, value=value), case) == pytest.approx(expected)
    with pytest.raises(MeasureError, match="not a positive number"):
        published_value(replace(ROWS[0], value="1.2-1.3"), case)


# -- parts -------------------------------------------------------------------------------------------------------------


def total(works: list[Work]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*works, strict=True)))


@settings(deadline=None, max_examples=10)
@given(model=st.sampled_from(["qwen3_tts_0_6b", "qwen3_tts_1_7b"]), frames=st.integers(2, 6), prompt=st.integers(1, 40))
def test_stages_alone_do_together_what_the_whole_does(model: str, frames: int, prompt: int) -> None:
    whole = load_program(model, first_frames=frames, prompt=prompt)
    stages = list(dict.fromkeys(whole.stages().values()))
    alone = [part(model, stage, first_frames=frames, prompt=prompt).program() for stage in stages]
    assert total([program.work(2) for program in alone]) == whole.work(2)
    assert sum(len(program.operators()) for program in alone) == len(whole.operators())
    assert part(model, *stages, first_frames=frames, prompt=prompt).program().first == whole.first


def test_a_stage_that_is_not_there_is_named() -> None:
    with pytest.raises(ProgramError, match="no stage 'talker' there; it has prefill, first_predictor, codec"):
        part("qwen3_tts_0_6b", "talker", first_frames=1).program()


def test_shapes_read_off_published_bytes() -> None:
    """AutoMegaKernel's full_h100.json prints the weights of its 4, 8 and 16 layers in MB; its table is not tied."""
    for layers, megabytes in ((4, 622.9), (8, 983.6), (16, 1705.1)):
        read = step(f"llama_2048h_{layers}l", 0).program().work(1).weight_bytes
        assert (read + 32_000 * 2048 * 2) / 1e6 == pytest.approx(megabytes, abs=0.06)


@pytest.mark.parametrize(
    ("model", "billions"),
    [("llama_3_1_8b", 8.03), ("qwen3_0_6b", 0.596), ("qwen3_8b", 8.19), ("qwen3_32b", 32.8), ("smollm2_135m", 0.1345)],
)
def test_recalled_sizes_give_the_parameters_that_a_model_is_named_after(model: str, billions: float) -> None:
    config = LANGUAGE_MODELS[model]
    tied = model in ("qwen3_0_6b", "smollm2_135m")
    read = step(model, 0).program().work(1).weight_bytes // 2 - config.stack.hidden  # less the row that is looked up
    table = 0 if tied else config.vocab * config.stack.hidden
    assert (read + table) / 1e9 == pytest.approx(billions, rel=5e-3)


def test_a_way_by_stage_gives_each_stage_its_own() -> None:
    program = load_program("qwen3_tts_0_6b", first_frames=2)
    how = How("graph", (("talker", MEGAKERNEL), ("codec", "eager")))
    (composition,) = how.compositions(program, [Configuration(4)])
    used: dict[str, set[str]] = {}
    for name, treatment in treatments(program, composition).items():
        used.setdefault(program.stages()[name], set()).add(treatment)
    graphs = {stage: {"graph"} for stage in ("prefill", "first_predictor", "predictor")}
    assert used == {**graphs, "talker": {MEGAKERNEL}, "codec": {"eager"}}
    assert [c.shape for c in EAGER.compositions(program, [Configuration(4), Configuration(2)])] == ["conventional"]


# -- the naive model, guesses, pairs -----------------------------------------------------------------------------------


def test_the_naive_model_by_hand() -> None:
    gpu = read_gpu(gpu_files()["h100_sxm"])
    for name, value in (("sm_count", 4), ("dram_bytes_per_s", 1e9), ("bf16_flops_per_s", 1e12)):
        gpu = with_value(gpu, name, value)
    shape = Matmul(rows=1, inner=2048, outer=64)
    operator = Operator(name="a", shape=shape, reads=("x",), writes=("y",), element_bytes=2)
    program = Program("one", (operator, replace(operator, name="b", reads=("y",), writes=("z",))), ())
    # 2048 · 64 weights of 2 bytes; four tiles on four SMs, each at a quarter of 80 % of 1 GB/s, half of it hidden
    tile_us = 0.5 * (262_144 / 4) / (0.8e9 / 4) * 1e6 + 1.5 + 0.05
    whole_us = 0.5 * (262_144 / 4) / 0.8e9 * 1e6 + 1.5 + 0.05
    kernel_us = 262_144 / 0.8e9 * 1e6 + 1.5
    fused = monolith(program, Configuration(4))
    assert composition_ns(program, fused, gpu, 1) == pytest.approx(2e3 * tile_us)
    assert composition_ns(program, fused, gpu, 1, whole=True) == pytest.approx(2e3 * whole_us)
    assert composition_ns(program, conventional(program, "eager"), gpu, 1) == pytest.approx(2e3 * kernel_us)
    # 100,000 requests: arithmetic takes longer, at 70 % of 1 TFLOP/s
    flops_us = 1e5 * 2 * 2048 * 64 / 0.7e12 * 1e6 + 1.5
    assert composition_ns(program, conventional(program, "graph"), gpu, 100_000) == pytest.approx(2e3 * flops_us)


def test_the_constant_guess_leaves_its_own_row_out() -> None:
    table = check().table.reset_index(drop=True)
    for i in (5, 50, 100):
        mine = table.loc[i]
        others = table[table["counted"] & (table["quantity"] == mine["quantity"])].drop(index=i, errors="ignore")
        factor = float(np.median(others["published"] / others["floor"]))
        assert mine["guess"] == pytest.approx(factor * mine["floor"])


def records(*rows: tuple[str, str, float, float]) -> pd.DataFrame:
    same = {"source": "s", "model": "m", "device": "d", "batch": 1, "family": "f", "quantity": "us", "system": ""}
    return pd.DataFrame(
        {**same, "subject": what, "kind": kind, "published": was, "predicted": is_, "naive": 1.0, "naive_whole": -is_}
        for what, kind, was, is_ in rows
    )


def test_pairs_are_of_one_subject_and_different_kinds() -> None:
    table = records(
        ("step", "eager", 30.0, 20.0), ("step", "graph", 10.0, 11.0), ("step", "monolith", 9.8, 15.0),
        ("step", "monolith", 8.0, 10.0), ("other", "graph", 1.0, 1.0),
    )  # fmt: skip
    pairs = pd.DataFrame(pair_records(table)).sort_values("published").set_index("kinds")
    assert sorted(pairs.index) == sorted(
        ["graph against eager", *2 * ["eager against monolith"], *2 * ["graph against monolith"]]
    )
    close = pairs[pairs["close"]]
    assert close["published"].tolist() == [pytest.approx(10 / 9.8)]
    graph = pairs.loc["graph against eager"]
    assert graph["published"] == pytest.approx(1 / 3)
    assert graph["predicted_right"]
    assert graph["monolith_wins_right"]
    assert not graph["naive_right"]  # both alike: no winner is called
    assert graph["choice"] == "alike in that"
    mono = pairs.loc["graph against monolith"].set_index("close")
    assert mono.loc[False, "predicted_right"]  # 11 against 10, as 10 against 8
    assert not mono.loc[True, "predicted_right"]
    assert mono.loc[False, "monolith_wins_right"]
    assert not mono.loc[False, "conventional_wins_right"]
    assert set(mono["choice"]) == {"megakernels or none"}


def test_a_ratio_is_a_pair_of_its_own() -> None:
    table = records(("step", "ratio", 0.5, 1.2)).assign(quantity="ratio", over_kind="graph", below_kind="monolith")
    (pair,) = pair_records(table)
    assert pair["kinds"] == "graph against monolith"
    assert not pair["predicted_right"]
    assert pair["conventional_wins_right"]
    assert not pair["monolith_wins_right"]


def test_an_explanation_makes_up_for_what_is_missing() -> None:
    for entry in check().entries:
        if entry.status != "predicted" or entry.case is None or entry.predicted is None or entry.case.over:
            continue
        table = check().table
        mine = table[(table["table"] == entry.row.table) & (table["line"] == entry.row.line)].iloc[0]
        run = entry.predicted.below
        arms = [count for arm, count in run.launches.items() if arm != MEGAKERNEL]
        if mine["effect"] in ("host", "unfused"):
            assert mine["predicted"] + mine["each_us"] * max(arms) == pytest.approx(mine["published"])
        elif mine["effect"] == "bodies":
            assert mine["predicted"] + mine["each_us"] * run.stages == pytest.approx(mine["published"])
        elif mine["effect"] == "floor":
            assert mine["published"] < mine["floor"]
        else:
            assert mine["predicted"] > mine["published"]


def test_the_worst_rows_are_the_most_off() -> None:
    counted = check().counted
    off = np.abs(np.log(counted["predicted"] / counted["published"])).to_numpy()
    worst = check().worst(7)
    assert np.abs(np.log(worst["ratio"])).tolist() == pytest.approx(np.sort(off)[::-1][:7].tolist())
    assert set(check().worst(3, "monolith")["kind"]) == {"monolith"}
    table = check().table.set_index(["table", "line"])
    for mine in worst.to_dict("records"):
        naive = table.loc[(mine["table"], mine["line"]), "naive"]
        assert mine["naive_ratio"] * mine["published"] == pytest.approx(naive)


def test_an_eager_launch_is_held_against_what_a_host_takes() -> None:
    eager = check().counted.query("effect == 'host' and kind == 'eager'").iloc[0]
    assert f", as {eager['each_us'] * 940 / 11_000:,.1f} launches of 11.7 µs" in eager["arithmetic"]


def test_what_a_models_sizes_rest_on_is_noted_in_its_rows() -> None:
    notes = check().table.set_index(["table", "line"])["note"]
    assert "sizes of qwen3_8b are recalled" in notes["megakernel", 14]
    assert "heads of 64 are assumed" in notes["megakernel", 142]
    assert "codec is in fp32" in notes["tts", 301]
    assert "presumed" in notes["tts", 110]


# -- the command -------------------------------------------------------------------------------------------------------


def test_compare_published_of_one_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--published", "qwen3_32b", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert sum(data["counts"].values()) == len(rows_of("qwen3_32b", ROWS)) == len(data["rows"])
    assert {"counts", "summary", "pair_summary", "worst", "effects", "rows", "pairs"} == set(data)
    assert main(["compare", "--published", "qwen3_32b"]) == 0
    assert "% called rightly" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "neither MODEL nor --published"),
        (["--published", "demo_tts"], "no published row that is covered is of 'demo_tts'"),
        (["--published", "--device", "l4"], "devices and parameters of their own"),
        (["--published", "--prompt", "3"], "devices and parameters of their own"),
    ],
)
def test_compare_says_in_one_line_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["compare", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_shipped_tables_hold_no_row_twice_over() -> None:
    for table in ("megakernel", "tts"):
        with (FOLDER / f"{table}.csv").open() as file:
            lines = list(csv.reader(file))
        assert len({tuple(line) for line in lines}) == len(lines)
