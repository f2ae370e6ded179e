"""Commands about this machine: doctor, bench, capture, measure, runs, compare."""

from __future__ import annotations

import argparse
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli import options
from workbench.errors import MeasureError

if TYPE_CHECKING:
    from workbench.compose import Composition
    from workbench.predict import Pricer
    from workbench.program import Program


def add_commands(commands: Any) -> None:
    """Add this module's commands."""
    command = commands.add_parser("doctor", help="what this machine has, and what is missing")
    command.set_defaults(run=doctor)

    command = commands.add_parser("bench", help="time every kernel alone on this machine, and keep the table")
    options.add_model(command)
    command.add_argument("--batches", type=options.batches, default=[1, 2, 4, 8], help="as in 1,2,4,8")
    command.add_argument("--workers", type=options.positive, help="workers (default: the cores that may be used)")
    command.add_argument("--store", help="folder to keep it in (default: $WORKBENCH_STORE or the user's data folder)")
    command.set_defaults(run=bench)

    command = commands.add_parser("capture", help="profile the conventional run with torch's profiler")
    options.add_model(command)
    command.add_argument("--batch", type=options.positive, default=1)
    command.add_argument("--out", required=True, help="file for the Kineto JSON")
    command.set_defaults(run=capture)

    command = commands.add_parser("measure", help="run compositions against each other, interleaved")
    options.add_model(command)
    command.add_argument("--batches", type=options.batches, default=[1, 2, 4, 8], help="as in 1,2,4,8")
    command.add_argument("--rounds", type=options.positive, default=30)
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--composition", action="append", default=[], help="a further one: a name or a JSON file")
    command.add_argument("--store", help="folder with the benchmarks, where the run is kept as well")
    command.set_defaults(run=measure)

    command = commands.add_parser("runs", help="measured runs of a store")
    options.add_device(command)
    command.set_defaults(run=runs)

    command = commands.add_parser("compare", help="predictions against measured runs, or against published rows")
    options.add_model(command, needed=False)
    options.add_device(command)
    command.add_argument("--published", action="store_true", help="published rows, of MODEL alone where it is given")
    command.set_defaults(run=compare)


