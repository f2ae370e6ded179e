"""The command about tile bodies in one kernel: bodies."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli import options

if TYPE_CHECKING:
    from workbench.bodies.table import Key

BATCHES = (1, 2, 4, 8, 16, 32, 64)


def add_commands(commands: Any) -> None:
    """Add this module's commands."""
    command = commands.add_parser("bodies", help="what unions of tile bodies take of an SM, read off a compiler")
    command.add_argument("--arch", help="one of the table's architectures, as sm_90 (default: all)")
    command.add_argument("--compile", action="store_true", help="compile what the table lacks first (needs Triton)")
    command.add_argument("--table", help="the table's file (default: the one that ships)")
    command.set_defaults(run=bodies)


def bodies(arguments: argparse.Namespace) -> int:
    """Print the table, made first where --compile is given."""
    from workbench.bodies.table import COLUMNS, PATH, read_table, read_versions, row_of
    from workbench.errors import MeasureError

    path = Path(arguments.table) if arguments.table else PATH
    if arguments.compile:
        _fill(path, arguments.arch)
    table, versions = read_table(path), read_versions(path)
    archs = sorted({arch for arch, *_ in table})
    if arguments.arch not in (None, *archs):
        raise MeasureError(f"{path}: no row is of {arguments.arch!r}; there are {', '.join(archs) or 'none'}")
    rows = [row_of(key, reading) for key, reading in table.items() if arguments.arch in (None, key[0])]
    data = {
        "versions": versions,
        "rows": [
            dict(zip(COLUMNS, (*row[:2], int(row[2]), *row[3:5], *map(int, row[5:])), strict=True)) for row in rows
        ],
    }
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in (COLUMNS, *rows)]
    made = ", ".join(f"{tool} {version}" for tool, version in versions.items())
    options.show(arguments, data, "\n".join([*(line.rstrip() for line in lines), f"compiled, not run: {made}"]))
    return 0


def needed() -> set[frozenset[str]]:
    """Kinds that a region of a shipped model may hold, at BATCHES, however a GPU's operators are cut into tiles."""
    from workbench.compose import Configuration, levels, operators_in
    from workbench.cost.resources import bodies as kinds_of
    from workbench.cost.roofline import TILINGS
    from workbench.gpu import MMA_ROWS
    from workbench.models import MODELS, load_program

    found: set[frozenset[str]] = set()
    for level in (level for name in MODELS for level in levels(load_program(name))):
        for configuration in (Configuration.parse(f"1x{tiling}") for tiling in TILINGS):
            for batch in BATCHES:
                for rows in range(1, MMA_ROWS + 1):  # from which tensor cores are used
                    items = [kinds_of(operators_in(item), batch, configuration, rows) for item in level.items]
                    for first in range(len(items)):
                        found |= {frozenset().union(*items[first:last]) for last in range(first + 1, len(items) + 1)}
    return found


def _fill(path: Path, arch: str | None) -> None:
    from tqdm import tqdm

    from workbench.bodies import compiling, filling
    from workbench.errors import MeasureError

    compiling.need_triton()
    if arch not in (None, *filling.ARCHS):
        raise MeasureError(f"bodies are not compiled for {arch!r}; they are for {', '.join(filling.ARCHS)}")
    archs = (arch,) if arch else filling.ARCHS
    with tqdm(disable=None, leave=False, unit="kernel") as bar:

        def tick(total: int, key: Key | None) -> None:
            bar.total = total
            if key is not None:
                bar.set_description(f"{key[0]} {key[1]} {len(key[4])} bodies")
                bar.update()
            bar.refresh()

        filling.fill(path, needed(), archs, tick)
