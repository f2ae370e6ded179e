"""Run tiles on this machine's CPUs: ``Workers`` are the SMs, a ``Launch`` is one kernel launch or one replay.

A megakernel launch lets each worker walk its own static queue and wait on event counters; a replay runs the same
tiles one operator after another, with a fork and a join around each. Worker 0 is the calling thread, so a launch
costs a few microseconds while the helpers are awake; between launches they spin, yield, and at last sleep.

Time base: CLOCK_MONOTONIC in ns. Offsets are elements of an arena; ranges are half-open. Descriptor columns are
documented at the opcodes in `cpu_kernels`. Compiled code checks nothing, so all is checked here, once a launch.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from enum import Enum
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.errors import MeasureError
from workbench.measure import cpu_kernels as kernels

Ints = npt.NDArray[np.int64]
Indices = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int32]

NO_EVENT = kernels.NO_EVENT
SPIN_NS = 20_000  # longer than a tile's usual wait, far shorter than a scheduler's time slice
SCARCE_SPIN_NS = 1_000
PARK_NS = 150_000


_forks = 0  # between this process and the one that imported us; threads do not live through a fork


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


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
        self.scratch_floats = _check_descriptors(desc, floats, ints)
        signals = _check_graph(graph, len(desc))
        self.tiles, self.workers, self.mode = len(desc), len(queue_ptr) - 1, mode
        replay_ptr = replay_queue = np.zeros(1, np.uint32)
        if mode is Mode.REPLAY:
            op_ptr = _check_operators(op_ptr, graph, len(desc))
            replay_ptr, replay_queue = _replay_queues(op_ptr, graph)
        else:
            _check_deadlock(graph)
        lines = _aligned(max(len(threshold), 1) * kernels.LINE).reshape(-1, kernels.LINE)
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
        self._block = _aligned(kernels.LAUNCH_WORDS)
        for place, array in arrays.items():
            self._block[place] = array.ctypes.data
        self._block[kernels.L_REPLAY] = mode is Mode.REPLAY
        self._block[kernels.L_WORKERS] = self.workers
        self._block[kernels.L_OPERATORS] = 0 if op_ptr is None else len(op_ptr) - 1
        self._block[kernels.L_EVENTS] = len(threshold)
        self._block[kernels.L_FLOAT_COUNT] = len(floats)
        self._address = self._block.ctypes.data


class Workers:
    """A pool of `count` workers: the calling thread and ``count - 1`` pinned helper threads.

    Parameters
    ----------
    count
        Workers, the caller included.
    spin_ns
        How long a wait spins before it yields; by default shorter if CPUs are scarce.
    park_ns
        How long an idle helper waits before it sleeps, so that it takes no CPU while others compute.
    scratch_floats
        First size of each worker's scratch; it grows when a launch needs more.

    Attributes
    ----------
    scarce
        There are fewer CPUs than workers: helpers are not pinned, and waits yield early.
    cpus
        The CPU that each worker is pinned to (worker 0: would be, see `pinned_caller`), or None.
    """

    def __init__(
        self,
        count: int,
        *,
        spin_ns: int | None = None,
        park_ns: int = PARK_NS,
        scratch_floats: int = 1 << 14,
    ) -> None:
        if sys.platform != "linux":
            raise MeasureError("the CPU runtime needs Linux: it pins threads and sleeps on POSIX semaphores")
        if count < 1:
            raise MeasureError(f"{count} workers asked for; there must be at least 1, the calling thread")
        allowed = sorted(os.sched_getaffinity(0))
        self.count, self.park_ns = count, park_ns
        self.scarce = len(allowed) < count
        self.cpus: tuple[int | None, ...] = (None,) * count if self.scarce else tuple(allowed[:count])
        self._bodies = kernels.compile_all()  # before there is a helper that would compile as well
        self._table = np.array([body.address for body in self._bodies], np.int64)
        self._control = _aligned(kernels.C_WORKERS + count * kernels.WORKER_WORDS)
        if spin_ns is None:
            spin_ns = SCARCE_SPIN_NS if self.scarce else SPIN_NS
        self._control[kernels.C_SPIN_NS] = spin_ns
        self._control[kernels.C_PARK_NS] = park_ns
        self._control[kernels.C_BODIES] = self._table.ctypes.data
        self._scratch = np.zeros(0, np.float32)
        self._grow(scratch_floats)
        self._address = self._control.ctypes.data
        self._forks = _forks
        self._lock = threading.Lock()
        kernels.prepare(self._address, count)
        self._threads = [
            threading.Thread(
                target=_serve,
                args=(self._control, worker, self.cpus[worker]),
                name=f"workbench-worker-{worker}",
                daemon=True,
            )
            for worker in range(1, count)
        ]
        # Also runs at interpreter exit. It holds no reference to self, or a forgotten pool would live for ever.
        self._finalizer = weakref.finalize(self, _close, self._control, count, self._threads, self._lock, _forks)
        for thread in self._threads:
            thread.start()
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        for worker, thread in enumerate(self._threads, start=1):
            ready = kernels.C_WORKERS + worker * kernels.WORKER_WORDS + kernels.W_READY
            while not self._control[ready]:
                if not thread.is_alive():
                    self.close()
                    raise MeasureError(f"worker {worker} did not start")
                time.sleep(20e-6)

    def _grow(self, scratch_floats: int) -> None:
        # Workers are idle here, and read the address anew in each launch.
        size = -(-scratch_floats // 16) * 16 + 16  # a line between two workers' scratch
        self._scratch = _aligned(self.count * size // 2).view(np.float32)
        self.scratch_floats = scratch_floats
        self._control[kernels.C_SCRATCH] = self._scratch.ctypes.data
        self._control[kernels.C_SCRATCH_FLOATS] = size

    def run(self, launch: Launch, stamps: Ints | None = None) -> None:
        """Run `launch` to its end; with `stamps` (int64, (T, 2)) note begin (after waits) and end of each body in ns.

        One call without the GIL: an interrupt from the keyboard is raised after it, never in it. Threads that share
        a pool take turns.

        Raises
        ------
        MeasureError
            If the pool is closed, too small or from before a fork; if another pool is running `launch`; if `stamps`
            does not fit; or if a GATHER met an index that leads outside the arena (its output is then incomplete,
            all else has run).
        """
        if self._forks != _forks:
            raise MeasureError("these workers were started before a fork, which copies no threads; make new ones")
        if launch.workers > self.count:
            raise MeasureError(f"the launch has queues for {launch.workers} workers, the pool has {self.count}")
        if stamps is not None:
            _check_array("stamps", stamps, np.int64, 2)
            if stamps.shape != (launch.tiles, 2) or not stamps.flags.writeable:
                raise MeasureError(f"stamps is {stamps.shape}; it must be writable and {(launch.tiles, 2)}")
        # `with` and not `acquire`, after which an interrupt from the keyboard could leave a lock locked.
        with self._lock:
            if launch.scratch_floats > self.scratch_floats:
                self._grow(launch.scratch_floats)
            launch._block[kernels.L_STAMPS] = 0 if stamps is None else stamps.ctypes.data
            fault = kernels.enter(self._address, launch._address, 0)
        if fault == kernels.STOPPED:
            raise MeasureError("these workers are closed; make new ones")
        if fault == kernels.TAKEN:
            raise MeasureError("this launch is being run by other workers, or was when this process was forked")
        if fault:
            raise MeasureError(f"tile {fault - 1}: a GATHER index leads outside the arena; its output is incomplete")

    @contextlib.contextmanager
    def pinned_caller(self) -> Iterator[None]:
        """Pin the calling thread to worker 0's CPU, and restore its affinity after. Threads started inside inherit it.

        Does nothing where CPUs are scarce.
        """
        if self.cpus[0] is None:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self.cpus[0]})
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def close(self) -> None:
        """Stop and join the helpers, after a launch that another thread may be running; again does nothing."""
        self._finalizer()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _serve(control: Ints, worker: int, cpu: int | None) -> None:
    if cpu is not None:
        with contextlib.suppress(OSError):  # the CPU may have been taken from us since; unpinned is only slower
            os.sched_setaffinity(0, {cpu})  # 0 is the calling thread, not the process
    kernels.enter(control.ctypes.data, 0, worker)


def _close(control: Ints, count: int, threads: list[threading.Thread], lock: threading.Lock, forks: int) -> None:
    if forks != _forks:
        return  # a fork's child has the memory, but not the threads
    if not lock.acquire(timeout=10.0):
        return  # another thread is in a long launch, which needs its helpers; being daemons, they hold up no exit
    try:
        kernels.stop(control.ctypes.data, count)
    finally:
        lock.release()
    for thread in threads:
        if thread.ident is not None and thread is not threading.current_thread():
            thread.join(timeout=10.0)


def _aligned(words: int) -> Ints:
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


def _check_array(name: str, array: object, dtype: type[np.generic], dimensions: int) -> None:
    if not isinstance(array, np.ndarray):
        raise MeasureError(f"{name} is a {type(array).__name__}; expected a numpy array")
    if array.dtype != dtype or array.ndim != dimensions or not array.flags.c_contiguous or not array.flags.aligned:
        layout = "" if array.flags.c_contiguous else " strided"
        raise MeasureError(
            f"{name} is{layout} {array.dtype} of {array.ndim} dimensions; "
            f"expected contiguous {np.dtype(dtype)} of {dimensions}"
        )


def _copied(name: str, array: Indices | Ints, dtype: type[np.generic], dimensions: int) -> npt.NDArray[Any]:
    _check_array(name, array, dtype, dimensions)
    return array.copy()


def _check_arenas(floats: Floats, ints: Codes) -> None:
    for name, array, dtype in (("floats", floats, np.float32), ("ints", ints, np.int32)):
        _check_array(name, array, dtype, 1)
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
    _check_array("op_ptr", op_ptr, np.uint32, 1)
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


# -- checks of descriptors -----------------------------------------------------------------------------------------

# Columns of a whole opcode at once, as float64: exact below 2**53, and a product too large cannot wrap around.
_Columns = npt.NDArray[np.float64]
_Axis = tuple[_Columns | int, _Columns | int, _Columns | int]


class _Extent(NamedTuple):
    """What a tile may touch: `base`, plus ``start * stride … (stop - 1) * stride`` along each axis."""

    name: str
    base: _Columns
    axes: tuple[_Axis, ...]
    applies: npt.NDArray[np.bool_] | bool = True
    arena: str = "floats"


def _matmul_extents(d: _Columns) -> list[_Extent]:
    b, r, c, inner, a = (d[1], d[2]), (d[3], d[4]), (d[5], d[6]), (0, d[10], 1), d[17:]
    rope, half, position = d[16] == kernels.ROPE, d[17] // 2, (a[5] + d[3], a[5] + d[4])
    slots = ((*b, a[6]), (*position, a[2]), (0, a[2], 1))
    table = ((*position, half), (0, half, 1))
    return [
        _Extent("x", d[7], ((*b, d[8]), (*r, d[9]), inner)),
        _Extent("w", d[11], ((*c, d[10]), inner)),
        _Extent("w of up", d[11] + a[0] * d[10], ((*c, d[10]), inner), d[16] == kernels.GATED),
        _Extent("y", d[12], ((*b, d[13]), (*r, d[14]), (*c, 1)), ~rope),
        _Extent("y", d[12], ((*b, d[13]), (*r, d[14]), (d[5], np.minimum(d[6], a[1]), 1)), rope & (d[5] < a[1])),
        *(_Extent(name, base, slots, rope) for name, base in (("key cache", a[3]), ("value cache", a[4]))),
        *(_Extent(name, base, table, rope) for name, base in (("cos", a[7]), ("sin", a[8]))),
    ]


def _attention_extents(d: _Columns) -> list[_Extent]:
    b, r, h, width = (d[1], d[2]), (d[3], d[4]), (d[5], d[6]), (0, d[14], 1)
    cached = ((*b, d[12]), (0, d[16] + d[4], d[13]), (d[5] // d[15], (d[6] - 1) // d[15] + 1, d[14]), width)
    return [
        _Extent("q", d[7], ((*b, d[8]), (*r, d[9]), (*h, d[14]), width)),
        _Extent("k", d[10], cached),
        _Extent("v", d[11], cached),
        _Extent("y", d[17], ((*b, d[18]), (*r, d[19]), (*h, d[14]), width)),
    ]


def _gather_extents(d: _Columns) -> list[_Extent]:
    b, r, c = (d[1], d[2]), (d[3], d[4]), (d[5], d[6])
    return [
        _Extent("idx", d[7], ((*b, d[8]), (*r, d[9]), (0, d[11], d[10])), arena="ints"),
        _Extent("table", d[12], ((0, d[11], d[13]), (*c, 1))),
        _Extent("y", d[15], ((*b, d[16]), (*r, d[17]), (*c, d[18]))),
        _Extent("cond", d[19], ((*b, d[20]), (*c, 1)), d[19] >= 0),
    ]


def _argmax_extents(d: _Columns) -> list[_Extent]:
    b = (d[1], d[2])
    return [_Extent("x", d[3], ((*b, d[4]), (0, d[5], 1))), _Extent("out", d[6], ((*b, d[7]),), arena="ints")]


def _conv_extents(d: _Columns) -> list[_Extent]:
    b, c, window = (d[1], d[2]), (d[5], d[6]), d[10] * d[11]
    out = ((*b, d[17]), (*c, d[18]), (d[3], d[4], 1))
    return [
        _Extent("x", d[7], ((*b, d[8]), (0, d[10], d[9]), (d[3] - (d[11] - 1) * d[12], d[4], 1))),
        _Extent("w", d[13], ((*c, window), (0, window, 1))),
        _Extent("bias", d[14], ((*c, 1),)),
        _Extent("snake", d[15], ((0, d[10], 1),), d[15] >= 0),
        _Extent("y", d[16], out),
        _Extent("residual", d[20], out, d[19] == kernels.CONV_RESIDUAL),
    ]


def _upconv_extents(d: _Columns) -> list[_Extent]:
    b, c = (d[1], d[2]), (d[5], d[6])
    return [
        _Extent("x", d[7], ((*b, d[8]), (0, d[10], d[9]), (d[3] - 1, d[4], 1))),
        _Extent("w", d[12], ((0, 2 * d[10], d[13] * d[11]), (d[5] * d[11], d[6] * d[11], 1))),
        _Extent("bias", d[14], ((*c, 1),)),
        _Extent("snake", d[15], ((0, d[10], 1),), d[15] >= 0),
        _Extent("y", d[16], ((*b, d[17]), (*c, d[18]), (d[3] * d[11], d[4] * d[11], 1))),
    ]


def _matmul_scratch(d: _Columns) -> int:
    width = np.where(d[16] == kernels.ROPE, d[17], kernels.GROUP)
    return int(np.max(4 * (width + 8) + (d[2] - d[1]) * (d[4] - d[3])))


def _conv_scratch(d: _Columns) -> int:
    times, halo = d[4] - d[3], (d[11] - 1) * d[12]
    unfolded = halo + 32 + (d[2] - d[1]) * times * d[10] * d[11]
    return int(np.max(np.where(times < kernels.LANES, unfolded, d[10] * (halo + times + 32) + 8)))


def _upconv_scratch(d: _Columns) -> int:
    times = d[4] - d[3]
    return int(np.max(times + 24 + 2 * (d[2] - d[1]) * times * d[10] + 2 * (d[6] - d[5]) * d[11]))


class _Family(NamedTuple):
    """Rules for one opcode's columns, see `cpu_kernels`: which are ranges, which at least 1, which below a limit."""

    ranges: tuple[tuple[int, int], ...]
    positive: tuple[tuple[str, int], ...]
    choices: tuple[tuple[str, int, int], ...]
    extents: Callable[[_Columns], list[_Extent]]
    scratch: Callable[[_Columns], int]


