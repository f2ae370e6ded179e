"""Every compiled loop of the simulator, in one module: numba's cache on disk sees only the file that defines a kernel.

That is why it is longer than other modules are. It holds, in this order, the one pass (defined in `engine.Mechanism`,
transcribed once in `_place`), overlapping launches (defined there too), dynamic queues (defined in
`dynamic.simulate_dynamic`), shared bandwidth (defined in `shared.SharedBandwidth`) and the one pass many times over
(defined in `replicate.replicate`). Nothing is checked here: indices that `check_tile_queue` has not seen may read or
write outside an array.

Indices are unsigned throughout. A signed index costs a compare and an add for Python's wraparound, 1.6 to 2.1 times
the whole pass; and unsigned mixed with a plain literal becomes float64, hence `_ONE`. Of a tile's waits the first and
the last are read without a loop: how many there are is a branch that the processor cannot foresee, a fifth of the pass.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

import numba
import numpy as np
from numba.core import event as numba_event
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., object])
_ONE = np.uint64(1)
_NEVER = 2**63 - 1
_warned = False


class _Compiling(numba_event.Listener):
    """Says once, on a terminal, why the first run takes long: numba compiles, and no cache has it."""

    said = False

    def on_start(self, event: numba_event.Event) -> None:
        if not _Compiling.said and sys.stderr.isatty():
            print("compiling the simulator: once a machine, about half a minute", file=sys.stderr)
        _Compiling.said = True

    def on_end(self, event: numba_event.Event) -> None:
        """Nothing to say."""


numba_event.register("numba:compile", _Compiling())  # type: ignore[no-untyped-call]


def _jit(function: F) -> F:
    """Compile at the first call and cache on disk; where no folder can be written, warn once and do without.

    For a type checker the kernel keeps the function's own signature.
    """
    global _warned
    kernel = numba.njit(nogil=True, boundscheck=False, error_model="numpy")(function)
    try:
        kernel.enable_caching()
    except (RuntimeError, OSError) as error:
        if not _warned:
            warnings.warn(
                f"compiled kernels are not kept ({error}): each process compiles anew, a few seconds; "
                "set NUMBA_CACHE_DIR to a folder that can be written",
                RuntimeWarning,
                stacklevel=2,
            )
        _warned = True
    return cast(F, kernel)


# Loops by hand where numpy has a word: each such word costs a second or so to compile.


@_jit
def _fill(array: NDArray[np.int64], value: int) -> None:
    for i in range(np.uint64(len(array))):
        array[i] = value


@_jit
def _copy(into: NDArray[np.int64], given: NDArray[np.int64]) -> None:
    for i in range(np.uint64(len(into))):
        into[i] = given[i]


@_jit
def _greatest(array: NDArray[np.int64]) -> int:
    """Index of the greatest entry, the first of equals."""
    best = 0
    for i in range(len(array)):
        if array[i] > array[best]:
            best = i
    return best


class Tiles(NamedTuple):
    """The arrays of a checked `engine.TileQueue`."""

    op_ptr: NDArray[np.uint64]  # (ops + 1,): operator o holds the tiles [op_ptr[o], op_ptr[o + 1])
    lane: NDArray[np.uint32]
    signal: NDArray[np.uint32]
    wait_ptr: NDArray[np.uint32]
    wait_event: NDArray[np.uint32]
    weight_ns: NDArray[np.int64]
    input_ns: NDArray[np.int64]
    compute_ns: NDArray[np.int64]


class Costs(NamedTuple):
    """The numbers of an `engine.Mechanism`."""

    launch_ns: int
    gap_ns: int
    dispatch_ns: int
    event_ns: int
    signal_ns: int
    drain_ns: int
    depth: np.uint64
    barrier: bool


class Clocks(NamedTuple):
    """The state of a pass. All zero is a fresh one, for nothing happens before `floor_ns` (see `_place`)."""

    free_ns: NDArray[np.int64]  # (lanes,) when the lane's last tile had signalled
    loader_ns: NDArray[np.int64]  # (lanes,) when the lane's last weights were in
    page_ns: NDArray[np.int64]  # (lanes * depth,) a ring a lane: when the tile that held the page had computed
    turn: NDArray[np.uint64]  # (lanes,) the ring's next page
    seen_ns: NDArray[np.int64]  # (events,) when a waiter sees the event, by the signals so far


@_jit
def _clocks(lanes: int, events: int, depth: np.uint64) -> Clocks:
    return Clocks(
        np.zeros(lanes, np.int64),
        np.zeros(lanes, np.int64),
        np.zeros(np.uint64(lanes) * depth, np.int64),
        np.zeros(lanes, np.uint64),
        np.zeros(events, np.int64),
    )


@_jit
def _reset(clocks: Clocks) -> None:
    clocks.free_ns[:] = 0
    clocks.loader_ns[:] = 0
    clocks.page_ns[:] = 0
    clocks.turn[:] = 0
    clocks.seen_ns[:] = 0


@_jit
def _place(
    tiles: Tiles, costs: Costs, clocks: Clocks, t: int, floor_ns: int, waits: bool
) -> tuple[int, int, int, int, int]:
    """Run tile `t` next on its lane, not before `floor_ns`: begin, load_start, load_end, compute_start, end.

    `floor_ns` is the end of the region's launch, or of the operator's gap: a barrier raises it instead of every clock.
    `waits` is false with a barrier; the callers pass a literal, so that each of their loops knows it.
    """
    lane = np.uint64(tiles.lane[t])
    begin = max(clocks.free_ns[lane], floor_ns) + costs.dispatch_ns
    if waits:
        k, stop = np.uint64(tiles.wait_ptr[t]), np.uint64(tiles.wait_ptr[t + _ONE])
        if k < stop:
            begin = max(begin, clocks.seen_ns[tiles.wait_event[k]])
            begin = max(begin, clocks.seen_ns[tiles.wait_event[stop - _ONE]])
            if stop - k > np.uint64(2):
                for middle in range(k + _ONE, stop - _ONE):
                    begin = max(begin, clocks.seen_ns[tiles.wait_event[middle]])
    page = lane
    if costs.depth == 0:
        load_start = begin
    else:
        page = lane * costs.depth + clocks.turn[lane]
        load_start = max(max(clocks.loader_ns[lane], clocks.page_ns[page]), floor_ns)
    load_end = load_start + tiles.weight_ns[t]
    compute_start = max(begin + tiles.input_ns[t], load_end)
    end = compute_start + tiles.compute_ns[t]
    if costs.depth > 0:
        clocks.loader_ns[lane] = load_end
        clocks.page_ns[page] = end
        turn = clocks.turn[lane] + _ONE
        clocks.turn[lane] = turn if turn < costs.depth else np.uint64(0)
    done = end + costs.signal_ns
    clocks.free_ns[lane] = done
    if waits:
        event = tiles.signal[t]
        clocks.seen_ns[event] = max(clocks.seen_ns[event], done + costs.event_ns)
    return begin, load_start, load_end, compute_start, end


@_jit
def _price(tiles: Tiles, costs: Costs, clocks: Clocks, start_op: int, stop_op: int, out_ns: NDArray[np.int64]) -> None:
    top_ns = costs.launch_ns  # when every lane is free
    floor_ns = top_ns
    for op in range(np.uint64(start_op), np.uint64(stop_op)):
        first, stop = tiles.op_ptr[op], tiles.op_ptr[op + _ONE]
        if costs.barrier:
            if first < stop:
                floor_ns = top_ns + costs.gap_ns
            for t in range(first, stop):
                end = _place(tiles, costs, clocks, t, floor_ns, False)[4]
                top_ns = max(top_ns, end + costs.signal_ns)
        else:
            for t in range(first, stop):
                end = _place(tiles, costs, clocks, t, floor_ns, True)[4]
                top_ns = max(top_ns, end + costs.signal_ns)
        out_ns[op - np.uint64(start_op)] = top_ns + costs.drain_ns


@_jit
def price(
    tiles: Tiles, costs: Costs, lanes: int, events: int, start_op: int, stop_op: int, out_ns: NDArray[np.int64]
) -> None:
    """One pass from `start_op`; `out_ns[j]` becomes the makespan of [start_op, start_op + j + 1)."""
    _price(tiles, costs, _clocks(lanes, events, costs.depth), start_op, stop_op, out_ns)


@_jit
def price_all(tiles: Tiles, costs: Costs, lanes: int, events: int, ops: int, out_ns: NDArray[np.int64]) -> None:
    """A pass from every start; `out_ns[start, stop]` for start < stop is written, the rest is left."""
    clocks = _clocks(lanes, events, costs.depth)
    for start in range(ops):
        _reset(clocks)
        _price(tiles, costs, clocks, start, ops, out_ns[start, start + 1 :])


@_jit
def _keep(out_ns: NDArray[np.int64], i: int | np.uint64, times: tuple[int, int, int, int, int]) -> int:
    out_ns[0, i], out_ns[1, i], out_ns[2, i], out_ns[3, i], out_ns[4, i] = times
    return times[4]


@_jit
def trace(
    tiles: Tiles, costs: Costs, lanes: int, events: int, start_op: int, stop_op: int, out_ns: NDArray[np.int64]
) -> int:
    """The makespan of [start_op, stop_op); row r of `out_ns` (5, tiles) becomes the r-th time that `_place` returns."""
    clocks = _clocks(lanes, events, costs.depth)
    top_ns = costs.launch_ns
    floor_ns = top_ns
    origin = tiles.op_ptr[np.uint64(start_op)]
    for op in range(np.uint64(start_op), np.uint64(stop_op)):
        first, stop = tiles.op_ptr[op], tiles.op_ptr[op + _ONE]
        if costs.barrier:
            if first < stop:
                floor_ns = top_ns + costs.gap_ns
            for t in range(first, stop):
                end = _keep(out_ns, t - origin, _place(tiles, costs, clocks, t, floor_ns, False))
                top_ns = max(top_ns, end + costs.signal_ns)
        else:
            for t in range(first, stop):
                end = _keep(out_ns, t - origin, _place(tiles, costs, clocks, t, floor_ns, True))
                top_ns = max(top_ns, end + costs.signal_ns)
    return top_ns + costs.drain_ns


@_jit
def links(
    lane: NDArray[np.uint32], signal: NDArray[np.uint32], end_ns: NDArray[np.int64], lanes: int, events: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For a run's tiles, numbered from 0: the tile before on the same lane, and by event the tile that fired it.

    An event's is the signaller that ended last, the smaller number among equals. -1 where there is none.
    """
    previous = np.full(len(lane), -1, np.int64)
    newest = np.full(lanes, -1, np.int64)
    fired_by = np.full(events, -1, np.int64)
    for t in range(len(lane)):
        previous[t] = newest[lane[t]]
        newest[lane[t]] = t
        by = fired_by[signal[t]]
        if by < 0 or end_ns[t] > end_ns[by]:
            fired_by[signal[t]] = t
    return previous, fired_by


