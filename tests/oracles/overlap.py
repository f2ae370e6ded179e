"""Overlapping launches told again from their definition in `engine.Mechanism`: dictionaries and Python integers."""

from __future__ import annotations

from workbench.simulate import Exit, Mechanism, TileQueue


def kernel(
    queue: TileQueue, m: Mechanism, tiles: list[int], ready: dict[int, int], given: int
) -> dict[int, tuple[int, int, int, int, int]]:
    """Times of one operator's tiles: begin, load_start, load_end, compute_start, end."""
    times: dict[int, tuple[int, int, int, int, int]] = {}
    last: dict[int, int] = {}
    for t in tiles:
        lane = int(queue.lane[t])
        before = last.get(lane)
        free = ready[lane] if before is None else times[before][4] + m.signal_ns
        begin = free + m.dispatch_ns
        ended = ready[lane] if before is None else times[before][4]
        load_start = ended if m.prefetch_depth else begin
        load_end = load_start + int(queue.weight_ns[t])
        compute_start = max(max(begin, given) + int(queue.input_ns[t]), load_end)
        times[t] = (begin, load_start, load_end, compute_start, compute_start + int(queue.compute_ns[t]))
        last[lane] = t
    return times


def leave(queue: TileQueue, m: Mechanism, tiles: list[int]) -> tuple[int, dict[int, int]]:
    """started and free by lane of one operator by itself, relative to its end."""
    times = kernel(queue, m, tiles, dict.fromkeys(range(queue.lanes), 0), 0)
    done = {lane: 0 for lane in range(queue.lanes)}
    for t in tiles:
        done[int(queue.lane[t])] = times[t][4] + m.signal_ns
    end = max(done[int(queue.lane[t])] for t in tiles)
    return max(times[t][0] for t in tiles) - end, {lane: at - end for lane, at in done.items()}


def simulate(
    queue: TileQueue, m: Mechanism, start_op: int, stop_op: int, before: Exit | None
) -> tuple[int, dict[int, tuple[int, int, int, int, int]]]:
    """Makespan and times of a region."""
    by_op: dict[int, list[int]] = {}
    for t, op in enumerate(queue.op):
        if start_op <= op < stop_op:
            by_op.setdefault(int(op), []).append(t)
    previous = None if before is None else (before.started_ns, dict(enumerate(before.free_ns.tolist())))
    top, times = m.launch_ns, dict[int, tuple[int, int, int, int, int]]()
    for _, tiles in sorted(by_op.items()):
        if previous is None:
            ready, given = dict.fromkeys(range(queue.lanes), top + m.gap_ns), top + m.gap_ns
        else:
            started, free = previous
            ready = {lane: top + max(started + m.gap_ns, free[lane]) for lane in range(queue.lanes)}
            given = top + m.wait_ns
        found = kernel(queue, m, tiles, ready, given)
        times |= found
        top = max(found[t][4] + m.signal_ns for t in tiles)
        previous = leave(queue, m, tiles)
    return top + m.drain_ns, times
