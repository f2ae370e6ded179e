"""The definition in `engine.Mechanism`, told again as a program of events: slow, plain, and written another way.

Nothing here computes a time as a maximum over predecessors. Lanes, loaders and event counters are state machines; an
agenda moves the clock to the next thing that happens, in order of (time, order of entry). What is tested is that the
compiled pass agrees with this, to the nanosecond, for every time of every tile.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from workbench.simulate.engine import Mechanism, Run
from workbench.simulate.tile_queue import TileQueue, check_tile_queue


class _Lane:
    """A worker's queue, and its loader's: tiles not yet taken by either, and pages for weights that are free."""

    def __init__(self, tiles: list[int], pages: int) -> None:
        self.queue, self.to_load = deque(tiles), deque(tiles)
        self.pages, self.loading = pages, False


class _World:
    """All state of a region while it runs; `now_ns` is the clock."""

    def __init__(self, queue: TileQueue, mechanism: Mechanism, tiles: range) -> None:
        self.queue, self.m, self.now_ns = queue, mechanism, mechanism.launch_ns
        self.agenda: list[tuple[int, int, Callable[[int], None], int]] = []
        self.entries = 0
        self.signals_left = np.bincount(queue.signal[tiles.start : tiles.stop], minlength=len(queue.threshold)).tolist()
        self.waiters: dict[int, list[int]] = {}
        self.waits_left: dict[int, int] = {}
        self.parts_left: dict[int, int] = {}  # of a tile that has begun: its inputs and its weights
        self.dispatched: set[int] = set()
        self.lanes: dict[int, _Lane] = {}
        self.times: dict[str, dict[int, int]] = {
            name: {} for name in ("begin", "load_start", "load_end", "compute_start", "end", "done")
        }

    def later(self, delay_ns: int, action: Callable[[int], None], subject: int) -> None:
        heapq.heappush(self.agenda, (self.now_ns + int(delay_ns), self.entries, action, subject))
        self.entries += 1

    def play(self, tiles: Iterable[int]) -> None:
        """Let every lane work through its share of `tiles`, from now until nothing is left to happen."""
        shares: dict[int, list[int]] = {}
        for t in tiles:
            shares.setdefault(int(self.queue.lane[t]), []).append(t)
            first, stop = self.queue.wait_ptr[t], self.queue.wait_ptr[t if self.m.barrier else t + 1]
            unfired = [int(event) for event in self.queue.wait_event[first:stop] if self.signals_left[event]]
            self.waits_left[t] = len(unfired)
            self.parts_left[t] = 2
            for event in unfired:
                self.waiters.setdefault(event, []).append(t)
        self.lanes = {lane: _Lane(share, self.m.prefetch_depth) for lane, share in shares.items()}
        for lane in self.lanes:
            self.lane_is_free(lane)
            self.loader_may_go(lane)
        while self.agenda:
            self.now_ns, _, action, subject = heapq.heappop(self.agenda)
            action(subject)

    def lane_is_free(self, lane: int) -> None:
        if self.lanes[lane].queue:
            self.later(self.m.dispatch_ns, self.tile_is_dispatched, self.lanes[lane].queue.popleft())

    def tile_is_dispatched(self, t: int) -> None:
        self.dispatched.add(t)
        self.tile_may_begin(t)

    def event_is_visible(self, event: int) -> None:
        for t in self.waiters.pop(event, []):
            self.waits_left[t] -= 1
            self.tile_may_begin(t)

    def tile_may_begin(self, t: int) -> None:
        if t in self.dispatched and self.waits_left[t] == 0:
            self.times["begin"][t] = self.now_ns
            self.later(self.queue.input_ns[t], self.part_is_in, t)
            if self.m.prefetch_depth == 0:
                self.load_starts(t)

    def loader_may_go(self, lane: int) -> None:
        state = self.lanes[lane]
        if state.to_load and state.pages and not state.loading:
            state.pages, state.loading = state.pages - 1, True
            self.load_starts(state.to_load.popleft())

    def load_starts(self, t: int) -> None:
        self.times["load_start"][t] = self.now_ns
        self.later(self.queue.weight_ns[t], self.weights_are_in, t)

    def weights_are_in(self, t: int) -> None:
        self.times["load_end"][t] = self.now_ns
        lane = int(self.queue.lane[t])
        self.lanes[lane].loading = False
        self.loader_may_go(lane)
        self.part_is_in(t)

    def part_is_in(self, t: int) -> None:
        self.parts_left[t] -= 1
        if self.parts_left[t] == 0:
            self.times["compute_start"][t] = self.now_ns
            self.later(self.queue.compute_ns[t], self.tile_has_computed, t)

    def tile_has_computed(self, t: int) -> None:
        self.times["end"][t] = self.now_ns
        lane = int(self.queue.lane[t])
        if self.m.prefetch_depth:
            self.lanes[lane].pages += 1
            self.loader_may_go(lane)
        self.later(self.m.signal_ns, self.tile_has_signalled, t)

    def tile_has_signalled(self, t: int) -> None:
        self.times["done"][t] = self.now_ns
        event = int(self.queue.signal[t])
        self.signals_left[event] -= 1
        if self.signals_left[event] == 0:
            self.later(self.m.event_ns, self.event_is_visible, event)
        self.lane_is_free(int(self.queue.lane[t]))


def simulate(queue: TileQueue, mechanism: Mechanism, start_op: int = 0, stop_op: int | None = None) -> Run:
    """As `engine.simulate`, some thousand times slower."""
    check_tile_queue(queue)
    stop_op = queue.ops if stop_op is None else stop_op
    tiles = range(*(int(np.searchsorted(queue.op, op)) for op in (start_op, stop_op)))
    world = _World(queue, mechanism, tiles)
    if mechanism.barrier:
        for op in dict.fromkeys(int(queue.op[t]) for t in tiles):
            world.now_ns = max([mechanism.launch_ns, *world.times["done"].values()]) + mechanism.gap_ns
            world.play(t for t in tiles if queue.op[t] == op)
    else:
        world.play(tiles)
    makespan = max([mechanism.launch_ns, *world.times["done"].values()]) + mechanism.drain_ns
    names = ("begin", "load_start", "load_end", "compute_start", "end")
    begin, load_start, load_end, compute_start, end = (
        np.array([world.times[name][t] for t in tiles], np.int64) for name in names
    )
    return Run(queue, mechanism, start_op, stop_op, begin, load_start, load_end, compute_start, end, makespan)