# ---- the critical path ----


class Times(NamedTuple):
    """Of a run's tiles, numbered from 0: what `critical_path` follows. The last two are empty without overlap."""

    begin_ns: NDArray[np.int64]
    load_start_ns: NDArray[np.int64]
    load_end_ns: NDArray[np.int64]
    compute_start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    input_end_ns: NDArray[np.int64]
    tops_ns: NDArray[np.int64]
    given_ns: NDArray[np.int64]


_LAUNCH, _RAMP, _DISPATCH, _WEIGHTS, _ACTIVATIONS, _COMPUTE, _EVENT_WAIT, _, _DRAIN = range(9)  # as CAUSES
_AT_DONE, _AT_END, _AT_LOADED, _AT_BEGIN, _AT_GIVEN, _AT_FLOOR, _AT_LAUNCH = range(7)  # moments of a tile


@_jit
def _segment(out: NDArray[np.int64], n: int, cause: int, tile: int, begin_ns: int, end_ns: int) -> int:
    out[0, n], out[1, n], out[2, n], out[3, n] = cause, tile, begin_ns, end_ns
    return n + 1


@_jit
def _before_on_lane(op: NDArray[np.uint32], id0: int, previous: NDArray[np.int64], t: int, back: int, own: bool) -> int:
    """The tile `back` places before on the same lane, -1 if there is none; if `own`, of its own operator."""
    at = t
    for _ in range(back):
        at = previous[at]
        if at < 0 or (own and op[id0 + at] != op[id0 + t]):
            return -1
    return at


@_jit
def _seen_at(tiles: Tiles, costs: Costs, times: Times, id0: int, fired_by: NDArray[np.int64], t: int, ns: int) -> int:
    """The tile that fired an event which t saw at `ns`; of several the one with the smallest id."""
    found = -1
    for k in range(np.uint64(tiles.wait_ptr[id0 + t]), np.uint64(tiles.wait_ptr[id0 + t + 1])):
        by = fired_by[tiles.wait_event[k]]
        if by >= 0 and times.end_ns[by] + costs.signal_ns + costs.event_ns == ns and (found < 0 or by < found):
            found = by
    return found


@_jit
def _slowest_before(op: NDArray[np.uint32], times: Times, id0: int, t: int) -> int:
    """The tile that ended last of the operator before t's, the first of equals; -1 if t's is the first."""
    first = t
    while first > 0 and op[id0 + first - 1] == op[id0 + t]:
        first -= 1
    if first == 0:
        return -1
    slowest = first - 1
    at = first - 1
    while at >= 0 and op[id0 + at] == op[id0 + first - 1]:
        if times.end_ns[at] >= times.end_ns[slowest]:
            slowest = at
        at -= 1
    return slowest


