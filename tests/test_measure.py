"""The CPU as a device: every composition says what torch says, benchmarks are complete, samples survive."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import synthetic
import torch

from workbench import compose, search
from workbench.errors import MeasureError
from workbench.measure import cpu_bench, protocol, store
from workbench.measure.capture import capture
from workbench.measure.cpu_executor import CpuExecutor
from workbench.measure.cpu_model import CpuModel
from workbench.measure.cpu_runtime import Workers
from workbench.models import load_program
from workbench.models.demo_tts_torch import DemoTTS
from workbench.predict import Pricer
from workbench.profiles import attribute_kernels, load, operator_summary
from workbench.program import calls

PROGRAM = load_program("demo_tts")
WORKERS = 2


@pytest.fixture(scope="module")
def module() -> DemoTTS:
    torch.set_num_threads(1)
    return DemoTTS()


@pytest.fixture(scope="module")
def benched(module: DemoTTS) -> tuple[object, object]:
    done: list[str] = []
    found = cpu_bench.bench(module, PROGRAM, [1, 2], WORKERS, "2026-01-01", done.append)
    assert len(done) == cpu_bench.steps([1, 2], WORKERS)
    return found


@pytest.fixture
def pool() -> Iterator[Workers]:
    with Workers(WORKERS) as workers:
        yield workers


def reference(module: DemoTTS, text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """PCM and codes by torch's own way through the model."""
    with torch.inference_mode():
        state = module.start(torch.from_numpy(text))
        state.chunk = PROGRAM.parameters["first_frames"]
        for call in calls(PROGRAM.first):
            module.run(call.operator.name, state, call.index)
        return state.t["pcm"][:, 0].numpy().copy(), state.codes[:, 1 : 1 + state.chunk].numpy().copy()


def some_compositions(pricer: Pricer) -> list[compose.Composition]:
    program = pricer.program
    everything = set(compose.boundaries(program))
    chosen = [*search.named_compositions(pricer), *search.mixed_compositions(pricer)]
    chosen += [composition for _, composition in search.k_best(pricer, 4)]
    chosen.append(compose.from_cuts(program, everything, configuration=compose.Configuration(2, 2), name="all cut"))
    kinds = {name: ("eager", "replay", "2x1", "1x1")[i % 4] for i, name in enumerate(program.operators())}
    chosen.append(compose.from_cuts(program, everything, kinds, name="all cut, every kind"))
    return chosen


@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_every_composition_says_what_torch_says(module: DemoTTS, pool: Workers, batch: int) -> None:
    pricer = Pricer(PROGRAM, synthetic.device(batch), synthetic.table(PROGRAM, batch, batches=(batch,)), batch)
    model = CpuModel(module, PROGRAM, batch)
    text = np.random.default_rng(batch).integers(0, 256, (batch, 8), np.int32)
    pcm, codes = reference(module, text)
    for composition in some_compositions(pricer):
        executor = CpuExecutor(model, composition, pool, partial(pricer.kernel_configuration, arm="replay"))
        model.floats[model.tensors["pcm"].offset :][: model.tensors["pcm"].size] = np.nan  # nothing may be left over
        assert executor.run(text) > 0
        assert (executor.codes() == codes).all(), composition
        assert np.abs(executor.pcm() - pcm).max() < 1e-4 * np.abs(pcm).max(), composition


def test_different_prompts_say_different_things(module: DemoTTS) -> None:
    pcm = [reference(module, np.full((1, 8), token, np.int32))[0] for token in (1, 2)]
    assert np.abs(pcm[0] - pcm[1]).max() > 1e-2


def test_restarting_workers_and_changing_prompts_never_changes_an_answer(module: DemoTTS) -> None:
    pricer = Pricer(PROGRAM, synthetic.device(), synthetic.table(PROGRAM), 1)
    model = CpuModel(module, PROGRAM, 1)
    launches: dict[object, object] = {}
    for number in range(60):
        text = np.random.default_rng(number).integers(0, 256, (1, 8), np.int32)
        pcm, _ = reference(module, text)
        with Workers(WORKERS) as workers:
            made = compose.per_stage(PROGRAM, compose.Configuration(2, 1 + number % 2))
            executor = CpuExecutor(model, made, workers, partial(pricer.kernel_configuration, arm="replay"), launches)  # type: ignore[arg-type]
            executor.run(text)
            assert np.abs(executor.pcm() - pcm).max() < 1e-4 * np.abs(pcm).max()


def test_a_benchmark_prices_every_region_and_comes_back_from_disk(benched: tuple, tmp_path: Path) -> None:
    device, table = benched
    store.save_bench(tmp_path, device, table)
    again, rows = store.load_bench(tmp_path)
    assert again == device
    pd.testing.assert_frame_equal(rows.rows, table.rows, check_dtype=False)
    for batch in (1, 2):
        selection = search.select(Pricer(PROGRAM, again, rows, batch))
        assert sum(selection.best.causes_ns.values()) == selection.best.ttfo_ns
        assert selection.best in selection.tie_set


