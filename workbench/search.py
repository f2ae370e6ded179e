"""Exact selection: the best compositions over cuts, back edges, kinds and configurations, and those tied with the best.

Kernel boundaries are full barriers, so a composition's cost is a sum over its regions and dynamic programming over the
program tree is exact. The state is the place in a level and the arm of the region before it: two neighbouring
conventional regions of one arm are one region, so they are not told apart. A loop is an item of a region, or it is
opened and its body is solved by itself; its costs already count all its iterations. The k best are kept instead of
the best alone, so that the tie set can be drawn from them.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from workbench.compose import (
    Composition,
    Configuration,
    Kind,
    Level,
    Region,
    conventional,
    from_cuts,
    monolith,
    per_stage,
    stage_cuts,
)
from workbench.predict import Prediction, Pricer
from workbench.program import Loop, items
from workbench.uncertainty import draw, tied_with_best

SHORTLIST = 40

Plan = tuple[Region, ...]
Entry = tuple[int, int, Plan]  # cost, regions (fewer first among equals), the regions


@dataclass(frozen=True, slots=True)
class Selection:
    """The answer for one program, device and batch.

    ``tie_set`` holds ``best`` and all shortlisted compositions whose difference to it is not resolved; ``chance`` is
    each shortlisted composition's share of draws in which it is the fastest. ``candidates`` counts all legal ones.
    """

    best: Prediction
    shortlist: tuple[Prediction, ...]
    tie_set: tuple[Prediction, ...]
    chance: tuple[float, ...]
    candidates: int
    seconds: float

    @property
    def resolved(self) -> bool:
        """Whether one composition is the winner: it has no tie."""
        return len(self.tie_set) == 1

    def table(self) -> pd.DataFrame:
        """The shortlist, fastest first: name, shape, megakernels, µs with interval, tied, chance of being fastest."""
        tied = {prediction.composition.digest for prediction in self.tie_set}
        rows = [
            {
                "composition": p.composition.name or p.composition.digest,
                "shape": p.composition.shape,
                "megakernels": p.composition.megakernels,
                "regions": len(p.composition.regions),
                "ttfo_us": p.ttfo_ns / 1e3,
                "low_us": p.interval_ns[0] / 1e3,
                "high_us": p.interval_ns[1] / 1e3,
                "tied": p.composition.digest in tied,
                "chance": chance,
                "provenance": p.provenance.value,
                "digest": p.composition.digest,
            }
            for p, chance in zip(self.shortlist, self.chance, strict=True)
        ]
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        verdict = "one winner" if self.resolved else f"{len(self.tie_set)} tied"
        return f"{self.best}\n{self.candidates:,} compositions; {verdict} of a shortlist of {len(self.shortlist)}"


def k_best(pricer: Pricer, k: int = 1) -> list[tuple[int, Composition]]:
    """The ``k`` fastest compositions with their times to first output, ns; exact, in order."""
    found = _solve(pricer, pricer.levels[0], k)
    return [(cost, Composition(plan)) for cost, _, plan in found]


def _solve(pricer: Pricer, level: Level, k: int) -> list[Entry]:
    depth = pricer.place[level.items[0].name][0]
    count = len(level.items)
    costs = [(treatment, pricer.interval_costs(depth, treatment)) for treatment in pricer.treatments]
    inner = {i: _solve(pricer, _body(level, item), k) for i, item in enumerate(level.items) if isinstance(item, Loop)}
    nothing: Entry = (0, 0, ())
    best: list[dict[str, list[Entry]]] = [{"": [nothing]}, *({} for _ in range(count))]
    names = [item.name for item in level.items]
    for stop in range(1, count + 1):
        found: dict[str, list[Entry]] = {}
        for start in range(stop):
            for treatment, cost in costs:
                arm = "" if treatment[:1].isdigit() else treatment
                region = _region(tuple(names[start:stop]), treatment)
                ns = int(cost[start, stop])
                before = (e for last, entries in best[start].items() if not arm or last != arm for e in entries)
                found.setdefault(arm, []).extend((c + ns, n + 1, (*plan, region)) for c, n, plan in before)
        if stop - 1 in inner:
            found.setdefault("", []).extend(
                (c + ci, n + ni, plan + body)
                for entries in best[stop - 1].values()
                for c, n, plan in entries
                for ci, ni, body in inner[stop - 1]
            )
        best[stop] = {last: heapq.nsmallest(k, entries, key=_order) for last, entries in found.items()}
    return heapq.nsmallest(k, (e for entries in best[count].values() for e in entries), key=_order)


def _order(entry: Entry) -> tuple[int, int]:
    """Faster first, then fewer regions; what is still equal keeps the order in which it was found."""
    return entry[0], entry[1]


def _body(level: Level, loop: Loop) -> Level:
    return Level((*level.around, loop), items(loop.body))


def _region(names: tuple[str, ...], treatment: str) -> Region:
    if treatment[:1].isdigit():
        return Region(names, Kind.MEGAKERNEL, Configuration.parse(treatment))
    return Region(names, Kind.CONVENTIONAL, arm=treatment)


def count_compositions(pricer: Pricer) -> int:
    """Number of legal compositions, neighbouring conventional regions of one arm counted as one."""

    def count(level: Level) -> int:
        ways: list[dict[str, int]] = [{"": 1}]
        for stop in range(1, len(level.items) + 1):
            found: dict[str, int] = {}
            for start in range(stop):
                for treatment in pricer.treatments:
                    arm = "" if treatment[:1].isdigit() else treatment
                    before = sum(n for last, n in ways[start].items() if not arm or last != arm)
                    found[arm] = found.get(arm, 0) + before
            item = level.items[stop - 1]
            if isinstance(item, Loop):
                found[""] = found.get("", 0) + sum(ways[stop - 1].values()) * count(_body(level, item))
            ways.append(found)
        return sum(ways[-1].values())

    return count(pricer.levels[0])


def enumerate_compositions(pricer: Pricer) -> Iterator[Composition]:
    """Every legal composition, one by one: for small programs and as the oracle of the search."""

    def walk(level: Level, start: int, last: str) -> Iterator[Plan]:
        if start == len(level.items):
            yield ()
            return
        item = level.items[start]
        for stop in range(start + 1, len(level.items) + 1):
            for treatment in pricer.treatments:
                arm = "" if treatment[:1].isdigit() else treatment
                if arm and arm == last:
                    continue
                region = _region(tuple(i.name for i in level.items[start:stop]), treatment)
                for rest in walk(level, stop, arm):
                    yield (region, *rest)
        if isinstance(item, Loop):
            for body in walk(_body(level, item), 0, ""):
                for rest in walk(level, start + 1, ""):
                    yield (*body, *rest)

    for plan in walk(pricer.levels[0], 0, ""):
        yield Composition(plan)


def named_compositions(pricer: Pricer) -> list[Composition]:
    """The designs that people speak of: each arm, the monolith and one megakernel a stage, at every configuration."""
    found = [conventional(pricer.program, arm) for arm in pricer.arms]
    for configuration in pricer.configurations:
        made = monolith(pricer.program, configuration), per_stage(pricer.program, configuration)
        found.extend(Composition(one.regions, f"{one.name} {configuration}") for one in made)
    return found


def select(pricer: Pricer, shortlist: int = SHORTLIST, also: Sequence[Composition] = ()) -> Selection:
    """The fastest composition, the shortlist behind it, and the tie set.

    The shortlist is the ``shortlist`` fastest, the named designs and ``also``; the tie set is drawn from it, so
    compositions beyond it may be tied too when all of the shortlist is.
    """
    begun = time.perf_counter()
    named = {c.digest: c for c in [*named_compositions(pricer), *also]}
    fastest = [composition for _, composition in k_best(pricer, shortlist)]
    chosen = {c.digest: named.get(c.digest, c) for c in fastest} | named
    predictions = sorted((pricer.predict(c) for c in chosen.values()), key=lambda p: (p.ttfo_ns, len(p.regions)))
    draws = [draw(p.ttfo_ns, pricer.sigma_ns(p.regions)) for p in predictions]
    tied, chance = tied_with_best(draws)
    ties = tuple(p for p, is_tied in zip(predictions, tied, strict=True) if is_tied or p is predictions[0])
    seconds = time.perf_counter() - begun
    return Selection(predictions[0], tuple(predictions), ties, tuple(chance), count_compositions(pricer), seconds)


def mixed_compositions(pricer: Pricer) -> list[Composition]:
    """Designs with both kinds: one megakernel a stage, with the last stage conventional, once for each arm."""
    program = pricer.program
    stages = program.stages()
    last = [name for name, stage in stages.items() if stage == list(stages.values())[-1]]
    configuration = max(pricer.configurations, key=lambda c: (c.workers, -c.tiles_per_worker))
    return [
        from_cuts(program, stage_cuts(program), {last[0]: arm}, configuration, f"stages, {stages[last[0]]} {arm}")
        for arm in pricer.arms
    ]