_BRC = ((1, 2), (3, 4), (5, 6))
_FAMILIES = {
    kernels.NOP: _Family((), (), (), lambda d: [], lambda d: 1),
    kernels.MATMUL: _Family(
        _BRC, (("K", 10),), (("norm", 15, 2), ("epilogue", 16, 4)), _matmul_extents, _matmul_scratch
    ),
    kernels.ATTENTION: _Family(
        _BRC, (("width", 14), ("group", 15)), (), _attention_extents, lambda d: int(np.max(d[16] + d[4])) + 16
    ),
    kernels.GATHER: _Family(_BRC, (("n_tables", 11),), (), _gather_extents, lambda d: 1),
    kernels.ARGMAX: _Family(((1, 2),), (("width", 5),), (), _argmax_extents, lambda d: 1),
    kernels.CONV: _Family(
        _BRC, (("Cin", 10), ("K", 11), ("dilation", 12)), (("epilogue", 19, 3),), _conv_extents, _conv_scratch
    ),
    kernels.UPCONV: _Family(_BRC, (("Cin", 10), ("rate", 11)), (), _upconv_extents, _upconv_scratch),
    kernels.TOUCH: _Family((), (("n", 2),), (), lambda d: [_Extent("memory", d[1], ((0, d[2], 1),))], lambda d: 1),
}


