"""Which compositions trade time to first output against the pace of what follows: the Pareto front.

Time to first output and the steady cost of a further output of the same cuts are both sums over regions, so a weighted
sum of the two is one again and the exact search of ``search`` minimises it. Every corner of the convex hull of all
compositions is found by bisecting the weights between two corners until none is beyond (Aneja and Nair, "Bicriteria
transportation problem", Management Science 25(1), 1979): these are *supported*. Compositions of the front that lie
behind the hull are not all found: they are those of the shortlists and the named designs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from workbench.compose import Composition
from workbench.errors import CompositionError, WorkbenchError
from workbench.predict import ILLEGAL_NS, Prediction, Pricer
from workbench.predict.handover import Passage, Text
from workbench.predict.regions import Costs
from workbench.program import Loop
from workbench.search import SHORTLIST, k_best, mixed_compositions, named_compositions

if TYPE_CHECKING:
    import pandas as pd

LARGEST = 1 << 46  # weighted sums stay below, so that the search's keys fit
Point = tuple[int, int]  # time to first output and steady cost of a further output, ns


@dataclass(frozen=True, slots=True)
class Front:
    """Compositions that none of those evaluated is better than in both, by rising time to first output.

    ``supported`` says which lie on the convex hull of all compositions. ``exact``: no weight had to be rounded, so all
    corners of that hull are here; else one may be missing that is nearer to the line between two others than rounded
    weights can tell.
    """

    predictions: tuple[Prediction, ...]
    supported: tuple[bool, ...]
    evaluated: int
    exact: bool
    seconds: float

    def table(self) -> pd.DataFrame:
        """A row a composition: µs to first output and a further output, outputs and seconds played a second."""
        import pandas as pd

        rows = [
            {
                "composition": p.composition.name or p.composition.digest,
                "shape": p.composition.shape,
                "megakernels": p.composition.megakernels,
                "regions": len(p.composition.regions),
                "ttfo_us": p.ttfo_ns / 1e3,
                "low_us": p.interval_ns[0] / 1e3,
                "high_us": p.interval_ns[1] / 1e3,
                "further_us": (p.further_ns or 0) / 1e3,
                "throughput_per_s": p.throughput_per_s,
                "playback_per_s": p.playback_per_s,
                "supported": supported,
                "provenance": p.provenance.value,
                "digest": p.composition.digest,
            }
            for p, supported in zip(self.predictions, self.supported, strict=True)
        ]
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        first = self.predictions[0]
        exact = "all corners of the hull of all compositions" if self.exact else "corners of the hull, weights rounded"
        return (
            f"{first.program} on {first.device}, batch {first.batch}: {len(self.predictions)} compositions trade time "
            f"to first output for throughput, {sum(self.supported)} of them supported ({exact}); "
            f"{self.evaluated} evaluated"
        )


def pareto(pricer: Pricer, shortlist: int = SHORTLIST, also: Sequence[Composition] = ()) -> Front:
    """The front over all supported compositions, the ``shortlist`` best of either kind, named designs and ``also``.

    WorkbenchError if the program has no further outputs of the same cuts that can be priced.
    """
    begun = time.perf_counter()
    both = Both(pricer)
    corners, exact = supported_compositions(both)
    mixed = mixed_compositions(pricer) if pricer.configurations else []
    chosen = [*named_compositions(pricer), *mixed, *also, *corners]
    for weights in ((1, 0), (0, 1)):
        chosen += [composition for _, composition in k_best(both.weighted(*weights), shortlist)]
    points: dict[Point, Composition] = {}
    evaluated = {composition.digest: composition for composition in reversed(chosen)}
    for composition in sorted(evaluated.values(), key=lambda c: len(c.regions)):
        point = both.point(composition)
        if point is not None:
            points.setdefault(point, composition)
    hull = corners_of(points)
    front = non_dominated(points)
    return Front(
        tuple(pricer.predict(points[point]) for point in front),
        tuple(_on_hull(point, hull) for point in front),
        len(evaluated),
        exact,
        time.perf_counter() - begun,
    )


def non_dominated(points: Iterable[Point]) -> list[Point]:
    """The points that no other is at least as good as in both, by rising first coordinate."""
    found: list[Point] = []
    for point in sorted(set(points)):
        if not found or point[1] < found[-1][1]:
            found.append(point)
    return found


def corners_of(points: Iterable[Point]) -> list[Point]:
    """The corners of the convex hull of some points that a sum with positive weights has its least value at."""
    hull: list[Point] = []
    for point in non_dominated(points):
        while len(hull) > 1 and _turn(hull[-2], hull[-1], point) <= 0:
            hull.pop()
        hull.append(point)
    return hull


def _turn(a: Point, b: Point, c: Point) -> int:
    """Positive where c lies to the left of the way from a through b, 0 where it lies on it."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _on_hull(point: Point, hull: Sequence[Point]) -> bool:
    between = [(a, b) for a, b in pairwise(hull) if a[0] <= point[0] <= b[0]]
    return point in hull or any(_turn(a, b, point) == 0 for a, b in between)