def test_an_eager_call_costs_more_than_its_tiles(benched: tuple) -> None:
    """Not a matter of timing: a torch call of several kernels cannot be faster than one fused body of 400 ns."""
    _, table = benched
    argmax = PROGRAM.operators()["talker.argmax"]
    assert table.whole(argmax, 1, 0, "eager").ns[0] > table.tiles(argmax, 1, 0, compose.Configuration(1)).ns.sum()


def test_measured_samples_are_kept_with_their_compositions(module: DemoTTS, benched: tuple, tmp_path: Path) -> None:
    device, table = benched
    pricers = {batch: Pricer(PROGRAM, device, table, batch) for batch in (1, 2)}
    chosen = {batch: search.named_compositions(p) for batch, p in pricers.items()}
    done: list[str] = []
    run = protocol.measure(module, pricers, chosen, tmp_path, rounds=2, tick=done.append)
    assert len(done) == 4
    assert len(run.samples) == 2 * sum(map(len, chosen.values()))
    assert set(run.compositions) == {c.digest for c in chosen[1]}
    assert all(run.record[name] for name in ("machine", "p95_rule", "commit", "versions"))
    orders = run.samples.groupby(["batch", "sample"])["digest"].apply(tuple)
    assert len(set(orders)) > 1, "every round had the same order"
    samples, compositions = store.all_samples(tmp_path)
    assert len(samples) == len(run.samples)
    assert compositions == dict(run.compositions)


def test_benchmarks_of_another_machine_are_not_measured_against(module: DemoTTS, tmp_path: Path) -> None:
    pricer = Pricer(PROGRAM, synthetic.device(), synthetic.table(PROGRAM), 1)
    with pytest.raises(MeasureError, match=r"the benchmarks are of a machine with cpu 'none', this one has"):
        protocol.measure(module, {1: pricer}, {1: search.named_compositions(pricer)}, tmp_path)
    assert not (tmp_path / "runs").exists()


def test_a_killed_run_keeps_what_it_had_measured(benched: tuple, tmp_path: Path) -> None:
    device, table = benched
    store.save_bench(tmp_path, device, table)
    command = [sys.executable, "-m", "workbench", "measure", "demo_tts", "--batches", "1", "--rounds", "100000"]
    process = subprocess.Popen(
        [*command, "--store", str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            found = list((tmp_path / "runs").glob("*/samples.csv"))
            if found and found[0].read_text().count("\n") > 30:
                break
            time.sleep(0.1)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    (run,) = store.read_runs(tmp_path)
    assert len(run.samples) >= 30
    assert (run.samples["order"].to_numpy() == np.arange(len(run.samples))).all()


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda p: (p / "run.json").write_text("{"), "not a measured run"),
        (lambda p: (p / "run.json").write_text("[]"), "not a measured run"),
        (lambda p: (p / "samples.csv").unlink(), "not a measured run"),
        (lambda p: (p / "samples.csv").write_text("a,b\n1,2\n"), "samples.csv lacks order"),
        (lambda p: edit(p, schema=9), "schema 9 is not 1"),
        (lambda p: edit(p, model="other"), "no model is called 'other'"),
        (lambda p: edit(p, compositions={}), "which run.json does not describe"),
        (lambda p: edit(p, parameters={"first_frames": "x"}), "not a measured run"),
    ],
)  # fmt: skip
def test_a_damaged_run_is_refused_in_one_line(tmp_path: Path, damage: object, text: str) -> None:
    path = tmp_path / "runs" / "a"
    path.mkdir(parents=True)
    made = compose.conventional(PROGRAM, "eager")
    record = {"schema": 1, "model": "demo_tts", "parameters": {}, "compositions": {made.digest: compose.to_json(made)}}
    (path / "run.json").write_text(json.dumps(record))
    header = ",".join(store.SAMPLE_COLUMNS)
    (path / "samples.csv").write_text(f"{header}\n0,1,{made.digest},eager,0,12345,0,0.1\n1,1,{made.digest},eag")
    assert len(store.read_run(path).samples) == 1, "a last line cut short is left out"
    damage(path)  # type: ignore[operator]
    with pytest.raises(MeasureError, match=text) as caught:
        store.read_runs(tmp_path)
    assert "\n" not in str(caught.value)


def edit(path: Path, **changes: object) -> None:
    record = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(record | changes))


def test_a_captured_profile_is_attributed_to_every_operator(module: DemoTTS, tmp_path: Path) -> None:
    capture(module, PROGRAM, 1, tmp_path / "profile.json")
    profile = load(tmp_path / "profile.json")
    summary = operator_summary(attribute_kernels(profile.kernels, PROGRAM.operators()), PROGRAM.operators())
    assert (summary["count"].iloc[:-1] > 0).all()
    unmatched = summary.iloc[-1]
    assert unmatched["sum_ns"] < 0.05 * summary["sum_ns"].sum()
    assert int(summary["sum_ns"].sum()) == profile.report.sum_ns
