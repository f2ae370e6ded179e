"""Shared bandwidth against a twin that steps nanosecond by nanosecond, SimPy, closed forms, and timelines by hand."""

import dataclasses
import json
from fractions import Fraction
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import instants, simulate_simpy_queues
from oracles.random_queues import mechanisms, queue_of, queues, regions

from workbench import simulate as sim
from workbench.errors import GraphError
from workbench.simulate.shared import QUANTA_PER_BYTE

GB = 1e9  # bytes a second: one byte a nanosecond
TIMES = ("begin_ns", "load_start_ns", "load_end_ns", "compute_start_ns", "end_ns", "input_end_ns")
unhurried = settings(deadline=None)  # the first example compiles
Case = tuple[sim.TileQueue, sim.TileLoads, sim.SharedBandwidth, sim.Mechanism, int, int]


def loads_of(weight_bytes: list[int], input_bytes: list[int]) -> sim.TileLoads:
    return sim.TileLoads(np.array(weight_bytes, np.int64), np.array(input_bytes, np.int64))


@st.composite
def loads_for(draw: st.DrawFn, queue: sim.TileQueue) -> sim.TileLoads:
    sizes = st.lists(st.integers(0, 30), min_size=len(queue.lane), max_size=len(queue.lane))
    return loads_of(draw(sizes), draw(sizes))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A region with loads of up to 30 bytes; some bandwidths are whole bytes a nanosecond, some are odd."""
    queue, mechanism, *interval = draw(regions())
    rates = st.one_of(st.integers(1, 8).map(lambda whole: whole * GB), st.floats(0.3 * GB, 20 * GB))
    bandwidth = sim.SharedBandwidth(draw(rates), draw(st.one_of(rates, st.just(inf))))
    return queue, draw(loads_for(queue)), bandwidth, mechanism, *interval


def one_a_lane(count: int, compute_ns: int = 0) -> sim.TileQueue:
    """As many lanes as tiles, which wait for nothing."""
    zero, ids = [0] * count, list(range(count))
    return queue_of(ids, zero, zero, [[]] * count, zero, zero, [compute_ns] * count)


# ---- the same answer, got another way ----


@unhurried
@given(cases())
def test_every_time_of_every_tile_equals_the_twin_that_steps_nanosecond_by_nanosecond(case):
    queue, loads, bandwidth, *rest = case
    run, twin = sim.simulate_shared(*case), instants.shared(queue, loads, bandwidth, QUANTA_PER_BYTE, *rest)
    tiles = range(run.first_tile, run.first_tile + len(run.end_ns))
    for name in TIMES:
        assert getattr(run, name).tolist() == [twin.times[name][t] for t in tiles], name
    assert run.makespan_ns == twin.makespan_ns
    assert all(brought * 10**9 <= Fraction(bandwidth.bytes_per_s) for brought in twin.brought)


@unhurried
@given(cases())
def test_makespan_and_ends_equal_simpy(case):
    queue, loads, bandwidth, *rest = case
    run = sim.simulate_shared(*case)
    total, ends = simulate_simpy_queues.shared(queue, loads, bandwidth, QUANTA_PER_BYTE, *rest)
    assert run.makespan_ns == total
    assert dict(enumerate(run.end_ns.tolist(), run.first_tile)) == ends


@unhurried
@given(regions(), st.data())
def test_without_any_limit_it_is_the_static_engine_with_loads_of_no_time(region, data):
    queue, *rest = region
    run = sim.simulate_shared(queue, data.draw(loads_for(queue)), sim.SharedBandwidth(inf), *rest)
    nothing = np.zeros_like(queue.weight_ns)
    static = sim.simulate(dataclasses.replace(queue, weight_ns=nothing, input_ns=nothing), *rest)
    assert all(getattr(run, name).tolist() == getattr(static, name).tolist() for name in TIMES)
    assert sim.causes(run) == sim.causes(static)


@unhurried
@given(regions(), st.integers(1, 7), st.data())
def test_with_nothing_but_the_cap_it_is_the_static_engine_at_the_capped_rate(region, cap, data):
    queue, *rest = region
    loads = data.draw(loads_for(queue))
    for device in (inf, 8 * cap * GB):  # four lanes have eight loads at most, so they never share
        run = sim.simulate_shared(queue, loads, sim.SharedBandwidth(device, cap * GB), *rest)
        times = {"weight_ns": -(-loads.weight_bytes // cap), "input_ns": -(-loads.input_bytes // cap)}
        static = sim.simulate(dataclasses.replace(queue, **times), *rest)
        assert all(getattr(run, name).tolist() == getattr(static, name).tolist() for name in TIMES)
        assert sim.causes(run) == sim.causes(static)


@unhurried
@given(queues(), mechanisms(), st.integers(1, 7), st.data())
def test_on_one_lane_without_prefetch_the_makespan_is_a_sum(queue, mechanism, rate, data):
    m = dataclasses.replace(mechanism, prefetch_depth=0, event_ns=min(mechanism.event_ns, mechanism.dispatch_ns))
    lone = dataclasses.replace(queue, lane=np.zeros_like(queue.lane), lanes=1)
    loads = data.draw(loads_for(queue))
    # Both loads run until the shorter is through, in ceil(2 short / rate); what is left of the longer has all.
    expected = m.launch_ns + m.drain_ns + (len(set(queue.op.tolist())) * m.gap_ns if m.barrier else 0)
    for t in range(len(queue.lane)):
        short, long = sorted((int(loads.weight_bytes[t]), int(loads.input_bytes[t])))
        both = -(-2 * short // rate)
        alone = max(0, -(-(2 * long - both * rate) // (2 * rate)))
        expected += m.dispatch_ns + both + alone + int(queue.compute_ns[t]) + m.signal_ns
    assert sim.simulate_shared(lone, loads, sim.SharedBandwidth(rate * GB), m).makespan_ns == expected


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 12, 18])
def test_n_equal_loads_at_once_each_take_n_times_as_long(count):
    size, rate = 1_000_003, 3
    run = sim.simulate_shared(
        one_a_lane(count), loads_of([size] * count, [0] * count), sim.SharedBandwidth(rate * GB), sim.Mechanism()
    )
    assert run.load_end_ns.tolist() == [-(-count * size // rate)] * count
    assert run.input_end_ns.tolist() == [0] * count


def test_virtual_time_starts_over_before_it_overflows():
    """Two lanes load without a pause far more than 63 bits of quanta hold, and never differ from the closed form."""
    ids, size, rate = list(range(60)), 2**35, 200
    queue = queue_of([t % 2 for t in ids], ids, ids, [[]] * 60, [0] * 60, [0] * 60, [0] * 60)
    run = sim.simulate_shared(
        queue, loads_of([size] * 60, [0] * 60), sim.SharedBandwidth(rate * GB), sim.Mechanism(prefetch_depth=60)
    )
    each = -(-size * 2 // rate)
    assert 30 * size * QUANTA_PER_BYTE > 2**63
    assert run.load_end_ns.tolist() == [each * (t // 2 + 1) for t in ids]


# ---- invariants ----


@unhurried
@given(cases())
def test_no_nanosecond_brings_more_than_the_bandwidth_and_every_load_ends_as_soon_as_it_was_brought(case):
    queue, loads, bandwidth, *_ = case
    run = sim.simulate_shared(*case)
    kinds = (("load_start_ns", "load_end_ns", "weight_bytes"), ("begin_ns", "input_end_ns", "input_bytes"))
    spans = [
        (int(start), int(end), int(size))
        for starts, ends, sizes in kinds
        for start, end, size in zip(
            getattr(run, starts), getattr(run, ends), getattr(loads, sizes)[run.tiles], strict=True
        )
    ]
    rates = bandwidth.rates(2 * queue.lanes)
    each = {}  # quanta for every load in [ns, ns + 1)
    for ns in range(max((end for _, end, _ in spans), default=0)):
        count = sum(start <= ns < end for start, end, _ in spans)
        each[ns] = rates[count - 1] if count else 0
        assert Fraction(count * each[ns], QUANTA_PER_BYTE) * 10**9 <= Fraction(bandwidth.bytes_per_s)
        assert Fraction(each[ns], QUANTA_PER_BYTE) * 10**9 <= Fraction(min(bandwidth.lane_bytes_per_s, 10**12))
    for start, end, size in spans:
        brought = sum(each[ns] for ns in range(start, end))
        assert brought >= size * QUANTA_PER_BYTE
        assert end == start or brought - each[end - 1] < size * QUANTA_PER_BYTE


@unhurried
@given(cases())
def test_spans_of_a_lane_never_overlap_and_no_tile_begins_before_its_events(case):
    queue, _, _, m, *_ = case
    run = sim.simulate_shared(*case)
    table = sim.spans(run).set_index("tile")
    for _, lane in table.groupby("lane"):
        assert (lane["begin_ns"].to_numpy()[1:] >= lane["end_ns"].to_numpy()[:-1] + m.signal_ns + m.dispatch_ns).all()
        if m.prefetch_depth:
            assert (lane["load_start_ns"].to_numpy()[1:] >= lane["load_end_ns"].to_numpy()[:-1]).all()
    for t, row in table.iterrows():
        for event in queue.wait_event[queue.wait_ptr[t] : queue.wait_ptr[t + 1]]:
            ends = [table["end_ns"].get(by, -m.signal_ns - m.event_ns) for by in np.flatnonzero(queue.signal == event)]
            assert row["begin_ns"] >= max(ends) + m.signal_ns + (0 if m.barrier else m.event_ns)


@unhurried
@given(cases())
def test_causes_sum_exactly_and_segments_cover_the_makespan_once(case):
    run = sim.simulate_shared(*case)
    causes, segments = sim.causes(run), sim.critical_segments(run)
    assert sum(causes.values()) == run.makespan_ns
    moments = [0, *(segment.end_ns for segment in segments)]
    assert [segment.begin_ns for segment in segments] == moments[:-1]
    assert moments[-1] == run.makespan_ns
    path = sim.critical_tiles(run)
    assert path == sorted(set(path))
    assert bool(path) == bool(len(run.end_ns))


# ---- timelines drawn by hand ----


def test_a_load_has_more_when_the_others_are_through_and_a_lane_no_more_than_its_cap():
    queue = one_a_lane(3, compute_ns=1)
    loads = loads_of([6, 12, 24], [0, 0, 0])
    run = sim.simulate_shared(queue, loads, sim.SharedBandwidth(3 * GB), sim.Mechanism())
    #   lane 0 |LLLLLL0                 1 byte a ns each until 6; then 3 / 2 each, so that lane 1 has its other 6 at 10
    #   lane 1 |LLLLLLLLLL1             and lane 2 has 6 + 6; its last 12 bytes come at 3 a ns
    #   lane 2 |LLLLLLLLLLLLLL2
    assert run.load_end_ns.tolist() == [6, 10, 14]
    capped = sim.simulate_shared(queue, loads, sim.SharedBandwidth(3 * GB, 2 * GB), sim.Mechanism())
    assert capped.load_end_ns.tolist() == [6, 10, 16]
    assert sim.causes(capped) == dict.fromkeys(sim.CAUSES, 0) | {"weights": 16, "compute": 1}


def test_a_load_that_starts_slows_the_one_that_runs():
    queue = queue_of([0, 1, 1], [0, 0, 0], [0, 1, 2], [[], [], [1]], [0] * 3, [0] * 3, [0, 4, 0])
    run = sim.simulate_shared(queue, loads_of([20, 0, 0], [0, 0, 6]), sim.SharedBandwidth(2 * GB), sim.Mechanism())
    #   lane 0 |LLLLLLLLLLLLL0      8 bytes by 4; 1 byte a ns while lane 1 loads its 6; the other 6 in 3 ns
    #   lane 1 |1111iiiiii2
    assert (run.load_end_ns[0], run.begin_ns[2], run.input_end_ns[2]) == (13, 4, 10)


def test_a_load_ends_at_a_whole_nanosecond_and_the_rest_of_that_is_lost():
    queue = queue_of([0, 0], [0, 0], [0, 1], [[], []], [0, 0], [0, 0], [0, 0])
    run = sim.simulate_shared(queue, loads_of([5, 5], [0, 0]), sim.SharedBandwidth(2 * GB), sim.Mechanism())
    assert run.load_end_ns.tolist() == [3, 6]  # 2.5 ns each, and 5 together if nothing were lost


def test_spans_and_trace_have_the_shared_times():
    run = sim.simulate_shared(
        one_a_lane(2), loads_of([4, 4], [0, 0]), sim.SharedBandwidth(2 * GB), sim.Mechanism(prefetch_depth=1)
    )
    assert sim.spans(run)["load_end_ns"].tolist() == [4, 4]
    trace = json.loads(json.dumps(sim.chrome_trace(run)))
    assert [e["dur"] for e in trace["traceEvents"] if e.get("cat") == "weights"] == [0.004, 0.004]


# ---- against fair shares ----


def test_lanes_that_all_load_all_the_time_differ_in_nothing_from_fair_shares():
    queue = queue_of([0, 1, 0, 1], [0, 0, 1, 1], [0, 0, 1, 1], [[], [], [0], [0]], [0] * 4, [0] * 4, [3] * 4)
    loads = loads_of([8, 8, 8, 8], [0, 0, 0, 0])
    found = sim.sharing_difference(queue, loads, sim.SharedBandwidth(2 * GB), sim.Mechanism())
    assert found.fair_share.queue.weight_ns.tolist() == [8, 8, 8, 8]
    assert (found.makespan_ratio, found.max_ns, found.mean_ns) == (1.0, 0, 0.0)
    assert found.difference_ns.tolist() == [0, 0]


def test_one_lane_that_loads_alone_has_more_than_its_fair_share_and_two_loads_of_a_lane_have_less():
    queue = queue_of([0, 0, 1], [0, 1, 1], [0, 1, 1], [[], [0], [0]], [0] * 3, [0] * 3, [0] * 3)
    loads = loads_of([8, 4, 4], [0, 4, 4])
    found = sim.sharing_difference(queue, loads, sim.SharedBandwidth(2 * GB), sim.Mechanism())
    #            operator 0   operator 1
    #   shared   4            16 bytes at 2 a ns: 8
    #   alone    8            4 bytes at 1 a ns, the inputs with the weights: 4
    assert found.difference_ns.tolist() == [4 - 8, 8 - 4]
    assert (found.max_ns, found.mean_ns, found.makespan_ratio) == (4, 4.0, 1.0)


@unhurried
@given(cases())
def test_the_operators_differences_sum_to_the_makespans(case):
    found = sim.sharing_difference(*case)
    assert found.difference_ns.sum() == found.shared.makespan_ns - found.fair_share.makespan_ns
    assert len(found.difference_ns) == found.shared.stop_op - found.shared.start_op
    assert found.mean_ns <= found.max_ns
    if found.fair_share.makespan_ns:
        assert found.makespan_ratio == found.shared.makespan_ns / found.fair_share.makespan_ns


# ---- rates, and refusals ----


def test_rates_are_whole_quanta_rounded_down_and_capped():
    assert sim.SharedBandwidth(6 * GB, 2 * GB).rates(4) == [2 * QUANTA_PER_BYTE] * 3 + [3 * QUANTA_PER_BYTE // 2]
    assert sim.SharedBandwidth(1 * GB).rates(19)[18] == QUANTA_PER_BYTE // 19
    assert sim.SharedBandwidth(inf).rates(4) is None


@pytest.mark.parametrize(
    ("weights", "inputs", "message"),
    [
        ([1, -2], [0, 0], r"tile 1 has weight_bytes=-2; bytes are not negative"),
        ([1, 2], [0], r"input_bytes is int64\[1\]; loads are two int64 arrays, one a tile"),
    ],
)
def test_loads_that_are_none_are_refused(weights, inputs, message):
    with pytest.raises(GraphError, match=message):
        loads_of(weights, inputs)


def test_loads_of_another_type_are_refused_and_others_are_read_only():
    with pytest.raises(GraphError, match=r"weight_bytes is float64\[2\]"):
        sim.TileLoads(np.zeros(2), np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="read-only"):
        loads_of([1], [1]).weight_bytes[0] = 2


@pytest.mark.parametrize("bandwidth", [{"bytes_per_s": 0}, {"bytes_per_s": 1, "lane_bytes_per_s": float("nan")}])
def test_a_bandwidth_that_is_none_is_refused(bandwidth):
    with pytest.raises(GraphError, match="a bandwidth is above 0"):
        sim.SharedBandwidth(**bandwidth)


def test_what_does_not_fit_is_refused():
    queue, m = one_a_lane(2), sim.Mechanism()
    with pytest.raises(GraphError, match=r"loads of 1 tiles for a queue of 2; give one each"):
        sim.simulate_shared(queue, loads_of([1], [1]), sim.SharedBandwidth(GB), m)
    with pytest.raises(GraphError, match=r"is too little: each of 4 loads would be brought less than 1/12252240"):
        sim.simulate_shared(queue, loads_of([1, 1], [1, 1]), sim.SharedBandwidth(300), m)
    with pytest.raises(GraphError, match=r"a load of 68719476736000 bytes; with 2 lanes .* split the tile"):
        sim.simulate_shared(queue, loads_of([2**36 * 1000, 1], [1, 1]), sim.SharedBandwidth(GB), m)
    with pytest.raises(GraphError, match=r"region \[0, 2\) is not within"):
        sim.simulate_shared(queue, loads_of([1, 1], [1, 1]), sim.SharedBandwidth(GB), m, 0, 2)
