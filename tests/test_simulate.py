"""One pass over the tiles, against a slow twin, SimPy, networkx, closed forms, and timelines drawn by hand."""

import dataclasses
import json
import pickle
import subprocess
import sys
from importlib.abc import SourceLoader
from pathlib import Path
from types import ModuleType

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles import simulate_simpy
from oracles.critical_walk import walk_back
from oracles.random_queues import mechanisms, queue_of, queues, regions

from workbench import simulate as sim
from workbench.errors import GraphError
from workbench.simulate import kernels, reference
from workbench.simulate.critical_path import _walk

TIMES = ("begin_ns", "load_start_ns", "load_end_ns", "compute_start_ns", "end_ns")
unhurried = settings(deadline=None)  # the first example compiles
NO_WAITS: list[list[int]] = [[], [], []]


# ---- the same answer, got another way ----


@unhurried
@given(regions())
def test_every_time_of_every_tile_equals_the_event_driven_twin(region):
    got, twin = sim.simulate(*region), reference.simulate(*region)
    for name in TIMES:
        assert getattr(got, name).tolist() == getattr(twin, name).tolist(), name
    assert got.makespan_ns == twin.makespan_ns == sim.makespan(*region)


@unhurried
@given(regions())
def test_makespan_and_ends_equal_simpy(region):
    run = sim.simulate(*region)
    total, ends = simulate_simpy.simulate(*region)
    assert run.makespan_ns == total
    assert dict(enumerate(run.end_ns.tolist(), run.first_tile)) == ends


@unhurried
@given(queues(lane_a_tile=True, waits_in_own_op=True), mechanisms(barrier=False), st.integers(1, 3))
def test_with_a_lane_a_tile_the_makespan_is_the_longest_path(queue, mechanism, depth):
    m = dataclasses.replace(mechanism, prefetch_depth=depth)
    paths = nx.DiGraph()
    paths.add_edge("start", "launched", weight=m.launch_ns)
    paths.add_edge("launched", "drained", weight=m.drain_ns)
    for t in range(len(queue.lane)):
        paths.add_edge("launched", ("begin", t), weight=m.dispatch_ns)
        paths.add_edge("launched", ("computing", t), weight=int(queue.weight_ns[t]))
        paths.add_edge(("begin", t), ("computing", t), weight=int(queue.input_ns[t]))
        paths.add_edge(("computing", t), ("done", t), weight=int(queue.compute_ns[t]) + m.signal_ns)
        paths.add_edge(("done", t), "drained", weight=m.drain_ns)
        for event in queue.wait_event[queue.wait_ptr[t] : queue.wait_ptr[t + 1]]:
            for by in np.flatnonzero(queue.signal == event):
                paths.add_edge(("done", int(by)), ("begin", t), weight=m.event_ns)
    assert sim.makespan(queue, m) == nx.dag_longest_path_length(paths)


@unhurried
@given(queues(), mechanisms())
def test_on_one_lane_without_prefetch_the_makespan_is_a_sum(queue, mechanism):
    m = dataclasses.replace(mechanism, prefetch_depth=0, event_ns=min(mechanism.event_ns, mechanism.dispatch_ns))
    lone = dataclasses.replace(queue, lane=np.zeros_like(queue.lane), lanes=1)
    work = np.maximum(queue.weight_ns, queue.input_ns) + queue.compute_ns + m.dispatch_ns + m.signal_ns
    gaps = len(set(queue.op.tolist())) * m.gap_ns if m.barrier else 0
    assert sim.makespan(lone, m) == m.launch_ns + int(work.sum()) + gaps + m.drain_ns


# ---- many regions by one pass ----


@unhurried
@given(regions())
def test_a_prefix_pass_prices_every_region_from_its_start(region):
    queue, mechanism, start, _ = region
    alone = [sim.simulate(queue, mechanism, start, stop).makespan_ns for stop in range(start + 1, queue.ops + 1)]
    assert sim.prefix_makespans(queue, mechanism, start).tolist() == alone


