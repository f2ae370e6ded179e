"""What the explorer shows of one model, device and batch before any cut is chosen: read once and kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from workbench.compose import Composition, Configuration, from_json, to_json
from workbench.errors import MeasureError, WorkbenchError
from workbench.measure.store import SAMPLE_COLUMNS, default_store, load_bench, read_runs, shipped_store
from workbench.models import load_program
from workbench.predict import Prediction, Pricer
from workbench.search import Selection, named_compositions, select


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


def stores() -> dict[str, Path]:
    """The stores there are, by label: the one that ships, and this machine's own where it has benchmarks."""
    found: dict[str, Path] = {}
    for what, where in (("ships with the workbench", shipped_store), ("this machine", default_store)):
        try:
            folder = where()
            device, _ = load_bench(folder)
        except WorkbenchError:
            continue
        found[f"{device.name} ({what})"] = folder
    return found


def open_source(model: str, folder: Path, batch: int) -> Source:
    """Read a store, price, and select; raises WorkbenchError where the store or the model cannot be used."""
    program = load_program(model)
    device, table = load_bench(folder)
    pricer = Pricer(program, device, table, batch)
    samples, compositions, note = _samples(folder, pricer, batch)
    measured = {digest: pricer.predict(c) for digest, c in compositions.items()}
    selection = select(pricer, also=list(compositions.values()))
    known = [*compositions.values(), *named_compositions(pricer)]
    names = {c.digest: c.name for c in known if c.name}
    configuration = fastest(pricer, "monolith").regions[0].configuration
    assert configuration is not None
    return Source(pricer, tuple(table.batches), selection, configuration, names, samples, measured, note)


def _samples(folder: Path, pricer: Pricer, batch: int) -> tuple[pd.DataFrame, dict[str, Composition], str]:
    """Samples at one batch and their compositions, of runs whose parameters are the program's."""
    nothing = pd.DataFrame(columns=list(SAMPLE_COLUMNS))
    program, frames = pricer.program, []
    found: dict[str, Composition] = {}
    try:
        runs = [run for run in read_runs(folder) if run.record["model"] == program.name]
    except MeasureError as error:
        return nothing, {}, f"The measured runs cannot be read: {error}"
    for run in runs:
        if all(program.parameters.get(name) == value for name, value in run.record["parameters"].items()):
            here = run.samples[run.samples["batch"] == batch]
            frames.append(here)
            digests = set(here["digest"])
            found |= {d: from_json(program, to_json(c)) for d, c in run.compositions.items() if d in digests}
    if not found:
        return nothing, {}, f"No measured run at batch {batch} on this device; `workbench measure` makes one."
    count = f"{len(frames)} measured run{'s' if len(frames) > 1 else ''}"
    note = f"{count} on {pricer.device.name}; all samples, none left out."
    return pd.concat(frames, ignore_index=True), found, note
