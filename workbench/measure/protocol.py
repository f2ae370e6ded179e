"""How compositions are measured against each other: interleaved, in random order, every sample on disk before the next.

A round runs every composition twice, in an order drawn from the seed, and records the second run: the first brings the
caches into the state in which a server that runs nothing else would find them. Rounds repeat; the first ones of a
batch are warm-up and are not recorded. The time runs from the prompt in place, workers awake, to the PCM of the first
chunk; all requests of a batch get theirs together here, so a batch's p95 (nearest rank) is that time. Involuntary
context switches and the load are recorded beside each sample; no sample is left out.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import resource
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from workbench.compose import Composition, to_json
from workbench.errors import MeasureError
from workbench.hardware import this_machine
from workbench.measure.cpu_executor import TORCH_THREADS, CpuExecutor
from workbench.measure.cpu_launch import Launch
from workbench.measure.cpu_model import CpuModel
from workbench.measure.cpu_runtime import Workers
from workbench.measure.store import SAMPLE_COLUMNS, SCHEMA, MeasuredRun, read_run, replace_text
from workbench.models.demo_tts_torch import DemoTTS
from workbench.predict import Pricer

WARM_UP_ROUNDS = 3
TOLERANCE = 1e-4  # greatest difference of the PCM from torch's over torch's greatest value


def measure(
    module: DemoTTS,
    pricers: Mapping[int, Pricer],
    compositions: Mapping[int, Sequence[Composition]],
    folder: Path,
    *,
    rounds: int = 30,
    seed: int = 0,
    tick: Callable[[str], None] = lambda done: None,
) -> MeasuredRun:
    """Run every batch's ``compositions`` for ``rounds`` rounds and keep every sample under ``folder``/runs.

    Every composition's output is checked against torch's first. Interrupting loses nothing already measured. ``tick``
    is called after each round, ``rounds`` times a batch.

    Raises MeasureError where an output differs or the benchmarks are of another machine.
    """
    pricer = next(iter(pricers.values()))
    check_same_machine(pricer)
    torch.set_num_threads(TORCH_THREADS)
    path = _new_run(folder)
    known = {c.digest: c for chosen in compositions.values() for c in chosen}
    record = _record(pricer, compositions, known, rounds, seed)
    replace_text(path / "run.json", json.dumps(record, indent=1) + "\n")
    rng = np.random.default_rng(seed)
    order = 0
    with (path / "samples.csv").open("w", newline="") as file, Workers(pricer.device.workers) as pool:
        writer = csv.writer(file)
        writer.writerow(SAMPLE_COLUMNS)
        for batch, chosen in sorted(compositions.items()):
            executors = dict(_executors(module, pricers[batch], chosen, pool))
            text = prompt(pricers[batch], seed)
            _check_outputs(module, executors, text)
            for number in range(-WARM_UP_ROUNDS, rounds):
                with pool.pinned_caller():
                    for i in rng.permutation(len(chosen)):
                        sample = _sample(executors[chosen[i].digest], text)
                        if number >= 0:
                            name = chosen[i].name
                            writer.writerow((order, batch, chosen[i].digest, name, number, *sample))
                            file.flush()
                            order += 1
                if number >= 0:
                    tick(f"batch {batch}")
    return read_run(path)


def prompt(pricer: Pricer, seed: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The prompts (B, prompt) that every composition of a batch is given."""
    size = (pricer.batch, pricer.program.parameters["prompt"])
    return np.random.default_rng(seed).integers(0, 256, size, np.int32)


def check_same_machine(pricer: Pricer) -> None:
    """Raise MeasureError unless the benchmarks behind ``pricer`` were taken on this machine."""
    here, there = this_machine(), pricer.device.machine
    if different := [name for name in here if there.get(name) != here[name]]:
        name = different[0]
        raise MeasureError(
            f"the benchmarks are of a machine with {name} {there.get(name)!r}, this one has {here[name]!r}; "
            "`workbench bench` makes them here"
        )


def _executors(
    module: DemoTTS, pricer: Pricer, chosen: Sequence[Composition], pool: Workers
) -> Iterator[tuple[str, CpuExecutor]]:
    model = CpuModel(module, pricer.program, pricer.batch)
    launches: dict[object, Launch] = {}
    for composition in chosen:
        chosen_by = partial(pricer.kernel_configuration, arm="replay")
        yield composition.digest, CpuExecutor(model, composition, pool, chosen_by, launches)


def _check_outputs(module: DemoTTS, executors: Mapping[str, CpuExecutor], text: np.ndarray[Any, Any]) -> None:
    with torch.inference_mode():
        expected = module(torch.from_numpy(text), frames=next(iter(executors.values())).model.frames).numpy()
    for digest, executor in executors.items():
        executor.run(text)
        error = float(np.abs(executor.pcm() - expected).max() / np.abs(expected).max())
        if not error < TOLERANCE:
            raise MeasureError(f"composition {digest}: its PCM differs from torch's by {error:.1e} of the peak")


def _sample(executor: CpuExecutor, text: np.ndarray[Any, Any]) -> tuple[int, int, float]:
    executor.run(text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    ns = executor.run(text)
    return ns, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before, round(os.getloadavg()[0], 2)


def _new_run(folder: Path) -> Path:
    """A new folder under ``folder``/runs; two processes never get the same."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    for attempt in range(1000):
        path = folder / "runs" / f"{stamp}-{os.getpid()}-{attempt}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path
    raise MeasureError(f"{folder}: no new run folder could be made")


def _commit() -> str:
    try:
        found = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip()


def _record(
    pricer: Pricer,
    compositions: Mapping[int, Sequence[Composition]],
    known: Mapping[str, Composition],
    rounds: int,
    seed: int,
) -> dict[str, Any]:
    program = pricer.program
    return {
        "schema": SCHEMA,
        "model": program.name,
        "parameters": {k: v for k, v in program.parameters.items() if k.endswith("_frames")},
        "device": pricer.device.name,
        "machine": dict(this_machine()),
        "torch_threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in ("torch", "numba", "numpy")}
        | {"python": platform.python_version()},
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "timing": "from the prompt in place, workers awake, to the PCM of the first chunk, perf_counter_ns",
        "p95_rule": "nearest rank over the requests of a batch, which finish together here",
        "warm_up_rounds": WARM_UP_ROUNDS,
        "runs_before_each_sample": 1,
        "rounds": rounds,
        "seed": seed,
        "batches": {str(batch): [c.digest for c in chosen] for batch, chosen in sorted(compositions.items())},
        "compositions": {digest: to_json(c) for digest, c in known.items()},
    }
