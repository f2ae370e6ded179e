"""Commands about the physics of GPUs: effects, calibrate."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli import options
from workbench.errors import MeasureError

if TYPE_CHECKING:
    from workbench.gpu import Gpu

SHOWN = ("monolith", "per_stage", "conventional", "best")


def add_commands(commands: Any) -> None:
    """Add this module's commands."""
    command = commands.add_parser("effects", help="what each physical effect is worth, and whether it moves the cuts")
    options.add_model(command)
    command.add_argument("--device", default="h100_nvl", help="a GPU's name or a .toml file of one")
    command.add_argument("--batches", type=options.batches, default=[1, 8, 32], help="as in 1,8,32")
    command.set_defaults(run=effects)

    command = commands.add_parser("calibrate", help="fit the two constants that the public pair of runs gives")
    command.set_defaults(run=calibrate)


def effects(arguments: argparse.Namespace) -> int:
    """Print a table: times without each effect against those with all."""
    from tqdm import tqdm

    from workbench.effects import ALL
    from workbench.worth import variants, worth

    program, gpu = options.program_of(arguments), _gpu(arguments.device)
    with tqdm(total=len(arguments.batches) * len(variants(ALL)), desc="effects", disable=None, leave=False) as bar:

        def tick() -> None:
            bar.update()

        table = worth(program, gpu, arguments.batches, tick=tick)
    shown = table[["batch", "variant"]].copy()
    for design in SHOWN:
        shown[f"{design}, µs"] = (table[f"{design}_ns"] / 1e3).map(_number("{:,.0f}"))
        shown[f"{design}, %"] = (100 * table[f"{design}_frac"]).map(_number("{:+.1f}"))
    shown["megakernels"] = table["megakernels"]
    shown["same cuts"] = table["same_selection"].map({True: "yes", False: "no"})
    shown["regret, %"] = (100 * table["regret_frac"]).map(_number("{:.1f}"))
    text = (
        f"{program.name} on {gpu.key}: time to first output, and its change without each effect (assumed constants; "
        f"regret: what the cuts so chosen cost more than the best where all effects are there)\n"
        f"{shown.to_string(index=False)}"
    )
    options.show(arguments, options.records(table), text)
    return 0


def calibrate(arguments: argparse.Namespace) -> int:
    """Print the fitted constants; 1 if the shipped file has others."""
    from workbench.calibrate import DEVICE, SOURCE
    from workbench.calibrate import calibrate as fit

    gpu = _gpu(DEVICE)
    fitted = fit(gpu)
    same = all(gpu[one.name] == one.value_ns for one in fitted)
    lines = [
        f"{one.name} {one.value_ns:,} ns: a step of {one.predicted_ns / 1e3:,.1f} µs, "
        f"published {one.published_ns / 1e3:,.1f}"
        for one in fitted
    ]
    lines.append(f"fitted to {SOURCE}; {DEVICE} has {'these' if same else 'other'} values")
    options.show(
        arguments, {"fitted": [asdict(one) for one in fitted], "source": SOURCE, "shipped": same}, "\n".join(lines)
    )
    return 0 if same else 1


def _gpu(name: str) -> Gpu:
    from workbench.gpu import gpu_files, read_gpu

    known = gpu_files()
    if name not in known and not name.endswith(".toml"):
        raise MeasureError(f"{name!r:.80} is not a GPU; there are {', '.join(known)}, or a .toml file of one")
    return read_gpu(known.get(name, Path(name)))


def _number(form: str) -> Any:
    return lambda value: "–" if value != value else form.format(value)
