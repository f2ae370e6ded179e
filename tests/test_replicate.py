"""Replications against the one pass on scaled queues, in closed form, and as draws of predictions."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.random_queues import mechanisms, queue_of, queues, regions

from workbench import simulate as sim
from workbench.compose import Composition, Configuration, conventional, monolith
from workbench.errors import GraphError, WorkbenchError
from workbench.predict import Pricer
from workbench.predict.replications import replicated_ties, replications
from workbench.simulate import kernels
from workbench.simulate.replicate import replicate, scaled
from workbench.uncertainty import draw, normals, tied_with_best

unhurried = settings(deadline=None)  # the first example compiles
FACTORS = st.sampled_from([0.0, 0.25, 0.5, 0.999, 1.0, 1.5, 2.3, 7.0])  # halves to round, and none to round
NOTHING = np.zeros(0, np.int64)


def drawn(data: st.DataObject, *shape: int) -> np.ndarray:
    """Factors of a shape."""
    size = int(np.prod(shape))
    return np.array(data.draw(st.lists(FACTORS, min_size=size, max_size=size)), np.float64).reshape(shape)


# ---- the same answer, got another way ----


@unhurried
@given(regions(), st.integers(0, 3), st.data())
def test_each_replication_is_one_pass_over_its_own_queue(region, count, data):
    queue, mechanism, start, stop = region
    factors, overheads = drawn(data, count, queue.ops), drawn(data, count)
    found = replicate(queue, mechanism, factors, overheads, start, stop)
    assert found.dtype == np.int64
    expected = [
        sim.simulate(*scaled(queue, mechanism, *each), start, stop).makespan_ns
        for each in zip(factors, overheads, strict=True)
    ]
    assert found.tolist() == expected


@unhurried
@given(queues(), mechanisms(barrier=True, most_prefetch=1), st.integers(0, 9), st.data())
def test_overlapping_launches_replicate_after_the_launch_that_is_given(queue, mechanism, wait_ns, data):
    mechanism = dataclasses.replace(mechanism, overlap=True, wait_ns=wait_ns)
    start = data.draw(st.integers(0, queue.ops))
    stop = data.draw(st.integers(start, queue.ops))
    free = data.draw(st.lists(st.integers(-30, 0), min_size=queue.lanes, max_size=queue.lanes))
    before = data.draw(st.sampled_from([None, sim.Exit(data.draw(st.integers(-30, 0)), np.array(free, np.int64))]))
    factors, overheads = drawn(data, 2, queue.ops), drawn(data, 2)
    found = replicate(queue, mechanism, factors, overheads, start, stop, before=before)
    for ns, factor, overhead in zip(found.tolist(), factors, overheads, strict=True):
        assert ns == sim.simulate(*scaled(queue, mechanism, factor, overhead), start, stop, before).makespan_ns


@unhurried
@given(regions())
def test_factors_of_one_change_nothing(region):
    queue, mechanism, start, stop = region
    ones = np.ones((2, queue.ops))
    assert replicate(queue, mechanism, ones, np.ones(2), start, stop).tolist() == [sim.makespan(*region)] * 2


@unhurried
@given(regions(), st.data())
def test_operators_may_share_a_column(region, data):
    queue, mechanism, start, stop = region
    column = np.array(data.draw(st.lists(st.integers(0, 2), min_size=queue.ops, max_size=queue.ops)), np.uint32)
    factors, overheads = drawn(data, 2, 3), drawn(data, 2)
    each = replicate(queue, mechanism, factors[:, column], overheads, start, stop)
    assert replicate(queue, mechanism, factors, overheads, start, stop, column=column).tolist() == each.tolist()


@pytest.mark.parametrize("count", [0, 1, kernels.BLOCK - 1, kernels.BLOCK, 2 * kernels.BLOCK + 1])
def test_blocks_are_not_seen_from_outside(count):
    queue = queue_of([0, 0, 1], [0, 1, 1], [0, 1, 1], [[], [0], [0]], [5, 0, 9], [1, 2, 3], [100, 50, 70])
    mechanism = sim.Mechanism(launch_ns=7, event_ns=11, signal_ns=2, drain_ns=3, prefetch_depth=2)
    rng = np.random.default_rng(count)
    factors, overheads = rng.uniform(0, 3, (count, 2)), rng.uniform(0, 3, count)
    found = replicate(queue, mechanism, factors, overheads)
    pairs = zip(factors, overheads, strict=True)
    assert found.tolist() == [sim.makespan(*scaled(queue, mechanism, *each)) for each in pairs]


# ---- closed forms ----


def test_one_lane_takes_the_sum_of_its_rounded_times():
    compute = [100, 33, 7, 1001]
    queue = queue_of([0] * 4, [0, 1, 2, 3], [0, 1, 2, 3], [[]] * 4, [0] * 4, [0] * 4, compute)
    mechanism = sim.Mechanism(launch_ns=1000, dispatch_ns=9, drain_ns=77)
    factors = np.array([[0.5, 1.5, 0.5, 1.1], [1.0, 2.0, 0.0, 0.3]])
    overheads = np.array([0.5, 1.1])
    expected = []
    for row, overhead in zip(factors.tolist(), overheads.tolist(), strict=True):
        tiles = sum(round(ns * factor) for ns, factor in zip(compute, row, strict=True))  # Python rounds halves to even
        expected.append(round(1000 * overhead) + 4 * round(9 * overhead) + round(77 * overhead) + tiles)
    assert replicate(queue, mechanism, factors, overheads).tolist() == expected


def test_two_lanes_take_the_larger_of_two_so_the_mean_rises_above_the_mean_run():
    queue = queue_of([0, 1], [0, 1], [0, 1], [[], []], [0, 0], [0, 0], [10_000, 10_000])
    z = np.random.default_rng(1).standard_normal((4000, 2))
    found = replicate(queue, sim.Mechanism(), 1 + 0.1 * z, np.ones(4000))
    assert found.tolist() == np.rint(10_000 * (1 + 0.1 * z)).max(axis=1).tolist()
    assert found.mean() == pytest.approx(10_000 + 1_000 / np.sqrt(np.pi), rel=0.01)  # mean of the larger of two normals


# ---- refusals ----


@pytest.mark.parametrize(
    ("factors", "overheads", "column", "message"),
    [
        (np.ones(2), np.ones(2), None, "they are"),
        (np.ones((2, 1)), np.ones(3), None, "they are"),
        (np.ones((2, 1)), np.ones(2), np.zeros(2, np.uint32), "names one of them for each of the 1 operators"),
        (np.ones((2, 1)), np.ones(2), np.ones(1, np.uint32), "factors of 1 columns"),
        (np.array([[1.0], [-0.5]]), np.ones(2), None, r"factors holds -0\.5"),
        (np.ones((2, 1)), np.array([1.0, np.nan]), None, "overhead_factors holds nan"),
        (np.full((1, 1), 1e15), np.ones(1), None, "replications count to"),
    ],
)
def test_what_cannot_be_replicated_is_refused(factors, overheads, column, message):
    queue = queue_of([0], [0], [0], [[]], [0], [0], [9])
    with pytest.raises(GraphError, match=message):
        replicate(queue, sim.Mechanism(), factors, overheads, column=column)


def test_a_region_is_checked_as_for_one_pass():
    queue = queue_of([0], [0], [0], [[]], [0], [0], [9])
    with pytest.raises(GraphError, match="not within the queue's operators"):
        replicate(queue, sim.Mechanism(), np.ones((1, 1)), np.ones(1), 0, 2)


# ---- draws of predictions ----


def case(seed: int, number: int = 0) -> tuple[Pricer, Composition]:
    program = synthetic.program(seed)
    pricer = Pricer(program, synthetic.device(seed), synthetic.table(program, seed), 1)
    return pricer, synthetic.composition(program, random.Random(number))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 30), st.integers(0, 99))
def test_a_replication_is_the_composition_with_each_operator_and_overhead_scaled(seed, number):
    pricer, composition = case(seed, number)
    found = replications(pricer, composition, 5)
    for r, ns in enumerate(found.tolist()):
        expected = float(pricer.device.host_ns)
        for region in composition.regions:
            how, spread = str(region.configuration or region.arm), pricer.overheads(region).spread_frac
            own = 0
            for priced, run, times in pricer.runs(region, composition):
                factor = [
                    max(0.0, 1 + priced.spread_frac[call.operator.name] * normals(f"{call.operator.name}/{how}")[r])
                    for call in priced.calls
                ]
                overhead = max(0.0, 1 + spread * normals(f"launch/{region.arm or 'megakernel'}")[r])
                queue, mechanism = scaled(run.queue, run.mechanism, np.array(factor), overhead)
                own += times * sim.makespan(queue, mechanism, run.start_op, run.stop_op)
            run_factor = max(0.0, 1 + pricer.device.run_spread_frac * normals(f"run/{how}")[r])
            expected += float(np.rint(own * run_factor))
        assert ns == expected


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 30))
def test_without_any_spread_each_replication_is_the_prediction(seed):
    program = synthetic.program(seed)
    device = synthetic.device(seed)
    overheads = {
        arm: {n: dataclasses.replace(o, spread_frac=0.0) for n, o in by_workers.items()}
        for arm, by_workers in device.overheads.items()
    }
    device = dataclasses.replace(device, overheads=overheads, run_spread_frac=0.0, host_ns=123)
    pricer = Pricer(program, device, synthetic.table(program, seed, spread=0.0), 1)
    for composition in (monolith(program, Configuration(2)), conventional(program, "eager")):
        assert set(replications(pricer, composition, 3).tolist()) == {pricer.predict(composition).ttfo_ns}


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 30), st.integers(0, 99))
def test_where_one_lane_does_all_the_linear_draws_are_the_replications(seed, number):
    """A sum has no other critical path, so both differ by what is rounded: 1/2 ns a time."""
    program = synthetic.program(seed)
    pricer = Pricer(program, synthetic.device(seed), synthetic.table(program, seed), 1)
    composition = monolith(program, Configuration(1))
    prediction = pricer.predict(composition)
    sigma = {source: ns for source, ns in pricer.sigma_ns(prediction.regions).items() if not source.startswith("run/")}
    linear = draw(prediction.ttfo_ns, sigma)
    still = Pricer(program, dataclasses.replace(pricer.device, run_spread_frac=0.0), pricer.table, 1)
    times = 8 * prediction.tiles + 8 * len(composition.regions)
    waits = prediction.causes_ns["event_wait"]  # whether an event is waited for on the path may change
    assert np.abs(replications(still, composition) - linear).max() <= times / 2 + waits


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 30), st.integers(0, 99))
def test_the_same_replications_each_time_and_a_longer_run_begins_with_a_shorter_one(seed, number):
    pricer, composition = case(seed, number)
    again, _ = case(seed, number)
    longer = replications(pricer, composition, 1100)
    assert replications(again, composition, 40).tolist() == longer[:40].tolist()
    assert len(set(longer[1000:].tolist()) - set(longer[:100].tolist())) > 0


def test_a_count_below_one_is_refused():
    with pytest.raises(WorkbenchError, match="0 replications"):
        replications(*case(1), 0)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 30))
def test_ties_are_those_of_the_replications(seed):
    pricer, _ = case(seed)
    compositions = [
        monolith(pricer.program, Configuration(2)),
        conventional(pricer.program, "replay"),
        case(seed, 5)[1],
    ]
    predictions = [pricer.predict(c) for c in compositions]
    tied, chance = replicated_ties(pricer, predictions, 50)
    assert (tied, chance) == tied_with_best([replications(pricer, c, 50).astype(float) for c in compositions])
    assert sum(chance) == pytest.approx(1)


def test_on_a_gpu_regions_that_overlap_what_is_before_them_replicate_too():
    device, table = synthetic.gpu(3)
    program = synthetic.program(3)
    pricer = Pricer(program, device, table, 1)
    composition = synthetic.composition(program, random.Random(1), [*pricer.treatments])
    found = replications(pricer, composition, 200)
    assert found.std() > 0
    assert abs(found.mean() / pricer.predict(composition).ttfo_ns - 1) < 0.5
