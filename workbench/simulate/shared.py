"""Shared bandwidth: static queues whose loads are bytes, and take as long as the loads of other lanes let them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor, inf, isinf, nan

import numpy as np
from numpy.typing import NDArray

from workbench.errors import GraphError
from workbench.simulate.engine import Mechanism, Run, id_bits, longest_ns, region_inputs, simulate
from workbench.simulate.tile_queue import TileQueue

QUANTA_PER_BYTE = (
    12_252_240  # the least common multiple of 1 to 18: so many loads share a whole number of bytes exactly
)


@dataclass(frozen=True, eq=False)
class TileLoads:
    """Bytes that each tile of a queue loads, in place of the queue's weight_ns and input_ns. Held read-only."""

    weight_bytes: NDArray[np.int64]  # (T,) need no event
    input_bytes: NDArray[np.int64]  # (T,) need the events

    def __post_init__(self) -> None:
        for name in ("weight_bytes", "input_bytes"):
            array = getattr(self, name)
            if array.dtype != np.int64 or array.ndim != 1 or len(array) != len(self.weight_bytes):
                raise GraphError(f"{name} is {array.dtype}{list(array.shape)}; loads are two int64 arrays, one a tile")
            if (array < 0).any():
                t = int((array < 0).argmax())
                raise GraphError(f"tile {t} has {name}={array[t]}; bytes are not negative")
            view = np.ascontiguousarray(array).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    @property
    def total_bytes(self) -> int:
        """Of all tiles together."""
        return sum(int(part.sum(dtype=np.float64)) for part in (self.weight_bytes, self.input_bytes))

    @property
    def largest_bytes(self) -> int:
        """Of one load."""
        return max(int(part.max(initial=0)) for part in (self.weight_bytes, self.input_bytes))


