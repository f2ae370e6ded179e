"""Exact selection: the best compositions over cuts, back edges, kinds and configurations, and those tied with the best.

Kernel boundaries are full barriers, so a composition's cost is a sum over its regions and dynamic programming over the
program tree is exact. The state is the place in a level and the arm of the region before it: two neighbouring
conventional regions of one arm are one region, so they are not told apart. A loop is an item of a region, or it is
opened and its body is solved by itself; its costs already count all its iterations. Where launches overlap, what a
region saves its successor hangs on both, so the arm that comes next is part of the state. The k best are kept instead
of the best alone, so that the tie set can be drawn from them.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

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
from workbench.errors import CompositionError
from workbench.predict import Prediction, Pricer
from workbench.predict.handover import Passage
from workbench.program import Loop, items
from workbench.uncertainty import tied_with_best

if TYPE_CHECKING:
    import pandas as pd

SHORTLIST = 32


@dataclass(frozen=True, slots=True)
class Selection:
    """The answer for one program, device and batch. Its predictions leave throughput out; ``predict`` again has it.

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
        import pandas as pd

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
    """The ``k`` fastest compositions with their times to first output, ns; exact, in order.

    Among equals the one of fewer regions is first.
    """
    roots = _Search(pricer).roots()
    plans = heapq.merge(*map(_plans, roots), key=lambda plan: plan[0])
    return [
        (pricer.device.host_ns + key // REGION, Composition(tuple(regions))) for key, regions in islice(plans, k)
    ]  # fmt: skip


REGION = 1 << 12  # a plan's key is ``ns * REGION + regions``: cost first, then the number of regions
LONGEST_NS = 1 << 47  # 39 hours: keys of plans, and sums of a few, fit 63 bits
Keys = npt.NDArray[np.int64]
NEVER = LONGEST_NS * REGION  # the key of what cannot be


class _Edge(NamedTuple):
    """One way on from a node: a region, or a loop opened; ``key`` is its own, without what comes after it."""

    key: int
    after: _Node
    region: Region | None
    inner: _Node | None  # the loop's body


class _Node:
    """A place in a level, and all plans from it to the level's end, best first, found as they are asked for.

    The k-th best are enumerated lazily (Huang and Chiang, "Better k-best parsing", IWPT 2005, algorithm 3): the next
    plan differs from one already found in one rank, or takes an edge not yet taken.
    """

    def __init__(self, best: int, edges: Callable[[], list[_Edge]]) -> None:
        self.best, self._make = best, edges
        self._edges: list[_Edge] | None = None
        self._found: list[tuple[int, int, int, int]] = []  # key, edge, rank after it, rank of the loop's body
        self._heap: list[tuple[int, int, int, int]] = []
        self._taken = 0
        self._seen: set[tuple[int, int, int]] = set()

    @property
    def edges(self) -> list[_Edge]:
        """The ways on by rising key of the best plan that takes each."""
        if self._edges is None:
            self._edges = sorted(self._make(), key=_best_by)
        return self._edges

    def key(self, rank: int) -> int:
        """Key of the plan of this rank; NEVER if there are fewer."""
        if rank == 0:
            return self.best
        return self._found[rank][0] if self._find(rank) else NEVER

    def step(self, rank: int) -> tuple[_Edge, int, int]:
        """First edge of the plan of this rank, then the rank of the plan after it and that of the loop's body."""
        self._find(rank)
        _, edge, after, inner = self._found[rank]
        return self.edges[edge], after, inner

    def _find(self, rank: int) -> bool:
        while len(self._found) <= rank:
            while self._taken < len(self.edges) and (
                not self._heap or _best_by(self.edges[self._taken]) <= self._heap[0][0]
            ):
                self._push(self._taken, 0, 0)
                self._taken += 1
            if not self._heap:
                return False
            _, edge, after, inner = plan = heapq.heappop(self._heap)
            self._found.append(plan)
            self._push(edge, after + 1, inner)
            if self.edges[edge].inner is not None:
                self._push(edge, after, inner + 1)
        return True

    def _push(self, number: int, after: int, inner: int) -> None:
        if (number, after, inner) in self._seen:
            return
        self._seen.add((number, after, inner))
        edge = self.edges[number]
        parts = [edge.after.key(after), edge.inner.key(inner) if edge.inner else 0]
        if max(parts) < NEVER:
            heapq.heappush(self._heap, (edge.key + sum(parts), number, after, inner))


class _End(_Node):
    """Nothing more to cover."""

    def __init__(self) -> None:
        super().__init__(0, list)

    def key(self, rank: int) -> int:
        return NEVER if rank else 0


END = _End()


def _best_by(edge: _Edge) -> int:
    return edge.key + edge.after.best + (edge.inner.best if edge.inner else 0)


def _plans(node: _Node) -> Iterator[tuple[int, list[Region]]]:
    for rank in count():
        if (key := node.key(rank)) >= NEVER:
            return
        yield key, _read(node, rank)


def _read(node: _Node, rank: int) -> list[Region]:
    regions: list[Region] = []
    while node is not END:
        edge, rank, inner_rank = node.step(rank)
        if edge.region is not None:
            regions.append(edge.region)
        if edge.inner is not None:
            regions += _read(edge.inner, inner_rank)
        node = edge.after
    return regions


class _Follower(NamedTuple):
    """What may come after a level, at these passages: a region of ``arm`` if that arm's launches overlap, else ""."""

    arm: str
    passages: tuple[Passage, ...]


Followers = tuple[_Follower, ...]


class _Search:
    """Dynamic programming over the levels of a program, from each level's end to its start.

    A node is a place in a level; the arm of the region before it (two neighbours of one arm are one region); and what
    the region after it is to the one before: the arm whose launch overlaps it, or "". So a region is paid for when both
    it and its successor are known. A loop that is opened is solved by itself, for each arm that may begin its body
    (round the back edge that region follows the body's last one) and each that may follow it.
    """

    def __init__(self, pricer: Pricer) -> None:
        self.pricer, self.text = pricer, pricer.text
        self.nexts = ("", *pricer.overlapping)
        self.lasts = ("", *pricer.arms)
        self._levels: dict[tuple[int, tuple[str, ...]], dict[tuple[str, str], _Node]] = {}

    def roots(self) -> list[_Node]:
        """The program's start, for each arm that it may begin with."""
        return [self.level(0, ())["", first] for first in self.nexts]

    def next_of(self, treatment: str) -> str:
        """What a region of this treatment is to the one before it."""
        return treatment if treatment in self.nexts else ""

    def level(self, depth: int, followers: Followers) -> dict[tuple[str, str], _Node]:
        """The first nodes of a level; of one level, followers are told by their arms."""
        key = depth, tuple(follower.arm for follower in followers)
        if key not in self._levels:
            self._levels[key] = self._solve(depth, followers)
        return self._levels[key]

    def _solve(self, depth: int, followers: Followers) -> dict[tuple[str, str], _Node]:
        level = self.pricer.levels[depth]
        stop = len(level.items)
        keys = {t: self._keys(depth, t, followers) for t in self.pricer.treatments}
        nodes: dict[tuple[int, str, str], _Node] = {(stop, last, ""): END for last in self.lasts}
        best = {(last, after): np.full(stop + 1, NEVER, np.int64) for last in self.lasts for after in self.nexts}
        for last in self.lasts:
            best[last, ""][stop] = 0
        for start in reversed(range(stop)):
            item = level.items[start]
            bodies = self._bodies(item, depth, start, followers) if isinstance(item, Loop) else {}
            for after in self.nexts:
                totals: dict[str, int] = {}  # by arm, the least key of a plan that goes on with it
                for treatment in self.pricer.treatments:
                    if self.next_of(treatment) == after:
                        arm = "" if treatment[:1].isdigit() else treatment
                        for beyond in self.nexts:
                            total = keys[treatment][beyond][start, start + 1 :] + best[arm, beyond][start + 1 :]
                            totals[arm] = min(totals.get(arm, NEVER), int(total.min()))
                for beyond in self.nexts:
                    if (after, beyond) in bodies:
                        total_ns = bodies[after, beyond].best + int(best["", beyond][start + 1])
                        totals[""] = min(totals.get("", NEVER), total_ns)
                for last in self.lasts:
                    least = min((total for arm, total in totals.items() if not arm or arm != last), default=NEVER)
                    best[last, after][start] = min(least, NEVER)
                    make = partial(self._edges, depth, start, (last, after), keys, best, nodes, bodies)
                    nodes[start, last, after] = _Node(min(least, NEVER), make)
        return {(last, after): nodes[0, last, after] for last in self.lasts for after in self.nexts}

    def _keys(self, depth: int, treatment: str, followers: Followers) -> dict[str, Keys]:
        """(items, items + 1) keys of every region, by what comes after it."""
        pricer, stop = self.pricer, len(self.pricer.levels[depth].items)
        cost = pricer.interval_costs(depth, treatment)
        legal = (cost >= 0) & (cost < LONGEST_NS)
        found = {}
        for after in self.nexts:
            ns = cost - pricer.handovers(depth, treatment, after) if after else cost.copy()
            if after:
                legal_here = legal.copy()
                legal_here[:, stop] = False  # at the end of a level the followers say what comes after
            else:
                legal_here = legal
                for follower in followers:
                    if follower.arm:
                        ns[:, stop] -= pricer.handovers_at_end(depth, treatment, follower.arm, follower.passages)
            found[after] = np.where(legal_here, ns * REGION + 1, NEVER)
        return found

    def _bodies(self, loop: Loop, depth: int, at: int, followers: Followers) -> dict[tuple[str, str], _Node]:
        """A loop's body opened, by the arm that begins it and what comes after the loop."""
        text, body, stop = self.text, self.text.body[loop.name], len(self.pricer.levels[depth].items)
        found: dict[tuple[str, str], _Node] = {}
        for after in self.nexts if at + 1 < stop else ("",):
            beyond = (_Follower(after, text.onward(depth, at + 1)),) if at + 1 < stop else followers
            out = tuple(_Follower(f.arm, text.out_of(loop, f.passages)) for f in beyond)
            for first in self.nexts:
                found[first, after] = self.level(body, (*out, _Follower(first, text.round(body))))["", first]
        return found

    def _edges(
        self,
        depth: int,
        start: int,
        state: tuple[str, str],
        keys: dict[str, dict[str, Keys]],
        best: dict[tuple[str, str], Keys],
        nodes: dict[tuple[int, str, str], _Node],
        bodies: dict[tuple[str, str], _Node],
    ) -> list[_Edge]:
        last, after = state
        names = tuple(item.name for item in self.pricer.levels[depth].items)
        found: list[_Edge] = []
        for treatment in self.pricer.treatments:
            arm = "" if treatment[:1].isdigit() else treatment
            if self.next_of(treatment) != after or (arm and arm == last):
                continue
            for beyond in self.nexts:
                own = keys[treatment][beyond][start]
                for stop in np.flatnonzero(own + best[arm, beyond] < NEVER).tolist():
                    region = _region(names[start:stop], treatment)
                    found.append(_Edge(int(own[stop]), nodes[stop, arm, beyond], region, None))
        for (first, beyond), body in bodies.items():
            if first == after and body.best < NEVER and (start + 1, "", beyond) in nodes:
                found.append(_Edge(0, nodes[start + 1, "", beyond], None, body))
        return found


def _body(level: Level, loop: Loop) -> Level:
    return Level((*level.around, loop), items(loop.body))


def _region(names: tuple[str, ...], treatment: str) -> Region:
    if treatment[:1].isdigit():
        return Region(names, Kind.MEGAKERNEL, Configuration.parse(treatment))
    return Region(names, Kind.CONVENTIONAL, arm=treatment)


def count_compositions(pricer: Pricer) -> int:
    """Number of legal compositions, neighbouring conventional regions of one arm counted as one."""

    def ways_of(depth: int) -> int:
        level = pricer.levels[depth]
        runs = {t: pricer.can_run(depth, t) for t in pricer.treatments}
        ways: list[dict[str, int]] = [{"": 1}]
        totals = [1]
        for stop in range(1, len(level.items) + 1):
            found: dict[str, int] = {}
            for treatment in pricer.treatments:
                arm = "" if treatment[:1].isdigit() else treatment
                starts = np.flatnonzero(runs[treatment][:stop, stop]).tolist()
                before = sum(totals[start] - (ways[start].get(arm, 0) if arm else 0) for start in starts)
                found[arm] = found.get(arm, 0) + before
            item = level.items[stop - 1]
            if isinstance(item, Loop):
                inner = ways_of(pricer.text.body[item.name])
                found[""] = found.get("", 0) + totals[stop - 1] * inner
            ways.append(found)
            totals.append(sum(found.values()))
        return totals[-1]

    return ways_of(0)


def enumerate_compositions(pricer: Pricer) -> Iterator[Composition]:
    """Every legal composition, one by one: for small programs and as the oracle of the search."""

    def walk(level: Level, start: int, last: str) -> Iterator[tuple[Region, ...]]:
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
                try:
                    pricer.check_resources(region)
                except CompositionError:
                    continue
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
    predictions = sorted(
        (pricer.predict(c, throughput=False) for c in chosen.values()), key=lambda p: (p.ttfo_ns, len(p.regions))
    )
    draws = [pricer.draws(p.composition, p.ttfo_ns, p.regions) for p in predictions]
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
