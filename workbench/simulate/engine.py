"""The typed front of the simulator: what is simulated, how it is run, and what comes out.

Indices are unsigned and times are whole nanoseconds, so that equal times compare equal and no tie is an accident: a
lane runs its tiles in id order, so a pass has no choice to make, and its result does not depend on any order of events.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from workbench.errors import GraphError

if TYPE_CHECKING:
    from workbench.simulate import kernels

_LONGEST_NS = 2**61  # 73 years, of all tiles together; with a mechanism's part it still fits int64


@dataclass(frozen=True, eq=False)
class TileQueue:
    """Tiles in program order, each in the in-order queue of one lane, and the events between them.

    Shapes, for T tiles, E events and W waits; every array is C-contiguous, and held read-only.
    Tile t waits for the events ``wait_event[wait_ptr[t]:wait_ptr[t + 1]]`` and signals ``signal[t]`` on finishing.
    Building checks types and lengths; `check_tile_queue` checks the rest, at the latest when first simulated.
    """

    lane: NDArray[np.uint32]  # (T,) a lane runs its tiles in id order
    op: NDArray[np.uint32]  # (T,) operator instance, never decreasing; an operator may have no tiles
    signal: NDArray[np.uint32]  # (T,)
    wait_ptr: NDArray[np.uint32]  # (T + 1,)
    wait_event: NDArray[np.uint32]  # (W,)
    threshold: NDArray[np.uint32]  # (E,) the event fires at this many signals; 0: nobody signals, fired from the start
    weight_ns: NDArray[np.int64]  # (T,) loads that need no event
    input_ns: NDArray[np.int64]  # (T,) loads that need the events
    compute_ns: NDArray[np.int64]  # (T,)
    lanes: int
    ops: int

    def __post_init__(self) -> None:
        tiles = len(self.lane)
        lengths = {name: tiles for name in ("lane", "op", "signal", "weight_ns", "input_ns", "compute_ns")}
        lengths["wait_ptr"] = tiles + 1
        for field in fields(self)[:9]:
            array, dtype = getattr(self, field.name), np.int64 if field.name.endswith("_ns") else np.uint32
            if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
                raise GraphError(
                    f"{field.name} is {array.dtype}{list(array.shape)}; a tile queue needs a contiguous "
                    f"{np.dtype(dtype)} array of one dimension"
                )
            if len(array) != lengths.get(field.name, len(array)):
                raise GraphError(
                    f"{field.name} has {len(array)} entries, not {lengths[field.name]}: lane has {tiles}, one a tile"
                )
            view = array.view()
            view.flags.writeable = False
            object.__setattr__(self, field.name, view)

    def __reduce__(self) -> tuple[type[TileQueue], tuple[object, ...]]:
        return TileQueue, tuple(getattr(self, field.name) for field in fields(self))  # else unpickled writable

    @cached_property
    def op_ptr(self) -> NDArray[np.uint64]:
        """(ops + 1,): operator o holds the tiles [op_ptr[o], op_ptr[o + 1])."""
        ptr = np.searchsorted(self.op, np.arange(self.ops + 1, dtype=np.uint32)).astype(np.uint64)
        ptr.flags.writeable = False
        return ptr

    @cached_property
    def last_signaller(self) -> NDArray[np.int64]:
        """(E,): the last tile that signals each event, -1 for none. Later ones overwrite earlier ones."""
        last = np.full(len(self.threshold), -1, np.int64)
        last[self.signal] = np.arange(len(self.signal))
        return last

    @cached_property
    def waiter(self) -> NDArray[np.int64]:
        """(W,): the tile that each wait belongs to."""
        ptr = self.wait_ptr.astype(np.int64)
        return np.repeat(np.arange(len(self.lane)), ptr[1:] - ptr[:-1])

    @cached_property
    def _kernel_tiles(self) -> kernels.Tiles:
        from workbench.simulate import kernels

        check_tile_queue(self)
        return kernels.Tiles(
            self.op_ptr, self.lane, self.signal, self.wait_ptr, self.wait_event,
            self.weight_ns, self.input_ns, self.compute_ns,
        )  # fmt: skip

    @cached_property
    def _waits_in_own_op(self) -> NDArray[np.int64]:
        """The waits for an event that a tile of the same operator signals, as indices into wait_event."""
        last = self.last_signaller[self.wait_event]
        return np.flatnonzero((last >= 0) & (self.op[last] == self.op[self.waiter]))


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

    def __post_init__(self) -> None:
        for field in fields(self)[:7]:
            value = getattr(self, field.name)
            if not isinstance(value, int | np.integer) or not 0 <= value < 2**31:
                raise GraphError(f"{field.name}={value!r}; a mechanism's numbers are whole and within [0, 2**31)")


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

    @property
    def first_tile(self) -> int:
        """Id of the region's first tile; the number of tiles before it if the region has none."""
        return int(self.queue.op_ptr[self.start_op])

    @property
    def tiles(self) -> slice:
        """The region's part of the queue's arrays."""
        return slice(self.first_tile, self.first_tile + len(self.end_ns))


def _refuse(bad: NDArray[np.bool_], what: str, rule: str, *values: NDArray[np.generic]) -> None:
    """Raise for the first True of `bad`; `what` may hold {i}, the place, and {v[0]}, … the `values` there."""
    if bad.any():
        i = int(bad.argmax())
        raise GraphError(f"{what.format(i=i, v=[value[i] for value in values])}; {rule}")


