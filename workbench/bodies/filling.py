"""The shipped table, filled row by row so that an interruption loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from workbench.bodies import compiling
from workbench.bodies.compiling import Rung
from workbench.bodies.table import Key, Reading, read_table, read_versions, write_table
from workbench.errors import MeasureError

ARCHS = ("sm_90", "sm_80", "sm_120")
LARGE = (Rung("inlined", 8, "large"), Rung("capped", 8, "large"), Rung("called", 8, "large"))
SMALL = (Rung("called", 4, "small"),)  # a smaller block and smaller tiles: on one architecture, to keep compiling short


def rungs(arch: str) -> tuple[Rung, ...]:
    """Rungs that ship of an architecture."""
    return LARGE + SMALL if arch == ARCHS[0] else LARGE


def kept(path: Path) -> dict[Key, Reading]:
    """Rows of a table that today's bodies, compiler and rungs would make again; none where it is not there."""
    if not path.exists():
        return {}
    try:
        same = read_versions(path) == compiling.versions(ARCHS)
    except MeasureError:
        return {}
    table = read_table(path) if same else {}
    return {key: reading for key, reading in table.items() if Rung(*key[1:4]) in rungs(key[0])}


def missing(table: Iterable[Key], unions: Iterable[frozenset[str]], archs: Iterable[str] = ARCHS) -> list[Key]:
    """Rows that a table lacks of these unions: by architecture, smaller unions first, rungs that share work in turn."""
    there, ordered = set(table), sorted(unions, key=lambda kinds: (len(kinds), sorted(kinds)))
    keys = [(arch, r.build, r.warps, r.shape, kinds) for arch in archs for kinds in ordered for r in rungs(arch)]
    return [key for key in keys if key not in there]


def fill(
    path: Path,
    unions: Iterable[frozenset[str]],
    archs: Iterable[str] = ARCHS,
    tick: Callable[[int, Key | None], None] = lambda total, key: None,
    cache: Path | None = None,
) -> int:
    """Compile what the table lacks and write it after each row; returns how many rows were added.

    ``tick`` is given how many there are to do and the row that was done, None before the first. Rows of other versions
    of the bodies, of Triton or of ptxas are dropped. MeasureError without Triton.
    """
    compiling.need_triton()
    table = kept(path)
    keys = missing(table, unions, archs)
    tick(len(keys), None)
    for key in keys:
        arch, build, warps, shape, kinds = key
        table[key] = compiling.read(arch, Rung(build, warps, shape), kinds, cache)
        write_table(path, table, compiling.versions(ARCHS))
        tick(len(keys), key)
    return len(keys)
