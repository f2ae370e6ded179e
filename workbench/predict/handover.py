"""Which launch follows which: what overlapping launches need to know of a program's text.

A region's launch hands over to the next one in program order: to the item after it, round a cut back edge to the first
item of the loop's body, or out of the loop. A `Passage` is a set of such moments alike; times count them over a run.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import NamedTuple

from workbench.compose import Level
from workbench.program import Loop

Index = dict[str, int]


class Target(NamedTuple):
    """Item ``item`` of level ``depth``, ``at`` an index of the loops around it."""

    depth: int
    item: int
    at: Mapping[str, int]


class Passage(NamedTuple):
    """From the source level at loop index ``source`` to a target, so many times."""

    source: Mapping[str, int]
    target: Target
    times: int


@dataclass(frozen=True)
class Text:
    """The levels of a program, and for each the loops around it whose index changes what its operators cost."""

    levels: tuple[Level, ...]
    relevant: tuple[tuple[str, ...], ...]
    _known: dict[tuple[Hashable, ...], tuple[Passage, ...]] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def body(self) -> dict[str, int]:
        """The level that is each loop's body."""
        return {level.around[-1].name: depth for depth, level in enumerate(self.levels) if level.around}

    def indices(self, depth: int) -> Iterator[tuple[Index, int]]:
        """Loop indices around a level and their times: each index of relevant loops; of others the first, and the rest
        as one.
        """  # fmt: skip
        relevant, loops = {name for names in self.relevant for name in names}, self.levels[depth].around
        ranges = [
            [(i, 1) for i in range(loop.count)] if loop.name in relevant
            else [(0, 1), (1, loop.count - 1)][: loop.count]
            for loop in loops
        ]  # fmt: skip
        for point in product(*ranges):
            times = 1
            for _, count in point:
                times *= count
            yield {loop.name: i for loop, (i, _) in zip(loops, point, strict=True)}, times

    def before(self, depth: int, item: int, index: Mapping[str, int], opened: frozenset[str]) -> Target | None:
        """The operator or closed loop that runs before an item, with the loops of ``opened`` cut open; None: the first.

        Of a loop that is not relevant, index 1 stands for all but the first.
        """
        if item > 0:
            return self._last(depth, item - 1, index, opened)
        around = self.levels[depth].around
        if not around:
            return None
        loop, outer = around[-1], {other.name: index[other.name] for other in around[:-1]}
        if index[loop.name] > 0:
            return self._last(
                depth, len(self.levels[depth].items) - 1, {**index, loop.name: index[loop.name] - 1}, opened
            )
        parent = next(d for d, level in enumerate(self.levels) if level.around == around[:-1] and loop in level.items)
        return self.before(parent, self.levels[parent].items.index(loop), outer, opened)

    def _last(self, depth: int, item: int, index: Mapping[str, int], opened: frozenset[str]) -> Target:
        node = self.levels[depth].items[item]
        if not isinstance(node, Loop) or node.name not in opened:
            return Target(depth, item, index)
        body = self.body[node.name]
        return self._last(body, len(self.levels[body].items) - 1, {**index, node.name: node.count - 1}, opened)

    # -- the same from the other side, for a search that does not yet know what is opened. Each answer is one object --

    def onward(self, depth: int, item: int) -> tuple[Passage, ...]:
        """From what ends before an item of a level to that item."""
        key = ("onward", depth, item)
        if key not in self._known:
            self._known[key] = tuple(Passage(at, Target(depth, item, at), times) for at, times in self.indices(depth))
        return self._known[key]

    def round(self, depth: int) -> tuple[Passage, ...]:
        """From the end of a loop's body round its back edge."""
        loop, key = self.levels[depth].around[-1].name, ("round", depth)
        if key not in self._known:
            self._known[key] = tuple(
                Passage({**index, loop: index[loop] - 1}, Target(depth, 0, index), times)
                for index, times in self.indices(depth)
                if index[loop] > 0
            )
        return self._known[key]

    def out_of(self, loop: Loop, passages: tuple[Passage, ...]) -> tuple[Passage, ...]:
        """Passages from the level that holds ``loop``, as seen from the end of its last iteration."""
        key = ("out of", loop.name, id(passages))
        if key not in self._known:
            last = {loop.name: loop.count - 1}
            self._known[key] = tuple(p._replace(source={**p.source, **last}) for p in passages)
        return self._known[key]

    def grouped(self, depth: int, passages: tuple[Passage, ...]) -> tuple[Passage, ...]:
        """Passages that cost the same from level ``depth`` as one."""
        found: dict[tuple[object, ...], Passage] = {}
        mine = self.relevant[depth]
        for p in passages:
            theirs = self.relevant[p.target.depth]
            source = tuple(p.source[name] for name in mine)
            key = (source, p.target.depth, p.target.item, tuple(p.target.at[name] for name in theirs))
            times = p.times + (found[key].times if key in found else 0)
            found[key] = p._replace(times=times)
        return tuple(found.values())
