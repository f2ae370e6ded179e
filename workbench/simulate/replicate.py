"""One region many times over, each time with other times: what a Monte Carlo run asks of the one pass.

A replication scales the tiles of each operator and the mechanism's numbers, and is otherwise `simulate`. The rounding
rule: a scaled time is the product of the whole nanoseconds and the factor in double precision, rounded to the nearest
whole, halves to the even one (`numpy.rint`); everything after that is whole and exact.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import GraphError
from workbench.simulate.engine import Exit, Mechanism, longest_ns, region_inputs
from workbench.simulate.tile_queue import TileQueue

Factors = NDArray[np.float64]
SCALED = ("launch_ns", "gap_ns", "dispatch_ns", "event_ns", "signal_ns", "drain_ns", "wait_ns")
EXACT_NS = 2**53  # whole numbers below it are doubles


def scaled_ns(ns: NDArray[np.int64], factor: Factors | float) -> NDArray[np.int64]:
    """Times by a factor, rounded as a replication does."""
    found: NDArray[np.int64] = np.rint(ns * np.asarray(factor)).astype(np.int64)
    return found


def scaled(
    queue: TileQueue, mechanism: Mechanism, factor: Factors, overhead_factor: float
) -> tuple[TileQueue, Mechanism]:
    """One replication as a queue and a mechanism of its own; ``factor`` (ops,)."""
    each = factor[queue.op]
    times = (scaled_ns(ns, each) for ns in (queue.weight_ns, queue.input_ns, queue.compute_ns))
    numbers: dict[str, Any] = {
        name: int(scaled_ns(np.array(getattr(mechanism, name)), overhead_factor)) for name in SCALED
    }
    return queue.retimed(*times), replace(mechanism, **numbers)


def replicate(
    queue: TileQueue,
    mechanism: Mechanism,
    factors: Factors,
    overhead_factors: Factors,
    start_op: int = 0,
    stop_op: int | None = None,
    *,
    column: NDArray[np.uint32] | None = None,
    before: Exit | None = None,
) -> NDArray[np.int64]:
    """(R,) makespans in ns of the operators [start_op, stop_op); entry r is `simulate` of replication r, exactly.

    Replication r scales the tile times of operator o (weights, inputs, compute) by ``factors[r, column[o]]`` and the
    mechanism's times by ``overhead_factors[r]``. ``factors`` is (R, columns); ``column`` (ops,), None: each operator
    has its own. With `overlap`, every replication follows the launch ``before`` as it is.

    Raises
    ------
    GraphError
        As `simulate`, and if a factor is negative or not finite, the shapes do not agree, or a replication might take
        2**53 ns.
    """
    from workbench.simulate import kernels

    stop_op = queue.ops if stop_op is None else stop_op
    column = np.arange(queue.ops, dtype=np.uint32) if column is None else column
    _check(queue, mechanism, factors, overhead_factors, column)
    tiles, costs = region_inputs(queue, mechanism, start_op, stop_op)
    times = kernels.TileTimes(*(ns.astype(np.float64) for ns in (queue.weight_ns, queue.input_ns, queue.compute_ns)))
    numbers = np.array([[getattr(mechanism, name)] for name in SCALED], np.float64)
    entry = before or Exit(0, np.zeros(queue.lanes, np.int64))
    found = np.empty(len(factors), np.int64)
    for first in range(0, len(factors), kernels.BLOCK):
        some = slice(first, first + kernels.BLOCK)
        count = len(factors[some])
        tile_factors = np.ones((factors.shape[1], kernels.BLOCK))
        tile_factors[:, :count] = factors[some].T
        overheads = np.ones(kernels.BLOCK)
        overheads[:count] = overhead_factors[some]
        out = np.empty(kernels.BLOCK)
        kernels.replicate(
            tiles, times, kernels.Scaled(*np.rint(numbers * overheads)), costs.depth, costs.barrier, mechanism.overlap,
            queue.lanes, len(queue.threshold), start_op, stop_op, tile_factors, column,
            before is not None, float(entry.started_ns), entry.free_ns.astype(np.float64), out,
        )  # fmt: skip
        found[some] = out[:count]
    return found


def _check(
    queue: TileQueue, mechanism: Mechanism, factors: Factors, overhead_factors: Factors, column: NDArray[np.uint32]
) -> None:
    if factors.ndim != 2 or overhead_factors.shape != factors.shape[:1]:
        raise GraphError(
            f"factors {list(factors.shape)} and overhead_factors {list(overhead_factors.shape)}; "
            "they are (replications, columns) and (replications,)"
        )
    if column.shape != (queue.ops,) or (queue.ops and int(column.max()) >= factors.shape[1]):
        raise GraphError(
            f"column {list(column.shape)} for factors of {factors.shape[1]} columns; it names one of them for each of "
            f"the {queue.ops} operators"
        )
    for name, given in (("factors", factors), ("overhead_factors", overhead_factors)):
        if not (np.isfinite(given) & (given >= 0)).all():
            raise GraphError(f"{name} holds {given[~(np.isfinite(given) & (given >= 0))][0]}; a factor is from 0")
    largest = max(1.0, factors.max(initial=1.0), overhead_factors.max(initial=1.0))
    least = longest_ns(queue, mechanism) + mechanism.wait_ns * queue.ops + 3 * len(queue.lane)  # rounding adds to each
    if least * largest >= EXACT_NS:
        raise GraphError(
            f"the region may take {least * largest:.3g} ns when scaled by {largest:.3g}; replications count to "
            f"{EXACT_NS:.3g} ns"
        )
