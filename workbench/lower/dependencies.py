"""Which calls, and which of their tiles, each call of a sequence waits for: data flow, less what other waits imply."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from workbench.compose import Configuration
from workbench.lower.families import KEPT, Part, cut, part, part_by_request
from workbench.program import Call, Operator

Need = tuple[int, Part | None]  # the call waited for, and what of it; None: all


class _Past:
    """What has ended when, for calls added in order; ``sizes`` are their numbers of tiles.

    ``before[c]`` is the set of calls (as bits) that have wholly ended before any tile of c may start; what it holds
    needs no event. ``after[c]`` is the set that has ended once all tiles of c have; ``partly[c]`` says of other calls
    which of their tiles (as bits) have by then. ``before_same`` and ``after_same`` are the like for requests: a tile of
    c starts when the calls of the set have ended as far as they are of its own requests; and that holds once all tiles
    of c of these requests have ended.
    """

    def __init__(self, sizes: list[int]) -> None:
        self.full = [(1 << size) - 1 for size in sizes]
        self.before: list[int] = []
        self.after: list[int] = []
        self.before_same: list[int] = []
        self.after_same: list[int] = []
        self.partly: list[dict[int, int]] = []

    def add(self, found: Mapping[int, list[Part | None]]) -> list[Need]:
        """What the next call waits for, of the ``found`` calls that it must come after."""
        done = same = covered = 0
        some, needs = dict[int, int](), []
        for source in sorted(found, reverse=True):
            if done >> source & 1:
                continue
            merged = _merge(found[source])
            if merged is not None and same >> source & 1:
                continue
            if merged is None:
                done |= self.after[source]
                same |= self.after_same[source]
                _unite(some, self.partly[source])
            else:
                done |= self.before[source]
                same |= self.after_same[source] if merged.by_request else self.before_same[source]
                covered |= self.after_same[source] if merged.covers else 0
                some[source] = some.get(source, 0) | merged.united
            needs.append((source, merged))
        self.before.append(done)
        self.before_same.append(same | done)
        self._end(done | 1 << len(self.after), some)
        self.after_same.append(same | covered | self.after[-1])
        return needs

    def _end(self, ended: int, some: dict[int, int]) -> None:
        """Calls of which all tiles are in ``some`` have ended, with all that has ended after them."""
        left: dict[int, int] = {}
        while some:
            source = max(some)
            tiles = some.pop(source)
            if ended >> source & 1:
                continue
            if tiles == self.full[source]:
                ended |= self.after[source]
                _unite(some, self.partly[source])
            else:
                left[source] = tiles
        self.after.append(ended)
        self.partly.append(left)


def _unite(into: dict[int, int], more: Mapping[int, int]) -> None:
    for source, tiles in more.items():
        into[source] = into.get(source, 0) | tiles


def _merge(parts: list[Part | None]) -> Part | None:
    """What several reasons to wait for one call come to."""
    merged = parts[0]
    for other in parts[1:]:
        if merged is None or other is None:
            return None
        if other is not merged:
            merged = _united(merged, other)
    return merged


@lru_cache(KEPT)
def _united(a: Part, b: Part) -> Part | None:
    return a.joined(b)


def dependencies(sequence: tuple[Call, ...], batch: int, configuration: Configuration) -> list[list[Need]]:
    """What each call waits for: last writers of what it reads, and for what it writes the last writer and all readers.

    Writers of one tensor are thereby ordered, so that the last writer stands for all.
    """
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    sizes: dict[int, int] = {}
    parts: dict[tuple[int, int, int], Part | None] = {}

    def size(op: Operator) -> int:
        if id(op) not in sizes:
            sizes[id(op)] = len(cut(op.shape, batch, configuration))
        return sizes[id(op)]

    def of(op: Operator, other: Operator, rank: int) -> Part | None:
        """What tiles of ``op`` need of ``other``, whose tensor it reads at a rank; -1: it writes what that touched."""
        key = (id(op), id(other), rank)
        if key not in parts:
            if rank < 0:
                parts[key] = part_by_request(op.shape, other.shape, batch, configuration)
            else:
                parts[key] = part(op.shape, rank, other.shape, batch, configuration)
        return parts[key]

    past = _Past([size(call.operator) for call in sequence])
    result: list[list[Need]] = []
    for number, call in enumerate(sequence):
        op, found = call.operator, dict[int, list[Part | None]]()
        for rank, tensor in enumerate(op.reads):
            if tensor in writer:
                source = writer[tensor]
                found.setdefault(source, []).append(of(op, sequence[source].operator, rank))
        for tensor in op.writes:
            for source in (*readers.get(tensor, ()), *([writer[tensor]] if tensor in writer else ())):
                found.setdefault(source, []).append(of(op, sequence[source].operator, -1))
        result.append(past.add(found))
        for tensor in op.reads:
            readers.setdefault(tensor, []).append(number)
        for tensor in op.writes:
            writer[tensor] = number
            readers[tensor] = []
    return result
