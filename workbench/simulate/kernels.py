"""Every compiled loop of the simulator, in one module: numba's cache on disk sees only the file that defines a kernel.

The definition of a pass is in `engine.Mechanism`; `_place` is its one transcription, shared by all passes. Nothing is
checked here: indices that `engine.check_tile_queue` has not seen may read or write outside an array.

Indices are unsigned throughout. A signed index costs a compare and an add for Python's wraparound, 1.6 to 2.1 times
the whole pass; and unsigned mixed with a plain literal becomes float64, hence `_ONE`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., object])
_ONE = np.uint64(1)
_warned = False


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
def _place(tiles: Tiles, costs: Costs, clocks: Clocks, t: int, floor_ns: int) -> tuple[int, int, int, int, int]:
    """Run tile `t` next on its lane, not before `floor_ns`: begin, load_start, load_end, compute_start, end.

    `floor_ns` is the end of the region's launch, or of the operator's gap: a barrier raises it instead of every clock.
    """
    lane = np.uint64(tiles.lane[t])
    begin = max(clocks.free_ns[lane], floor_ns) + costs.dispatch_ns
    if not costs.barrier:
        for k in range(np.uint64(tiles.wait_ptr[t]), np.uint64(tiles.wait_ptr[t + _ONE])):
            begin = max(begin, clocks.seen_ns[tiles.wait_event[k]])
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
    event = tiles.signal[t]
    clocks.seen_ns[event] = max(clocks.seen_ns[event], done + costs.event_ns)
    return begin, load_start, load_end, compute_start, end


@_jit
def _price(tiles: Tiles, costs: Costs, clocks: Clocks, start_op: int, stop_op: int, out_ns: NDArray[np.int64]) -> None:
    top_ns = costs.launch_ns  # when every lane is free
    floor_ns = top_ns
    for op in range(np.uint64(start_op), np.uint64(stop_op)):
        first, stop = tiles.op_ptr[op], tiles.op_ptr[op + _ONE]
        if costs.barrier and first < stop:
            floor_ns = top_ns + costs.gap_ns
        for t in range(first, stop):
            end = _place(tiles, costs, clocks, t, floor_ns)[4]
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
        if costs.barrier and first < stop:
            floor_ns = top_ns + costs.gap_ns
        for t in range(first, stop):
            begin, load_start, load_end, compute_start, end = _place(tiles, costs, clocks, t, floor_ns)
            i = t - origin
            out_ns[0, i], out_ns[1, i], out_ns[2, i] = begin, load_start, load_end
            out_ns[3, i], out_ns[4, i] = compute_start, end
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
