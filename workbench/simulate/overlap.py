"""What overlapping launches hand over: how a launch ends, and what that saves the kernel launched within it.

Defined in `engine.Mechanism`. An `Exit` is the label that a search carries from one region to the next.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workbench.simulate.engine import Exits, Mechanism, region_inputs
from workbench.simulate.tile_queue import TileQueue


def exits(queue: TileQueue, mechanism: Mechanism, start_op: int, stops: Sequence[int]) -> Exits:
    """How the regions [start_op, stop) end, for rising ``stops``; one pass.

    With `barrier` it is how the last operator that has tiles ends when run by itself.
    """
    from workbench.simulate import kernels

    tiles, costs = region_inputs(queue, mechanism, start_op, max(stops, default=start_op))
    started, free = np.zeros(len(stops), np.int64), np.zeros((len(stops), queue.lanes), np.int64)
    ends = np.array(stops, np.int64)
    if mechanism.barrier:
        kernels.leave_each(tiles, costs, queue.lanes, start_op, ends, started, free)
    else:
        kernels.price_exits(tiles, costs, queue.lanes, len(queue.threshold), start_op, ends, started, free)
    return Exits(started, free)


def follow_ns(queue: TileQueue, mechanism: Mechanism, ops: NDArray[np.int64], before: Exits) -> NDArray[np.int64]:
    """(n,): from the end of each of some launches to the end of the operator launched within it, ns."""
    from workbench.simulate import kernels

    tiles, costs = region_inputs(queue, mechanism, 0, queue.ops)
    found = np.empty(len(ops), np.int64)
    kernels.follow_each(tiles, costs, mechanism.wait_ns, queue.lanes, ops, before.started_ns, before.free_ns, found)
    return found