def doctor(arguments: argparse.Namespace) -> int:
    """Report; 1 if something is missing that measuring or figures need."""
    import sys
    from importlib.metadata import PackageNotFoundError, version

    from workbench.hardware import this_machine
    from workbench.measure import store

    versions: dict[str, str] = {}
    for name in ("torch", "numba", "numpy", "pandas", "plotly", "ipywidgets", "jupyterlab", "kaleido"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "missing"
    folder = store.default_store()
    browser = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
    findings = [f"package {name} is missing: pip install {name}" for name, v in versions.items() if v == "missing"]
    if sys.platform != "linux":
        findings.append("the CPU runtime needs Linux; predicting from a shipped device does not")
    if not (folder / "device.json").exists():
        findings.append("this machine has no benchmarks yet: workbench bench demo_tts")
    if browser is None:
        findings.append("no Chromium: `workbench figures` leaves out PDF, SVG and PNG")
    data = {
        "machine": this_machine(),
        "versions": versions,
        "store": str(folder),
        "browser": browser,
        "findings": findings,
    }
    lines = [f"{key}: {value}" for key, value in {**this_machine(), **versions}.items()]
    lines += [f"store: {folder}", f"browser: {browser or 'none'}", *(f"- {line}" for line in findings)]
    options.show(arguments, data, "\n".join(lines))
    return 1 if findings else 0


def bench(arguments: argparse.Namespace) -> int:
    """Time kernels alone."""
    import os

    from tqdm import tqdm

    program, folder = _runs_here(arguments), _store(arguments)
    cores = len(os.sched_getaffinity(0))
    workers = arguments.workers or cores
    if workers > cores:
        raise MeasureError(f"{workers} workers on {cores} cores would only take turns; at most {cores}")
    from workbench.measure import cpu_bench, store
    from workbench.models.demo_tts_torch import DemoTTS

    with tqdm(total=cpu_bench.steps(arguments.batches, workers), disable=None, leave=False) as bar:

        def tick(done: str) -> None:
            bar.set_description(done)
            bar.update()

        today = datetime.now(UTC).date().isoformat()
        device, table = cpu_bench.bench(DemoTTS(), program, arguments.batches, workers, today, tick)
    store.save_bench(folder, device, table)
    rows = table.rows
    data = {
        "store": str(folder),
        "rows": len(rows),
        "batches": table.batches,
        "run_spread_frac": device.run_spread_frac,
    }
    shown = (
        rows[rows["batch"] == table.batches[0]].groupby(["operator", "position", "how"])["median_ns"].max().unstack()
    )
    text = (
        f"slowest tile of each operator at batch {table.batches[0]}, ns (measured here):\n{shown.to_string()}\n"
        f"{len(rows)} rows in {folder}; two passes differ by {device.run_spread_frac:.1%}"
    )
    options.show(arguments, data, text)
    return 0


def _runs_here(arguments: argparse.Namespace) -> Program:
    """The program of MODEL; MeasureError unless it is the one that has weights and bodies here."""
    program = options.program_of(arguments)
    if program.name != "demo_tts":
        raise MeasureError(f"{program.name} is predicted only; demo_tts is the model that runs on this machine")
    return program


def _store(arguments: argparse.Namespace) -> Path:
    from workbench.measure.store import default_store

    return Path(arguments.store) if arguments.store else default_store()


def capture(arguments: argparse.Namespace) -> int:
    """Profile the conventional run."""
    from workbench.measure.capture import capture as record
    from workbench.models.demo_tts_torch import DemoTTS
    from workbench.profiles import load

    program = _runs_here(arguments)
    record(DemoTTS(), program, arguments.batch, Path(arguments.out))
    report = load(arguments.out).report
    options.show(arguments, report.to_json(), str(report))
    return 0


def measure(arguments: argparse.Namespace) -> int:
    """Measure the named designs, two mixed ones, each batch's selected best, and what --composition adds."""
    from tqdm import tqdm

    from workbench.measure import protocol, store
    from workbench.models.demo_tts_torch import DemoTTS
    from workbench.predict import Pricer

    program, folder = _runs_here(arguments), _store(arguments)
    device, table = store.load_bench(folder)
    pricers = {batch: Pricer(program, device, table, batch) for batch in arguments.batches}
    chosen = {batch: _to_measure(pricer, arguments.composition) for batch, pricer in pricers.items()}
    with tqdm(total=arguments.rounds * len(pricers), disable=None, leave=False) as bar:

        def tick(done: str) -> None:
            bar.set_description(done)
            bar.update()

        run = protocol.measure(
            DemoTTS(), pricers, chosen, folder, rounds=arguments.rounds, seed=arguments.seed, tick=tick
        )  # fmt: skip
    data = {"path": str(run.path), "samples": len(run.samples), "summary": options.records(_summary(run.samples))}
    options.show(arguments, data, f"{_summary(run.samples).to_string(index=False)}\nkept in {run.path}")
    return 0


def _to_measure(pricer: Pricer, further: list[str]) -> list[Composition]:
    from workbench.compose import Composition
    from workbench.search import mixed_compositions, named_compositions, select

    best = select(pricer).best.composition
    extra = [options.composition_of(pricer, text) for text in further]
    found = {c.digest: c for c in [*named_compositions(pricer), *mixed_compositions(pricer), *extra]}
    found.setdefault(best.digest, Composition(best.regions, f"selected at batch {pricer.batch}"))
    return list(found.values())


def _summary(samples: Any) -> Any:
    grouped = samples.groupby(["batch", "name"])["ttfo_ns"]
    table = grouped.quantile([0.25, 0.5, 0.75]).unstack().div(1e3).round(1)
    table.columns = ["q25_us", "median_us", "q75_us"]
    quiet = samples[samples["involuntary"] == 0].groupby(["batch", "name"])["ttfo_ns"].median().div(1e3).round(1)
    table["undisturbed_us"], table["samples"] = quiet, grouped.size()
    return table.reset_index()


def runs(arguments: argparse.Namespace) -> int:
    """List measured runs."""
    import pandas as pd

    from workbench.measure.store import read_runs

    folder = options.store_of(arguments.device)
    found = read_runs(folder)
    rows = [
        {
            "run": run.path.name,
            "date": run.record["date"],
            "model": run.record["model"],
            "cpu": run.record["machine"]["cpu"],
            "batches": " ".join(run.record["batches"]),
            "compositions": len(run.compositions),
            "samples": len(run.samples),
        }
        for run in found
    ]
    text = (
        pd.DataFrame(rows).to_string(index=False) if rows else f"{folder} holds no runs; `workbench measure` makes one"
    )
    options.show(arguments, {"store": str(folder), "runs": rows}, text)
    return 0


def compare(arguments: argparse.Namespace) -> int:
    """Compare predictions with every measured run of the store, or with published rows."""
    if arguments.published:
        return _compare_published(arguments)
    if arguments.model is None:
        raise MeasureError("neither MODEL nor --published is given; which of them is to be compared?")
    from workbench.compare import compare_store

    folder = options.store_of(arguments.device)
    comparison = compare_store(folder, options.program_of(arguments))
    columns = [
        "batch",
        "composition",
        "predicted_us",
        "measured_us",
        "measured_low_us",
        "measured_high_us",
        "error_frac",
    ]
    data = {
        "table": options.records(comparison.table),
        "by_batch": options.records(comparison.by_batch),
        "verdict": comparison.verdict,
    }
    options.show(arguments, data, f"{comparison.table[columns].round(3).to_string(index=False)}\n{comparison}")
    return 0


def _compare_published(arguments: argparse.Namespace) -> int:
    from workbench.published import published_check, read_rows, rows_of

    given = ("first_frames", "prompt", "codec", "context")
    if arguments.device != "cpu" or any(getattr(arguments, name) is not None for name in given):
        raise MeasureError("published rows have devices and parameters of their own; leave --device and the others out")
    rows = read_rows()
    check = published_check(rows if arguments.model is None else rows_of(arguments.model, rows))
    worst = check.worst()
    data = {
        "counts": check.counts,
        "summary": options.records(check.summary()),
        "pair_summary": options.records(check.pair_summary()),
        "worst": options.records(worst),
        "effects": options.records(check.effects()),
        "rows": options.records(check.table),
        "pairs": options.records(check.pairs),
    }
    shown = worst[["table", "line", "device", "subject", "kind", "ratio", "effect", "arithmetic"]].round(3)
    text = f"{check}\nworst, predicted over published:\n{shown.to_string(index=False)}"
    options.show(arguments, data, text)
    return 0
