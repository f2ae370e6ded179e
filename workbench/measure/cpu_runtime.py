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
from collections.abc import Iterator
from types import TracebackType

import numpy as np
import numpy.typing as npt

from workbench.errors import MeasureError
from workbench.measure import cpu_kernels as kernels
from workbench.measure.cpu_launch import Launch, aligned, check_array

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
        self._control = aligned(kernels.C_WORKERS + count * kernels.WORKER_WORDS)
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
        self._scratch = aligned(self.count * size // 2).view(np.float32)
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
            check_array("stamps", stamps, np.int64, 2)
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
