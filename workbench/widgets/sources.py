"""What the explorer shows of one model, device and batch before any cut is chosen: read once and kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from workbench.compose import Composition, Configuration, from_json, to_json
from workbench.cost import Roofline
from workbench.errors import MeasureError, WorkbenchError
from workbench.gpu import gpu_files, read_gpu
from workbench.measure.store import SAMPLE_COLUMNS, default_store, load_bench, read_runs, shipped_store
from workbench.models import load_program
from workbench.predict import Prediction, Pricer
from workbench.search import Selection, named_compositions, select

GPU_BATCHES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Source:
    """One model on one device at one batch. ``names`` are compositions by digest, ``measured`` their predictions.

    ``configuration`` is the one under which the monolith is predicted fastest. ``samples`` are those of runs with the
    program's own parameters; ``note`` says where they are from, or why there are none.
    """

    pricer: Pricer
    batches: tuple[int, ...]
    selection: Selection
    configuration: Configuration
    names: Mapping[str, str]
    samples: pd.DataFrame
    measured: Mapping[str, Prediction]
    note: str

    def fastest(self, design: str) -> Composition:
        """``monolith`` or ``per-stage`` at the configuration under which it is predicted fastest."""
        return fastest(self.pricer, design)


def fastest(pricer: Pricer, design: str) -> Composition:
    """A design at the configuration under which it is predicted fastest."""
    mine = [c for c in named_compositions(pricer) if c.name.startswith(f"{design} ")]
    return min(mine, key=lambda c: pricer.predict(c).ttfo_ns)


def devices() -> dict[str, Path]:
    """The devices there are, by label: the store that ships, this machine's own if it has benchmarks, then GPUs."""
    found: dict[str, Path] = {}
    for what, where in (("ships with the workbench", shipped_store), ("this machine", default_store)):
        try:
            folder = where()
            device, _ = load_bench(folder)
        except WorkbenchError:
            continue
        found[f"{device.name} ({what})"] = folder
    return found | {f"{name} (GPU, not measured)": path for name, path in gpu_files().items()}


def open_source(model: str, path: Path, batch: int) -> Source:
    """Read a store, or a GPU's ``.toml``; price and select. WorkbenchError where it or the model cannot be used."""
    program = load_program(model)
    samples, compositions, note = _nothing()
    if path.suffix == ".toml":
        gpu = read_gpu(path)
        pricer, batches = Pricer(program, gpu.device(), Roofline(gpu), batch), list(GPU_BATCHES)
    else:
        device, table = load_bench(path)
        pricer, batches = Pricer(program, device, table, batch), table.batches
        samples, compositions, note = _samples(path, pricer, batch)
    measured = {digest: pricer.predict(c) for digest, c in compositions.items()}
    selection = select(pricer, also=list(compositions.values()))
    known = [*compositions.values(), *named_compositions(pricer)]
    names = {c.digest: c.name for c in reversed(known) if c.name}  # of two names the first counts
    configuration = fastest(pricer, "monolith").regions[0].configuration
    assert configuration is not None
    return Source(pricer, tuple(batches), selection, configuration, names, samples, measured, note)


Measured = tuple[pd.DataFrame, dict[str, Composition], str]  # samples, compositions by digest, a note


def _nothing(why: str = "Nothing was measured on this device: its numbers are its file's.") -> Measured:
    return pd.DataFrame(columns=list(SAMPLE_COLUMNS)), {}, why


def _samples(folder: Path, pricer: Pricer, batch: int) -> Measured:
    """Samples at one batch and their compositions, of runs whose parameters are the program's."""
    program, frames = pricer.program, []
    found: dict[str, Composition] = {}
    try:
        runs = [run for run in read_runs(folder) if run.record["model"] == program.name]
    except MeasureError as error:
        return _nothing(f"The measured runs cannot be read: {error}")
    for run in runs:
        if all(program.parameters.get(name) == value for name, value in run.record["parameters"].items()):
            here = run.samples[run.samples["batch"] == batch]
            frames.append(here)
            digests = set(here["digest"])
            found |= {d: from_json(program, to_json(c)) for d, c in run.compositions.items() if d in digests}
    if not found:
        return _nothing(f"No measured run at batch {batch} on this device; `workbench measure` makes one.")
    count = f"{len(frames)} measured run{'s' if len(frames) > 1 else ''}"
    note = f"{count} on {pricer.device.name}; all samples, none left out."
    return pd.concat(frames, ignore_index=True), found, note