@_jit
def critical_path(
    tiles: Tiles, costs: Costs, times: Times, op: NDArray[np.uint32], id0: int, makespan_ns: int,
    previous: NDArray[np.int64], fired_by: NDArray[np.int64], dynamic: bool, overlap: bool, out: NDArray[np.int64],
) -> int:  # fmt: skip
    """Number of segments, or -1 if ``out`` (4, most) does not hold them; at least 3 must fit.

    A column of ``out`` becomes a segment: cause, tile id (-1: none), begin and end, from the drain back to the launch;
    some are empty.

    A step goes from a moment of tile t (numbered within the run) to the moment that set it. The floor is the moment
    from which t's lane could work at all: the end of the launch or, with `barrier`, of t's operator's gap.
    """
    n = 0
    top = makespan_ns - costs.drain_ns
    n = _segment(out, n, _DRAIN, -1, top, makespan_ns)
    if len(times.end_ns) > 0:
        at, t, moment = _AT_DONE, _greatest(times.end_ns), top
        while at != _AT_LAUNCH:
            if n + 3 > out.shape[1]:
                return -1
            begin, start, end = times.begin_ns[t], times.compute_start_ns[t], times.end_ns[t]
            before = _before_on_lane(op, id0, previous, t, 1, costs.barrier)
            if at == _AT_DONE:
                n = _segment(out, n, _EVENT_WAIT, id0 + t, end, end + costs.signal_ns)
                at = _AT_END
            elif at == _AT_END:
                n = _segment(out, n, _COMPUTE, id0 + t, start, end)
                at = _AT_LOADED
                if times.input_end_ns[t] == start:
                    given = times.given_ns[t] if overlap else begin
                    n = _segment(out, n, _ACTIVATIONS, id0 + t, max(begin, given), start)
                    at, moment = (_AT_FLOOR, given) if given > begin else (_AT_BEGIN, begin)
            elif at == _AT_LOADED:
                moment = times.load_start_ns[t]
                n = _segment(out, n, _WEIGHTS, id0 + t, moment, times.load_end_ns[t])
                if costs.depth == 0:
                    at = _AT_BEGIN
                elif dynamic:
                    at = _AT_GIVEN
                elif before >= 0 and times.load_end_ns[before] == moment:
                    t = before
                else:
                    page = _before_on_lane(op, id0, previous, t, int(costs.depth), costs.barrier)
                    at = _AT_FLOOR
                    if page >= 0 and times.end_ns[page] == moment:
                        at, t = _AT_END, page
            elif at == _AT_BEGIN:
                moment = begin - costs.dispatch_ns
                free = times.end_ns[before] + costs.signal_ns if before >= 0 else costs.launch_ns
                if dynamic:
                    n = _segment(out, n, _DISPATCH, id0 + t, moment, begin)
                    at = _AT_GIVEN
                elif costs.barrier or free == moment:
                    n = _segment(out, n, _DISPATCH, id0 + t, moment, begin)
                    at, t = (_AT_DONE, before) if before >= 0 else (_AT_FLOOR, t)
                else:
                    n = _segment(out, n, _EVENT_WAIT, id0 + t, begin - costs.event_ns, begin)
                    at, t = _AT_DONE, _seen_at(tiles, costs, times, id0, fired_by, t, begin)
            elif at == _AT_GIVEN:  # to a lane, by dynamic queues
                given = begin - costs.dispatch_ns
                if before >= 0 and times.end_ns[before] + costs.signal_ns == given:
                    at, t = _AT_DONE, before
                elif before < 0 and (costs.barrier or given == costs.launch_ns):
                    at = _AT_FLOOR
                else:
                    n = _segment(out, n, _EVENT_WAIT, id0 + t, given - costs.event_ns, given)
                    at, t = _AT_DONE, _seen_at(tiles, costs, times, id0, fired_by, t, given)
            else:
                slowest = _slowest_before(op, times, id0, t) if costs.barrier else -1
                ended = costs.launch_ns if slowest < 0 else times.end_ns[slowest] + costs.signal_ns
                if overlap:
                    n = _segment(out, n, _RAMP, -1, ended, max(ended, moment))
                elif costs.barrier:
                    n = _segment(out, n, _RAMP, -1, ended, ended + costs.gap_ns)
                at, t = (_AT_LAUNCH, t) if slowest < 0 else (_AT_DONE, slowest)
    return _segment(out, n, _LAUNCH, -1, 0, costs.launch_ns)


# ---- overlapping launches ----


class Exit(NamedTuple):
    """How a launch ends, relative to its end (`overlap.Handover`)."""

    started_ns: int
    free_ns: NDArray[np.int64]  # (lanes,)


@_jit
def price_items(
    tiles: Tiles, costs: Costs, lanes: int, events: int, item_stop: NDArray[np.int64], depths: NDArray[np.int64],
    keep: bool, out_ns: NDArray[np.int64], started_ns: NDArray[np.int64], free_ns: NDArray[np.int64],
) -> None:  # fmt: skip
    """Every region of a queue's items, without barrier: a pass from each start for each of its depths.

    ``depths[i, j]`` is the prefetch depth of the region of items [i, j), never rising with j; below 0 it is left out.
    ``out_ns[i, j]`` becomes its makespan and, if `keep`, ``started_ns[i, j]`` and ``free_ns[i, j]`` how it ends.
    """
    items = np.uint64(len(item_stop))
    begun = np.empty(lanes, np.int64)
    for start in range(items):
        first = np.uint64(item_stop[start - _ONE]) if start > 0 else np.uint64(0)
        stop = start + _ONE
        while stop <= items:
            depth = depths[start, stop]
            last = stop
            while last < items and depths[start, last + _ONE] == depth:
                last += _ONE
            if depth >= 0:
                own = Costs(
                    costs.launch_ns, costs.gap_ns, costs.dispatch_ns, costs.event_ns, costs.signal_ns, costs.drain_ns,
                    np.uint64(depth), False,
                )  # fmt: skip
                clocks = _clocks(lanes, events, own.depth)
                _fill(begun, costs.launch_ns)
                top_ns, op = costs.launch_ns, first
                for item in range(start, last):
                    while op < np.uint64(item_stop[item]):
                        for t in range(tiles.op_ptr[op], tiles.op_ptr[op + _ONE]):
                            times = _place(tiles, own, clocks, t, costs.launch_ns, True)
                            begun[np.uint64(tiles.lane[t])] = times[0]
                            top_ns = max(top_ns, times[4] + costs.signal_ns)
                        op += _ONE
                    if item + _ONE >= stop:
                        end_ns = top_ns + costs.drain_ns
                        out_ns[start, item + _ONE] = end_ns
                        if keep:
                            started_ns[start, item + _ONE] = begun[_greatest(begun)] - end_ns
                            for lane in range(np.uint64(lanes)):
                                done = max(clocks.free_ns[lane], costs.launch_ns)
                                free_ns[start, item + _ONE, lane] = done - end_ns
            stop = last + _ONE


