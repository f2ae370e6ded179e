"""Dynamic queues against a plain twin, SimPy, networkx, closed forms, brute force, and timelines drawn by hand."""

import dataclasses
import json
from itertools import permutations

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles import instants, simulate_simpy_queues
from oracles.random_queues import mechanisms, queue_of, queues, regions

from workbench import simulate as sim
from workbench.errors import GraphError

TIMES = ("begin_ns", "load_start_ns", "load_end_ns", "compute_start_ns", "end_ns")
unhurried = settings(deadline=None)  # the first example compiles


@st.composite
def any_regions(draw: st.DrawFn) -> tuple[sim.TileQueue, sim.Mechanism, int, int]:
    """Half of them with times so short that nearly all is tied, and much takes no time."""
    queue, mechanism, *interval = draw(regions(most_prefetch=1, longest_ns=draw(st.sampled_from([1, 9]))))
    if draw(st.booleans()):
        names = [f.name for f in dataclasses.fields(mechanism)[:6]]
        mechanism = dataclasses.replace(mechanism, **{name: draw(st.integers(0, 1)) for name in names})
    return queue, mechanism, *interval


# ---- the same answer, got another way ----


@unhurried
@given(any_regions())
def test_every_time_and_every_lane_equals_the_twin_that_steps_from_instant_to_instant(region):
    run, twin = sim.simulate_dynamic(*region), instants.dynamic(*region)
    tiles = range(run.first_tile, run.first_tile + len(run.end_ns))
    for name in TIMES:
        assert getattr(run, name).tolist() == [twin.times[name][t] for t in tiles], name
    assert run.lane.tolist() == [twin.lane[t] for t in tiles]
    assert run.makespan_ns == twin.makespan_ns


@unhurried
@given(any_regions())
def test_makespan_ends_and_lanes_equal_simpy(region):
    run = sim.simulate_dynamic(*region)
    total, ends, lanes = simulate_simpy_queues.dynamic(*region)
    assert run.makespan_ns == total
    assert dict(enumerate(run.end_ns.tolist(), run.first_tile)) == ends
    assert dict(enumerate(run.lane.tolist(), run.first_tile)) == lanes


def work_ns(queue: sim.TileQueue, m: sim.Mechanism) -> np.ndarray:
    """How long each tile holds its lane."""
    weights = queue.weight_ns + (0 if m.prefetch_depth else m.dispatch_ns)
    return np.maximum(weights, m.dispatch_ns + queue.input_ns) + queue.compute_ns + m.signal_ns


@unhurried
@given(queues(lane_a_tile=True, waits_in_own_op=True), mechanisms(barrier=False, most_prefetch=1))
def test_with_a_lane_a_tile_the_makespan_is_the_longest_path(queue, m):
    paths, work = nx.DiGraph(), work_ns(queue, m)
    paths.add_edge("start", "launched", weight=m.launch_ns)
    paths.add_edge("launched", "drained", weight=m.drain_ns)
    for t in range(len(queue.lane)):
        paths.add_edge("launched", ("given", t), weight=0)
        paths.add_edge(("given", t), ("done", t), weight=int(work[t]))
        paths.add_edge(("done", t), "drained", weight=m.drain_ns)
        for event in queue.wait_event[queue.wait_ptr[t] : queue.wait_ptr[t + 1]]:
            for by in np.flatnonzero(queue.signal == event):
                paths.add_edge(("done", int(by)), ("given", t), weight=m.event_ns)
    assert sim.simulate_dynamic(queue, m).makespan_ns == nx.dag_longest_path_length(paths)


@unhurried
@given(queues(), mechanisms(most_prefetch=1))
def test_on_one_lane_the_makespan_is_a_sum_if_events_take_no_time(queue, mechanism):
    m = dataclasses.replace(mechanism, event_ns=0)
    lone = dataclasses.replace(queue, lane=np.zeros_like(queue.lane), lanes=1)
    gaps = len(set(queue.op.tolist())) * m.gap_ns if m.barrier else 0
    run = sim.simulate_dynamic(lone, m)
    assert run.makespan_ns == m.launch_ns + int(work_ns(queue, m).sum()) + gaps + m.drain_ns


