"""Every figure of the project from one store: what ``workbench figures`` makes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from workbench.compare import Comparison, compare_store
from workbench.figures import plots, tables, timeline
from workbench.figures.write import say_on_stderr, trail, write_page, write_pictures
from workbench.measure.store import load_bench, read_runs
from workbench.models import load_program
from workbench.predict import Prediction, Pricer
from workbench.search import Selection, named_compositions, select

MODEL = "demo_tts"
CONFIGURATION = re.compile(r" \d+x\d+$")  # at the end of a design's name
COMPARABLE = 4.0  # times the fastest: beyond it a bar would hide the others'
Drawn = tuple[str, str, go.Figure, pd.DataFrame]  # file name, the function's name, the figure, its table


def inputs_of(store_folder: Path) -> list[Path]:
    """The files of a store that figures are made from."""
    found = [store_folder / "device.json", store_folder / "bench.csv", *store_folder.glob("runs/*/run.json")]
    return sorted([*found, *store_folder.glob("runs/*/samples.csv")])


def make_all(folder: Path, store_folder: Path, say: Callable[[str], None] = say_on_stderr) -> list[Path]:
    """Make every figure from a store into ``folder`` and return the paths; ``say`` gets a line for what is left out."""
    written: list[Path] = []
    pictures: list[tuple[go.Figure, Path]] = []
    inputs, command = inputs_of(store_folder), "workbench figures"
    for name, function, figure, table in draw_all(store_folder, say):
        made_by = trail(f"workbench.figures.{function}", inputs, command, store_folder)
        written += write_page(figure, table, folder, name, made_by)
        pictures.append((figure, folder / name))
    return written + write_pictures(pictures, say)


def draw_all(store_folder: Path, say: Callable[[str], None] = say_on_stderr) -> Iterator[Drawn]:
    """Every figure with its name, its function's name and its table."""
    device, table = load_bench(store_folder)
    program = load_program(MODEL)
    pricers = {batch: Pricer(program, device, table, batch) for batch in (table.batches[0], table.batches[-1])}
    where = f"{MODEL} on {device.name}, benchmarks of {device.taken}."
    if any(run.record["model"] == MODEL for run in read_runs(store_folder)):
        yield from _measured(store_folder, compare_store(store_folder, program), device.name, where)
    else:
        say(f"{store_folder} holds no measured run of {MODEL}: figures of measured times are left out")
    for batch, pricer in pricers.items():
        yield from _predicted(pricer, f"{where} Batch {batch}.", f"batch{batch}")


def _measured(store_folder: Path, comparison: Comparison, device: str, where: str) -> Iterator[Drawn]:
    scatter, verdict = comparison.table, comparison.verdict
    figure = plots.predicted_vs_measured(scatter, f"{where} {verdict[0].upper()}{verdict[1:]}.")
    yield "predicted_vs_measured", "predicted_vs_measured", figure, scatter
    lines = headline_table(comparison, device)
    yield "ttfo_by_batch", "ttfo_by_batch", plots.ttfo_by_batch(lines, where), lines


def headline_table(comparison: Comparison, device: str) -> pd.DataFrame:
    """Both halves of a comparison for the designs that people speak of, each at its fastest configuration as measured.

    A design is a name without its configuration, and was measured at every batch; its configuration is one for all.
    """
    both = tables.comparison_table(comparison, device)
    measured = both[both["source"] == "measured"]
    keep: dict[str, str] = {}
    everywhere = measured.groupby("composition")["batch"].nunique() == measured["batch"].nunique()
    total = measured.groupby("composition")["ttfo_us"].agg("prod").sort_values()
    for name in map(str, total.index):
        if everywhere[name] and name in set(comparison.table["composition"]):
            keep.setdefault(CONFIGURATION.sub("", name), name)
    chosen = both[both["composition"].isin(keep.values())]
    return (chosen if len(chosen) else both).reset_index(drop=True)


def _predicted(pricer: Pricer, where: str, suffix: str) -> Iterator[Drawn]:
    selection = select(pricer)
    best = selection.best
    designs = _designs(pricer, selection)
    table = selection.table()
    yield f"ranking_{suffix}", "ranking", plots.ranking(table, where), table
    near = [p for p in designs if p.ttfo_ns <= COMPARABLE * best.ttfo_ns]
    far = [f"{tables.title_of(p.composition)} at {p.ttfo_ns / 1e3:,.0f} µs" for p in designs if p not in near]
    table = tables.causes_table(near)
    left_out = f"Beyond the scale: {', '.join(far)}." if far else ""
    yield f"causes_{suffix}", "causes_bar", plots.causes_bar(table, f"{left_out} {where}"), table
    for shape in ("monolith", "conventional"):
        rival = max((p for p in designs if p.composition.shape == shape), key=lambda p: p.ttfo_ns)
        table = tables.difference_table(best, rival)
        yield f"why_not_{shape}_{suffix}", "waterfall", plots.waterfall(table, where), table
    text = f"{where} The selected one, {tables.title_of(best.composition)}."
    table = tables.timeline_table(pricer, best.composition)
    figure = timeline.tile_timeline(table, text, pricer.device.workers)
    yield f"timeline_{suffix}", "tile_timeline", figure, table
    table = tables.chain_table(pricer, best.composition)
    yield f"composition_{suffix}", "composition_strip", timeline.composition_strip(table, text), table


def _designs(pricer: Pricer, selection: Selection) -> list[Prediction]:
    """The selected composition, each arm, and the fastest monolith and per-stage design; fastest first, each once."""
    fastest: dict[str, Prediction] = {}
    for composition in named_compositions(pricer):
        p, kind = pricer.predict(composition), CONFIGURATION.sub("", composition.name)
        if kind not in fastest or p.ttfo_ns < fastest[kind].ttfo_ns:
            fastest[kind] = p
    found = {p.composition.digest: p for p in [*fastest.values()]}
    found.setdefault(selection.best.composition.digest, selection.best)
    return sorted(found.values(), key=lambda p: p.ttfo_ns)
