"""Arguments that several commands share, and what they stand for."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import CompositionError, MeasureError, ProgramError, WorkbenchError

if TYPE_CHECKING:
    from workbench.compose import Composition
    from workbench.predict import Prediction, Pricer
    from workbench.program import Program
    from workbench.search import Selection

HOUR_NS = 3_600 * 10**9
COMPOSITIONS = ("monolith", "conventional", "per-stage")


def positive(text: str) -> int:
    """A count of at least 1, for argparse."""
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 2**31):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def microseconds(text: str) -> int:
    """Microseconds from 0 to an hour as whole nanoseconds, for argparse."""
    try:
        ns = float(text) * 1e3
    except ValueError:
        ns = -1.0
    if not 0 <= ns <= HOUR_NS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time from 0 to 3.6e9 µs")
    return round(ns)


def batches(text: str) -> list[int]:
    """``1,2,4`` as batches, each once, in order, for argparse."""
    return sorted({positive(part.strip()) for part in text.split(",")})


def add_model(command: argparse.ArgumentParser, *, needed: bool = True) -> None:
    """MODEL and its streaming parameters; those not given keep the model's own defaults."""
    names = "demo_tts, llama_3_2_1b, qwen3_tts_0_6b, qwen3_tts_1_7b, nh_tts_standin, or a config.json"
    command.add_argument("model", metavar="MODEL", nargs=None if needed else "?", help=names)
    command.add_argument("--first-frames", type=positive, help="frames of the first chunk")
    command.add_argument("--chunk-frames", type=positive, help="frames of each further chunk")
    command.add_argument("--prompt", type=positive, help="positions of the prompt")
    command.add_argument("--codec", choices=("stateful", "windowed"), help="how the codec sees earlier frames")
    command.add_argument("--context", type=positive, help="left context of a windowed codec, frames")


def add_device(command: argparse.ArgumentParser) -> None:
    """--device."""
    command.add_argument(
        "--device",
        default="cpu",
        help="cpu (this machine, after `workbench bench`), a shipped machine's name, or a store's path",
    )


def program_of(arguments: argparse.Namespace, least_frames: int = 0) -> Program:
    """The program that MODEL and its parameters name, with chunks of at least ``least_frames``."""
    from workbench.models import load_program

    names = ("first_frames", "chunk_frames", "prompt", "codec", "context")
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if least_frames:
        own = load_program(arguments.model, **given).parameters
        if "first_frames" not in own:
            raise ProgramError(f"{arguments.model} has no chunks of frames that a static engine could ask for")
        given |= {name: max(own[name], least_frames) for name in ("first_frames", "chunk_frames")}
    if arguments.model == "demo_tts" and "first_frames" in given:
        frames = given["first_frames"]
        if frames > 16:
            raise ProgramError(f"first chunk of {frames} frames: demo_tts caches 16 at most")
        given.setdefault("chunk_frames", frames)  # the same shapes again, so that one benchmark prices both
    return load_program(arguments.model, **given)


def store_of(device: str) -> Path:
    """The store that ``--device`` names."""
    from workbench.measure import store

    if device == "cpu":
        return store.default_store()
    shipped = {path.name: path for path in store.DATA.glob("measured/*/*") if path.is_dir()}
    if device in shipped:
        return shipped[device]
    if (path := Path(device)).is_dir():
        return path
    raise MeasureError(
        f"no device is called {device!r}; there are: cpu, {', '.join(sorted(shipped))}, or a store's path"
    )


def pricer_of(arguments: argparse.Namespace, batch: int, least_frames: int = 0) -> Pricer:
    """A pricer of MODEL on --device at one batch, with its host times; chunks of at least ``least_frames``."""
    from workbench.cost import Roofline
    from workbench.gpu import gpu_files, read_gpu
    from workbench.predict import HostTime, Pricer

    program, name, gpus = program_of(arguments, least_frames), arguments.device, gpu_files()
    host = HostTime(getattr(arguments, "host_us", 0), getattr(arguments, "chunk_host_us", 0))
    if name in gpus or name.endswith(".toml"):
        gpu = read_gpu(gpus.get(name, Path(name)))
        return Pricer(program, gpu.device(), Roofline(gpu), batch, host=host)
    try:
        folder = store_of(name)
    except MeasureError as error:
        raise MeasureError(f"{error}, a GPU ({', '.join(gpus)}) or a .toml file of one") from None
    from workbench.measure.store import load_bench

    device, table = load_bench(folder)
    return Pricer(program, device, table, batch, host=host)