@dataclass(frozen=True)
class SharedBandwidth:
    """What all lanes' loads share. This is the definition of the engine; the rest of it is `engine.Mechanism`.

    A load is the weights of a tile, or its inputs. They start as in `engine.Mechanism`, so a lane has at most one of
    each at a time; these two share as those of two lanes do. In each whole nanosecond [t, t + 1) all n loads that run
    are brought as many bytes: min(lane_bytes_per_s, bytes_per_s / n) / 10**9, the max-min fair share where all have the
    same cap. What happens at t is over before that nanosecond is shared out, so there is no tie to break: queues are
    static, and in what order things happen at t makes no difference.

    Rounding: bytes are counted in quanta of 1/QUANTA_PER_BYTE, and in each nanosecond a load is brought a whole number
    of quanta, its share rounded down. So the bandwidth is never exceeded and all arithmetic is of integers; of a share
    of 10 bytes a ns that takes less than 10**-8. A load ends at the first whole nanosecond by which all of it was
    brought. What it could have been brought beyond its bytes in that nanosecond is lost to the others, so a load costs
    the device up to a nanosecond of its share. A load of no bytes takes no time.
    """

    bytes_per_s: float  # of the device, for all loads together; inf: no limit but the cap
    lane_bytes_per_s: float = inf  # of one load, as by the bytes that a lane can have in flight; inf: no cap

    def __post_init__(self) -> None:
        for name in ("bytes_per_s", "lane_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise GraphError(f"{name}={getattr(self, name)}; a bandwidth is above 0")

    def rates(self, most: int) -> list[int] | None:
        """Quanta a nanosecond for each of n loads, by n in 1..most; None if there is no limit at all."""
        if isinf(self.bytes_per_s) and isinf(self.lane_bytes_per_s):
            return None
        together, one = (
            2**126 if isinf(limit) else floor(Fraction(limit) * QUANTA_PER_BYTE / 10**9)  # 2**126 is over any load
            for limit in (self.bytes_per_s, self.lane_bytes_per_s)
        )
        return [min(together // n, one) for n in range(1, most + 1)]


def simulate_shared(
    queue: TileQueue,
    loads: TileLoads,
    bandwidth: SharedBandwidth,
    mechanism: Mechanism,
    start_op: int = 0,
    stop_op: int | None = None,
) -> Run:
    """As `engine.simulate`, but with `loads` that share `bandwidth` in place of the queue's weight_ns and input_ns.

    Raises
    ------
    GraphError
        As `engine.simulate` does; and if the loads do not fit the queue, or the numbers 63 bits.
    """
    from workbench.simulate import kernels

    stop_op = queue.ops if stop_op is None else stop_op
    rate = _checked_rates(queue, loads, bandwidth)
    if rate is None:
        nothing = np.zeros(len(queue.lane), np.int64)
        run = simulate(replace(queue, weight_ns=nothing, input_ns=nothing), mechanism, start_op, stop_op)
        return replace(run, queue=queue, shared_input_end_ns=run.begin_ns)
    if mechanism.overlap:
        raise GraphError("overlapping launches are run by the one-pass engine only; leave overlap out here")
    tiles, costs = region_inputs(queue, mechanism, start_op, stop_op)
    loads_ns = QUANTA_PER_BYTE * loads.total_bytes // int(rate[-1]) + 2 * len(queue.lane)
    bits = id_bits(longest_ns(queue, mechanism) + loads_ns, 2 * len(queue.lane))
    slot_bits = _slot_bits(queue)
    per_tile = kernels.Loads(loads.weight_bytes, loads.input_bytes, QUANTA_PER_BYTE, rate)
    times = np.empty((6, int(tiles.op_ptr[stop_op] - tiles.op_ptr[start_op])), np.int64)
    total = kernels.share(
        tiles, queue.waiters, per_tile, costs, queue.lanes, len(queue.threshold), bits, slot_bits,
        start_op, stop_op, times,
    )  # fmt: skip
    begin, load_start, load_end, compute_start, end, input_end = times
    return Run(
        queue, mechanism, start_op, stop_op, begin, load_start, load_end, compute_start, end, int(total),
        shared_input_end_ns=input_end,
    )  # fmt: skip


def _slot_bits(queue: TileQueue) -> int:
    return max(1, (2 * queue.lanes - 1).bit_length())


def _checked_rates(queue: TileQueue, loads: TileLoads, bandwidth: SharedBandwidth) -> NDArray[np.int64] | None:
    """Entry n of (2 lanes + 1,): quanta a nanosecond for each of n loads, no more than the largest load has."""
    if len(loads.weight_bytes) != len(queue.lane):
        raise GraphError(f"loads of {len(loads.weight_bytes)} tiles for a queue of {len(queue.lane)}; give one each")
    most_bytes = 2 ** (61 - _slot_bits(queue)) // QUANTA_PER_BYTE
    if loads.largest_bytes > most_bytes:
        raise GraphError(
            f"a load of {loads.largest_bytes} bytes; with {queue.lanes} lanes this engine counts to {most_bytes} a "
            "load: split the tile"
        )
    rates = bandwidth.rates(max(1, 2 * queue.lanes))
    if rates is None:
        return None
    if rates[-1] == 0:
        raise GraphError(
            f"{bandwidth} is too little: each of {len(rates)} loads would be brought less than 1/{QUANTA_PER_BYTE} of "
            "a byte a nanosecond, which is rounded to nothing"
        )
    largest = max(1, loads.largest_bytes * QUANTA_PER_BYTE)
    return np.array([0, *(min(rate, largest) for rate in rates)], np.int64)


def fair_share_queue(queue: TileQueue, loads: TileLoads, bandwidth: SharedBandwidth) -> TileQueue:
    """`queue` with the times that `loads` would take if as many as there are lanes ran all the time.

    That is all that an engine without sharing can be told. It is too long where few lanes load, and too short where
    lanes load weights and inputs at once, for then more than the bandwidth is used.
    """
    rate = _checked_rates(queue, loads, bandwidth)
    if rate is None or not queue.lanes:
        nothing = np.zeros(len(queue.lane), np.int64)
        return replace(queue, weight_ns=nothing, input_ns=nothing)
    each = rate[queue.lanes]
    weight_ns, input_ns = (-(-part * QUANTA_PER_BYTE // each) for part in (loads.weight_bytes, loads.input_bytes))
    return replace(queue, weight_ns=weight_ns, input_ns=input_ns)


@dataclass(frozen=True, eq=False)
class SharingDifference:
    """What one bandwidth for all changes: `simulate_shared` against `simulate` of `fair_share_queue`.

    An operator's cost is by how much it moves the moment by which it and all operators before it are done. The costs
    of a region's operators sum to its makespan, launch and drain aside, and so do their differences.
    """

    shared: Run
    fair_share: Run

    @property
    def makespan_ratio(self) -> float:
        """Shared over fair share; NaN if the latter takes no time."""
        return self.shared.makespan_ns / self.fair_share.makespan_ns if self.fair_share.makespan_ns else nan

    @property
    def difference_ns(self) -> NDArray[np.int64]:
        """(operators of the region,): the shared cost of each less its fair-share cost."""
        difference: NDArray[np.int64] = _operator_costs(self.shared) - _operator_costs(self.fair_share)
        return difference

    @property
    def max_ns(self) -> int:
        """The largest difference of an operator, in either direction; 0 without operators."""
        return int(np.abs(self.difference_ns).max(initial=0))

    @property
    def mean_ns(self) -> float:
        """The mean over operators of the difference in either direction; 0 without operators."""
        return float(np.abs(self.difference_ns).mean()) if len(self.difference_ns) else 0.0


def _operator_costs(run: Run) -> NDArray[np.int64]:
    done = np.full(run.stop_op - run.start_op, run.mechanism.launch_ns, np.int64)
    op = run.queue.op[run.tiles].astype(np.int64) - run.start_op
    np.maximum.at(done, op, run.end_ns + run.mechanism.signal_ns)
    return np.diff(np.maximum.accumulate(done), prepend=run.mechanism.launch_ns)


def sharing_difference(
    queue: TileQueue,
    loads: TileLoads,
    bandwidth: SharedBandwidth,
    mechanism: Mechanism,
    start_op: int = 0,
    stop_op: int | None = None,
) -> SharingDifference:
    """Run a region by both engines on the same bytes; raises as `simulate_shared` does."""
    shared = simulate_shared(queue, loads, bandwidth, mechanism, start_op, stop_op)
    alone = fair_share_queue(queue, loads, bandwidth)
    return SharingDifference(shared, simulate(alone, mechanism, start_op, stop_op))