def best_makespan(queue: sim.TileQueue, work: list[int]) -> int:
    """Optimum over all orders, each tile on the lane that frees first; exponential, so for <= 6 tiles only."""
    tiles = range(len(queue.lane))
    waits = [queue.wait_event[queue.wait_ptr[t] : queue.wait_ptr[t + 1]] for t in tiles]
    before = [{int(by) for event in waits[t] for by in np.flatnonzero(queue.signal == event)} for t in tiles]
    best = sum(work)
    for order in permutations(tiles):
        free, end = [0] * queue.lanes, dict[int, int]()
        for t in order:
            if not before[t] <= end.keys():
                break
            lane = free.index(min(free))
            free[lane] = end[t] = max([free[lane], *(end[by] for by in before[t])]) + work[t]
        else:
            best = min(best, max(free))
    return best


@settings(max_examples=40, deadline=None)
@given(queues(waits_in_own_op=True), mechanisms(barrier=False, most_prefetch=1))
def test_greedy_stays_within_grahams_bound_of_the_optimum(queue, mechanism):
    assume(len(queue.lane) <= 6)
    m = dataclasses.replace(mechanism, launch_ns=0, drain_ns=0, event_ns=0)
    got, best = sim.simulate_dynamic(queue, m).makespan_ns, best_makespan(queue, work_ns(queue, m).tolist())
    assert best <= got
    assert queue.lanes * got <= (2 * queue.lanes - 1) * best  # in integers, so no rounding


def test_less_work_can_take_longer():
    """An anomaly of the kind that Graham found: every tile is a nanosecond shorter, and the whole one longer."""
    waits = [[], [0], [], [0, 2], [], [0, 4], [2, 3]]
    long, short = (
        queue_of([0] * 7, [0] * 7, list(range(7)), waits, [0] * 7, [0] * 7, work, lanes=2)
        for work in ([3, 6, 6, 6, 3, 6, 6], [2, 5, 5, 5, 2, 5, 5])
    )
    #          0         10
    #   lane 0 |000444111111555555     lane 0 |0044111113333366666     4 is done before 2, so 5 is ready before 3,
    #   lane 1 |222222333333666666     lane 1 |2222255555              and 6 has to wait for 3
    assert sim.simulate_dynamic(long, sim.Mechanism()).makespan_ns == 18
    assert sim.simulate_dynamic(short, sim.Mechanism()).makespan_ns == 19


# ---- invariants ----


@unhurried
@given(any_regions())
def test_lanes_never_overlap_no_tile_is_given_before_its_events_and_no_lane_idles_while_a_tile_is_ready(region):
    queue, m, *_ = region
    run = sim.simulate_dynamic(*region)
    table = sim.spans(run).set_index("tile")
    table["given_ns"] = table["begin_ns"] - m.dispatch_ns
    for _, lane in table.sort_values(["begin_ns", "end_ns"]).groupby("lane"):
        assert (lane["given_ns"].to_numpy()[1:] >= lane["end_ns"].to_numpy()[:-1] + m.signal_ns).all()
    for t, row in table.iterrows():
        ready = m.launch_ns
        for event in queue.wait_event[queue.wait_ptr[t] : queue.wait_ptr[t + 1]]:
            ends = [table["end_ns"][by] for by in np.flatnonzero(queue.signal == event) if by in table.index]
            ready = max([ready, *(end + m.signal_ns + (0 if m.barrier else m.event_ns) for end in ends)])
        assert row["given_ns"] >= ready
        if not m.barrier:
            busy = table[(table["given_ns"] <= ready) & (table["end_ns"] + m.signal_ns > ready)]
            assert row["given_ns"] == ready or busy["lane"].nunique() == queue.lanes


@unhurried
@given(any_regions(), st.randoms(use_true_random=False))
def test_the_lanes_of_the_queue_do_not_matter(region, random):
    queue, *rest = region
    lane = np.array([random.randrange(queue.lanes) for _ in queue.lane], np.uint32)
    a, b = sim.simulate_dynamic(queue, *rest), sim.simulate_dynamic(dataclasses.replace(queue, lane=lane), *rest)
    assert a.lane.tolist() == b.lane.tolist()
    assert a.end_ns.tolist() == b.end_ns.tolist()


