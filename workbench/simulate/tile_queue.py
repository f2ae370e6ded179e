"""Tiles in program order, the events between them, and the check that a simulation relies on.

Indices are unsigned and times are whole nanoseconds, so that equal times compare equal and no tie is an accident.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
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

    def retimed(
        self, weight_ns: NDArray[np.int64], input_ns: NDArray[np.int64], compute_ns: NDArray[np.int64]
    ) -> TileQueue:
        """The same tiles and events with other times; what is known of them is not worked out, or checked, again."""
        other = replace(self, weight_ns=weight_ns, input_ns=input_ns, compute_ns=compute_ns)
        shared = ("op_ptr", "last_signaller", "waiter", "waiters", "_waits_in_own_op", "_structure_is_sound")
        other.__dict__.update({name: self.__dict__[name] for name in shared if name in self.__dict__})
        return other

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
    def _structure_is_sound(self) -> bool:
        _check_structure(self)
        return True

    @cached_property
    def alone_ns(self) -> dict[tuple[int, int, int], NDArray[np.int64]]:
        """Memory of `engine.chain_ns`."""
        return {}

    @cached_property
    def total_ns(self) -> int:
        """All times of all tiles together; of a checked queue, so that they fit."""
        return sum(int(times.sum()) for times in (self.weight_ns, self.input_ns, self.compute_ns))

    @cached_property
    def waiters(self) -> kernels.Waiters:
        """Which tiles wait for each event."""
        from workbench.simulate import kernels

        return kernels.waiters(self.wait_ptr, self.wait_event, len(self.threshold))

    @cached_property
    def _waits_in_own_op(self) -> NDArray[np.int64]:
        """The waits for an event that a tile of the same operator signals, as indices into wait_event."""
        last = self.last_signaller[self.wait_event]
        return np.flatnonzero((last >= 0) & (self.op[last] == self.op[self.waiter]))


def _refuse(bad: NDArray[np.bool_], what: str, rule: str, *values: NDArray[np.generic]) -> None:
    """Raise for the first True of `bad`; `what` may hold {i}, the place, and {v[0]}, … the `values` there."""
    if bad.any():
        i = int(bad.argmax())
        raise GraphError(f"{what.format(i=i, v=[value[i] for value in values])}; {rule}")


def check_tile_queue(queue: TileQueue) -> None:
    """Raise `GraphError` unless `queue` can be simulated, naming the first tile or event that breaks a rule."""
    assert queue._structure_is_sound
    total_ns = 0.0
    for name in ("weight_ns", "input_ns", "compute_ns"):
        times = getattr(queue, name)
        _refuse(times < 0, f"tile {{i}} has {name}={{v[0]}}", "times are not negative", times)
        total_ns += times.sum(dtype=np.float64)
    if total_ns > _LONGEST_NS:
        raise GraphError(
            f"the {len(queue.lane)} tiles take {total_ns:.3g} ns together; more than {_LONGEST_NS:.3g} ns overflow"
        )


def _check_structure(q: TileQueue) -> None:
    events = len(q.threshold)
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