@_jit
def _run_kernel(
    tiles: Tiles, costs: Costs, op: int | np.uint64, ready_ns: NDArray[np.int64], given_ns: int,
    free_ns: NDArray[np.int64], ended_ns: NDArray[np.int64], out_ns: NDArray[np.int64], keep: bool, origin: np.uint64,
) -> tuple[int, int]:  # fmt: skip
    """One operator as a kernel whose lanes are ready at `ready_ns`, inputs not before `given_ns`: its end and when the
    last of its tiles began. `free_ns` becomes when each lane is done; `ended_ns` is scratch.
    """  # fmt: skip
    _copy(free_ns, ready_ns)
    _copy(ended_ns, ready_ns)
    top_ns, begun_ns = -_NEVER, -_NEVER
    for t in range(tiles.op_ptr[op], tiles.op_ptr[op + _ONE]):
        lane = np.uint64(tiles.lane[t])
        begin = free_ns[lane] + costs.dispatch_ns
        load_start = ended_ns[lane] if costs.depth > 0 else begin
        load_end = load_start + tiles.weight_ns[t]
        compute_start = max(max(begin, given_ns) + tiles.input_ns[t], load_end)
        end = compute_start + tiles.compute_ns[t]
        ended_ns[lane] = max(end, load_end)
        free_ns[lane] = end + costs.signal_ns
        top_ns = max(top_ns, free_ns[lane])
        begun_ns = max(begun_ns, begin)
        if keep:
            _keep(out_ns, t - origin, (begin, load_start, load_end, compute_start, end))
    return top_ns, begun_ns


@_jit
def _leave(end_ns: int, begun_ns: int, free_ns: NDArray[np.int64]) -> int:
    for lane in range(np.uint64(len(free_ns))):
        free_ns[lane] -= end_ns
    return begun_ns - end_ns


@_jit
def leave_each(
    tiles: Tiles, costs: Costs, lanes: int, stops: NDArray[np.int64],
    started_ns: NDArray[np.int64], free_ns: NDArray[np.int64],
) -> None:  # fmt: skip
    """How the last operator with tiles before each stop ends by itself; without one it is left."""
    nothing, scratch, out = np.zeros(lanes, np.int64), np.empty(lanes, np.int64), np.empty((5, 0), np.int64)
    for i in range(len(stops)):
        op = np.uint64(stops[i])
        while op > 0 and tiles.op_ptr[op - _ONE] == tiles.op_ptr[op]:
            op -= _ONE
        if op > 0:
            free = free_ns[i]
            end, begun = _run_kernel(tiles, costs, op - _ONE, nothing, 0, free, scratch, out, False, np.uint64(0))
            started_ns[i] = _leave(end + costs.drain_ns, begun, free)


@_jit
def _enter(
    costs: Costs, top_ns: int, started_ns: int, before_ns: NDArray[np.int64], ready_ns: NDArray[np.int64]
) -> None:
    for lane in range(np.uint64(len(ready_ns))):
        ready_ns[lane] = top_ns + max(started_ns + costs.gap_ns, before_ns[lane])


@_jit
def follow_each(
    tiles: Tiles, costs: Costs, wait_ns: int, lanes: int, ops: NDArray[np.int64],
    started_ns: NDArray[np.int64], before_ns: NDArray[np.int64], out_ns: NDArray[np.int64],
) -> None:  # fmt: skip
    """Time from the end of launch i, which ends as given, until operator ops[i], launched within it, has ended."""
    ready, free, scratch = np.empty(lanes, np.int64), np.empty(lanes, np.int64), np.empty(lanes, np.int64)
    out = np.empty((5, 0), np.int64)
    for i in range(len(ops)):
        _enter(costs, 0, started_ns[i], before_ns[i], ready)
        op = np.uint64(ops[i])
        out_ns[i] = _run_kernel(tiles, costs, op, ready, wait_ns, free, scratch, out, False, np.uint64(0))[0]


@_jit
def alone_each(tiles: Tiles, costs: Costs, lanes: int, ops: int, out_ns: NDArray[np.int64]) -> None:
    """Time of each operator by itself on idle lanes; 0 if it has no tiles."""
    ready, free, scratch = np.zeros(lanes, np.int64), np.empty(lanes, np.int64), np.empty(lanes, np.int64)
    out = np.empty((5, 0), np.int64)
    for op in range(np.uint64(ops)):
        out_ns[op] = 0
        if tiles.op_ptr[op] < tiles.op_ptr[op + _ONE]:
            out_ns[op] = _run_kernel(tiles, costs, op, ready, 0, free, scratch, out, False, np.uint64(0))[0]


@_jit
def follow_chain(tiles: Tiles, costs: Costs, wait_ns: int, lanes: int, ops: int, follow_ns: NDArray[np.int64]) -> None:
    """For each operator that has tiles and another before it, its time after that one."""
    ready, free, scratch = np.empty(lanes, np.int64), np.empty(lanes, np.int64), np.empty(lanes, np.int64)
    before, out, started = np.zeros(lanes, np.int64), np.empty((5, 0), np.int64), 0
    nothing, some = np.zeros(lanes, np.int64), False
    for op in range(np.uint64(ops)):
        if tiles.op_ptr[op] == tiles.op_ptr[op + _ONE]:
            continue
        if some:
            _enter(costs, 0, started, before, ready)
            follow_ns[op] = _run_kernel(tiles, costs, op, ready, wait_ns, free, scratch, out, False, np.uint64(0))[0]
        end, begun = _run_kernel(tiles, costs, op, nothing, 0, before, scratch, out, False, np.uint64(0))
        started, some = _leave(end, begun, before), True


@_jit
def overlap_trace(
    tiles: Tiles, costs: Costs, wait_ns: int, lanes: int, start_op: int, stop_op: int, entered: bool, started_ns: int,
    before_ns: NDArray[np.int64], out_ns: NDArray[np.int64],
) -> int:  # fmt: skip
    """As `trace`, of a region of overlapping launches; after a launch that ends as given if `entered`."""
    ready, free, scratch = np.empty(lanes, np.int64), np.empty(lanes, np.int64), np.empty(lanes, np.int64)
    before, nothing, none = np.empty(lanes, np.int64), np.zeros(lanes, np.int64), np.empty((5, 0), np.int64)
    _copy(before, before_ns)
    top_ns, some, started = costs.launch_ns, entered, started_ns
    origin = tiles.op_ptr[np.uint64(start_op)]
    for op in range(np.uint64(start_op), np.uint64(stop_op)):
        if tiles.op_ptr[op] == tiles.op_ptr[op + _ONE]:
            continue
        given = top_ns + wait_ns
        if some:
            _enter(costs, top_ns, started, before, ready)
        else:
            given = top_ns + costs.gap_ns
            _fill(ready, given)
        top_ns = _run_kernel(tiles, costs, op, ready, given, free, scratch, out_ns, True, origin)[0]
        end, begun = _run_kernel(tiles, costs, op, nothing, 0, free, scratch, none, False, np.uint64(0))
        started, some = _leave(end, begun, free), True
        _copy(before, free)
    return top_ns + costs.drain_ns


