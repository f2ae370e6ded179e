"""What a compiler made of unions of tile bodies: ``data/bodies.csv``, read without Triton.

One row a kernel: ``arch`` (sm_80 …), ``build`` (BUILDS), ``warps`` a block, ``shape`` of tiles (SHAPES), ``bodies``
(kinds, sorted, joined by ``+``), and what ptxas and Triton say of it. ``data/bodies.json`` has their versions.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from workbench.errors import MeasureError

KINDS = ("gemv", "mma_rows_64", "mma_rows_128", "attention", "convolution", "lookup", "scan", "depthwise")
BUILDS = ("inlined", "capped", "called")
SHAPES = ("large", "small")
COLUMNS = (
    "arch", "build", "warps", "shape", "bodies", "registers", "shared_bytes", "spill_bytes", "stack_bytes", "code_bytes"
)  # fmt: skip
PATH = Path(__file__).resolve().parents[2] / "data" / "bodies.csv"

Key = tuple[str, str, int, str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a kernel takes: registers a thread, dynamic shared memory a block, spills (stores and loads) a thread.

    Where bodies are functions, spills and stack are summed over the functions, so they bound what one call moves.
    """

    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int
    code_bytes: int
    warps: int


@cache
def readings() -> Mapping[Key, Reading]:
    """The shipped table, by architecture, build, warps a block, shape of tiles and kinds of bodies."""
    return MappingProxyType(read_table(PATH))


def read_table(path: Path) -> dict[Key, Reading]:
    """A table; MeasureError in one line names the file, the row and the rule."""
    try:
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
    except OSError as error:
        raise MeasureError(
            f"{path}: cannot be read ({error.strerror}); `workbench bodies --compile` makes it"
        ) from error
    except (ValueError, csv.Error) as error:
        raise MeasureError(f"{path}: not a table of text ({error})") from error
    if not rows or tuple(rows[0]) != COLUMNS:
        raise MeasureError(f"{path}: the first row must name the columns {','.join(COLUMNS)}")
    found: dict[Key, Reading] = {}
    for number, row in enumerate(rows[1:], start=2):
        key, reading = _row(f"{path}, row {number}", row)
        if key in found:
            raise MeasureError(f"{path}, row {number}: {' '.join(row[:5])} is there twice")
        found[key] = reading
    return found


def _row(where: str, row: list[str]) -> tuple[Key, Reading]:
    if len(row) != len(COLUMNS):
        raise MeasureError(f"{where}: {len(row)} fields; {len(COLUMNS)} are needed")
    arch, build, warps, shape, bodies, *numbers = row
    kinds = bodies.split("+")
    if unknown := sorted(set(kinds) - set(KINDS)):
        raise MeasureError(f"{where}: no body is called {unknown[0]!r}; there are {', '.join(KINDS)}")
    if kinds != sorted(set(kinds)):
        raise MeasureError(f"{where}: bodies {bodies} must be sorted, each once")
    if not (arch.startswith("sm_") and arch[3:].isdecimal() and build in BUILDS and shape in SHAPES):
        raise MeasureError(
            f"{where}: {arch} {build} {shape} is not sm_NN, one of {', '.join(BUILDS)} and one of {', '.join(SHAPES)}"
        )
    for name, text in zip(("warps", *COLUMNS[5:]), (warps, *numbers), strict=True):
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise MeasureError(f"{where}: {name} is {text!r}; a whole number is needed")
    counts = [int(text) for text in numbers]
    if int(warps) not in (1, 2, 4, 8, 16, 32) or not 1 <= counts[0] <= 255:
        raise MeasureError(f"{where}: {warps} warps of {counts[0]} registers; a power of 2 to 32, and 1 to 255")
    key = (arch, build, int(warps), shape, frozenset(kinds))
    return key, Reading(**dict(zip(COLUMNS[5:], counts, strict=True)), warps=int(warps))


def write_table(path: Path, table: Mapping[Key, Reading], versions: Mapping[str, str]) -> None:
    """A table as ``read_table`` reads it, rows in order, and the versions that made it beside it."""
    rows = sorted((row_of(key, reading) for key, reading in table.items()), key=lambda row: (row[:4], len(row[4]), row))
    _replace(path, "".join(",".join(row) + "\n" for row in (list(COLUMNS), *rows)))
    _replace(path.with_suffix(".json"), json.dumps(dict(versions), indent=1, sort_keys=True) + "\n")


def row_of(key: Key, reading: Reading) -> list[str]:
    """One row, as text."""
    arch, build, warps, shape, kinds = key
    counts = (reading.registers, reading.shared_bytes, reading.spill_bytes, reading.stack_bytes, reading.code_bytes)
    return [arch, build, str(warps), shape, "+".join(sorted(kinds)), *map(str, counts)]


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    beside.replace(path)


def read_versions(path: Path = PATH) -> dict[str, str]:
    """Versions that a table was made with, by tool; MeasureError if they are not there."""
    beside = path.with_suffix(".json")
    try:
        data = json.loads(beside.read_text())
    except OSError as error:
        raise MeasureError(f"{beside}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise MeasureError(f"{beside}: not JSON ({error})") from error
    if not isinstance(data, dict) or not all(isinstance(text, str) for text in data.values()):
        raise MeasureError(f"{beside}: must be one object of tools and their versions")
    return data


def union_name(kinds: Iterable[str]) -> str:
    """Kinds as the column ``bodies`` has them."""
    return "+".join(sorted(kinds))
