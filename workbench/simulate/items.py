"""Every region of a queue's items at once: what a search asks for. An item is a run of neighbouring operators.

Beside its makespan a region may leave behind how it ends, an `Exit`: the label that a search carries to the next region
where launches overlap (`engine.Mechanism`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from workbench.errors import GraphError
from workbench.simulate.engine import Exit, Mechanism, chain_ns, region_inputs
from workbench.simulate.tile_queue import TileQueue


@dataclass(frozen=True, eq=False)
class Exits:
    """How several launches end: ``started_ns`` (n,) and ``free_ns`` (n, lanes), each as in `Exit`."""

    started_ns: NDArray[np.int64]
    free_ns: NDArray[np.int64]

    @staticmethod
    def of(exit: Exit) -> Exits:
        """One alone."""
        return Exits(np.array([exit.started_ns]), exit.free_ns[None])


@dataclass(frozen=True, eq=False)
class ItemRegions:
    """Regions of n items: ``ns`` (n, n + 1), entry [i, j] the makespan of the items [i, j); -1 where it is left out.

    ``started_ns`` (n, n + 1) and ``free_ns`` (n, n + 1, lanes) are how each ends; None if that was not asked for.
    """

    ns: NDArray[np.int64]
    started_ns: NDArray[np.int64] | None = None
    free_ns: NDArray[np.int64] | None = None

    def exits(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Exits:
        """How the regions [starts[k], stops[k]) end."""
        assert self.started_ns is not None
        assert self.free_ns is not None
        return Exits(self.started_ns[starts, stops], self.free_ns[starts, stops])

    def exit(self, start: int, stop: int) -> Exit:
        """How the region [start, stop) ends."""
        assert self.started_ns is not None
        assert self.free_ns is not None
        return Exit(int(self.started_ns[start, stop]), self.free_ns[start, stop])


@lru_cache(64)
def later(count: int) -> NDArray[np.bool_]:
    """(count, count + 1): where j > i."""
    inside = ~np.tri(count, count + 1, dtype=np.bool_)
    inside.flags.writeable = False
    return inside


def item_regions(
    queue: TileQueue,
    mechanism: Mechanism,
    item_stop: Sequence[int],
    depths: NDArray[np.int64] | None = None,
    *,
    exits: bool = False,
) -> ItemRegions:
    """Every region of the items that end before the operators ``item_stop``.

    ``depths`` (n, n + 1) is each region's prefetch depth, never rising along a row; below 0 the region is left out;
    None: the mechanism's. With `barrier` there is one depth, 0 or 1: operators are then alike in every region, and all
    regions are sums over one chain of them.
    """
    from workbench.simulate import kernels

    tiles, costs = region_inputs(queue, mechanism, 0, queue.ops)
    stops, count = np.array(item_stop, np.int64), len(item_stop)
    inside = later(count)
    if mechanism.barrier:
        if mechanism.prefetch_depth > 1 or depths is not None:
            raise GraphError("kernels one after another load nothing ahead: prefetch_depth is 0 or 1 in every region")
        ns = np.where(inside, _sums(queue, mechanism, stops), -1)
        if not exits:
            return ItemRegions(ns)
        started, free = np.zeros(count + 1, np.int64), np.zeros((count + 1, queue.lanes), np.int64)
        kernels.leave_each(tiles, costs, queue.lanes, stops, started[1:], free[1:])
        shape = (count, count + 1)
        return ItemRegions(ns, np.broadcast_to(started, shape), np.broadcast_to(free, (*shape, queue.lanes)))
    if depths is None:
        depths = np.where(inside, mechanism.prefetch_depth, -1)
    depths = np.minimum(depths, len(queue.lane))  # as many pages as tiles are as good as more
    ns = np.full((count, count + 1), -1, np.int64)
    shape = (count, count + 1) if exits else (0, 0)
    started, free = np.zeros(shape, np.int64), np.zeros((*shape, queue.lanes), np.int64)
    kernels.price_items(
        tiles, costs, queue.lanes, len(queue.threshold), stops, depths.astype(np.int64), exits, ns, started, free
    )  # fmt: skip
    return ItemRegions(ns, started, free) if exits else ItemRegions(ns)


def _sums(queue: TileQueue, m: Mechanism, stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """(items, items + 1) makespans with `barrier`."""
    first_ns, follow_ns = chain_ns(queue, m)
    each_ns = follow_ns if m.overlap else first_ns
    until = np.concatenate([[0], np.cumsum(each_ns)])
    starts = np.concatenate([[0], stops[:-1]])
    some = np.flatnonzero(np.diff(queue.op_ptr.astype(np.int64)))  # operators that have tiles
    before = np.searchsorted(some, np.concatenate([starts, [queue.ops]]))  # how many of them, up to each item's start
    apart = np.zeros(len(stops), np.int64)  # what a region's first such operator costs more than behind another
    has = before[:-1] < len(some)
    apart[has] = (first_ns - each_ns)[some[before[:-1][has]]]
    ns: NDArray[np.int64] = until[np.concatenate([[0], stops])] - until[starts][:, None] + m.launch_ns + m.drain_ns
    ns += np.where(before > before[:-1, None], apart[:, None], 0)
    return ns


def follow_ns(queue: TileQueue, mechanism: Mechanism, ops: NDArray[np.int64], before: Exits) -> NDArray[np.int64]:
    """(n,): from the end of each of some launches to the end of the operator launched within it, ns."""
    from workbench.simulate import kernels

    tiles, costs = region_inputs(queue, mechanism, 0, queue.ops)
    found = np.empty(len(ops), np.int64)
    kernels.follow_each(tiles, costs, mechanism.wait_ns, queue.lanes, ops, before.started_ns, before.free_ns, found)
    return found
