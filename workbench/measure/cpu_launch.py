"""A launch: tiles, their queues and the events between them, checked once and then run any number of times.

Offsets are elements of an arena; ranges are half-open.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.errors import MeasureError
from workbench.measure import cpu_kernels as kernels
from workbench.measure.cpu_descriptors import check_descriptors

Ints = npt.NDArray[np.int64]
Indices = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int32]

NO_EVENT = kernels.NO_EVENT


class Mode(Enum):
    """How a launch is run."""

    MEGAKERNEL = "megakernel"  # queues once through, synchronised by events
    REPLAY = "replay"  # operator after operator, forked and joined; events are not looked at


class Launch:
    """Tiles, queues and events of one launch, checked once and then run any number of times.

    Parameters
    ----------
    desc
        int64 (T, 28): opcode and its columns, see `cpu_kernels`.
    queue_ptr, queue
        uint32 (W + 1,) and (T,): worker w runs tiles ``queue[queue_ptr[w] : queue_ptr[w + 1]]`` in this order.
    wait_ptr, wait_event
        uint32 (T + 1,) and (…): the events that tile t waits for.
    threshold
        uint32 (E,): signals in one launch after which an event has fired.
    signal
        uint32 (T,): the event that tile t signals when it ends, or `NO_EVENT`.
    floats, ints
        The arenas, float32 and int32, one-dimensional; kept alive by the launch and written by its tiles.
    op_ptr
        uint32 (n + 1,): operator o owns tiles ``op_ptr[o] : op_ptr[o + 1]``; needed for a replay.

    Raises
    ------
    MeasureError
        Naming the first array, tile, event or worker that breaks a rule: shapes, indices outside an arena, an
        event that cannot fire, queues that wait for each other, an operator that waits for a later one in a replay.

    Notes
    -----
    Event counters only grow. In the launch's epoch n a wait ends at ``(n - 1) * signals + threshold``, where
    `signals` counts the tiles that signal the event. The epoch lives beside the counters, not in the workers, so
    it cannot go stale; if a run did not reach its end, the next one clears both.
    """

    def __init__(
        self,
        desc: Ints,
        queue_ptr: Indices,
        queue: Indices,
        wait_ptr: Indices,
        wait_event: Indices,
        threshold: Indices,
        signal: Indices,
        *,
        floats: Floats,
        ints: Codes,
        mode: Mode = Mode.MEGAKERNEL,
        op_ptr: Indices | None = None,
    ) -> None:
        # Copies, so that what was checked is what runs; the arenas alone are shared.
        desc = _copied("desc", desc, np.int64, 2)
        names = _Graph._fields
        given = (queue_ptr, queue, wait_ptr, wait_event, threshold, signal)
        graph = _Graph(*(_copied(name, array, np.uint32, 1) for name, array in zip(names, given, strict=True)))
        _check_arenas(floats, ints)
        self.scratch_floats = check_descriptors(desc, floats, ints)
        signals = _check_graph(graph, len(desc))
        self.tiles, self.workers, self.mode = len(desc), len(queue_ptr) - 1, mode
        replay_ptr = replay_queue = np.zeros(1, np.uint32)
        if mode is Mode.REPLAY:
            op_ptr = _check_operators(op_ptr, graph, len(desc))
            replay_ptr, replay_queue = _replay_queues(op_ptr, graph)
        else:
            _check_deadlock(graph)
        lines = aligned(max(len(threshold), 1) * kernels.LINE).reshape(-1, kernels.LINE)
        lines[: len(threshold), kernels.E_THRESHOLD] = threshold
        lines[: len(threshold), kernels.E_SIGNALS] = signals
        arrays: dict[int, npt.NDArray[Any]] = {
            kernels.L_DESC: desc,
            kernels.L_QUEUE_PTR: graph.queue_ptr,
            kernels.L_QUEUE: graph.queue,
            kernels.L_WAIT_PTR: graph.wait_ptr,
            kernels.L_WAIT_EVENT: graph.wait_event,
            kernels.L_SIGNAL: graph.signal,
            kernels.L_COUNTERS: lines,
            kernels.L_REPLAY_PTR: replay_ptr,
            kernels.L_REPLAY_QUEUE: replay_queue,
            kernels.L_FLOATS: floats,
            kernels.L_INTS: ints,
        }
        self._arrays = arrays  # the workers see addresses only: this is what keeps the arrays in memory
        self._block = aligned(kernels.LAUNCH_WORDS)
        for place, array in arrays.items():
            self._block[place] = array.ctypes.data
        self._block[kernels.L_REPLAY] = mode is Mode.REPLAY
        self._block[kernels.L_WORKERS] = self.workers
        self._block[kernels.L_OPERATORS] = 0 if op_ptr is None else len(op_ptr) - 1
        self._block[kernels.L_EVENTS] = len(threshold)
        self._block[kernels.L_FLOAT_COUNT] = len(floats)
        self._address = self._block.ctypes.data


def aligned(words: int) -> Ints:
    """`words` zeroed int64 that begin on a cache line."""
    buffer = np.zeros(words + kernels.LINE, np.int64)
    start = -buffer.ctypes.data % 64 // 8
    return buffer[start : start + words]


# -- checks of arrays, queues and events ---------------------------------------------------------------------------


class _Graph(NamedTuple):
    """Queues and events of a launch; the fields are `Launch`'s parameters."""

    queue_ptr: Indices
    queue: Indices
    wait_ptr: Indices
    wait_event: Indices
    threshold: Indices
    signal: Indices