@unhurried
@given(regions())
def test_all_makespans_hold_every_interval_and_minus_one_elsewhere(region):
    queue, mechanism, *_ = region
    table = sim.all_makespans(queue, mechanism)
    assert table.shape == (queue.ops, queue.ops + 1)
    for (start, stop), got in np.ndenumerate(table):
        assert got == (-1 if stop < start else sim.makespan(queue, mechanism, start, stop))


@unhurried
@given(regions())
def test_a_second_run_and_a_copy_through_pickle_give_the_same_times(region):
    queue, *rest = region
    first, again = sim.simulate(queue, *rest), sim.simulate(pickle.loads(pickle.dumps(queue)), *rest)
    assert all(np.array_equal(getattr(first, name), getattr(again, name)) for name in TIMES)


# ---- invariants, and laws that are true of static queues ----


@unhurried
@given(regions())
def test_spans_of_a_lane_never_overlap_and_no_tile_begins_before_its_events(region):
    queue, m, *_ = region
    run = sim.simulate(*region)
    table = sim.spans(run).set_index("tile")
    for _, lane in table.groupby("lane"):
        assert (lane["begin_ns"].to_numpy()[1:] >= lane["end_ns"].to_numpy()[:-1] + m.signal_ns + m.dispatch_ns).all()
        if m.prefetch_depth:
            assert (lane["load_start_ns"].to_numpy()[1:] >= lane["load_end_ns"].to_numpy()[:-1]).all()
    for t, row in table.iterrows():
        for event in queue.wait_event[queue.wait_ptr[t] : queue.wait_ptr[t + 1]]:
            ends = [table["end_ns"].get(by, -m.signal_ns - m.event_ns) for by in np.flatnonzero(queue.signal == event)]
            latency = 0 if m.barrier else m.event_ns
            assert row["begin_ns"] >= max(ends) + m.signal_ns + latency


@unhurried
@given(regions(), st.data())
def test_a_longer_time_anywhere_never_makes_the_region_shorter(region, data):
    queue, m, *interval = region
    before = sim.makespan(queue, m, *interval)
    cost = data.draw(st.sampled_from([f.name for f in dataclasses.fields(m)[:6]]))
    assert sim.makespan(queue, dataclasses.replace(m, **{cost: getattr(m, cost) + 3}), *interval) >= before
    if len(queue.lane):
        name = data.draw(st.sampled_from(["weight_ns", "input_ns", "compute_ns"]))
        times = getattr(queue, name).copy()
        times[data.draw(st.integers(0, len(times) - 1))] += 5
        assert sim.makespan(dataclasses.replace(queue, **{name: times}), m, *interval) >= before


@unhurried
@given(regions())
def test_deeper_prefetch_never_makes_the_region_longer(region):
    queue, m, *interval = region
    depths = [sim.makespan(queue, dataclasses.replace(m, prefetch_depth=d), *interval) for d in (0, 1, 2, 3, 2**31 - 1)]
    assert depths == sorted(depths, reverse=True)


@unhurried
@given(queues(), mechanisms())
def test_barriers_with_a_gap_as_long_as_an_events_latency_are_never_faster_than_events(queue, mechanism):
    events = dataclasses.replace(mechanism, barrier=False)
    barriers = dataclasses.replace(mechanism, barrier=True, gap_ns=mechanism.gap_ns + mechanism.event_ns)
    assert sim.makespan(queue, barriers) >= sim.makespan(queue, events)


@unhurried
@given(queues(), mechanisms(barrier=False))
def test_a_cut_that_costs_as_much_as_an_event_never_helps_while_costs_stay_the_same(queue, mechanism):
    m = dataclasses.replace(mechanism, launch_ns=mechanism.launch_ns + mechanism.event_ns)
    table = sim.all_makespans(queue, m)
    for cut in range(queue.ops):
        assert table[0, -1] <= table[0, cut] + table[cut, -1]


# ---- causes ----


