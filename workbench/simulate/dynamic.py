"""Dynamic queues: a tile is bound to no lane; the lane that frees first takes the tile that has been ready longest."""

from __future__ import annotations

import numpy as np

from workbench.errors import GraphError
from workbench.simulate.engine import Mechanism, Run, id_bits, longest_ns, region_inputs
from workbench.simulate.tile_queue import TileQueue


def simulate_dynamic(queue: TileQueue, mechanism: Mechanism, start_op: int = 0, stop_op: int | None = None) -> Run:
    """Run the operators [start_op, stop_op) as one region by dynamic queues; `queue.lane` does not matter.

    The definition, with free[l] at `launch_ns` on every lane l to begin with, the tiles in the order below::

        ready         = max over the events waited for of fire[e] + event_ns; launch_ns if there are none
        lane          = the one that frees first: the smallest (free[l], l)
        given         = max(free[lane], ready)
        begin         = given + dispatch_ns
        load_start    = begin           prefetch_depth 0
                      = given           prefetch_depth 1
        load_end      = load_start + weight_ns
        compute_start = max(begin + input_ns, load_end)
        end           = compute_start + compute_ns
        done          = free[lane] = end + signal_ns
        fire[e]       = max over the tiles that signal e of done
        makespan      = max(free) + drain_ns

    Order, and with it every tie: tiles are given in the order of (ready, event id, tile id), the event being the last
    of theirs to be seen. First come, in order of id, those that wait for nothing in the region. Then, one after
    another, of the events that have fired and are not served the one with the smallest (fire + event_ns, id): it gives
    in order of id those of its tiles that wait for no other. So what takes no time at all, and makes an event be seen
    in the very nanosecond that is being served, has that event served next if its id is the smallest, and never
    between two tiles of one event. A tile that was ready later never overtakes.

    Prefetch: a lane's weights cannot be loaded before it is known which tile it gets, so a depth over 1 is refused.
    1 loads them while the tile is dispatched, 0 after. Both wait for the tile's events, for so does the queue.

    With `barrier`, a queue an operator: at its first tile every free[l] = max(free) + gap_ns, all its tiles are ready
    then, and are given in order of id. It is how a GPU's own scheduler deals out the blocks of a kernel.

    Where no event takes time (`event_ns` 0), no lane idles while a tile is ready, and launch and drain aside the
    makespan is at most 2 - 1/lanes times the best (Graham 1969, SIAM J. Appl. Math. 17(2)). But less work or more
    lanes may make it longer: his anomalies.

    Raises
    ------
    GraphError
        As `engine.simulate` does; and for a `prefetch_depth` over 1.
    """
    from workbench.simulate import kernels

    stop_op = queue.ops if stop_op is None else stop_op
    if mechanism.prefetch_depth > 1:
        raise GraphError(
            f"prefetch_depth={mechanism.prefetch_depth} with dynamic queues; which tile a lane gets is known only when "
            "it is free, so no weights are loaded ahead: 1 loads them during the dispatch, 0 after it"
        )
    if mechanism.overlap:
        raise GraphError("overlapping launches are run by the one-pass engine only; leave overlap out here")
    tiles, costs = region_inputs(queue, mechanism, start_op, stop_op)
    count = int(tiles.op_ptr[stop_op] - tiles.op_ptr[start_op])
    lanes, times = np.empty(count, np.uint32), np.empty((5, count), np.int64)
    events = len(queue.threshold)
    bits = id_bits(longest_ns(queue, mechanism), max(queue.lanes, events + 1))
    if mechanism.barrier:
        total = kernels.deal_operators(tiles, costs, queue.lanes, bits, start_op, stop_op, lanes, times)
    else:
        total = kernels.deal(tiles, queue.waiters, costs, queue.lanes, events, bits, start_op, stop_op, lanes, times)
    begin, load_start, load_end, compute_start, end = times
    region = (queue, mechanism, start_op, stop_op)
    return Run(*region, begin, load_start, load_end, compute_start, end, int(total), dynamic_lane=lanes)