class _Tiles(NamedTuple):
    """The tiles of one opcode: their ids, and their columns as rows."""

    opcode: int
    ids: Ints
    d: _Columns

    def refuse(self, bad: npt.NDArray[np.bool_], rule: str, *values: _Columns) -> None:
        """Raise for the first bad tile, with `rule` formatted with its `values`."""
        if bad.any():
            place = int(np.argmax(bad))
            text = rule.format(*(int(value[place]) for value in values))
            raise MeasureError(f"tile {self.ids[place]} ({kernels.BODY_OF[self.opcode].__name__}): {text}")


def _check_descriptors(desc: Ints, floats: Floats, ints: Codes) -> int:
    """Scratch that the largest tile needs; raises for the first tile that breaks a rule or leaves an arena."""
    if desc.shape[1] != kernels.DESCRIPTOR_COLUMNS:
        raise MeasureError(f"desc has {desc.shape[1]} columns; a descriptor has {kernels.DESCRIPTOR_COLUMNS}")
    unknown = ~np.isin(desc[:, 0], list(_FAMILIES))
    if unknown.any():
        tile = np.argmax(unknown)
        raise MeasureError(f"tile {tile} has opcode {desc[tile, 0]}; there are 0 … {len(_FAMILIES) - 1}")
    scratch = 1
    for opcode, family in _FAMILIES.items():
        ids = np.flatnonzero(desc[:, 0] == opcode)
        if len(ids):
            tiles = _Tiles(opcode, ids, desc[ids].T.astype(np.float64))
            _check_values(tiles, family)
            _check_extents(tiles, family, {"floats": len(floats), "ints": len(ints)})
            scratch = max(scratch, family.scratch(tiles.d))
    return scratch