@unhurried
@given(regions())
def test_causes_sum_exactly_and_segments_cover_the_makespan_once(region):
    run = sim.simulate(*region)
    causes, segments = sim.causes(run), sim.critical_segments(run)
    assert tuple(causes) == sim.CAUSES
    assert sum(causes.values()) == run.makespan_ns
    assert all(ns >= 0 for ns in causes.values())
    moments = [0, *(segment.end_ns for segment in segments)]
    assert [segment.begin_ns for segment in segments] == moments[:-1]
    assert moments[-1] == run.makespan_ns
    assert (causes["launch"], causes["drain"]) == (run.mechanism.launch_ns, run.mechanism.drain_ns)
    if run.mechanism.barrier:
        assert causes["ramp"] == run.mechanism.gap_ns * len(set(run.queue.op[run.tiles].tolist()))
    else:
        assert causes["ramp"] == causes["tail"] == 0


@unhurried
@given(regions(), st.data())
def test_one_nanosecond_more_of_compute_on_the_critical_path_is_one_more_of_makespan(region, data):
    queue, m, *interval = region
    run = sim.simulate(*region)
    path = sim.critical_tiles(run)
    assert path == sorted(set(path))
    assert bool(path) == bool(len(run.end_ns))
    computing = [s.tile for s in sim.critical_segments(run) if s.cause == "compute"]
    if computing and not m.barrier:
        longer = queue.compute_ns.copy()
        longer[data.draw(st.sampled_from(computing))] += 1
        assert sim.makespan(dataclasses.replace(queue, compute_ns=longer), m, *interval) == run.makespan_ns + 1


# ---- timelines drawn by hand ----


def test_a_consumer_waits_for_the_slower_of_two_producers_and_for_its_event():
    queue = queue_of([0, 1, 0], [0, 0, 1], [0, 0, 1], [[], [], [0]], [0, 0, 0], [2, 2, 1], [3, 7, 4])
    m = sim.Mechanism(launch_ns=10, dispatch_ns=1, event_ns=5, signal_ns=2, drain_ns=6)
    run = sim.simulate(queue, m)
    #          0         10        20        30        40
    #   lane 0 |launch    dii000ss....d    ii2222ssDDDDDD     tile 2 is dispatched at 19 and sees the event at 27:
    #   lane 1 |launch    dii1111111ss~~~~~                   done by lane 1 at 22, and five (~) until it is seen
    assert run.begin_ns.tolist() == [11, 11, 27]
    assert run.compute_start_ns.tolist() == [13, 13, 28]
    assert run.end_ns.tolist() == [16, 20, 32]
    assert run.makespan_ns == 32 + 2 + 6
    assert sim.critical_tiles(run) == [1, 2]
    assert sim.causes(run) == {
        "launch": 10, "ramp": 0, "dispatch": 1, "weights": 0, "activations": 2 + 1, "compute": 7 + 4,
        "event_wait": 2 + 5 + 2, "tail": 0, "drain": 6,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("depth", "load_start", "end"),
    [
        (0, [0, 9, 18], [9, 18, 27]),  # |LLLLLL000LLLLLL111LLLLLL222
        (1, [0, 9, 18], [9, 18, 27]),  # |LLLLLL000LLLLLL111LLLLLL222  a page is free when its tile has computed
        (2, [0, 6, 12], [9, 15, 21]),  # |LLLLLLLLLLLLLLLLLL            loads run ahead of compute by one tile:
        (3, [0, 6, 12], [9, 15, 21]),  # |      000   111   222         load-bound, so a third page does not help
    ],
)
def test_a_lane_loads_ahead_as_far_as_its_pages_allow(depth, load_start, end):
    queue = queue_of([0, 0, 0], [0, 1, 2], [0, 1, 2], NO_WAITS, [6, 6, 6], [0, 0, 0], [3, 3, 3])
    run = sim.simulate(queue, sim.Mechanism(prefetch_depth=depth))
    assert run.load_start_ns.tolist() == load_start
    assert run.end_ns.tolist() == end