def check_tile_queue(queue: TileQueue) -> None:
    """Raise `GraphError` unless `queue` can be simulated, naming the first tile or event that breaks a rule."""
    q, tiles, events = queue, len(queue.lane), len(queue.threshold)
    _refuse(q.lane >= q.lanes, "tile {i} is on lane {v[0]}", f"lanes are 0..{q.lanes - 1}", q.lane)
    _refuse(q.op >= q.ops, "tile {i} is of operator {v[0]}", f"operators are 0..{q.ops - 1}", q.op)
    _refuse(
        q.op[1:] < q.op[:-1], "tile {i} is of operator {v[0]} and the next of {v[1]}",
        "tiles are in program order, so operators never decrease", q.op[:-1], q.op[1:],
    )  # fmt: skip
    _refuse(q.signal >= events, "tile {i} signals event {v[0]}", f"events are 0..{events - 1}", q.signal)
    ptr = q.wait_ptr.astype(np.int64)
    waits = ptr[1:] - ptr[:-1]
    _refuse(waits < 0, "tile {i} has {v[0]} waits", "wait_ptr never decreases", waits)
    if (ptr[0], ptr[-1]) != (0, len(q.wait_event)):
        raise GraphError(
            f"wait_ptr runs from {ptr[0]} to {ptr[-1]}; it must run from 0 to the number of waits, {len(q.wait_event)}"
        )
    _refuse(
        q.wait_event >= events, "tile {v[0]} waits for event {v[1]}", f"events are 0..{events - 1}",
        q.waiter, q.wait_event,
    )  # fmt: skip
    counts = np.bincount(q.signal, minlength=events)
    _refuse(
        q.threshold > counts, "event {i} fires at {v[0]} signals and {v[1]} tiles signal it",
        "it can never reach its threshold, so whoever waits for it would deadlock", q.threshold, counts,
    )  # fmt: skip
    _refuse(
        q.threshold < counts, "event {i} fires at {v[0]} signals and {v[1]} tiles signal it",
        "its threshold must be the number of its signallers, or it fires before all have finished", q.threshold, counts,
    )  # fmt: skip
    last = q.last_signaller[q.wait_event]
    _refuse(
        last >= q.waiter, "tile {v[0]} waits for event {v[1]}, which tile {v[2]} signals",
        "a tile may wait only for earlier tiles, so this is a cycle or a queue that is not in program order",
        q.waiter, q.wait_event, last,
    )  # fmt: skip
    total_ns = 0.0
    for name in ("weight_ns", "input_ns", "compute_ns"):
        times = getattr(q, name)
        _refuse(times < 0, f"tile {{i}} has {name}={{v[0]}}", "times are not negative", times)
        total_ns += times.sum(dtype=np.float64)
    if total_ns > _LONGEST_NS:
        raise GraphError(f"the {tiles} tiles take {total_ns:.3g} ns together; more than {_LONGEST_NS:.3g} ns overflow")


def _region(queue: TileQueue, mechanism: Mechanism, start_op: int, stop_op: int) -> tuple[kernels.Tiles, kernels.Costs]:
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


def simulate(queue: TileQueue, mechanism: Mechanism, start_op: int = 0, stop_op: int | None = None) -> Run:
    """Run the operators [start_op, stop_op) as one region and keep every tile's times; `stop_op` None is to the end.

    Raises
    ------
    GraphError
        If the queue breaks a rule (`check_tile_queue`), the region is not within it, or, with `barrier`, a tile waits
        for an event of its own operator.
    """
    from workbench.simulate import kernels

    stop_op = queue.ops if stop_op is None else stop_op
    tiles, costs = _region(queue, mechanism, start_op, stop_op)
    times = np.empty((5, int(tiles.op_ptr[stop_op] - tiles.op_ptr[start_op])), np.int64)
    total = kernels.trace(tiles, costs, queue.lanes, len(queue.threshold), start_op, stop_op, times)
    begin, load_start, load_end, compute_start, end = times
    return Run(queue, mechanism, start_op, stop_op, begin, load_start, load_end, compute_start, end, int(total))


def makespan(queue: TileQueue, mechanism: Mechanism, start_op: int = 0, stop_op: int | None = None) -> int:
    """`simulate(...).makespan_ns`, in ns, without keeping the tiles' times."""
    stop_op = queue.ops if stop_op is None else stop_op
    priced = _prices(queue, mechanism, start_op, stop_op)
    return int(priced[-1]) if len(priced) else mechanism.launch_ns + mechanism.drain_ns


def prefix_makespans(queue: TileQueue, mechanism: Mechanism, start_op: int = 0) -> NDArray[np.int64]:
    """Makespans in ns of every region that starts at `start_op`, by one pass: entry j is [start_op, start_op + j + 1).

    One pass is enough because nothing that comes later in program order changes when an earlier tile ends.
    """
    return _prices(queue, mechanism, start_op, queue.ops)


def _prices(queue: TileQueue, mechanism: Mechanism, start_op: int, stop_op: int) -> NDArray[np.int64]:
    from workbench.simulate import kernels

    tiles, costs = _region(queue, mechanism, start_op, stop_op)
    out = np.empty(stop_op - start_op, np.int64)
    kernels.price(tiles, costs, queue.lanes, len(queue.threshold), start_op, stop_op, out)
    return out


def all_makespans(queue: TileQueue, mechanism: Mechanism) -> NDArray[np.int64]:
    """(ops, ops + 1): entry [start, stop] is the makespan in ns of [start, stop); -1 where stop < start.

    One pass a start, so half of ops times the tiles in all: 1 to 2 s for 1,000 operators and 220,000 tiles.
    """
    from workbench.simulate import kernels

    tiles, costs = _region(queue, mechanism, 0, queue.ops)
    out = np.full((queue.ops, queue.ops + 1), -1, np.int64)
    np.fill_diagonal(out, mechanism.launch_ns + mechanism.drain_ns)
    kernels.price_all(tiles, costs, queue.lanes, len(queue.threshold), queue.ops, out)
    return out