# ---- binary heaps: entry 0 is the number of the others, entry 1 the least of them ----
# An entry is a time and an id in one number, ``ns << bits | id``: so equal times are told apart by the id, and at half
# the cost of a pair. The callers see to it that a time leaves room for the bits.


@_jit
def _push(heap: NDArray[np.int64], entry: int) -> None:
    heap[0] += 1
    at = np.uint64(heap[0])
    while at > _ONE and heap[at >> _ONE] > entry:
        heap[at] = heap[at >> _ONE]
        at >>= _ONE
    heap[at] = entry


@_jit
def _replace(heap: NDArray[np.int64], entry: int) -> None:
    """Put `entry` in the place of the least."""
    at, below, last = _ONE, _ONE << _ONE, np.uint64(heap[0])
    while below <= last:
        if below < last:
            below += np.uint64(heap[below + _ONE] < heap[below])
        if entry <= heap[below]:
            break
        heap[at] = heap[below]
        at, below = below, below << _ONE
    heap[at] = entry


@_jit
def _pop(heap: NDArray[np.int64]) -> None:
    last = heap[np.uint64(heap[0])]
    heap[0] -= 1
    _replace(heap, last)


# ---- dynamic queues ----


class Waiters(NamedTuple):
    """The waits by event instead of by tile: event e is waited for by ``tile[ptr[e]:ptr[e + 1]]``, in order of id."""

    ptr: NDArray[np.uint32]  # (events + 1,)
    tile: NDArray[np.uint32]  # (waits,)


@_jit
def waiters(wait_ptr: NDArray[np.uint32], wait_event: NDArray[np.uint32], events: int) -> Waiters:
    """The waits of a checked queue, turned round."""
    ptr = np.zeros(events + 1, np.uint32)
    for event in wait_event:
        ptr[np.uint64(event) + _ONE] += np.uint32(1)
    for event in range(np.uint64(events)):
        ptr[event + _ONE] += ptr[event]
    place, tile = ptr.copy(), np.empty(len(wait_event), np.uint32)
    for t in range(np.uint64(len(wait_ptr) - 1)):
        for k in range(np.uint64(wait_ptr[t]), np.uint64(wait_ptr[t + _ONE])):
            event = wait_event[k]
            tile[place[event]] = t
            place[event] += np.uint32(1)
    return Waiters(ptr, tile)


@_jit
def _give(
    tiles: Tiles, costs: Costs, free: NDArray[np.int64], bits: int, t: int, ready_ns: int, i: int,
    lane_of: NDArray[np.uint32], out_ns: NDArray[np.int64],
) -> int:  # fmt: skip
    """Give tile `t`, entry `i` of the outputs, to the first lane of the heap `free`; when it has signalled."""
    free_ns = free[1] >> bits
    lane = free[1] ^ (free_ns << bits)
    given = max(free_ns, ready_ns)
    begin = given + costs.dispatch_ns
    load_start = begin if costs.depth == 0 else given
    load_end = load_start + tiles.weight_ns[t]
    compute_start = max(begin + tiles.input_ns[t], load_end)
    end = compute_start + tiles.compute_ns[t]
    done = end + costs.signal_ns
    _replace(free, (done << bits) | lane)
    lane_of[i] = lane
    out_ns[0, i], out_ns[1, i], out_ns[2, i] = begin, load_start, load_end
    out_ns[3, i], out_ns[4, i] = compute_start, end
    return int(done)


@_jit
def _free_all(free: NDArray[np.int64], bits: int, ns: int) -> None:
    free[0] = len(free) - 1
    for lane in range(len(free) - 1):
        free[lane + 1] = (ns << bits) | lane


@_jit
def deal_operators(
    tiles: Tiles, costs: Costs, lanes: int, bits: int, start_op: int, stop_op: int,
    lane_of: NDArray[np.uint32], out_ns: NDArray[np.int64],
) -> int:  # fmt: skip
    """`deal` with a barrier: a queue an operator, all of whose tiles are ready when its gap is over."""
    free = np.empty(lanes + 1, np.int64)
    top_ns = costs.launch_ns
    origin = tiles.op_ptr[np.uint64(start_op)]
    for op in range(np.uint64(start_op), np.uint64(stop_op)):
        first, stop = tiles.op_ptr[op], tiles.op_ptr[op + _ONE]
        if first < stop:
            floor_ns = top_ns + costs.gap_ns
            _free_all(free, bits, floor_ns)
            for t in range(first, stop):
                top_ns = max(top_ns, _give(tiles, costs, free, bits, t, floor_ns, t - origin, lane_of, out_ns))
    return top_ns + costs.drain_ns


@_jit
def deal(
    tiles: Tiles, waiters: Waiters, costs: Costs, lanes: int, events: int, bits: int, start_op: int, stop_op: int,
    lane_of: NDArray[np.uint32], out_ns: NDArray[np.int64],
) -> int:  # fmt: skip
    """The makespan of [start_op, stop_op) by dynamic queues; `out_ns` as in `trace`, `lane_of` (tiles,) the lanes."""
    first, stop = tiles.op_ptr[np.uint64(start_op)], tiles.op_ptr[np.uint64(stop_op)]
    top_ns, free, fired = costs.launch_ns, np.empty(lanes + 1, np.int64), np.zeros(events + 2, np.int64)
    _free_all(free, bits, top_ns)
    signals, seen_ns = np.zeros(events, np.uint32), np.zeros(events, np.int64)
    for t in range(first, stop):
        signals[tiles.signal[t]] += np.uint32(1)
    # Tiles that wait for nothing wait for the launch: entry 0 of `fired`, before event 0 at 1.
    waits, at_once, count = np.zeros(stop - first, np.uint32), np.empty(stop - first, np.uint32), np.uint64(0)
    for t in range(first, stop):
        for k in range(np.uint64(tiles.wait_ptr[t]), np.uint64(tiles.wait_ptr[t + _ONE])):
            waits[t - first] += np.uint32(signals[tiles.wait_event[k]] > 0)
        if waits[t - first] == 0:
            waits[t - first], at_once[count] = 1, t
            count += _ONE
    _push(fired, top_ns << bits)
    while fired[0] > 0:
        now = fired[1] >> bits
        served = np.uint64(fired[1] ^ (now << bits))
        _pop(fired)
        released, at, last = at_once, np.uint64(0), count
        if served > 0:
            released, at, last = waiters.tile, np.uint64(waiters.ptr[served - _ONE]), np.uint64(waiters.ptr[served])
        while at < last and released[at] < stop:  # the rest are of later regions
            t = int(released[at])
            at += _ONE
            waits[t - first] -= np.uint32(1)
            if waits[t - first] > 0:
                continue
            done = _give(tiles, costs, free, bits, t, now, t - first, lane_of, out_ns)
            top_ns = max(top_ns, done)
            event = tiles.signal[t]
            seen_ns[event] = max(seen_ns[event], done + costs.event_ns)
            signals[event] -= np.uint32(1)
            if signals[event] == 0:
                _push(fired, (seen_ns[event] << bits) | (np.int64(event) + 1))
    return top_ns + costs.drain_ns


