"""Streaming on the command line: host time, engines of static shape, the Pareto front."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from workbench.cli import options
from workbench.errors import CompositionError, WorkbenchError

if TYPE_CHECKING:
    from workbench.compose import Composition
    from workbench.predict import Prediction, Pricer
    from workbench.search import Selection
    from workbench.static_shape import StaticEngine, StaticEngines


def add(command: argparse.ArgumentParser) -> None:
    """--host-us, --chunk-host-us and --static-engine."""
    command.add_argument(
        "--host-us",
        type=options.microseconds,
        default=0,
        help="host time of a batch before its first launch (tokenising, embedding), µs: in time to first output",
    )
    command.add_argument(
        "--chunk-host-us",
        type=options.microseconds,
        default=0,
        help="host time of a batch before each further output, µs: in throughput and continuity",
    )
    command.add_argument(
        "--static-engine",
        action="append",
        type=_engine,
        metavar="STAGE:ARM:FRAMES",
        help="an engine of static shape: where ARM runs any of STAGE, chunks have at least FRAMES frames; repeatable",
    )


def _engine(text: str) -> StaticEngine:
    from workbench.static_shape import StaticEngine

    try:
        return StaticEngine.parse(text)
    except WorkbenchError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def engines_of(arguments: argparse.Namespace) -> StaticEngines:
    """MODEL on --device with the static engines that are given."""
    from workbench.static_shape import StaticEngines

    return StaticEngines(
        arguments.static_engine, lambda frames: options.pricer_of(arguments, arguments.batch, frames)
    )  # fmt: skip


def design_of(engines: StaticEngines, text: str) -> Composition:
    """A composition by name (the fastest as predicted with these engines), or from a JSON file."""
    found, refusal = list["Composition"](), CompositionError("")
    for frames in engines.frames:

        def fits(composition: Composition, frames: int = frames) -> bool:
            return engines.frames_of(composition) == frames

        try:
            found.append(options.composition_of(engines.pricer(frames), text, fits))
        except CompositionError as error:
            refusal = error
    if not found:
        raise refusal
    return min(found, key=lambda c: engines.predict(c, throughput=False).ttfo_ns)


def predict(arguments: argparse.Namespace) -> tuple[Pricer, Composition, Prediction]:
    """``workbench predict`` with static engines: the pricer of the program that fills them comes first."""
    engines = engines_of(arguments)
    composition = design_of(engines, arguments.composition)
    if arguments.profile or arguments.against:
        raise WorkbenchError(
            "--static-engine predicts another program, so it goes with neither --profile nor --against"
        )
    return engines.pricer(engines.frames_of(composition)), composition, engines.predict(composition)


def select(arguments: argparse.Namespace) -> int:
    """``workbench select`` with static engines: over the program as asked and those that fill them."""
    from workbench import static_shape

    if arguments.pareto or arguments.sensitivity:
        raise WorkbenchError("--static-engine selects over several programs; --pareto and --sensitivity are of one")
    engines = engines_of(arguments)
    selection = static_shape.select(engines)
    best = engines.predict(selection.best.composition)
    data = options.selection_json(selection) | {
        "best": options.prediction_json(best),
        "static_engines": list(map(str, engines.engines)),
        "static_engine_rule": static_shape.RULE,
    }
    lines = [f"static engines {', '.join(map(str, engines.engines))}: {static_shape.RULE}"]
    lines += [options.selection_text(selection), best.stream, *best.notes]
    options.show(arguments, data, "\n".join(lines))
    return 0


def front(pricer: Pricer, selection: Selection) -> tuple[dict[str, Any], str]:
    """The Pareto front as plain data and as text."""
    from workbench.pareto import pareto

    found = pareto(pricer, also=[p.composition for p in selection.shortlist])
    table = found.table()
    data = {
        "exact": found.exact,
        "evaluated": found.evaluated,
        "seconds": found.seconds,
        "rows": options.records(table),
    }
    shown = table.drop(columns=["regions", "digest"]).round(3).to_string(index=False)
    return data, f"{found}\n{shown}"