def test_prefetch_hides_weights_behind_the_wait_for_an_event():
    queue = queue_of([0, 1], [0, 1], [0, 1], [[], [0]], [0, 8], [0, 0], [10, 2])
    #   lane 0 |0000000000~~~~
    #   lane 1 |LLLLLLLL      11        depth 1: the weights are in before the event is seen at 14
    #   lane 1 |              LLLLLLLL11     depth 0: nothing loads before the event
    ahead = sim.simulate(queue, sim.Mechanism(event_ns=4, prefetch_depth=1))
    none = sim.simulate(queue, sim.Mechanism(event_ns=4))
    assert (ahead.makespan_ns, none.makespan_ns) == (16, 24)
    assert (sim.causes(ahead)["weights"], sim.causes(none)["weights"]) == (0, 8)


def test_barriers_cost_a_gap_an_operator_and_a_tail_where_lanes_are_uneven():
    queue = queue_of([0, 1, 2, 0], [0, 0, 0, 2], [0, 0, 0, 1], [[], [], [], [0]], [0] * 4, [0] * 4, [3, 4, 10, 5])
    run = sim.simulate(queue, sim.Mechanism(launch_ns=2, gap_ns=4, event_ns=99, drain_ns=1, barrier=True))
    #          0         10        20
    #   lane 0 |LLgggg000.......gggg33333D   lanes of operator 0 work 3, 4 and 10 ns: 17 / 3, rounded up, is 6,
    #   lane 1 |      1111                   so the mean lane is done at 12 and the tail is [12, 16);
    #   lane 2 |      2222222222             operator 2 has one lane, and no tail. Operator 1 has no tiles: no gap.
    assert run.begin_ns.tolist() == [6, 6, 6, 20]
    assert run.makespan_ns == 26
    assert sim.causes(run) == {
        "launch": 2, "ramp": 8, "dispatch": 0, "weights": 0, "activations": 0, "compute": 6 + 5,
        "event_wait": 0, "tail": 4, "drain": 1,
    }  # fmt: skip
    assert sim.critical_tiles(run) == [2, 3]


def test_no_load_starts_before_its_operators_gap_is_over():
    queue = queue_of([0, 1, 1], [0, 0, 1], [0, 0, 1], NO_WAITS, [0, 0, 4], [0] * 3, [9, 1, 1])
    run = sim.simulate(queue, sim.Mechanism(gap_ns=3, prefetch_depth=3, barrier=True))
    assert run.load_start_ns.tolist() == [3, 3, 15]  # lane 1 is idle from 4, but the second kernel starts at 9 + 3 + 3


def test_an_event_that_fired_before_the_region_costs_nothing():
    queue = queue_of([0, 0], [0, 1], [0, 1], [[], [0]], [0, 0], [0, 0], [7, 5])
    m = sim.Mechanism(event_ns=100, dispatch_ns=1)
    assert (sim.makespan(queue, m), sim.makespan(queue, m, start_op=1)) == (8 + 100 + 5, 6)


def test_a_region_without_tiles_is_its_launch_and_its_drain():
    queue = queue_of([], [], [], [], [], [], [], lanes=2, ops=2)
    m = sim.Mechanism(launch_ns=5, gap_ns=9, drain_ns=3, barrier=True)
    assert sim.simulate(queue, m).makespan_ns == 8
    assert sim.prefix_makespans(queue, m).tolist() == [8, 8]
    assert sim.causes(sim.simulate(queue, m, 1, 1)) == dict.fromkeys(sim.CAUSES, 0) | {"launch": 5, "drain": 3}


# ---- tables and traces ----


def test_spans_name_operators_and_keep_ids_of_a_region_that_starts_late():
    queue = queue_of([0, 1, 0], [0, 1, 1], [0, 1, 1], [[], [0], [0]], [2, 2, 2], [1, 1, 1], [3, 4, 5])
    table = sim.spans(sim.simulate(queue, sim.Mechanism(), start_op=1), ["first", "second"])
    assert tuple(table.columns) == sim.SPAN_COLUMNS
    assert table[["tile", "lane", "op_name", "begin_ns", "end_ns"]].to_numpy().tolist() == [
        [1, 1, "second", 0, 6],
        [2, 0, "second", 0, 7],
    ]
    with pytest.raises(GraphError, match="1 operator names for a queue of 2 operators"):
        sim.spans(sim.simulate(queue, sim.Mechanism()), ["only"])


