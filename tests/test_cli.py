"""The ``workbench`` command as a person runs it: text, JSON, exit status, one line on what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import synthetic

from workbench import compose
from workbench.cli import main
from workbench.measure import store
from workbench.models import load_program

PROGRAM = load_program("demo_tts")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with invented benchmarks, as this machine's own."""
    store.save_bench(tmp_path, synthetic.device(), synthetic.table(PROGRAM, batches=(1, 2, 4)))
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    out, error = capsys.readouterr()
    return status, out, error


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:  # type: ignore[type-arg]
    status, out, error = run(capsys, *arguments, "--json")
    assert (status, error) == (0, "")
    return json.loads(out)  # type: ignore[no-any-return]


def test_program_lists_operators_and_boundaries(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "program", "demo_tts", "--batch", "3")
    assert data["boundaries"] == compose.boundaries(PROGRAM)
    assert data["work"] == PROGRAM.work(3)._asdict()
    status, out, _ = run(capsys, "program", "demo_tts")
    assert status == 0
    assert "loop frames × 2" in out


@pytest.mark.parametrize("composition", ["monolith", "conventional", "per-stage", "eager", "replay", "monolith 2x1"])
def test_predict_says_what_it_is_made_of(here: Path, capsys: pytest.CaptureFixture[str], composition: str) -> None:
    data = run_json(capsys, "predict", "demo_tts", "--batch", "2", "--composition", composition)
    assert {"ttfo_ns", "interval_ns", "causes_ns", "tiles", "events", "serial_stages", "throughput_per_s"} <= set(data)
    assert sum(data["causes_ns"].values()) == data["ttfo_ns"]
    low, high = data["interval_ns"]
    assert low <= data["ttfo_ns"] <= high
    assert data["provenance"] in ("measured here", "interpolated")


def test_a_composition_file_is_predicted_as_what_it_holds(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = compose.per_stage(PROGRAM, compose.Configuration(2))
    (here / "c.json").write_text(json.dumps(compose.to_json(made)))
    from_file = run_json(capsys, "predict", "demo_tts", "--composition", str(here / "c.json"))
    by_name = run_json(capsys, "predict", "demo_tts", "--composition", "per-stage 2x1")
    assert from_file["ttfo_ns"] == by_name["ttfo_ns"]


def test_select_gives_the_best_first_and_ties_within_the_shortlist(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = run_json(capsys, "select", "demo_tts")
    assert data["best"]["ttfo_ns"] == min(round(row["ttfo_us"] * 1e3) for row in data["shortlist"])
    tied = {row["digest"] for row in data["shortlist"] if row["tied"]}
    assert {p["composition"]["digest"] for p in data["tie_set"]} == tied
    assert data["candidates"] > len(data["shortlist"])


def test_classify_names_a_category_with_evidence(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "classify", "demo_tts", "--batches", "1,2")
    assert data["category"] in data["probabilities"]
    assert sum(data["probabilities"].values()) == pytest.approx(1)
    assert [row["batch"] for row in data["evidence"]] == [1, 2]


@pytest.mark.parametrize("model", ["llama_3_2_1b", "qwen3_tts_0_6b", "qwen3_tts_1_7b", "nh_tts_standin"])
def test_every_model_is_predicted_on_a_gpu(capsys: pytest.CaptureFixture[str], model: str) -> None:
    frames = () if model == "llama_3_2_1b" else ("--first-frames", "1")
    data = run_json(
        capsys, "predict", model, "--device", "h100_nvl", "--composition", "per-stage 132x1+c16+i2048+p1", *frames
    )
    assert sum(data["causes_ns"].values()) == data["ttfo_ns"]
    assert data["provenance"] == "assumed"
    assert data["notes"] or model.startswith("qwen3"), "a stand-in and recalled sizes say so"


def test_an_extrapolated_batch_is_marked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "predict", "demo_tts", "--batch", "16")["provenance"] == "extrapolated"


def test_a_trace_opens_in_perfetto(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = here / "trace.json"
    status, _, _ = run(capsys, "predict", "demo_tts", "--composition", "per-stage", "--trace", str(path))
    trace = json.loads(path.read_text())
    assert status == 0
    assert {event["name"] for event in trace["traceEvents"] if event["ph"] == "X"} >= {"codec.up0", "talker.qkv"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("predict", "nope"), "no model is called 'nope'; there are: demo_tts"),
        (("predict", "demo_tts", "--composition", "nope"), "'nope' is neither a file nor one of monolith"),
        (("predict", "demo_tts", "--device", "nope"), "no device is called 'nope'; there are: cpu"),
        (("predict", "demo_tts", "--first-frames", "99"), "caches 16 at most"),
        (("predict", "demo_tts", "--profile", "/nope"), "/nope"),
        (("classify", "demo_tts", "--batches", "1"), "a category needs at least 2 batches"),
        (("compare", "demo_tts"), "holds no measured run of demo_tts; `workbench measure` makes one"),
        (("inspect", "/nope"), "/nope"),
        (("bench", "demo_tts", "--workers", "100000"), "would only take turns"),
        (("bench", "llama_3_2_1b"), "llama_3_2_1b is predicted only; demo_tts is the model that runs on this machine"),
        (("predict", "llama_3_2_1b", "--first-frames", "2"), "llama_3_2_1b takes no first_frames; it takes"),
        (("predict", "llama_3_2_1b"), "no benchmark of 'prefill"),
        (("predict", "qwen3_tts_0_6b", "--codec", "stateful", "--context", "25"), "context"),
        (("measure", "demo_tts", "--batches", "1"), "the benchmarks are of a machine with cpu 'none'"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], text: str
) -> None:
    status, out, error = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert text in error
    assert error.count("\n") == 1


def test_without_benchmarks_the_way_out_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path / "none"))
    status, _, error = run(capsys, "select", "demo_tts")
    assert status == 2
    assert "`workbench bench` makes them" in error
    status, out, _ = run(capsys, "doctor")
    assert status == 1
    assert "workbench bench demo_tts" in out


@pytest.mark.parametrize("bad", ["0", "-1", "1.5", "x", "", "1,,2", "١"])
def test_a_batch_that_is_no_count_is_wrong_usage(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["classify", "demo_tts", f"--batches={bad}"])
    assert caught.value.code == 2
    assert "not a positive whole number" in capsys.readouterr().err
