"""Commands that need no measuring: program, predict, select, classify."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from workbench.cli import options, reasons, streams
from workbench.errors import WorkbenchError

if TYPE_CHECKING:
    from workbench.predict import Pricer


def add_commands(commands: Any) -> None:
    """Add this module's commands."""
    command = commands.add_parser("program", help="the operators, loops and boundaries of a model")
    options.add_model(command)
    command.add_argument("--batch", type=options.positive, default=1)
    command.set_defaults(run=program)

    command = commands.add_parser("predict", help="time to first output of one composition, and why")
    options.add_model(command)
    options.add_device(command)
    command.add_argument("--batch", type=options.positive, default=1)
    command.add_argument("--composition", default="monolith", help="monolith, conventional, per-stage, or a JSON file")
    command.add_argument("--profile", help="a profile of the conventional run: its times replace the eager benchmarks")
    command.add_argument("--trace", help="write the simulated run for Perfetto to this file")
    command.add_argument("--why", action="store_true", help="the critical path by operator")
    command.add_argument("--against", metavar="COMPOSITION", help="what it takes more than this one, and why")
    streams.add(command)
    command.set_defaults(run=predict)

    command = commands.add_parser("select", help="the fastest of all compositions, and those tied with it")
    options.add_model(command)
    options.add_device(command)
    command.add_argument("--batch", type=options.positive, default=1)
    command.add_argument("--sensitivity", action="store_true", help="at what device another composition would win")
    command.add_argument("--pareto", action="store_true", help="time to first output against throughput, the front")
    streams.add(command)
    command.set_defaults(run=select)

    command = commands.add_parser("classify", help="how the best composition changes with the batch")
    options.add_model(command)
    options.add_device(command)
    command.add_argument("--batches", type=options.batches, default=[1, 2, 4, 8], help="as in 1,2,4,8")
    command.set_defaults(run=classify)


def program(arguments: argparse.Namespace) -> int:
    """Print a model's program."""
    from workbench.compose import boundaries
    from workbench.program import calls

    found = options.program_of(arguments)
    work = found.work(arguments.batch)
    edges = boundaries(found)
    data = {
        "name": found.name,
        "operators": list(found.operators()),
        "loops": {name: loop.count for name, loop in found.loops().items()},
        "stages": found.stages(),
        "boundaries": edges,
        "calls": sum(1 for _ in calls(found.first)),
        "batch": arguments.batch,
        "work": work._asdict(),
        "assumed": found.assumed,
    }
    text = (
        f"{found}\nboundaries ({len(edges)}): {', '.join(edges)}\n"
        f"to first output at batch {arguments.batch}: {work.flops:,} FLOPs, weights {work.weight_bytes:,} B, "
        f"reads {work.read_bytes:,} B, writes {work.write_bytes:,} B (analytical)"
    )
    options.show(arguments, data, text)
    return 0


def predict(arguments: argparse.Namespace) -> int:
    """Predict one composition."""
    difference = None
    if arguments.static_engine:
        pricer, composition, prediction = streams.predict(arguments)
    else:
        pricer = options.pricer_of(arguments, arguments.batch)
        if arguments.profile:
            pricer, difference = _with_profile(pricer, arguments.profile)
        composition = options.composition_of(pricer, arguments.composition)
        prediction = pricer.predict(composition)
    data, text = options.prediction_json(prediction), [str(prediction), str(composition)]
    text.append(
        f"{prediction.tiles} tiles, {prediction.events} events, {prediction.serial_stages} serial stages"
        + (f", {prediction.throughput_per_s:,.1f} further outputs/s" if prediction.throughput_per_s else "")
    )
    text += [prediction.stream, *prediction.notes]
    if difference is not None:
        data["profile"] = options.records(difference)
        shown = difference.round(2).to_string(index=False)
        text.append(f"eager times from the profile against the benchmarks, ns a call:\n{shown}")
    if arguments.why:
        data["path"], shown = reasons.path(pricer, composition)
        text.append(shown)
    if arguments.against:
        other = options.composition_of(pricer, arguments.against)
        data["against"], shown = reasons.against(pricer, prediction, other)
        text.append(shown)
    if arguments.trace:
        _write_trace(pricer, composition, arguments.trace)
        text.append(f"trace: {arguments.trace}")
    options.show(arguments, data, "\n".join(text))
    return 0


def _with_profile(pricer: Pricer, path: str) -> tuple[Pricer, Any]:
    from workbench.cost import CostTable
    from workbench.cost.profiled import profiled_times, with_profile
    from workbench.profiles import attribute_kernels, load

    if not isinstance(pricer.table, CostTable):
        raise WorkbenchError("a profile takes the place of eager benchmarks, and a GPU's file has none")
    profile = load(path)
    times = profiled_times(attribute_kernels(profile.kernels, pricer.program.operators()), pricer.program)
    table, difference = with_profile(pricer.table, times, pricer.batch)
    return pricer.with_table(table), difference


def _write_trace(pricer: Pricer, composition: Any, path: str) -> None:
    import json
    from pathlib import Path

    from workbench.simulate import chrome_trace

    events: list[dict[str, Any]] = []
    for number, region in enumerate(composition.regions):
        priced, run, _ = pricer.runs(region)[0]
        trace = chrome_trace(run, [call.operator.name for call in priced.calls])
        events += [{**event, "pid": number} for event in trace["traceEvents"]]
    Path(path).write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}))


def select(arguments: argparse.Namespace) -> int:
    """Select exactly over all compositions."""
    from workbench.search import select as search

    if arguments.static_engine:
        return streams.select(arguments)
    pricer = options.pricer_of(arguments, arguments.batch)
    selection = search(pricer)
    data = options.selection_json(selection)
    text = options.selection_text(selection)
    if arguments.sensitivity:
        data["sensitivity"], shown = reasons.sensitivity(pricer, selection)
        text += f"\n{shown}"
    if arguments.pareto:
        data["pareto"], shown = streams.front(pricer, selection)
        text += f"\n{shown}"
    options.show(arguments, data, text)
    return 0


def classify(arguments: argparse.Namespace) -> int:
    """Name the category."""
    from tqdm import tqdm

    from workbench.classify import classify as name_category

    pricers = {batch: options.pricer_of(arguments, batch) for batch in arguments.batches}
    with tqdm(total=len(pricers), desc="batches", disable=None, leave=False) as bar:

        def tick(batch: int) -> None:
            bar.update()

        category = name_category(pricers, tick=tick)
    data = {
        "category": category.name,
        "probabilities": dict(category.probabilities),
        "evidence": options.records(category.evidence),
        "reasons": list(category.reasons),
    }
    options.show(arguments, data, str(category))
    return 0
