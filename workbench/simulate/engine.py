"""How a region is run, what comes out, and the one-pass engine: static queues, loads of known length.

A lane runs its tiles in id order, so a pass has no choice to make, and its result does not depend on any order of
events. The engines of `dynamic` and `shared` take the same queue and mechanism, and give a Run too.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from workbench.errors import GraphError
from workbench.simulate.tile_queue import TileQueue

if TYPE_CHECKING:
    from workbench.simulate import kernels


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """How a region is run. This is the definition of a pass; all times are from the region's start.

    For the tiles in id order, with free[l] and loader[l] at `launch_ns` on every lane l to begin with::

        if barrier, at an operator's first tile:   every free[l] = loader[l] = max(free) + gap_ns
        dispatched    = free[l] + dispatch_ns
        visible       = max over the events waited for of fire[e] + event_ns           nothing if barrier
        begin         = max(dispatched, visible)
        load_start    = begin                                                          prefetch_depth 0
                      = max(loader[l], end of the lane's prefetch_depth-th previous tile)   otherwise
        load_end      = loader[l] = load_start + weight_ns
        compute_start = max(begin + input_ns, load_end)
        end           = compute_start + compute_ns
        done          = free[l] = end + signal_ns
        fire[e]       = max over the tiles that signal e of done
        makespan      = max(free) + drain_ns

    With `overlap` as well, an operator is launched while the one before it runs (programmatic dependent launch). Let
    the operator before, run by itself from 0 on idle lanes, end at E, its last tile begin at s and lane l be done at
    d[l] (0 where it has no tile). If it really ended at top, then instead of ``max(free) + gap_ns``::

        free[l] = loader[l] = top + max(s - E + gap_ns, d[l] - E)                      launched once all have begun
        compute_start       = max(max(begin, top + wait_ns) + input_ns, load_end)      its inputs need all of it

    so an operator knows of its predecessor, and nothing of what was before that: a simplification which keeps the time
    of a composition a sum over neighbours. A region's first operator has no predecessor, or the one that is given.

    An event that only tiles before the region signal is satisfied from the start. No load starts before the launch or,
    with `barrier`, before the operator's gap is over. An operator without tiles costs nothing.
    """

    launch_ns: int = 0  # once a region, before anything
    gap_ns: int = 0  # before every operator, if barrier
    dispatch_ns: int = 0  # a tile: the lane takes it from its queue
    event_ns: int = 0  # from a signal until a waiter sees it
    signal_ns: int = 0  # a tile: the lane is busy signalling
    drain_ns: int = 0  # once a region, after the last tile
    prefetch_depth: int = 0  # tiles whose weights a lane can hold; 0: no load before the events; 1: none ahead
    barrier: bool = False  # one kernel an operator (a conventional region); else events (a megakernel)
    overlap: bool = False  # with barrier: launches overlap
    wait_ns: int = 0  # with overlap: from the end of a kernel until the next one sees it

    def __post_init__(self) -> None:
        if self.overlap and not (self.barrier and self.prefetch_depth <= 1):
            raise GraphError(
                "overlapping launches are of kernels (barrier) that load nothing ahead (prefetch_depth ≤ 1)"
            )
        if not 0 <= self.wait_ns < 2**31:
            raise GraphError(f"wait_ns={self.wait_ns!r}; a mechanism's numbers are whole and within [0, 2**31)")
        for field in fields(self)[:7]:
            value = getattr(self, field.name)
            if not isinstance(value, int | np.integer) or not 0 <= value < 2**31:
                raise GraphError(f"{field.name}={value!r}; a mechanism's numbers are whole and within [0, 2**31)")


@dataclass(frozen=True, eq=False)
class Exit:
    """How a launch ends: what one that overlaps it needs to know. Times are relative to its end, so none is positive.

    ``started_ns``: when the last lane had begun its last tile; ``free_ns`` (lanes,): when each lane was done.
    """

    started_ns: int
    free_ns: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Run:
    """One simulated region, the operators [start_op, stop_op) of `queue`; entry i is tile ``first_tile + i``."""

    queue: TileQueue
    mechanism: Mechanism
    start_op: int
    stop_op: int
    begin_ns: NDArray[np.int64]
    load_start_ns: NDArray[np.int64]
    load_end_ns: NDArray[np.int64]
    compute_start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]  # exclusive; the lane is busy signal_ns longer
    makespan_ns: int
    dynamic_lane: NDArray[np.uint32] | None = None  # the lane that each tile was given to; None: the queue's
    shared_input_end_ns: NDArray[np.int64] | None = None  # when its inputs were in; None: begin_ns + the queue's
    before: Exit | None = None  # with overlap, the launch before the region's first; its end is time launch_ns

    @property
    def lane(self) -> NDArray[np.uint32]:
        """The lane that each tile ran on."""
        return self.queue.lane[self.tiles] if self.dynamic_lane is None else self.dynamic_lane

    @property
    def input_end_ns(self) -> NDArray[np.int64]:
        """When each tile's inputs were in."""
        if self.shared_input_end_ns is not None:
            return self.shared_input_end_ns
        ends: NDArray[np.int64] = np.maximum(self.begin_ns, self.given_ns) + self.queue.input_ns[self.tiles]
        return ends

    @cached_property
    def tops_ns(self) -> NDArray[np.int64]:
        """With overlap, for each tile when all before its operator had ended."""
        op = self.queue.op[self.tiles]
        first = np.flatnonzero(np.diff(op.astype(np.int64), prepend=-1))
        if not len(first):
            return np.zeros(0, np.int64)
        done = np.maximum.reduceat(self.end_ns, first) + self.mechanism.signal_ns
        tops = np.concatenate([[self.mechanism.launch_ns], done[:-1]])
        return np.repeat(tops, np.diff(first, append=len(op)))

    @cached_property
    def given_ns(self) -> NDArray[np.int64] | int:
        """With overlap, for each tile when its operator saw that all before it had ended; else nothing to wait for."""
        if not self.mechanism.overlap:
            return 0
        given = self.tops_ns + self.mechanism.wait_ns
        if self.before is None and len(given):
            op = self.queue.op[self.tiles]
            given[op == op[0]] = self.mechanism.launch_ns + self.mechanism.gap_ns
        return given

    @property
    def first_tile(self) -> int:
        """Id of the region's first tile; the number of tiles before it if the region has none."""
        return int(self.queue.op_ptr[self.start_op])

    @property
    def tiles(self) -> slice:
        """The region's part of the queue's arrays."""
        return slice(self.first_tile, self.first_tile + len(self.end_ns))


def region_inputs(
    queue: TileQueue, mechanism: Mechanism, start_op: int, stop_op: int
) -> tuple[kernels.Tiles, kernels.Costs]:
    """What a kernel needs, with the region's own rules checked."""
    from workbench.simulate import kernels

    tiles = queue._kernel_tiles
    if not 0 <= start_op <= stop_op <= queue.ops:
        raise GraphError(f"region [{start_op}, {stop_op}) is not within the queue's operators [0, {queue.ops})")
    if mechanism.barrier and len(queue._waits_in_own_op):
        wait = queue._waits_in_own_op[0]
        t = queue.waiter[wait]
        raise GraphError(
            f"tile {t} waits for event {queue.wait_event[wait]} of its own operator {queue.op[t]}; with barrier "
            "one kernel runs an operator, so nothing within it is ordered: split the operator in two"
        )
    depth = np.uint64(min(mechanism.prefetch_depth, len(queue.lane)))  # as many pages as tiles are as good as more
    m = mechanism
    costs = kernels.Costs(
        m.launch_ns, m.gap_ns, m.dispatch_ns, m.event_ns, m.signal_ns, m.drain_ns, depth, bool(m.barrier)
    )  # fmt: skip
    return tiles, costs


def longest_ns(queue: TileQueue, mechanism: Mechanism) -> int:
    """What a run of `queue` takes at most: one lane does all, and each operator has a gap."""
    m = mechanism
    each_ns = m.dispatch_ns + m.event_ns + m.signal_ns
    return m.launch_ns + queue.total_ns + len(queue.lane) * each_ns + queue.ops * m.gap_ns + m.drain_ns


def id_bits(longest_ns: int, ids: int) -> int:
    """Bits for ids below `ids` in a heap's entry, beside any time up to `longest_ns`; see `kernels`."""
    bits = max(1, (ids - 1).bit_length())
    if longest_ns >= 2 ** (63 - bits):
        raise GraphError(
            f"the region may take {longest_ns:.3g} ns; with {ids} lanes, events or loads to tell apart, this engine "
            f"counts to {2 ** (63 - bits):.3g} ns"
        )
    return bits


def simulate(
    queue: TileQueue,
    mechanism: Mechanism,
    start_op: int = 0,
    stop_op: int | None = None,
    before: Exit | None = None,
) -> Run:
    """Run the operators [start_op, stop_op) as one region and keep every tile's times; `stop_op` None is to the end.

    With `overlap`, ``before`` is how the launch before the region ends: at time `launch_ns`, so what overlaps it is
    earlier. Elsewhere it changes nothing.

    Raises
    ------
    GraphError
        If the queue breaks a rule (`check_tile_queue`), the region is not within it, or, with `barrier`, a tile waits
        for an event of its own operator.
    """
    from workbench.simulate import kernels

    stop_op = queue.ops if stop_op is None else stop_op
    tiles, costs = region_inputs(queue, mechanism, start_op, stop_op)
    times = np.empty((5, int(tiles.op_ptr[stop_op] - tiles.op_ptr[start_op])), np.int64)
    if mechanism.overlap:
        entry = before or Exit(0, np.zeros(queue.lanes, np.int64))
        total = kernels.overlap_trace(
            tiles, costs, mechanism.wait_ns, queue.lanes, start_op, stop_op, before is not None, entry.started_ns,
            entry.free_ns, times,
        )  # fmt: skip
    else:
        before = None
        total = kernels.trace(tiles, costs, queue.lanes, len(queue.threshold), start_op, stop_op, times)
    begin, load_start, load_end, compute_start, end = times
    return Run(
        queue, mechanism, start_op, stop_op, begin, load_start, load_end, compute_start, end, int(total), before=before
    )  # fmt: skip


def makespan(queue: TileQueue, mechanism: Mechanism, start_op: int = 0, stop_op: int | None = None) -> int:
    """`simulate(...).makespan_ns`, in ns, without keeping the tiles' times."""
    stop_op = queue.ops if stop_op is None else stop_op
    priced = _prices(queue, mechanism, start_op, stop_op)
    return int(priced[-1]) if len(priced) else mechanism.launch_ns + mechanism.drain_ns


def prefix_makespans(
    queue: TileQueue, mechanism: Mechanism, start_op: int = 0, stop_op: int | None = None
) -> NDArray[np.int64]:
    """Makespans in ns of every region that starts at `start_op`, by one pass: entry j is [start_op, start_op + j + 1).

    The longest ends before `stop_op`; None is the end.

    One pass is enough because nothing that comes later in program order changes when an earlier tile ends.
    """
    return _prices(queue, mechanism, start_op, queue.ops if stop_op is None else stop_op)


def _prices(queue: TileQueue, mechanism: Mechanism, start_op: int, stop_op: int) -> NDArray[np.int64]:
    from workbench.simulate import kernels

    if mechanism.overlap:
        first_ns, follow_ns = chain_ns(queue, mechanism)
        region_inputs(queue, mechanism, start_op, stop_op)
        return _chained(queue, mechanism, (first_ns, follow_ns), start_op, stop_op)
    tiles, costs = region_inputs(queue, mechanism, start_op, stop_op)
    out = np.empty(stop_op - start_op, np.int64)
    kernels.price(tiles, costs, queue.lanes, len(queue.threshold), start_op, stop_op, out)
    return out


def chain_ns(queue: TileQueue, mechanism: Mechanism) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """With barrier, (ops,) ns of each operator as a region's first, and of it after the operator before it.

    Both with its gap, or with overlap what is left of it; without overlap they are the same.
    """
    from workbench.simulate import kernels

    m, (tiles, costs) = mechanism, region_inputs(queue, mechanism, 0, queue.ops)
    key = (m.dispatch_ns, m.signal_ns, m.prefetch_depth)  # all that an operator by itself hangs on
    if key not in queue.alone_ns:
        queue.alone_ns[key] = np.empty(queue.ops, np.int64)
        kernels.alone_each(tiles, costs, queue.lanes, queue.ops, queue.alone_ns[key])
    first_ns = queue.alone_ns[key] + np.where(queue.op_ptr[1:] > queue.op_ptr[:-1], m.gap_ns, 0)
    if not m.overlap:
        return first_ns, first_ns
    follow_ns = first_ns.copy()
    kernels.follow_chain(tiles, costs, m.wait_ns, queue.lanes, queue.ops, follow_ns)
    return first_ns, follow_ns


def _chained(
    queue: TileQueue, m: Mechanism, chain: tuple[NDArray[np.int64], NDArray[np.int64]], start_op: int, stop_op: int
) -> NDArray[np.int64]:
    """Makespans of the regions from `start_op`: its first operator that has tiles has no predecessor."""
    first_ns, follow_ns = chain
    each = follow_ns[start_op:stop_op].copy()
    some = np.flatnonzero(queue.op_ptr[start_op + 1 : stop_op + 1] > queue.op_ptr[start_op:stop_op])
    if len(some):
        each[some[0]] = first_ns[start_op + some[0]]
    makespans: NDArray[np.int64] = m.launch_ns + np.cumsum(each) + m.drain_ns
    return makespans


def all_makespans(queue: TileQueue, mechanism: Mechanism) -> NDArray[np.int64]:
    """(ops, ops + 1): entry [start, stop] is the makespan in ns of [start, stop); -1 where stop < start.

    One pass a start, so half of ops times the tiles in all: 1 to 2 s for 1,000 operators and 220,000 tiles.
    """
    from workbench.simulate import kernels

    tiles, costs = region_inputs(queue, mechanism, 0, queue.ops)
    out = np.full((queue.ops, queue.ops + 1), -1, np.int64)
    np.fill_diagonal(out, mechanism.launch_ns + mechanism.drain_ns)
    if mechanism.overlap:
        first_ns, follow_ns = chain_ns(queue, mechanism)
        for start in range(queue.ops):
            out[start, start + 1 :] = _chained(queue, mechanism, (first_ns, follow_ns), start, queue.ops)
        return out
    kernels.price_all(tiles, costs, queue.lanes, len(queue.threshold), queue.ops, out)
    return out