def _check_values(tiles: _Tiles, family: _Family) -> None:
    d = tiles.d
    for low, high in family.ranges:
        rule = f"columns {low} and {high} are the empty range {{}}:{{}}; ranges are half-open"
        tiles.refuse(d[low] >= d[high], rule, d[low], d[high])
    for name, column in family.positive:
        tiles.refuse(d[column] < 1, f"{name} is {{}}; it must be at least 1", d[column])
    for name, column, count in family.choices:
        tiles.refuse((d[column] < 0) | (d[column] >= count), f"{name} is {{}}; there are 0 … {count - 1}", d[column])
    if tiles.opcode == kernels.MATMUL:
        width = np.maximum(d[17], 1)
        whole = np.all(d[[5, 6, 18, 19]] % width == 0, axis=0) & (d[17] > 0) & (d[17] % 2 == 0)
        rule = "columns {}:{}, {} of queries and {} of keys must be whole heads of an even width, not of {}"
        tiles.refuse((d[16] == kernels.ROPE) & ~whole, rule, d[5], d[6], d[18], d[19], d[17])
    elif tiles.opcode == kernels.ATTENTION:
        tiles.refuse(d[16] + d[3] < 0, "pos0 is {} and the first row {}: it sees no position", d[16], d[3])
    elif tiles.opcode == kernels.UPCONV:
        tiles.refuse(d[6] > d[13], "channels end at {}, of {} in all", d[6], d[13])