@unhurried
@given(any_regions())
def test_causes_sum_exactly_and_segments_cover_the_makespan_once(region):
    run = sim.simulate_dynamic(*region)
    causes, segments = sim.causes(run), sim.critical_segments(run)
    assert sum(causes.values()) == run.makespan_ns
    moments = [0, *(segment.end_ns for segment in segments)]
    assert [segment.begin_ns for segment in segments] == moments[:-1]
    assert moments[-1] == run.makespan_ns
    assert (causes["launch"], causes["drain"]) == (run.mechanism.launch_ns, run.mechanism.drain_ns)
    assert bool(sim.critical_tiles(run)) == bool(len(run.end_ns))
    assert causes["ramp"] == (run.mechanism.gap_ns * len(set(run.queue.op[run.tiles].tolist())) * run.mechanism.barrier)


# ---- timelines drawn by hand ----


def test_a_tile_goes_to_the_lane_that_frees_first_and_is_dispatched_after_its_event():
    queue = queue_of([0, 0, 0], [0, 0, 1], [0, 0, 1], [[], [], [0]], [0, 0, 0], [2, 2, 1], [3, 7, 4])
    queue = dataclasses.replace(queue, lanes=2)
    run = sim.simulate_dynamic(queue, sim.Mechanism(launch_ns=10, dispatch_ns=1, event_ns=5, signal_ns=2, drain_ns=6))
    #          0         10        20        30        40
    #   lane 0 |launch    dii000ss.........di2222ssDDDDDD     free since 18, so it is given tile 2 at 27
    #   lane 1 |launch    dii1111111ss~~~~~                   free since 22; five (~) until the event is seen
    assert run.lane.tolist() == [0, 1, 0]
    assert run.begin_ns.tolist() == [11, 11, 28]
    assert run.end_ns.tolist() == [16, 20, 33]
    assert run.makespan_ns == 33 + 2 + 6
    assert sim.critical_tiles(run) == [1, 2]
    assert sim.causes(run) == {
        "launch": 10, "ramp": 0, "dispatch": 2, "weights": 0, "activations": 2 + 1, "compute": 7 + 4,
        "event_wait": 2 + 5 + 2, "tail": 0, "drain": 6,
    }  # fmt: skip


def test_of_lanes_that_free_together_the_smaller_goes_first_and_of_tiles_the_one_ready_first():
    work = [4, 4, 1, 9, 1, 1]
    queue = queue_of([0] * 6, [0] * 6, range(6), [[], [], [], [], [1], [0]], [0] * 6, [0] * 6, work, lanes=3)
    run = sim.simulate_dynamic(queue, sim.Mechanism())
    #   lane 0 |0000.4     events 0 and 1 are both seen at 4: 0 is the smaller and is served first, so tile 5 goes
    #   lane 1 |11115      before tile 4. Lanes 0 and 1 free at 4
    #   lane 2 |2333333333
    assert run.begin_ns.tolist() == [0, 0, 0, 1, 4, 4]
    assert run.lane.tolist() == [0, 1, 2, 2, 1, 0]


def test_an_event_of_a_tile_that_takes_no_time_is_served_at_once_if_its_id_is_the_smallest():
    waits = [[], [], [3], [3], [4], [0]]
    signal, work = [3, 4, 0, 1, 2, 5], [5, 5, 0, 2, 2, 2]
    queue = queue_of([0] * 6, [0] * 6, signal, waits, [0] * 6, [0] * 6, work, lanes=1)
    run = sim.simulate_dynamic(queue, sim.Mechanism())
    # Tile 0 ends at 5 and 1 at 10. At 5 event 3 gives tiles 2 and 3 the lane, after tile 1: at 10 tile 2 takes no time
    # and makes event 0 be seen, together with event 4, whose tile 4 comes after tile 5 of event 0.
    assert run.begin_ns.tolist() == [0, 5, 10, 10, 14, 12]


def test_weights_are_loaded_during_the_dispatch_or_after_it():
    queue = queue_of([0, 0], [0, 0], [0, 1], [[], [0]], [6, 6], [1, 1], [3, 3])
    after = sim.simulate_dynamic(queue, sim.Mechanism(dispatch_ns=4))
    during = sim.simulate_dynamic(queue, sim.Mechanism(dispatch_ns=4, prefetch_depth=1))
    #   depth 0 |ddddLLLLLL000ddddLLLLLL111
    #   depth 1 |LLLLLL000LLLLLL111
    assert (after.load_start_ns.tolist(), after.makespan_ns) == ([4, 17], 26)
    assert (during.load_start_ns.tolist(), during.makespan_ns) == ([0, 9], 18)
    assert sim.causes(during) == dict.fromkeys(sim.CAUSES, 0) | {"weights": 12, "compute": 6}


