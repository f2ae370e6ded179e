"""Arguments that several commands share, and what they stand for."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import CompositionError, MeasureError, ProgramError, WorkbenchError

if TYPE_CHECKING:
    from workbench.compose import Composition
    from workbench.predict import Prediction, Pricer
    from workbench.program import Program

COMPOSITIONS = ("monolith", "conventional", "per-stage")


def positive(text: str) -> int:
    """A count of at least 1, for argparse."""
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 2**31):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def batches(text: str) -> list[int]:
    """``1,2,4`` as batches, each once, in order, for argparse."""
    return sorted({positive(part.strip()) for part in text.split(",")})


def add_model(command: argparse.ArgumentParser) -> None:
    """MODEL and its streaming parameters; those not given keep the model's own defaults."""
    names = "demo_tts, llama_3_2_1b, qwen3_tts_0_6b, qwen3_tts_1_7b, nh_tts_standin, or a config.json"
    command.add_argument("model", metavar="MODEL", help=names)
    command.add_argument("--first-frames", type=positive, help="frames of the first chunk")
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


def program_of(arguments: argparse.Namespace) -> Program:
    """The program that MODEL and its parameters name."""
    from workbench.models import load_program

    names = ("first_frames", "prompt", "codec", "context")
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if arguments.model == "demo_tts" and "first_frames" in given:
        frames = given["first_frames"]
        if frames > 16:
            raise ProgramError(f"first chunk of {frames} frames: demo_tts caches 16 at most")
        given["chunk_frames"] = frames  # the same shapes again, so that one benchmark prices both
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


def pricer_of(arguments: argparse.Namespace, batch: int) -> Pricer:
    """A pricer of MODEL on --device at one batch."""
    from workbench.cost import Roofline
    from workbench.gpu import gpu_files, read_gpu
    from workbench.predict import Pricer

    program, name, gpus = program_of(arguments), arguments.device, gpu_files()
    if name in gpus or name.endswith(".toml"):
        gpu = read_gpu(gpus.get(name, Path(name)))
        return Pricer(program, gpu.device(), Roofline(gpu), batch)
    try:
        folder = store_of(name)
    except MeasureError as error:
        raise MeasureError(f"{error}, a GPU ({', '.join(gpus)}) or a .toml file of one") from None
    from workbench.measure.store import load_bench

    device, table = load_bench(folder)
    return Pricer(program, device, table, batch)


def composition_of(pricer: Pricer, text: str) -> Composition:
    """A composition by name (its fastest configuration or arm as predicted), or from a JSON file."""
    from workbench.compose import from_json
    from workbench.search import named_compositions

    named = named_compositions(pricer)
    by_name = {c.name: c for c in named}
    if text in by_name:
        return by_name[text]
    if text in COMPOSITIONS:
        mine = [c for c in named if (c.shape == text if text == "conventional" else c.name.startswith(text))]
        return min(mine, key=lambda c: pricer.predict(c).ttfo_ns)
    path = Path(text)
    if not path.exists():
        raise CompositionError(f"{text!r} is neither a file nor one of {', '.join([*COMPOSITIONS, *by_name])}")
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CompositionError(f"{path}: not JSON ({error})") from error
    try:
        return from_json(pricer.program, data)
    except WorkbenchError as error:
        raise CompositionError(f"{path}: {error}") from error


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """A prediction as plain data; the causes sum to ``ttfo_ns``."""
    from workbench.compose import to_json

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
        "provenance": prediction.provenance.value,
        "notes": list(prediction.notes),
    }


def show(arguments: argparse.Namespace, data: Any, text: str) -> None:
    """Print one or the other; JSON has no NaN."""
    print(json.dumps(data, indent=1, allow_nan=False) if arguments.json else text)


def records(table: Any) -> list[dict[str, Any]]:
    """Rows of a DataFrame as plain data; missing values are null."""
    return json.loads(table.to_json(orient="records", double_precision=15)) if len(table) else []