def _check_extents(tiles: _Tiles, family: _Family, sizes: dict[str, int]) -> None:
    for extent in family.extents(tiles.d):
        low, high = extent.base, extent.base
        for start, stop, stride in extent.axes:
            ends = np.asarray(start) * stride, (np.asarray(stop) - 1) * stride
            low, high = low + np.minimum(*ends), high + np.maximum(*ends)
        size = sizes[extent.arena]
        rule = f"{extent.name} spans elements {{}} … {{}} of {size} {extent.arena}"
        tiles.refuse(((low < 0) | (high >= size)) & extent.applies, rule, low, high)


# -- overheads -----------------------------------------------------------------------------------------------------


def _nop_launch(owner: Ints, workers: int, *, chained: bool = False, operators: int = 0) -> Launch:
    """Tiles that do nothing, tile t on worker ``owner[t]``; chained: each waits for the one before."""
    tiles = len(owner)
    desc = np.zeros((tiles, kernels.DESCRIPTOR_COLUMNS), np.int64)
    queue_ptr = np.searchsorted(np.sort(owner), np.arange(workers + 1)).astype(np.uint32)
    ids = np.arange(tiles + 1, dtype=np.uint32)
    links = max(tiles - 1, 0) if chained else 0
    return Launch(
        desc,
        queue_ptr,
        np.argsort(owner, kind="stable").astype(np.uint32),
        np.maximum(ids, 1) - np.uint32(1) if chained else np.zeros(tiles + 1, np.uint32),
        ids[:links],
        np.ones(links, np.uint32),
        np.where(ids[:-1] < links, ids[:-1], NO_EVENT).astype(np.uint32),
        floats=np.zeros(1, np.float32),
        ints=np.zeros(1, np.int32),
        mode=Mode.REPLAY if operators else Mode.MEGAKERNEL,
        op_ptr=np.linspace(0, tiles, operators + 1).astype(np.uint32) if operators else None,
    )