def check_array(name: str, array: object, dtype: type[np.generic], dimensions: int) -> None:
    if not isinstance(array, np.ndarray):
        raise MeasureError(f"{name} is a {type(array).__name__}; expected a numpy array")
    if array.dtype != dtype or array.ndim != dimensions or not array.flags.c_contiguous or not array.flags.aligned:
        layout = "" if array.flags.c_contiguous else " strided"
        raise MeasureError(
            f"{name} is{layout} {array.dtype} of {array.ndim} dimensions; "
            f"expected contiguous {np.dtype(dtype)} of {dimensions}"
        )


def _copied(name: str, array: Indices | Ints, dtype: type[np.generic], dimensions: int) -> npt.NDArray[Any]:
    check_array(name, array, dtype, dimensions)
    return array.copy()


def _check_arenas(floats: Floats, ints: Codes) -> None:
    for name, array, dtype in (("floats", floats, np.float32), ("ints", ints, np.int32)):
        check_array(name, array, dtype, 1)
        if not array.flags.writeable:
            raise MeasureError(f"{name} is read-only; tiles write to the arenas")


def _check_length(name: str, array: Indices, length: int) -> None:
    if len(array) != length:
        raise MeasureError(f"{name} has {len(array)} entries; expected {length}")


def _check_pointers(name: str, pointers: Indices, length: int, target: str) -> None:
    if len(pointers) < 1 or pointers[0] != 0 or pointers[-1] != length or np.any(pointers[1:] < pointers[:-1]):
        raise MeasureError(f"{name} must rise from 0 to {length}, the length of {target}")


def _owners(pointers: Indices) -> Ints:
    """The range that each element lies in, for ranges given by their bounds."""
    lengths = pointers[1:].astype(np.int64) - pointers[:-1]
    return np.repeat(np.arange(len(lengths)), lengths)