# ---- shared bandwidth ----


class Loads(NamedTuple):
    """What is loaded, and how fast."""

    weight_bytes: NDArray[np.int64]  # (tiles,)
    input_bytes: NDArray[np.int64]  # (tiles,)
    quanta_per_byte: int
    rate: NDArray[np.int64]  # (2 lanes + 1,) quanta that each of n loads is brought in a nanosecond


class Loading(NamedTuple):
    """A region's n tiles, numbered from 0, and their loads: load 2 t is of tile t's weights, 2 t + 1 of its inputs.

    A load starts when the last of what it waits for has come: the weights' wait for the loader and for a page, the
    inputs' for the lane and for events. Without prefetch the weights start with the inputs.
    """

    lane: NDArray[np.uint32]  # (n,)
    signal: NDArray[np.uint32]  # (n,)
    compute_ns: NDArray[np.int64]  # (n,)
    follower: NDArray[np.uint32]  # (n,) the next tile on the lane; n is none
    heir: NDArray[np.uint32]  # (n,) the tile for whose weights it gives back a page; n is none
    quanta: NDArray[np.int64]  # (2 n,) to be brought
    waits: NDArray[np.uint32]  # (2 n + 2,) how much is still to come; the last two are of no tile
    ready_ns: NDArray[np.int64]  # (2 n + 2,) when the last that is known of comes
    signals: NDArray[np.uint32]  # (events,) still to come
    seen_ns: NDArray[np.int64]  # (events,) when a waiter sees the event, by the signals so far


@_jit
def _loading(tiles: Tiles, loads: Loads, costs: Costs, events: int, first: int, stop: int) -> Loading:
    n = stop - first
    signals, quanta = np.zeros(events, np.uint32), np.empty(2 * n, np.int64)
    waits = np.ones(2 * n + 2, np.uint32)
    waits[2 * n :] = 2**32 - 1  # no tile's, and more than are ever counted down
    for t in range(first, stop):
        signals[tiles.signal[t]] += np.uint32(1)
    for t in range(first, stop):
        load = (t - first) << _ONE
        quanta[load] = loads.weight_bytes[t] * loads.quanta_per_byte
        quanta[load | _ONE] = loads.input_bytes[t] * loads.quanta_per_byte
        if not costs.barrier:
            for k in range(np.uint64(tiles.wait_ptr[t]), np.uint64(tiles.wait_ptr[t + _ONE])):
                waits[load | _ONE] += np.uint32(signals[tiles.wait_event[k]] > 0)
    return Loading(
        tiles.lane[first:stop], tiles.signal[first:stop], tiles.compute_ns[first:stop],
        np.full(n, np.uint32(n)), np.full(n, np.uint32(n)), quanta, waits, np.zeros(2 * n + 2, np.int64),
        signals, np.zeros(events, np.int64),
    )  # fmt: skip


@_jit
def _line_up(
    region: Loading, costs: Costs, lanes: int, bits: int, starts: NDArray[np.int64],
    first: int, stop: int, floor_ns: int,
) -> None:  # fmt: skip
    """Queue the tiles [first, stop) on their lanes, all of which are free at `floor_ns`, and enter what starts then."""
    lane_of, follower, heir, waits, ready_ns = region.lane, region.follower, region.heir, region.waits, region.ready_ns
    before, page = np.full(lanes, len(lane_of)), np.full(lanes, len(lane_of))
    pages = np.full(lanes, costs.depth)
    for t in range(np.uint64(first), np.uint64(stop)):
        lane, load = lane_of[t], t << _ONE
        if before[lane] == len(lane_of):
            page[lane] = t
            ready_ns[load | _ONE] = floor_ns + costs.dispatch_ns
            waits[load | _ONE] -= np.uint32(1)
            if waits[load | _ONE] == 0:
                _push(starts, int((ready_ns[load | _ONE] << bits) | np.int64(load | _ONE)))
            if costs.depth > 0:
                _push(starts, int((floor_ns << bits) | np.int64(load)))
        else:
            follower[before[lane]] = t
        before[lane] = t
        if pages[lane] > 0:
            pages[lane] -= _ONE
        elif costs.depth > 0:
            heir[page[lane]] = t
            waits[load] += np.uint32(1)
            page[lane] = follower[page[lane]]


# `_play` is one function because helpers that take its arrays make it three times as slow: numba counts the references
# to an array that a function takes, atomically, at every call, unless the function is as simple as those of the heaps.


@_jit
def _start_over(ends: NDArray[np.int64], slot_bits: int, brought: int) -> int:
    """Count virtual time from now on."""
    for i in range(ends[0]):
        ends[i + 1] -= brought << slot_bits
    return 0


@_jit
def _play(
    region: Loading, waiters: Waiters, origin: int, costs: Costs, lanes: int, bits: int, slot_bits: int,
    starts: NDArray[np.int64], rate: NDArray[np.int64], out_ns: NDArray[np.int64], now_ns: int,
) -> int:  # fmt: skip
    """Move the clock from one start or end of a load to the next until all tiles are done; when all lanes are free."""
    lane_of, signal, compute_ns, follower, heir, quanta, waits, ready_ns, signals, seen_ns = region
    event_ptr, event_tile = waiters
    running, ends = np.zeros(2 * lanes, np.uint32), np.zeros(2 * lanes + 1, np.int64)
    came, came_ns = np.zeros(3, np.uint32), np.zeros(3, np.int64)
    # Virtual time: quanta that each load was brought since some moment. A load ends when that has grown by its own.
    brought, top_ns = 0, now_ns
    while starts[0] + ends[0] > 0:
        then_ns = starts[1] >> bits if starts[0] > 0 else _NEVER
        if ends[0] > 0:
            each = rate[ends[0]]
            left = np.uint64((ends[1] >> slot_bits) - brought + each - 1) // np.uint64(each)
            then_ns = min(then_ns, now_ns + np.int64(left))
            brought += (then_ns - now_ns) * each
            if brought >> (61 - slot_bits) > 0:
                brought = _start_over(ends, slot_bits, brought)
        now_ns = then_ns
        while starts[0] > 0 and starts[1] >> bits == now_ns:
            load = np.uint64(starts[1] ^ (now_ns << bits))
            t, is_input = load >> _ONE, load & _ONE
            slot = (np.uint64(lane_of[t]) << _ONE) | is_input
            _pop(starts)
            _push(ends, int(((brought + quanta[load]) << slot_bits) | np.int64(slot)))
            running[slot], out_ns[_ONE - is_input, t] = t, now_ns
            if costs.depth == 0 and is_input:
                _push(starts, int((now_ns << bits) | np.int64(load ^ _ONE)))
        while ends[0] > 0 and ends[1] >> slot_bits <= brought:
            slot = np.uint64(ends[1] & ((1 << slot_bits) - 1))
            t, is_input = np.uint64(running[slot]), slot & _ONE
            _pop(ends)
            out_ns[5 if is_input else 2, t] = now_ns
            came[0], came_ns[0] = 2 * follower[t], now_ns  # the loader goes on, if it is not led by the lane
            count, k, last, seen = 0 if is_input or costs.depth == 0 else 1, _ONE, _ONE, 0
            if out_ns[2, t] >= 0 and out_ns[5, t] >= 0:
                end = now_ns + compute_ns[t]
                done, event = end + costs.signal_ns, np.uint64(signal[t])
                out_ns[3, t], out_ns[4, t], top_ns = now_ns, end, max(top_ns, done)
                came[count], came_ns[count] = 2 * heir[t], end
                came[count + 1], came_ns[count + 1] = 2 * follower[t] + 1, done + costs.dispatch_ns
                count += 2
                seen = seen_ns[event] = max(seen_ns[event], done + costs.event_ns)
                signals[event] -= np.uint32(1)
                if signals[event] == 0 and not costs.barrier:
                    k, last = np.uint64(event_ptr[event]), np.uint64(event_ptr[event + _ONE])
            while count > 0 or (k < last and event_tile[k] - origin < len(lane_of)):
                if count > 0:
                    count -= 1
                    load, ns = np.uint64(came[count]), came_ns[count]
                else:
                    load, ns = np.uint64(event_tile[k] - origin) << _ONE | _ONE, seen
                    k += _ONE
                ready_ns[load] = max(ready_ns[load], ns)
                waits[load] -= np.uint32(1)
                if waits[load] == 0:
                    _push(starts, int((ready_ns[load] << bits) | np.int64(load)))
    return top_ns