def supported_compositions(both: Both) -> tuple[list[Composition], bool]:
    """A composition for each corner of the hull of all, and whether no weight had to be rounded."""
    found: dict[Point, Composition] = {}
    exact = True

    def least(a: int, b: int) -> Point:
        plans = k_best(both.weighted(a, b))
        point = both.point(plans[0][1]) if plans else None
        if point is None:
            raise CompositionError(f"no composition of {both.first.program.name} runs here to its further outputs")
        composition = plans[0][1]
        found.setdefault(point, composition)
        return point

    pairs = [(least(1, 0), least(0, 1))]
    while pairs:
        left, right = pairs.pop()
        a, b = left[1] - right[1], right[0] - left[0]
        if a <= 0 or b <= 0:
            continue
        a, b, is_exact = _fitting(a, b, max(left[0], right[0]), max(left[1], right[1]))
        exact = exact and is_exact
        known = min(a * x + b * y for x, y in (left, right))
        new = least(a, b)
        if a * new[0] + b * new[1] < known:
            pairs += [(left, new), (new, right)]
    return [found[point] for point in corners_of(found)], exact


def _fitting(a: int, b: int, x: int, y: int) -> tuple[int, int, bool]:
    """Weights in the ratio a to b with a·x + b·y below LARGEST, and whether the ratio is exact."""
    common = gcd(a, b)
    a, b = a // common, b // common
    total = a * x + b * y
    if total < LARGEST:
        return a, b, True
    return max(1, a * LARGEST // (2 * total)), max(1, b * LARGEST // (2 * total)), False


# -- two programs priced as one ----------------------------------------------------------------------------------------


class _Passages(tuple[Passage, ...]):
    """Passages of the way to the first output, with those of a further output that are the same places of the text."""

    first: tuple[Passage, ...]
    further: tuple[Passage, ...]


@dataclass(frozen=True, kw_only=True)
class _Text(Text):
    """The text of the way to the first output, whose passages carry those of a further output."""

    one: Text
    other: Text
    place: dict[int, tuple[int, int, int]]  # level to the other's, its first item here, and its number of items
    loops: dict[str, Loop]  # of the other
    _paired: dict[tuple[Hashable, ...], _Passages] = field(default_factory=dict, repr=False)

    def _pair(self, key: tuple[Hashable, ...], first: tuple[Passage, ...], further: tuple[Passage, ...]) -> _Passages:
        if key not in self._paired:
            pair = self._paired[key] = _Passages(first)
            pair.first, pair.further = first, further
        return self._paired[key]

    def onward(self, depth: int, item: int) -> tuple[Passage, ...]:
        level, start, count = self.place.get(depth, (0, 0, 0))
        kept = start < item < start + count
        further = self.other.onward(level, item - start) if kept else ()
        return self._pair(("onward", depth, item), self.one.onward(depth, item), further)

    def round(self, depth: int) -> tuple[Passage, ...]:
        further = self.other.round(self.place[depth][0]) if depth in self.place else ()
        return self._pair(("round", depth), self.one.round(depth), further)

    def out_of(self, loop: Loop, passages: tuple[Passage, ...]) -> tuple[Passage, ...]:
        assert isinstance(passages, _Passages)
        kept = self.loops.get(loop.name)
        further = self.other.out_of(kept, passages.further) if kept else ()
        return self._pair(("out of", loop.name, id(passages)), self.one.out_of(loop, passages.first), further)


class Both:
    """The prices of one program's way to its first output and of a further output, by the same regions."""

    def __init__(self, pricer: Pricer) -> None:
        if pricer.further is None:
            raise WorkbenchError(
                f"{pricer.program.name} on {pricer.device.name} has no further outputs with a price, so there is no "
                "throughput to trade time to first output for"
            )
        self.first, self.further = pricer, pricer.further
        self.place = self._places()
        loops = self.further.program.loops()
        self.text = _Text(
            pricer.levels, pricer.relevant, one=pricer.text, other=self.further.text, place=self.place, loops=loops
        )  # fmt: skip

    def _places(self) -> dict[int, tuple[int, int, int]]:
        """For each level that a further output has too: which level there, and which run of items here."""
        theirs = {tuple(loop.name for loop in level.around): d for d, level in enumerate(self.further.levels)}
        found: dict[int, tuple[int, int, int]] = {}
        for depth, level in enumerate(self.first.levels):
            other = theirs.pop(tuple(loop.name for loop in level.around), None)
            if other is None:
                continue
            mine = [item.name for item in level.items]
            names = [item.name for item in self.further.levels[other].items]
            start = mine.index(names[0]) if names[0] in mine else len(mine)
            if mine[start : start + len(names)] != names or (level.around and len(mine) != len(names)):
                theirs[()] = other
                break
            found[depth] = other, start, len(names)
        if theirs:
            raise WorkbenchError(
                f"a further output of {self.first.program.name} is not a run of its way to the first output (with a "
                "first chunk of one frame, say, there is no loop over frames), so the same cuts do not say how it runs"
            )
        return found

    def weighted(self, first: int, further: int) -> Weighted:
        """A pricer whose costs are ``first`` times those to the first output and ``further`` times those after it."""
        return Weighted(self, first, further)

    def point(self, composition: Composition) -> Point | None:
        """Time to first output and steady cost of a further output, ns; None if it cannot run."""
        ns, further_ns = self.first.total_ns(composition), self.first.further_ns(composition)
        return None if further_ns is None or ns >= ILLEGAL_NS else (ns, further_ns)


class Weighted(Pricer):
    """Weighted sums of the costs of two programs, as a search reads them; it predicts nothing."""

    def __init__(self, both: Both, first: int, further: int) -> None:
        one = both.first
        super().__init__(one.program, one.device, one.table, one.batch, one.configurations, one.arms)
        self.both, self.weights = both, (first, further)
        self.text = both.text

    def interval_costs(self, depth: int, treatment: str) -> Costs:
        return self._sum(depth, lambda pricer, level: pricer.interval_costs(level, treatment), ILLEGAL_NS)

    def handovers(self, depth: int, treatment: str, arm: str) -> Costs:
        return self._sum(depth, lambda pricer, level: pricer.handovers(level, treatment, arm), 0)

    def handovers_at_end(self, depth: int, treatment: str, arm: str, passages: tuple[Passage, ...]) -> Costs:
        assert isinstance(passages, _Passages)
        a, b = self.weights
        found = a * self.both.first.handovers_at_end(depth, treatment, arm, passages.first)
        if depth in self.both.place:
            level, _, _ = self.both.place[depth]
            found = found + b * self.both.further.handovers_at_end(level, treatment, arm, passages.further)
        return found

    def _sum(self, depth: int, costs: Callable[[Pricer, int], Costs], beyond: int) -> Costs:
        """The weighted sum of (items, items + 1) costs; ``beyond`` where either is more than can be summed."""
        found = costs(self.both.first, depth)
        parts = [(self.weights[0], found)]
        if depth in self.both.place:
            level, start, count = self.both.place[depth]
            theirs = costs(self.both.further, level)
            at = np.clip(np.arange(found.shape[1]) - start, 0, count)
            spread = theirs[np.minimum(at[:-1], count - 1)[:, None], at]
            parts.append((self.weights[1], np.where(at[:-1, None] < at, spread, 0)))
        total = np.zeros_like(found)
        fits = np.ones(found.shape, np.bool_)
        for weight, part in parts:
            fits &= part < min(ILLEGAL_NS, LARGEST // max(1, weight))
            total += weight * np.where(fits, part, 0)
        summed: Costs = np.where(found < 0, -1, np.where(fits, total, beyond))
        return summed