def _check_graph(graph: _Graph, tiles: int) -> Ints:
    """How many tiles signal each event; raises unless the arrays fit each other and every event can fire."""
    _check_pointers("queue_ptr", graph.queue_ptr, len(graph.queue), "queue")
    _check_pointers("wait_ptr", graph.wait_ptr, len(graph.wait_event), "wait_event")
    if len(graph.queue_ptr) < 2:
        raise MeasureError("queue_ptr has 1 entry, so no worker; it needs one entry more than there are workers")
    _check_length("queue", graph.queue, tiles)
    _check_length("wait_ptr", graph.wait_ptr, tiles + 1)
    _check_length("signal", graph.signal, tiles)
    if not np.array_equal(np.sort(graph.queue), np.arange(tiles)):
        raise MeasureError(f"queue must hold each of the {tiles} tiles exactly once")
    events = len(graph.threshold)
    signalled = graph.signal[graph.signal != NO_EVENT].astype(np.int64)
    for name, named in (("wait_event", graph.wait_event), ("signal", signalled)):
        if len(named) and named.max() >= events:
            raise MeasureError(f"{name} names event {named.max()}; there are {events}")
    signals = np.bincount(signalled, minlength=events).astype(np.int64)
    short = np.flatnonzero(signals < graph.threshold)
    if len(short):
        event = short[0]
        raise MeasureError(
            f"event {event} can never fire: its threshold is {graph.threshold[event]} "
            f"and {signals[event]} tiles signal it"
        )
    return signals


def _check_deadlock(graph: _Graph) -> None:
    position, count = np.zeros(len(graph.queue_ptr) - 1, np.int64), np.zeros(len(graph.threshold), np.int64)
    done = kernels.walk(*graph, position, count)
    if done == len(graph.queue):
        return
    stuck = []
    for worker, place in enumerate(position):
        if place < graph.queue_ptr[worker + 1]:
            tile = int(graph.queue[place])
            waits = graph.wait_event[graph.wait_ptr[tile] : graph.wait_ptr[tile + 1]]
            event = next(int(e) for e in waits if count[e] < graph.threshold[e])
            reached = f"event {event} at {count[event]} of {graph.threshold[event]}"
            stuck.append(f"worker {worker} stays at tile {tile} for {reached}")
    raise MeasureError(
        f"the queues deadlock after {done} of {len(graph.queue)} tiles: {'; '.join(stuck[:4])}; "
        "put each tile behind those that it waits for"
    )


def _check_operators(op_ptr: Indices | None, graph: _Graph, tiles: int) -> Indices:
    """Every wait must be met by operators that ended before, for a replay looks at no event."""
    if op_ptr is None:
        raise MeasureError("a replay needs op_ptr, the tiles of each operator")
    check_array("op_ptr", op_ptr, np.uint32, 1)
    _check_pointers("op_ptr", op_ptr, tiles, "desc")
    operator = _owners(op_ptr)
    signalling = np.flatnonzero(graph.signal != NO_EVENT)
    events, senders = graph.signal[signalling].astype(np.int64), operator[signalling]
    order = np.lexsort((senders, events))
    # An event fires in the operator of its threshold-th signal, or before all if its threshold is 0.
    last = np.searchsorted(events[order], np.arange(len(graph.threshold))) + graph.threshold.astype(np.int64) - 1
    fires = np.full(len(graph.threshold), -1)
    fires[graph.threshold > 0] = senders[order][last[graph.threshold > 0]]
    waiting = _owners(graph.wait_ptr)
    late = np.flatnonzero(fires[graph.wait_event] >= operator[waiting])
    if len(late):
        tile, event = waiting[late[0]], graph.wait_event[late[0]]
        raise MeasureError(
            f"tile {tile} of operator {operator[tile]} waits for event {event}, which fires in operator "
            f"{fires[event]}; in a replay it must fire in an earlier one"
        )
    return op_ptr


def _replay_queues(op_ptr: Indices, graph: _Graph) -> tuple[Indices, Indices]:
    """Bounds of each (operator, worker), and the tiles in this order, as the worker's queue has them."""
    operators, workers = len(op_ptr) - 1, len(graph.queue_ptr) - 1
    slot = _owners(op_ptr)[graph.queue] * workers + _owners(graph.queue_ptr)
    bounds = np.zeros(operators * workers + 1, np.uint32)
    bounds[1:] = np.cumsum(np.bincount(slot, minlength=operators * workers))
    return bounds, graph.queue[np.argsort(slot, kind="stable")]