@_jit
def share(
    tiles: Tiles, waiters: Waiters, loads: Loads, costs: Costs, lanes: int, events: int, bits: int, slot_bits: int,
    start_op: int, stop_op: int, out_ns: NDArray[np.int64],
) -> int:  # fmt: skip
    """The makespan of [start_op, stop_op) with shared bandwidth; `out_ns` (6, tiles) as in `trace`, the last row the
    end of the inputs' load."""
    first, stop = tiles.op_ptr[np.uint64(start_op)], tiles.op_ptr[np.uint64(stop_op)]
    region, starts = _loading(tiles, loads, costs, events, first, stop), np.zeros(2 * lanes + 1, np.int64)
    out_ns[:] = -1
    top_ns = costs.launch_ns
    for op in range(np.uint64(start_op), np.uint64(stop_op) if costs.barrier else np.uint64(start_op) + _ONE):
        a, b = (tiles.op_ptr[op], tiles.op_ptr[op + _ONE]) if costs.barrier else (first, stop)
        if a < b:
            floor_ns = top_ns + costs.gap_ns if costs.barrier else top_ns
            _line_up(region, costs, lanes, bits, starts, a - first, b - first, floor_ns)
            top_ns = _play(region, waiters, first, costs, lanes, bits, slot_bits, starts, loads.rate, out_ns, floor_ns)
    return top_ns + costs.drain_ns


# ---- replications: one region many times, each time with times of its own ----
# Times are doubles that hold whole numbers, exact below 2**53: of several replications at once, a maximum, a product or
# a rounding of doubles is one instruction, which a product of 64-bit integers is not. All state is in rows of BLOCK.

BLOCK = 64  # replications side by side
_BLOCK = np.uint64(BLOCK)


class Scaled(NamedTuple):
    """A mechanism's numbers, (BLOCK,) each: one a replication."""

    launch_ns: NDArray[np.float64]
    gap_ns: NDArray[np.float64]
    dispatch_ns: NDArray[np.float64]
    event_ns: NDArray[np.float64]
    signal_ns: NDArray[np.float64]
    drain_ns: NDArray[np.float64]
    wait_ns: NDArray[np.float64]


class TileTimes(NamedTuple):
    """The times of `Tiles`, as doubles."""

    weight_ns: NDArray[np.float64]
    input_ns: NDArray[np.float64]
    compute_ns: NDArray[np.float64]


class Rows(NamedTuple):
    """`Clocks` of BLOCK replications. Two more events follow: one long since seen, and one that nobody waits for."""

    free_ns: NDArray[np.float64]
    loader_ns: NDArray[np.float64]
    page_ns: NDArray[np.float64]
    turn: NDArray[np.uint64]
    seen_ns: NDArray[np.float64]
    top_ns: NDArray[np.float64]  # (BLOCK,) when every lane is free
    floor_ns: NDArray[np.float64]  # (BLOCK,) nothing happens before


@_jit
def _fill_rows(rows: NDArray[np.float64], value: float) -> None:
    for i in range(np.uint64(len(rows))):
        rows[i] = value


@_jit
def _place_all(
    tiles: Tiles, times: TileTimes, costs: Scaled, depth: np.uint64, waits: bool, rows: Rows,
    op: int | np.uint64, factor: NDArray[np.float64],
) -> None:  # fmt: skip
    """`_place` of each tile of an operator in turn, in BLOCK replications side by side."""
    free_ns, loader_ns, page_ns, turn, seen_ns, top_ns, floor_ns = rows
    dispatch_ns, signal_ns, event_ns = costs.dispatch_ns, costs.signal_ns, costs.event_ns
    nobody = np.uint64(len(seen_ns)) - _BLOCK
    for t in range(tiles.op_ptr[op], tiles.op_ptr[op + _ONE]):
        lane = np.uint64(tiles.lane[t])
        free, first, last, signal = lane * _BLOCK, nobody - _BLOCK, nobody - _BLOCK, nobody
        k, stop = np.uint64(tiles.wait_ptr[t]), np.uint64(tiles.wait_ptr[t + _ONE])
        if waits:
            signal = np.uint64(tiles.signal[t]) * _BLOCK
            if k < stop:
                first, last = np.uint64(tiles.wait_event[k]) * _BLOCK, np.uint64(tiles.wait_event[stop - _ONE]) * _BLOCK
            if stop - k > np.uint64(2):  # as if the lane were free so late
                for middle in range(k + _ONE, stop - _ONE):
                    seen = np.uint64(tiles.wait_event[middle]) * _BLOCK
                    for r in range(_BLOCK):
                        free_ns[free + r] = max(free_ns[free + r], seen_ns[seen + r] - dispatch_ns[r])
        weight, given, compute = times.weight_ns[t], times.input_ns[t], times.compute_ns[t]
        if depth == 0:
            for r in range(_BLOCK):
                begin = max(free_ns[free + r], floor_ns[r]) + dispatch_ns[r]
                begin = max(begin, max(seen_ns[first + r], seen_ns[last + r]))
                start = begin + max(np.rint(given * factor[r]), np.rint(weight * factor[r]))
                done = start + np.rint(compute * factor[r]) + signal_ns[r]
                free_ns[free + r] = done
                top_ns[r] = max(top_ns[r], done)
                seen_ns[signal + r] = max(seen_ns[signal + r], done + event_ns[r])
        else:
            page = (lane * depth + turn[lane]) * _BLOCK
            turn[lane] = turn[lane] + _ONE if turn[lane] + _ONE < depth else np.uint64(0)
            for r in range(_BLOCK):
                begin = max(free_ns[free + r], floor_ns[r]) + dispatch_ns[r]
                begin = max(begin, max(seen_ns[first + r], seen_ns[last + r]))
                load = max(max(loader_ns[free + r], page_ns[page + r]), floor_ns[r]) + np.rint(weight * factor[r])
                end = max(begin + np.rint(given * factor[r]), load) + np.rint(compute * factor[r])
                done = end + signal_ns[r]
                loader_ns[free + r], page_ns[page + r], free_ns[free + r] = load, end, done
                top_ns[r] = max(top_ns[r], done)
                seen_ns[signal + r] = max(seen_ns[signal + r], done + event_ns[r])


