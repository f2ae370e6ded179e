"""Overlapping launches against a plain twin, in closed form, and in what they hand over."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import overlap as twin
from oracles.random_queues import mechanisms, queue_of, queues

from workbench import simulate as sim
from workbench.errors import GraphError

unhurried = settings(deadline=None)  # the first example compiles
TIMES = ("begin_ns", "load_start_ns", "load_end_ns", "compute_start_ns", "end_ns")


@st.composite
def overlapping(draw: st.DrawFn) -> tuple[sim.TileQueue, sim.Mechanism, int, int, sim.Exit | None]:
    queue = draw(queues())
    plain = draw(mechanisms(barrier=True, most_prefetch=1))
    mechanism = dataclasses.replace(plain, overlap=True, wait_ns=draw(st.integers(0, 9)))
    start = draw(st.integers(0, queue.ops))
    stop = draw(st.integers(start, queue.ops))
    free = draw(st.lists(st.integers(-30, 0), min_size=queue.lanes, max_size=queue.lanes))
    before = sim.Exit(draw(st.integers(-30, 0)), np.array(free, np.int64))
    return queue, mechanism, start, stop, draw(st.sampled_from([None, before]))


@unhurried
@given(overlapping())
def test_every_time_equals_the_twin(
    case: tuple[sim.TileQueue, sim.Mechanism, int, int, sim.Exit | None],
) -> None:
    run = sim.simulate(*case)
    total, times = twin.simulate(*case)
    assert run.makespan_ns == total
    assert sorted(times) == list(range(run.first_tile, run.first_tile + len(run.end_ns)))
    for i, name in enumerate(TIMES):
        assert getattr(run, name).tolist() == [times[t][i] for t in sorted(times)], name


@unhurried
@given(overlapping())
def test_causes_sum_to_the_makespan_and_their_path_covers_it_once(
    case: tuple[sim.TileQueue, sim.Mechanism, int, int, sim.Exit | None],
) -> None:
    run = sim.simulate(*case)
    segments = sim.critical_segments(run)
    assert sum(sim.causes(run).values()) == run.makespan_ns
    assert [s.begin_ns for s in segments[1:]] == [s.end_ns for s in segments[:-1]]
    if segments:
        assert (segments[0].begin_ns, segments[-1].end_ns) == (0, run.makespan_ns)


@unhurried
@given(overlapping())
def test_one_chain_prices_every_region(case: tuple[sim.TileQueue, sim.Mechanism, int, int, sim.Exit | None]) -> None:
    queue, mechanism, start, _, _ = case
    expected = [sim.simulate(queue, mechanism, start, stop).makespan_ns for stop in range(start + 1, queue.ops + 1)]
    if start < queue.ops:
        assert sim.prefix_makespans(queue, mechanism, start).tolist() == expected
        assert sim.all_makespans(queue, mechanism)[start, start + 1 :].tolist() == expected


@unhurried
@given(overlapping())
def test_a_region_follows_another_as_its_operators_follow_each_other(
    case: tuple[sim.TileQueue, sim.Mechanism, int, int, sim.Exit | None],
) -> None:
    """Cut a region in two: what the first part hands over makes the second as long as it was in one."""
    queue, mechanism, start, stop, _ = case
    free = dataclasses.replace(mechanism, launch_ns=0, drain_ns=0)
    whole = sim.simulate(queue, free, start, stop).makespan_ns
    for cut in range(start, stop + 1):
        first, second = range(*queue.op_ptr[[start, cut]]), range(*queue.op_ptr[[cut, stop]])
        if len(first) and len(second):
            stops = [stop for stop in (start, cut) if stop]  # the items before the cut, and one more if start > 0
            handed = sim.item_regions(queue, free, stops, exits=True).exit(len(stops) - 1, len(stops))
            parts = sim.simulate(queue, free, start, cut).makespan_ns
            parts += sim.simulate(queue, free, cut, stop, handed).makespan_ns
            assert parts == whole
            op = int(queue.op[second[0]])
            one = sim.simulate(queue, free, op, op + 1, handed).makespan_ns
            assert sim.follow_ns(queue, free, np.array([op]), sim.Exits.of(handed)).tolist() == [one]


@st.composite
def items_of(draw: st.DrawFn, barrier: bool) -> tuple[sim.TileQueue, sim.Mechanism, list[int]]:
    queue = draw(queues(waits_in_own_op=not barrier))
    mechanism = draw(mechanisms(barrier=barrier, most_prefetch=1 if barrier else 3))
    if barrier:
        mechanism = dataclasses.replace(mechanism, overlap=draw(st.booleans()), wait_ns=draw(st.integers(0, 9)))
    stops = draw(st.lists(st.integers(1, queue.ops), unique=True, max_size=3).map(sorted))
    return queue, mechanism, sorted({*stops, queue.ops})


@pytest.mark.parametrize("barrier", [False, True])
def test_every_region_of_the_items_is_as_simulated_by_itself(barrier: bool) -> None:
    @unhurried
    @given(st.data())
    def check(data: st.DataObject) -> None:
        queue, mechanism, stops = data.draw(items_of(barrier))
        count, depths = len(stops), None
        if not barrier and data.draw(st.booleans()):
            depths = np.full((count, count + 1), -1)
            for i in range(count):
                held = data.draw(st.lists(st.integers(-1, 3), min_size=count - i, max_size=count - i))
                depths[i, i + 1 :] = sorted(held, reverse=True)
        found = sim.item_regions(queue, mechanism, stops, depths, exits=True)
        for i, j in zip(*np.nonzero(np.ones((count, count + 1))), strict=True):
            held = mechanism.prefetch_depth if depths is None else int(depths[i, j])
            if j <= i or held < 0:
                assert found.ns[i, j] == -1
                continue
            m = dataclasses.replace(mechanism, prefetch_depth=held)
            run = sim.simulate(queue, m, stops[i - 1] if i else 0, stops[j - 1])
            assert found.ns[i, j] == run.makespan_ns
            if barrier:
                continue
            done, begun = [m.launch_ns] * queue.lanes, [m.launch_ns] * queue.lanes
            for lane, begin, end in zip(run.lane, run.begin_ns, run.end_ns, strict=True):
                done[lane], begun[lane] = int(end) + m.signal_ns, int(begin)
            handed = found.exit(i, j)
            assert handed.free_ns.tolist() == [at - run.makespan_ns for at in done]
            assert handed.started_ns == max(begun) - run.makespan_ns

    check()


def test_a_kernel_of_few_tiles_hides_the_loads_of_the_next() -> None:
    #  lane 0: [ 100 compute ]      then 2 tiles, a lane each, 80 of weights and 10 of compute
    #  lane 1:                      idle: it may load from 5 + 20 on; lane 0 from 100 on
    queue = queue_of([0, 0, 1], [0, 1, 1], [0, 1, 1], [[], [], []], [0, 80, 80], [0, 0, 0], [100, 10, 10])
    m = sim.Mechanism(gap_ns=20, prefetch_depth=1, barrier=True, overlap=True, wait_ns=7)
    run = sim.simulate(queue, m)
    assert run.end_ns.tolist() == [120, 120 + 80 + 10, 120 + 7 + 10]
    assert run.load_start_ns.tolist() == [20, 120, 40]
    apart = sim.simulate(queue, dataclasses.replace(m, overlap=False))
    assert (run.makespan_ns, apart.makespan_ns) == (210, 230)
    assert sim.causes(run) == {**dict.fromkeys(sim.CAUSES, 0), "ramp": 20, "compute": 100, "weights": 54, "tail": 36}


@unhurried
@given(overlapping())
def test_overlap_never_costs_time_where_the_wait_is_no_longer_than_the_gap(
    case: tuple[sim.TileQueue, sim.Mechanism, int, int, sim.Exit | None],
) -> None:
    queue, mechanism, start, stop, _ = case
    quick = dataclasses.replace(mechanism, wait_ns=min(mechanism.wait_ns, mechanism.gap_ns))
    apart = dataclasses.replace(quick, overlap=False)
    assert sim.makespan(queue, quick, start, stop) <= sim.makespan(queue, apart, start, stop)


REFUSED = {
    "no barrier": ({"overlap": True}, "overlapping launches are of kernels"),
    "ahead": ({"overlap": True, "barrier": True, "prefetch_depth": 2}, "load nothing ahead"),
    "wait": ({"wait_ns": -1}, "wait_ns=-1"),
}


@pytest.mark.parametrize(("fields", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_overlap_cannot_mean_is_refused(fields: dict[str, int], reason: str) -> None:
    with pytest.raises(GraphError, match=reason):
        sim.Mechanism(**fields)  # type: ignore[arg-type]


def test_the_other_engines_refuse_overlap() -> None:
    queue = queue_of([0], [0], [0], [[]], [1], [1], [1])
    m = sim.Mechanism(barrier=True, overlap=True)
    with pytest.raises(GraphError, match="one-pass engine only"):
        sim.simulate_dynamic(queue, m)
    loads = sim.TileLoads(np.array([1]), np.array([1]))
    with pytest.raises(GraphError, match="one-pass engine only"):
        sim.simulate_shared(queue, loads, sim.SharedBandwidth(bytes_per_s=1e9, lane_bytes_per_s=1e9), m)