def _median_ns(
    workers: Workers, launch: Launch, repeats: int, stamps: Ints | None = None, *, idle_s: float = 0.0
) -> float:
    samples = []
    for _ in range(repeats):
        if idle_s:
            time.sleep(idle_s)
        begin = time.perf_counter_ns()
        workers.run(launch, stamps)
        samples.append(time.perf_counter_ns() - begin)
    return float(np.median(samples))


def probe_launch(workers: Workers) -> dict[str, float]:
    """Cost of a launch without tiles on all workers: helpers awake, and helpers asleep."""
    empty = _nop_launch(np.zeros(0, np.int64), workers.count)
    asleep_s = 2 * workers.park_ns * 1e-9 + 1e-3
    _median_ns(workers, empty, 50)
    return {
        "launch_ns": _median_ns(workers, empty, 2000),
        "launch_parked_ns": _median_ns(workers, empty, max(3, int(0.15 / asleep_s)), idle_s=asleep_s),
    }


def probe_tile(workers: Workers) -> dict[str, float]:
    """Cost of dispatching a tile that does nothing, on one worker, and what time stamps add to it."""
    tiles = 10_000
    launch, stamps = _nop_launch(np.zeros(tiles, np.int64), 1), np.zeros((tiles, 2), np.int64)
    plain, stamped = _median_ns(workers, launch, 100), _median_ns(workers, launch, 50, stamps)
    return {"tile_ns": plain / tiles, "stamps_ns": (stamped - plain) / tiles}


def probe_event(workers: Workers) -> dict[str, float]:
    """Cost of an event: signal and wait on one worker, and from one worker to another (ping-pong of two)."""
    tiles = 1_000
    costs = {"event_local_ns": _median_ns(workers, _nop_launch(np.zeros(tiles, np.int64), 1, chained=True), 50) / tiles}
    if workers.count > 1:
        launch = _nop_launch(np.arange(tiles) % 2, 2, chained=True)
        costs["event_hop_ns"] = _median_ns(workers, launch, 100) / tiles
    return costs


def probe_fork_join(workers: Workers) -> dict[str, float]:
    """Cost of an operator in a replay: fork, one tile a worker that does nothing, join."""
    operators = 500
    launch = _nop_launch(np.arange(operators * workers.count) % workers.count, workers.count, operators=operators)
    return {"fork_join_ns": _median_ns(workers, launch, 100) / operators}


def probe_overheads(workers: Workers) -> dict[str, float]:
    """All of the above: medians in ns, with the caller pinned; under a second."""
    with workers.pinned_caller():
        return {
            **probe_launch(workers),
            **probe_tile(workers),
            **probe_event(workers),
            **probe_fork_join(workers),
        }