def composition_of(pricer: Pricer, text: str, fits: Callable[[Composition], bool] = lambda one: True) -> Composition:
    """A composition by name (its fastest configuration or arm as predicted), or from a JSON file.

    Only one that ``fits``, CompositionError if none does.
    """
    from workbench.compose import from_json
    from workbench.search import named_compositions

    named = list(filter(fits, named_compositions(pricer)))
    by_name = {c.name: c for c in named}
    if text in by_name:
        return by_name[text]
    if text in COMPOSITIONS:
        mine = [c for c in named if (c.shape == text if text == "conventional" else c.name.startswith(text))]
        if not mine:
            raise CompositionError(f"no {text} design runs on {pricer.device.name} as it is asked for")
        return min(mine, key=lambda c: pricer.predict(c, throughput=False).ttfo_ns)
    path = Path(text)
    if not path.exists():
        raise CompositionError(f"{text!r} is neither a file nor one of {', '.join([*COMPOSITIONS, *by_name])}")
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CompositionError(f"{path}: not JSON ({error})") from error
    try:
        composition = from_json(pricer.program, data)
    except WorkbenchError as error:
        raise CompositionError(f"{path}: {error}") from error
    if not fits(composition):
        raise CompositionError(f"{path}: on these static engines its chunks are of other lengths than the program's")
    return composition


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """A prediction as plain data; the causes sum to ``ttfo_ns``."""
    from workbench.compose import to_json
    from workbench.predict import P95_RULE

    return {
        "program": prediction.program,
        "device": prediction.device,
        "batch": prediction.batch,
        "composition": to_json(prediction.composition) | {"digest": prediction.composition.digest},
        "shape": prediction.composition.shape,
        "ttfo_ns": prediction.ttfo_ns,
        "interval_ns": list(prediction.interval_ns),
        "causes_ns": dict(prediction.causes_ns),
        "tiles": prediction.tiles,
        "events": prediction.events,
        "serial_stages": prediction.serial_stages,
        "throughput_per_s": prediction.throughput_per_s,
        "first_outputs_ns": list(prediction.first_outputs_ns),
        "p95_rule": P95_RULE,
        "batch_p95_ns": prediction.batch_p95_ns,
        "mean_batch_p95_ns": prediction.mean_batch_p95_ns,
        "p95_interval_ns": prediction.p95_interval_ns and list(prediction.p95_interval_ns),
        "further_ns": prediction.further_ns,
        "output_ns": prediction.output_ns,
        "continuity_slack_ns": prediction.continuity_slack_ns,
        "real_time_factor": prediction.real_time_factor,
        "playback_per_s": prediction.playback_per_s,
        "parameters": dict(prediction.parameters),
        "provenance": prediction.provenance.value,
        "notes": list(prediction.notes),
    }


def selection_json(selection: Selection) -> dict[str, Any]:
    """A selection as plain data."""
    return {
        "best": prediction_json(selection.best),
        "tie_set": [prediction_json(p) for p in selection.tie_set],
        "resolved": selection.resolved,
        "candidates": selection.candidates,
        "shortlist": records(selection.table()),
        "seconds": selection.seconds,
    }


def selection_text(selection: Selection) -> str:
    """A selection as a person reads it: the best, and the head of its table."""
    columns = ["composition", "shape", "megakernels", "ttfo_us", "low_us", "high_us", "tied", "chance"]
    table = selection.table()[columns].head(12).round(3).to_string(index=False)
    return f"{selection}\n{selection.best.composition}\n{table}"


def show(arguments: argparse.Namespace, data: Any, text: str) -> None:
    """Print one or the other; JSON has no NaN."""
    print(json.dumps(data, indent=1, allow_nan=False) if arguments.json else text)


def records(table: Any) -> list[dict[str, Any]]:
    """Rows of a DataFrame as plain data; missing values are null."""
    return json.loads(table.to_json(orient="records", double_precision=15)) if len(table) else []