@settings(max_examples=30, deadline=None)
@given(regions())
def test_a_trace_is_json_with_nested_or_disjoint_slices_and_exact_nanoseconds(region):
    run = sim.simulate(*region)
    trace = json.loads(json.dumps(sim.chrome_trace(run)))
    tiles = [e for e in trace["traceEvents"] if e.get("cat") == "tile"]
    assert [e["args"]["end_ns"] for e in tiles] == run.end_ns.tolist()
    by_thread: dict[int, list[tuple[int, int]]] = {}
    for e in trace["traceEvents"]:
        if e["ph"] == "X" and e["dur"] > 0:
            begin, length = round(e["ts"] * 1000), round(e["dur"] * 1000)
            by_thread.setdefault(e["tid"], []).append((begin, begin + length))
    for slices in by_thread.values():
        for a in slices:
            for b in slices:
                assert a[1] <= b[0] or b[1] <= a[0] or a[0] <= b[0] <= b[1] <= a[1] or b[0] <= a[0] <= a[1] <= b[1]


# ---- refusals ----

GOOD = {
    "lane": [0, 1, 0], "op": [0, 0, 1], "signal": [0, 0, 1], "waits": [[], [], [0]],
    "weight_ns": [1, 1, 1], "input_ns": [1, 1, 1], "compute_ns": [1, 1, 1], "lanes": 2, "ops": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lane": [0, 5, 7]}, r"tile 1 is on lane 5; lanes are 0\.\.1"),
        ({"op": [0, 2, 3]}, r"tile 1 is of operator 2; operators are 0\.\.1"),
        ({"op": [0, 1, 0]}, r"tile 1 is of operator 1 and the next of 0; .* operators never decrease"),
        ({"signal": [0, 0, 3], "threshold": [2, 1]}, r"tile 2 signals event 3; events are 0\.\.1"),
        ({"waits": [[], [], [9]]}, r"tile 2 waits for event 9; events are 0\.\.1"),
        ({"threshold": [2, 2]}, r"event 1 fires at 2 signals and 1 tiles signal it; it can never reach its threshold"),
        ({"threshold": [1, 1]}, r"event 0 fires at 1 signals and 2 tiles signal it; .*before all have finished"),
        ({"waits": [[], [0], [0]]}, r"tile 1 waits for event 0, which tile 1 signals; .*cycle"),
        ({"waits": [[1], [], [0]]}, r"tile 0 waits for event 1, which tile 2 signals; .*cycle"),
        ({"input_ns": [1, -4, 1]}, r"tile 1 has input_ns=-4; times are not negative"),
        ({"compute_ns": [2**61, 2**61, 1]}, r"the 3 tiles take 4\.61e\+18 ns together"),
        ({"weight_ns": [1, 1]}, r"weight_ns has 2 entries, not 3: lane has 3, one a tile"),
        ({"waits": [[], []]}, r"wait_ptr has 3 entries, not 4"),
    ],
)
def test_a_queue_that_breaks_a_rule_is_refused_by_the_first_tile_or_event(change, message):
    with pytest.raises(GraphError, match=message):
        sim.check_tile_queue(queue_of(**(GOOD | change)))
    with pytest.raises(GraphError, match=message):
        sim.makespan(queue_of(**(GOOD | change)), sim.Mechanism())  # never reaches a kernel unchecked


@pytest.mark.parametrize(
    ("ptr", "message"),
    [
        ([0, 1, 0, 1], r"tile 1 has -1 waits; wait_ptr never decreases"),
        ([0, 0, 0, 2], r"wait_ptr runs from 0 to 2; it must run from 0 to the number of waits, 1"),
    ],
)
def test_a_broken_wait_ptr_is_refused(ptr, message):
    with pytest.raises(GraphError, match=message):
        sim.check_tile_queue(dataclasses.replace(queue_of(**GOOD), wait_ptr=np.array(ptr, np.uint32)))


