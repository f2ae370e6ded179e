"""Regions and compositions of a program: how to name, build, check, count and enumerate them.

A *level* is one stretch of program text: the whole program, or the body of a loop. A region is a run of neighbouring
items (operators and whole loops) of one level. A loop that is an item of a region is *closed*: all its iterations run
in one launch and its back edge is not cut. Any other loop is *open*: its back edge, its entry and its exit are cut,
and its body is covered by regions of its own. So a loop is cut inside only if it is cut around, which is what
convexity asks for: a region that held a piece of a loop and something outside it would be entered again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise

from workbench.errors import CompositionError
from workbench.program import Item, Loop, Operator, Program, items


class Kind(StrEnum):
    """How a region runs: one launch of persistent workers, or one kernel an operator."""

    MEGAKERNEL = "megakernel"
    CONVENTIONAL = "conventional"


SHAPES_OF_TILES = {"c": "columns", "i": "inner", "r": "rows", "p": "partitions"}
_PATTERN = re.compile(r"([0-9]{1,6})x([0-9]{1,6})((?:\+[a-z][0-9]{1,6})*)")


@dataclass(frozen=True, slots=True, order=True)
class Configuration:
    """Resources of a whole megakernel: how many workers (SMs) it holds, and how it cuts operators into tiles.

    An operator is cut into at most ``workers · tiles_per_worker`` tiles of near-equal size. The rest bounds their
    shape, 0 where each family's own rule does: ``columns``, the narrowest strip of a product (heads may then be cut);
    ``inner``, the longest run of its reduction, so that longer ones are split; ``rows``, the most rows of a tile;
    ``partitions``, parts of attention's cache, a tile then holding all query heads of its key and value head.
    """

    workers: int
    tiles_per_worker: int = 1
    columns: int = 0
    inner: int = 0
    rows: int = 0
    partitions: int = 0

    def __post_init__(self) -> None:
        others = (self.columns, self.inner, self.rows, self.partitions)
        if self.workers < 1 or self.tiles_per_worker < 1 or min(others) < 0:
            raise _not_a_configuration(str(self))

    def __str__(self) -> str:
        shape = "".join(f"+{key}{value}" for key, name in SHAPES_OF_TILES.items() if (value := getattr(self, name)))
        return f"{self.workers}x{self.tiles_per_worker}{shape}"

    @property
    def count(self) -> int:
        """Most tiles of an operator."""
        return self.workers * self.tiles_per_worker

    @classmethod
    def parse(cls, text: str) -> Configuration:
        """The configuration that prints as ``text``.

        >>> Configuration.parse("132x1+c16+i2048+p1")
        Configuration(workers=132, tiles_per_worker=1, columns=16, inner=2048, rows=0, partitions=1)
        """
        if not isinstance(text, str):
            raise _not_a_configuration(text)
        return _parsed(text)


@lru_cache(1024)
def _parsed(text: str) -> Configuration:
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise _not_a_configuration(text)
    workers, tiles, shape = found.groups()
    given = {SHAPES_OF_TILES.get(part[0], ""): int(part[1:]) for part in shape.split("+")[1:]}
    if "" in given or int(workers) < 1 or int(tiles) < 1:
        raise _not_a_configuration(text)
    made = Configuration(int(workers), int(tiles), **given)
    if str(made) != text:
        raise _not_a_configuration(text)
    return made


def _not_a_configuration(what: object) -> CompositionError:
    return CompositionError(
        f"configuration {what!r:.40}: expected WORKERSxTILES, two positive integers, as in '2x1', and after it at most "
        "+cCOLUMNS+iINNER+rROWS+pPARTITIONS, in this order"
    )


@dataclass(frozen=True, slots=True)
class Region:
    """What lies between two cuts: neighbouring items of one level, and how they run.

    A megakernel has a ``configuration`` and no ``arm``; a conventional region has an ``arm`` and no configuration
    (each of its kernels takes its own best one).
    """

    items: tuple[str, ...]
    kind: Kind
    configuration: Configuration | None = None
    arm: str = ""

    def __str__(self) -> str:
        how = f"megakernel {self.configuration}" if self.kind is Kind.MEGAKERNEL else self.arm
        return f"{how}({self.items[0]}{'' if len(self.items) == 1 else ' … ' + self.items[-1]})"


@dataclass(frozen=True, slots=True)
class Composition:
    """Regions that cover a program once, in text order. ``name`` is for people; the digest ignores it."""

    regions: tuple[Region, ...]
    name: str = ""

    @property
    def shape(self) -> str:
        """``monolith``, ``conventional``, ``megakernels`` (several, nothing else) or ``mixed``."""
        kinds = {region.kind for region in self.regions}
        if kinds == {Kind.CONVENTIONAL}:
            return "conventional"
        if kinds == {Kind.MEGAKERNEL}:
            return "monolith" if len(self.regions) == 1 else "megakernels"
        return "mixed"

    @property
    def digest(self) -> str:
        """Twelve hex digits of what the composition is, whatever it is called."""
        content = [[list(r.items), r.kind.value, str(r.configuration or ""), r.arm] for r in self.regions]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]

    @property
    def megakernels(self) -> int:
        """Number of megakernel regions."""
        return sum(region.kind is Kind.MEGAKERNEL for region in self.regions)

    def __str__(self) -> str:
        return (self.name + ": " if self.name else "") + " | ".join(map(str, self.regions))


@dataclass(frozen=True, slots=True)
class Level:
    """One stretch of program text: the loops around it, outer first, and its items in order."""

    around: tuple[Loop, ...]
    items: tuple[Item, ...]


def levels(program: Program) -> tuple[Level, ...]:
    """All levels of a program's way to its first output: the top, then each loop's body in text order."""

    def walk(level: Level) -> Iterator[Level]:
        yield level
        for item in level.items:
            if isinstance(item, Loop):
                yield from walk(Level((*level.around, item), items(item.body)))

    return tuple(walk(Level((), items(program.first))))


def operators_in(item: Item) -> Iterator[Operator]:
    """The operators of an item, in text order."""
    if isinstance(item, Operator):
        yield item
        return
    for inner in items(item.body):
        yield from operators_in(inner)


def boundaries(program: Program) -> dict[str, str]:
    """Every boundary's name and what it is, in text order.

    ``"a|b"`` lies between neighbouring items a and b of one level, ``"loop@"`` is a loop's back edge.
    """
    found: dict[str, str] = {}
    for level in levels(program):
        place = level.around[-1].name if level.around else "program"
        found |= {f"{a.name}|{b.name}": f"in {place}" for a, b in pairwise(level.items)}
        found |= {f"{item.name}@": f"back edge × {item.count}" for item in level.items if isinstance(item, Loop)}
    return found


def from_cuts(
    program: Program,
    cuts: Iterable[str],
    kinds: Mapping[str, str] | None = None,
    configuration: Configuration | None = None,
    name: str = "",
) -> Composition:
    """The composition whose kernel boundaries are ``cuts`` (names of ``boundaries``).

    ``kinds`` gives a region's treatment by its first operator or item: a configuration as text (``"2x1"``, a
    megakernel) or an arm (``"eager"``, ``"replay"``); regions not named are megakernels of ``configuration``, and
    names that start no region change nothing.

    Raises CompositionError where a cut has no such boundary, or lies in a loop that is not itself cut out, and where
    ``kinds`` names what the program does not have.
    """
    known, wanted = boundaries(program), set(cuts)
    if unknown := sorted(wanted - set(known)):
        raise CompositionError(
            f"{program.name} has no boundary {unknown[0]!r}; `boundaries(program)` lists all {len(known)}"
        )
    kinds, default = dict(kinds or {}), configuration or Configuration(1)
    if strangers := sorted(set(kinds) - set(program.operators()) - set(program.loops())):
        raise CompositionError(f"{program.name} has no operator or loop {strangers[0]!r}")
    regions: list[Region] = []

    def cover(level: tuple[Item, ...]) -> None:
        run: list[Item] = []
        for i, item in enumerate(level):
            opened = isinstance(item, Loop) and f"{item.name}@" in wanted
            if run and (opened or f"{level[i - 1].name}|{item.name}" in wanted):
                regions.append(_region(run, kinds, default))
                run = []
            if opened:
                assert isinstance(item, Loop)
                _check_open(level, i, wanted)
                cover(items(item.body))
            else:
                if isinstance(item, Loop):
                    _check_closed(item, wanted)
                run.append(item)
        if run:
            regions.append(_region(run, kinds, default))

    cover(items(program.first))
    composition = Composition(tuple(regions), name)
    check_composition(program, composition)
    return composition


def _region(run: list[Item], kinds: Mapping[str, str], default: Configuration) -> Region:
    names = tuple(item.name for item in run)
    how = kinds.get(names[0], kinds.get(next(operators_in(run[0])).name, str(default)))
    if how[:1].isdigit():
        return Region(names, Kind.MEGAKERNEL, Configuration.parse(how))
    return Region(names, Kind.CONVENTIONAL, arm=how)


def _check_open(level: tuple[Item, ...], i: int, wanted: set[str]) -> None:
    loop = level[i].name
    for a, b in pairwise(level[max(0, i - 1) : i + 2]):
        if f"{a.name}|{b.name}" not in wanted:
            raise CompositionError(
                f"the back edge of loop {loop!r} is cut but the boundary {a.name}|{b.name} beside it is not: "
                "the region across it would be entered again after it was left; cut it too, or close the loop"
            )


def _check_closed(loop: Loop, wanted: set[str]) -> None:
    inside = {f"{a.name}|{b.name}" for a, b in pairwise(items(loop.body))}
    inside |= {f"{item.name}@" for item in items(loop.body) if isinstance(item, Loop)}
    if hit := sorted(inside & wanted):
        raise CompositionError(
            f"boundary {hit[0]} lies in loop {loop.name!r}, whose back edge is not cut: the region would be entered "
            f"again after it was left; cut {loop.name}@ too"
        )
    for item in items(loop.body):
        if isinstance(item, Loop):
            _check_closed(item, wanted)


def cuts_of(program: Program, composition: Composition) -> frozenset[str]:
    """The boundaries that a legal composition cuts."""
    region_of = {item: i for i, region in enumerate(composition.regions) for item in region.items}
    cut: set[str] = set()

    def walk(level: tuple[Item, ...]) -> None:
        for a, b in pairwise(level):
            if a.name not in region_of or region_of.get(a.name) != region_of.get(b.name):
                cut.add(f"{a.name}|{b.name}")
        for item in level:
            if isinstance(item, Loop) and item.name not in region_of:
                cut.add(f"{item.name}@")
                walk(items(item.body))

    walk(items(program.first))
    return frozenset(cut)


def check_composition(program: Program, composition: Composition) -> None:
    """Raise CompositionError, with the reason, unless ``composition`` covers ``program`` once, in order."""
    if not composition.regions:
        raise CompositionError(f"a composition of {program.name} has no regions; it must cover every operator once")
    place = {item.name: (depth, i) for depth, level in enumerate(levels(program)) for i, item in enumerate(level.items)}
    for number, region in enumerate(composition.regions, start=1):
        _check_region(program, region, number, place)
    chosen = {item for region in composition.regions for item in region.items}
    expected = list(_expected(program, chosen))
    given = [item for region in composition.regions for item in region.items]
    if given == expected:
        return
    if twice := sorted({item for item in given if given.count(item) > 1}):
        raise CompositionError(f"{twice[0]!r} is in two regions; regions cover the program once")
    if missing := [item for item in expected if item not in chosen]:
        raise CompositionError(f"no region holds {missing[0]!r}; regions cover every operator of {program.name} once")
    if extra := [item for item in given if item not in expected]:
        raise CompositionError(f"{extra[0]!r} is covered twice: a loop around it is already whole in a region")
    raise CompositionError(f"regions are not in program order: {given[0]!r} … against {expected[0]!r} …")


def _check_region(program: Program, region: Region, number: int, place: Mapping[str, tuple[int, int]]) -> None:
    where = f"region {number}"
    if not region.items:
        raise CompositionError(f"{where} is empty")
    for item in region.items:
        if item not in place:
            raise CompositionError(f"{where}: {program.name} has no operator or loop {item!r}")
    for a, b in pairwise(region.items):
        if place[a][0] != place[b][0]:
            raise CompositionError(
                f"{where} holds {a!r} and {b!r}, which lie at different depths of the program: it would be entered "
                "again after it was left; a region is a run of neighbours in one loop body"
            )
        if place[b][1] != place[a][1] + 1:
            raise CompositionError(f"{where} is not convex: {b!r} does not follow {a!r} in the program")
    if region.kind is Kind.MEGAKERNEL and (region.configuration is None or region.arm):
        raise CompositionError(f"{where}: a megakernel has a configuration and no arm")
    if region.kind is Kind.CONVENTIONAL and (region.configuration is not None or not region.arm):
        raise CompositionError(f"{where}: a conventional region has an arm and no configuration")
    if region.arm[:1].isdigit():
        raise CompositionError(f"{where}: arm {region.arm!r} begins with a digit, as configurations do")
    if region.arm == Kind.MEGAKERNEL:
        raise CompositionError(f"{where}: {region.arm!r} is not an arm; a megakernel is a kind of its own")


def _expected(program: Program, chosen: set[str]) -> Iterator[str]:
    """Items in the order that regions must hold them: a loop is itself if chosen, else its body."""

    def walk(level: tuple[Item, ...]) -> Iterator[str]:
        for item in level:
            if isinstance(item, Operator) or item.name in chosen:
                yield item.name
            else:
                yield from walk(items(item.body))

    return walk(items(program.first))


def monolith(program: Program, configuration: Configuration) -> Composition:
    """One megakernel for everything."""
    whole = tuple(item.name for item in items(program.first))
    return Composition((Region(whole, Kind.MEGAKERNEL, configuration),), "monolith")


def conventional(program: Program, arm: str) -> Composition:
    """No megakernel: one kernel an operator, run by ``arm``."""
    whole = tuple(item.name for item in items(program.first))
    return Composition((Region(whole, Kind.CONVENTIONAL, arm=arm),), arm)


def stage_cuts(program: Program) -> frozenset[str]:
    """The boundaries between stages: loops that hold one stage stay closed, others are opened."""
    stage = program.stages()
    cut: set[str] = set()

    def stages_in(item: Item) -> list[str]:
        return list(dict.fromkeys(stage[op.name] for op in operators_in(item)))

    def walk(level: tuple[Item, ...]) -> None:
        opened = [isinstance(item, Loop) and len(stages_in(item)) > 1 for item in level]
        for i, (a, b) in enumerate(pairwise(level)):
            if opened[i] or opened[i + 1] or stages_in(a) != stages_in(b):
                cut.add(f"{a.name}|{b.name}")
        for item, is_open in zip(level, opened, strict=True):
            if is_open:
                assert isinstance(item, Loop)
                cut.add(f"{item.name}@")
                walk(items(item.body))

    walk(items(program.first))
    return frozenset(cut)


def per_stage(program: Program, configuration: Configuration) -> Composition:
    """One megakernel a stage."""
    return from_cuts(program, stage_cuts(program), configuration=configuration, name="per-stage")


def to_json(composition: Composition) -> dict[str, object]:
    """A composition as plain data: what ``from_json`` reads."""
    regions = []
    for region in composition.regions:
        how = {"configuration": str(region.configuration)} if region.configuration else {"arm": region.arm}
        regions.append({"kind": region.kind.value, **how, "items": list(region.items)})
    return {"name": composition.name, "regions": regions}


def from_json(program: Program, data: object) -> Composition:
    """The composition that ``to_json`` wrote, checked against ``program``."""
    if not isinstance(data, dict) or not isinstance(data.get("regions"), list):
        raise CompositionError("a composition is an object with a list 'regions'")
    regions = []
    for number, entry in enumerate(data["regions"], start=1):
        names = entry.get("items") if isinstance(entry, dict) else None
        if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
            raise CompositionError(f"region {number}: 'items' must be a list of operator and loop names")
        try:
            kind = Kind(entry.get("kind"))
        except ValueError:
            raise CompositionError(
                f"region {number}: kind {entry.get('kind')!r} is not one of {', '.join(Kind)}"
            ) from None
        configuration, arm = entry.get("configuration"), entry.get("arm", "")
        if not isinstance(arm, str):
            raise CompositionError(f"region {number}: arm {arm!r} is not text")
        parsed = None if configuration is None else Configuration.parse(configuration)
        regions.append(Region(tuple(names), kind, parsed, arm))
    composition = Composition(tuple(regions), str(data.get("name", "")))
    check_composition(program, composition)
    return composition