def test_with_barriers_each_operator_is_a_queue_of_its_own():
    queue = queue_of([0] * 5, [0, 0, 0, 2, 2], [0, 0, 0, 1, 1], [[]] * 3 + [[0]] * 2, [0] * 5, [0] * 5, [9, 4, 3, 5, 5])
    queue = dataclasses.replace(queue, lanes=2)
    run = sim.simulate_dynamic(queue, sim.Mechanism(launch_ns=2, gap_ns=4, event_ns=99, drain_ns=1, barrier=True))
    #          0         10        20
    #   lane 0 |LLgggg000000000gggg33333D   tile 2 goes where tile 1 was; the mean of 9 and 7 is 8, so the tail is 1;
    #   lane 1 |      1111222      44444    operator 1 has no tiles and no gap
    assert run.lane.tolist() == [0, 1, 1, 0, 1]
    assert run.begin_ns.tolist() == [6, 6, 10, 19, 19]
    assert run.makespan_ns == 25
    assert sim.causes(run) == dict.fromkeys(sim.CAUSES, 0) | {
        "launch": 2, "ramp": 8, "compute": 8 + 5, "tail": 1, "drain": 1,
    }  # fmt: skip


def test_spans_and_trace_show_the_lanes_that_were_given():
    queue = queue_of([0] * 3, [0] * 3, [0] * 3, [[], [], []], [1, 1, 1], [0] * 3, [5, 2, 2], lanes=2)
    run = sim.simulate_dynamic(queue, sim.Mechanism())
    assert sim.spans(run)["lane"].tolist() == [0, 1, 1]
    trace = json.loads(json.dumps(sim.chrome_trace(run)))
    assert [e["tid"] for e in trace["traceEvents"] if e.get("cat") == "tile"] == [0, 2, 2]
    assert {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"} == {
        "lane 0", "lane 0 weights", "lane 1", "lane 1 weights",
    }  # fmt: skip


def test_a_region_without_tiles_is_its_launch_and_its_drain():
    queue = queue_of([], [], [], [], [], [], [], lanes=2, ops=2)
    for barrier in (False, True):
        run = sim.simulate_dynamic(queue, sim.Mechanism(launch_ns=5, gap_ns=9, drain_ns=3, barrier=barrier))
        assert (run.makespan_ns, run.lane.tolist()) == (8, [])


# ---- refusals ----


def test_prefetch_beyond_the_dispatch_is_refused():
    queue = queue_of([0], [0], [0], [[]], [1], [1], [1])
    with pytest.raises(GraphError, match=r"prefetch_depth=2 with dynamic queues; .*known only when it is free"):
        sim.simulate_dynamic(queue, sim.Mechanism(prefetch_depth=2))


def test_what_the_static_engine_refuses_is_refused():
    queue = queue_of([0, 0], [0, 0], [0, 1], [[], [0]], [0, 0], [0, 0], [1, 1])
    with pytest.raises(GraphError, match=r"tile 1 waits for event 0 of its own operator 0"):
        sim.simulate_dynamic(queue, sim.Mechanism(barrier=True))
    with pytest.raises(GraphError, match=r"region \[0, 2\) is not within"):
        sim.simulate_dynamic(queue, sim.Mechanism(), 0, 2)


def test_times_that_leave_no_room_for_ids_are_refused():
    queue = queue_of([0, 0], [0, 0], [0, 1], [[], [0]], [0, 0], [0, 0], [2**60, 2**60])
    with pytest.raises(GraphError, match=r"the region may take 2\.31e\+18 ns; with 3 lanes, events or loads"):
        sim.simulate_dynamic(queue, sim.Mechanism())
    short = dataclasses.replace(queue, compute_ns=np.array([2**59, 2**59], np.int64))
    assert sim.simulate_dynamic(short, sim.Mechanism()).makespan_ns == 2**60