def test_signed_indices_strided_and_writable_arrays_are_kept_out():
    queue = queue_of(**GOOD)
    with pytest.raises(GraphError, match=r"lane is int64\[3\]; a tile queue needs a contiguous uint32 array"):
        dataclasses.replace(queue, lane=queue.lane.astype(np.int64))
    with pytest.raises(GraphError, match=r"compute_ns is int64\[3\]; .*contiguous int64"):
        dataclasses.replace(queue, compute_ns=np.arange(6)[::2])
    with pytest.raises(ValueError, match="read-only"):
        queue.lane[0] = 1


def test_a_wait_within_an_operator_is_refused_only_with_barriers():
    queue = queue_of([0, 0], [0, 0], [0, 1], [[], [0]], [0, 0], [0, 0], [1, 1])
    assert sim.makespan(queue, sim.Mechanism()) == 2
    with pytest.raises(GraphError, match=r"tile 1 waits for event 0 of its own operator 0; .*split the operator"):
        sim.makespan(queue, sim.Mechanism(barrier=True))


def test_a_region_or_a_cost_out_of_range_is_refused():
    with pytest.raises(GraphError, match=r"region \[1, 3\) is not within the queue's operators \[0, 2\)"):
        sim.simulate(queue_of(**GOOD), sim.Mechanism(), 1, 3)
    with pytest.raises(GraphError, match=r"event_ns=-1; a mechanism's numbers are whole and within"):
        sim.Mechanism(event_ns=-1)
    with pytest.raises(GraphError, match=r"gap_ns=1\.5; a mechanism's numbers are whole"):
        sim.Mechanism(gap_ns=1.5)


# ---- imports and caches ----


def test_importing_the_package_imports_neither_numba_nor_pandas():
    code = "import sys, workbench.simulate; sys.exit(any(m in sys.modules for m in ('numba', 'pandas', 'torch')))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


class Lost(SourceLoader):
    """Loads the kernels under a path that does not exist, so that numba finds no folder to keep them in."""

    def get_filename(self, fullname: str) -> str:
        return "/nonexistent/kernels.py"

    def get_data(self, path: str) -> bytes:
        return Path(kernels.__file__).read_bytes()


def test_kernels_with_nowhere_to_keep_them_warn_once_and_still_run():
    lost = ModuleType("workbench.simulate.kernels")
    with pytest.warns(RuntimeWarning, match="compiled kernels are not kept .*set NUMBA_CACHE_DIR") as caught:
        Lost().exec_module(lost)
    assert len(caught) == 1
    lane = np.zeros(2, np.uint32)
    previous, fired_by = lost.links(lane, lane, np.array([3, 4]), 1, 1)
    assert (previous.tolist(), fired_by.tolist()) == ([-1, 0], [1])


# ---- the critical path against its plain twin ----


@pytest.mark.parametrize("engine", ["one pass", "overlapping", "dynamic"])
def test_the_critical_path_equals_the_one_walked_in_python(engine):
    @unhurried
    @given(st.data())
    def check(data):
        queue, mechanism, start, stop = data.draw(regions(most_prefetch=1 if engine != "one pass" else 3))
        if engine == "overlapping":
            mechanism = dataclasses.replace(mechanism, barrier=True, overlap=True, wait_ns=data.draw(st.integers(0, 9)))
        assume(not (mechanism.barrier and len(queue._waits_in_own_op)))
        simulate = sim.simulate_dynamic if engine == "dynamic" else sim.simulate
        run = simulate(queue, mechanism, start, stop)
        found = [tuple(row) for row in _walk(run).T.tolist() if row[2] < row[3]]
        expected = [(sim.CAUSES.index(s.cause), -1 if s.tile is None else s.tile, *s[2:]) for s in walk_back(run)]
        assert found == [row for row in expected if row[2] < row[3]]

    check()