@_jit
def _run_kernel_all(
    tiles: Tiles, times: TileTimes, costs: Scaled, depth: np.uint64, rows: Rows, op: int | np.uint64,
    factor: NDArray[np.float64], given_ns: NDArray[np.float64], begun_ns: NDArray[np.float64],
) -> None:  # fmt: skip
    """`_run_kernel` in BLOCK replications; lanes are ready at ``rows.free_ns``, and ``rows.loader_ns`` is scratch."""
    free_ns, ended_ns, top_ns = rows.free_ns, rows.loader_ns, rows.top_ns
    dispatch_ns, signal_ns = costs.dispatch_ns, costs.signal_ns
    for i in range(np.uint64(len(free_ns))):
        ended_ns[i] = free_ns[i]
    _fill_rows(top_ns, -np.inf)
    _fill_rows(begun_ns, -np.inf)
    for t in range(tiles.op_ptr[op], tiles.op_ptr[op + _ONE]):
        at = np.uint64(tiles.lane[t]) * _BLOCK
        weight, given, compute = times.weight_ns[t], times.input_ns[t], times.compute_ns[t]
        for r in range(_BLOCK):
            begin = free_ns[at + r] + dispatch_ns[r]
            load = (ended_ns[at + r] if depth > 0 else begin) + np.rint(weight * factor[r])
            end = max(max(begin, given_ns[r]) + np.rint(given * factor[r]), load) + np.rint(compute * factor[r])
            ended_ns[at + r], free_ns[at + r] = end, end + signal_ns[r]
            top_ns[r] = max(top_ns[r], end + signal_ns[r])
            begun_ns[r] = max(begun_ns[r], begin)


@_jit
def _overlapping_all(
    tiles: Tiles, times: TileTimes, costs: Scaled, depth: np.uint64, rows: Rows, start_op: int, stop_op: int,
    factors: NDArray[np.float64], column: NDArray[np.uint32], entered: bool, started_ns: float,
    exit_ns: NDArray[np.float64],
) -> None:  # fmt: skip
    """`overlap_trace` in BLOCK replications, each after the same launch if `entered`; the end in ``rows.top_ns``."""
    lanes, some = np.uint64(len(exit_ns)), entered
    started, begun, given, last = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    before = np.empty(lanes * _BLOCK)
    _fill_rows(started, started_ns)
    for lane in range(lanes):
        for r in range(_BLOCK):
            before[lane * _BLOCK + r] = exit_ns[lane]
    for op in range(np.uint64(start_op), np.uint64(stop_op)):
        if tiles.op_ptr[op] == tiles.op_ptr[op + _ONE]:
            continue
        factor = factors[np.uint64(column[op])]
        for r in range(_BLOCK):
            given[r] = rows.top_ns[r] + (costs.wait_ns[r] if some else costs.gap_ns[r])
        for lane in range(lanes):
            for r in range(_BLOCK):
                at = lane * _BLOCK + r
                ready = rows.top_ns[r] + max(started[r] + costs.gap_ns[r], before[at]) if some else given[r]
                rows.free_ns[at] = ready
        _run_kernel_all(tiles, times, costs, depth, rows, op, factor, given, begun)
        for r in range(_BLOCK):
            last[r] = rows.top_ns[r]
        _fill_rows(rows.free_ns, 0.0)
        _fill_rows(given, 0.0)
        _run_kernel_all(tiles, times, costs, depth, rows, op, factor, given, begun)
        for r in range(_BLOCK):
            started[r] = begun[r] - rows.top_ns[r]
        for lane in range(lanes):
            for r in range(_BLOCK):
                before[lane * _BLOCK + r] = rows.free_ns[lane * _BLOCK + r] - rows.top_ns[r]
        for r in range(_BLOCK):
            rows.top_ns[r] = last[r]
        some = True


@_jit
def replicate(
    tiles: Tiles, times: TileTimes, costs: Scaled, depth: np.uint64, barrier: bool, overlap: bool, lanes: int,
    events: int, start_op: int, stop_op: int, factors: NDArray[np.float64], column: NDArray[np.uint32],
    entered: bool, started_ns: float, exit_ns: NDArray[np.float64], out_ns: NDArray[np.float64],
) -> None:  # fmt: skip
    """``out_ns`` (BLOCK,) becomes the makespans of [start_op, stop_op) with times of `op` scaled by the row
    ``factors[column[op]]`` of (columns, BLOCK); with `overlap` after a launch that ends as given if `entered`."""
    size = np.uint64(lanes) * _BLOCK
    rows = Rows(
        np.zeros(size), np.zeros(size), np.zeros(size * depth), np.zeros(lanes, np.uint64),
        np.zeros(np.uint64(events + 2) * _BLOCK), np.empty(BLOCK), np.empty(BLOCK),
    )  # fmt: skip
    for r in range(_BLOCK):
        rows.seen_ns[np.uint64(events) * _BLOCK + r] = -np.inf
        rows.top_ns[r] = rows.floor_ns[r] = costs.launch_ns[r]
    if overlap:
        _overlapping_all(
            tiles, times, costs, depth, rows, start_op, stop_op, factors, column, entered, started_ns, exit_ns
        )
    else:
        for op in range(np.uint64(start_op), np.uint64(stop_op)):
            factor = factors[np.uint64(column[op])]
            if barrier:
                if tiles.op_ptr[op] < tiles.op_ptr[op + _ONE]:
                    for r in range(_BLOCK):
                        rows.floor_ns[r] = rows.top_ns[r] + costs.gap_ns[r]
                _place_all(tiles, times, costs, depth, False, rows, op, factor)
            else:
                _place_all(tiles, times, costs, depth, True, rows, op, factor)
    for r in range(_BLOCK):
        out_ns[r] = rows.top_ns[r] + costs.drain_ns[r]
