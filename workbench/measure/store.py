"""Where benchmarks and measured runs lie: a folder a machine, plain files, nothing that executes on reading.

<store>/device.json             overheads and what identifies the machine
<store>/bench.csv               times of tiles and operators alone
<store>/runs/<id>/run.json      what ran, on what, how; the compositions by digest
<store>/runs/<id>/samples.csv   raw samples, one row each, written as they are taken
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import platformdirs

from workbench.compose import Composition, from_json
from workbench.cost import COLUMNS, CostTable, read_table
from workbench.errors import MeasureError, WorkbenchError
from workbench.hardware import Device, read_device, to_json
from workbench.models import load_program

SCHEMA = 1
SAMPLE_COLUMNS = ("order", "batch", "digest", "name", "sample", "ttfo_ns", "involuntary", "load1")
DATA = Path(__file__).resolve().parents[2] / "data"


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """One run of ``workbench measure``: its record, raw samples (SAMPLE_COLUMNS) and compositions by digest."""

    path: Path
    record: Mapping[str, Any]
    samples: pd.DataFrame
    compositions: Mapping[str, Composition]


def default_store() -> Path:
    """The folder of this machine: $WORKBENCH_STORE, or the user's data folder."""
    given = os.environ.get("WORKBENCH_STORE")
    return Path(given) if given else platformdirs.user_data_path("megakernel-workbench") / "cpu"


def shipped_store() -> Path:
    """The measured store in the project's ``data/``, made on the machine that its device file names."""
    found = sorted(DATA.glob("measured/*/*/device.json"))
    if not found:
        raise MeasureError(f"{DATA}/measured holds no store; work in a clone of the project, or give --store")
    return found[0].parent


def load_bench(folder: Path) -> tuple[Device, CostTable]:
    """The device and its benchmark table; MeasureError says how to make them."""
    if not (folder / "device.json").exists():
        raise MeasureError(f"{folder} holds no benchmarks; `workbench bench` makes them (about a minute)")
    return read_device(folder / "device.json"), read_table(folder / "bench.csv")


def save_bench(folder: Path, device: Device, table: CostTable) -> None:
    """Write both files; each is replaced whole, so that a reader never sees half of one."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / "bench.csv", table.rows[list(COLUMNS)].to_csv(index=False))
    replace_text(folder / "device.json", json.dumps(to_json(device), indent=1) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Write a file beside ``path`` and rename it over: whole, or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text)
    beside.replace(path)


def read_runs(folder: Path) -> list[MeasuredRun]:
    """Every run of a store, oldest first; a folder without runs has none."""
    return [read_run(path.parent) for path in sorted((folder / "runs").glob("*/run.json"))]


def read_run(path: Path) -> MeasuredRun:
    """One run; MeasureError in one line where it is damaged. A last line cut short is left out."""
    try:
        record = json.loads((path / "run.json").read_text())
        if record["schema"] != SCHEMA:
            raise MeasureError(f"{path}: schema {record['schema']!r} is not {SCHEMA}, the one that this version reads")
        program = load_program(record["model"], **record["parameters"])
        compositions = {str(d): from_json(program, c) for d, c in record["compositions"].items()}
        samples = pd.read_csv(path / "samples.csv", on_bad_lines="skip", dtype={"digest": "str", "name": "str"})
    except WorkbenchError as error:
        raise MeasureError(f"{path}: {error}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MeasureError(f"{path}: not a measured run ({type(error).__name__}: {error})") from error
    return MeasuredRun(path, record, _check_samples(path, samples, compositions), compositions)


def _check_samples(path: Path, samples: pd.DataFrame, compositions: Mapping[str, Composition]) -> pd.DataFrame:
    if missing := [name for name in SAMPLE_COLUMNS if name not in samples.columns]:
        raise MeasureError(f"{path}: samples.csv lacks {', '.join(missing)}")
    whole = samples.dropna(subset=list(SAMPLE_COLUMNS))
    try:
        whole = whole.astype({name: "int64" for name in ("order", "batch", "sample", "ttfo_ns", "involuntary")})
    except (ValueError, TypeError) as error:
        raise MeasureError(f"{path}: samples.csv holds what is no whole number ({error})") from error
    if (whole["ttfo_ns"] < 1).any():
        raise MeasureError(f"{path}: samples.csv holds a time that is not positive")
    if unknown := sorted(set(whole["digest"].astype(str)) - set(compositions)):
        raise MeasureError(f"{path}: samples.csv names composition {unknown[0]}, which run.json does not describe")
    return whole


def all_samples(
    folder: Path, model: str = "demo_tts", parameters: Mapping[str, int] | None = None
) -> tuple[pd.DataFrame, dict[str, Composition]]:
    """Samples of every run of one model together, with the run's name in ``run``, and all compositions by digest.

    With ``parameters``, only runs whose own streaming parameters agree with them: others are of another program.
    """
    runs = [run for run in read_runs(folder) if run.record["model"] == model]
    if parameters is not None:
        runs = [run for run in runs if all(parameters.get(k) == v for k, v in run.record["parameters"].items())]
    if not runs:
        raise MeasureError(f"{folder} holds no measured run of {model}; `workbench measure` makes one")
    compositions = {digest: c for run in runs for digest, c in run.compositions.items()}
    return pd.concat([run.samples.assign(run=run.path.name) for run in runs], ignore_index=True), compositions
