"""Predictions against a walk through the program launch by launch, in closed form, and in how they answer to change."""

from __future__ import annotations

import builtins
import dataclasses
import io
import os
import random
from functools import cache
from typing import Any

import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.walk import Walk

from workbench.compose import Composition, Configuration, conventional, from_cuts, monolith, per_stage
from workbench.cost import CostTable, Roofline
from workbench.errors import CompositionError, MeasureError, WorkbenchError
from workbench.gpu import gpu_files, read_gpu
from workbench.hardware import Device, Overheads, Provenance
from workbench.models import demo_tts
from workbench.predict import ALL_CAUSES, Pricer, executions
from workbench.program import Loop, Operator, Program, calls
from workbench.search import k_best
from workbench.shapes import Argmax, Attention, Matmul

DEMO = demo_tts.program()
ONE, TWO = Configuration(1), Configuration(2)


seeds = st.integers(0, 60)
compositions = st.integers(0, 10**6)


@cache
def made(seed: int) -> tuple[Program, CostTable]:
    """A random program and its table, made once: the tests draw from the same ones."""
    program = synthetic.program(seed)
    return program, synthetic.table(program, seed, (1 + seed % 3,))


def case(seed: int, composition: int = 0) -> tuple[Pricer, Composition]:
    """A random program on a random device, and a random composition of it."""
    program, table = made(seed)
    pricer = Pricer(program, synthetic.device(seed), table, 1 + seed % 3)
    return pricer, synthetic.composition(program, random.Random(composition))


def walk_of(pricer: Pricer) -> Walk:
    return Walk(pricer.device, pricer.table, pricer.batch)


def changed_overheads(device: Device, arm: str, workers: int, **change: int) -> Device:
    entry = dataclasses.replace(device.overheads[arm][workers], **change)  # type: ignore[arg-type]
    return dataclasses.replace(device, overheads={**device.overheads, arm: {**device.overheads[arm], workers: entry}})


# -- the sum -----------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(seeds, compositions)
def test_ttfo_is_the_walk_through_the_program_launch_by_launch(seed: int, number: int) -> None:
    pricer, composition = case(seed, number)
    got, walk = pricer.predict(composition), walk_of(pricer)
    assert got.ttfo_ns == walk.run(pricer.program.first, composition)
    for part in got.regions:
        mine = [ns for region, ns in walk.launches if region == part.region]
        assert (part.ns, part.launches) == (sum(mine), len(mine))


DESIGNS = {
    "monolith": monolith(DEMO, TWO),
    "stages": per_stage(DEMO, Configuration(2, 2)),
    "eager": conventional(DEMO, "eager"),
    "replay": conventional(DEMO, "replay"),
    "mixed": from_cuts(
        DEMO,
        {"prefill.layers|frames", "frames@", "talker.embed|talker.layers", "talker.layers@",
         "talker.layers|talker.head", "talker.argmax|predictor.steps", "frames|codec.embed",
         "talker.qkv|talker.attention"},
        {"prefill.embed": "eager", "talker.attention": "replay", "codec.embed": "2x2"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("composition", DESIGNS.values(), ids=DESIGNS)
def test_demo_tts_is_the_walk_through_the_program_too(composition: Composition) -> None:
    pricer = Pricer(DEMO, synthetic.device(5), synthetic.table(DEMO, 5, (2,)), 2)
    got = pricer.predict(composition)
    assert got.ttfo_ns == walk_of(pricer).run(DEMO.first, composition)
    assert got.throughput_per_s == pytest.approx(2e9 / walk_of(pricer).run(DEMO.further, composition), rel=1e-12)


H100 = read_gpu(gpu_files()["h100_sxm"])
ON_A_GPU = {
    "monolith": monolith(DEMO, Configuration(132)),
    "stages": per_stage(DEMO, Configuration(132, 2)),
    **{arm: conventional(DEMO, arm) for arm in H100.device().arms},
}


@pytest.mark.parametrize("composition", ON_A_GPU.values(), ids=ON_A_GPU)
def test_a_gpu_with_loads_and_prefetch_is_the_walk_through_the_program_too(composition: Composition) -> None:
    pricer = Pricer(DEMO, H100.device(), Roofline(H100), 3)
    assert pricer.device.prefetch_depth > 0
    got = pricer.predict(composition)
    assert got.ttfo_ns == walk_of(pricer).run(DEMO.first, composition)
    assert sum(got.causes_ns.values()) == got.ttfo_ns


@settings(max_examples=50, deadline=None)
@given(seeds, compositions)
def test_causes_sum_exactly_to_the_time_to_first_output(seed: int, number: int) -> None:
    pricer, composition = case(seed, number)
    got = pricer.predict(composition)
    assert tuple(got.causes_ns) == ALL_CAUSES
    assert sum(got.causes_ns.values()) == got.ttfo_ns
    assert all(ns >= 0 for ns in got.causes_ns.values())
    assert all(sum(part.causes_ns.values()) == part.ns for part in got.regions)
    assert sum(part.ns for part in got.regions) == got.ttfo_ns
    assert (got.causes_ns["host"] > 0) <= any(region.arm == "eager" for region in composition.regions)


@settings(max_examples=25, deadline=None)
@given(seeds, compositions)
def test_the_interval_holds_the_mean(seed: int, number: int) -> None:
    pricer, composition = case(seed, number)
    got = pricer.predict(composition)
    low, high = got.interval_ns
    assert 0 <= low <= got.ttfo_ns <= high
    assert low < high


@settings(max_examples=25, deadline=None)
@given(seeds, compositions)
def test_tiles_and_events_are_counted_over_all_launches(seed: int, number: int) -> None:
    pricer, _ = case(seed, number)
    calls_of_all = list(calls(pricer.program.first))
    got = pricer.predict(conventional(pricer.program, "eager"))
    assert got.tiles == got.events == got.serial_stages == len(calls_of_all)
    whole = pricer.predict(monolith(pricer.program, TWO))
    expected = sum(len(pricer.table.tiles(c.operator, pricer.batch, c.position, TWO).ns) for c in calls_of_all)
    assert whole.tiles == expected
    assert len(calls_of_all) <= whole.events <= whole.tiles
    assert 1 <= whole.serial_stages <= len(calls_of_all)


@settings(max_examples=25, deadline=None)
@given(seeds, compositions)
def test_a_replayed_region_is_launch_and_each_kernels_gap_and_slowest_lane(seed: int, number: int) -> None:
    pricer, _ = case(seed, number)
    o = pricer.device.overheads["replay"][2]
    expected = o.launch_ns + o.drain_ns
    for call in calls(pricer.program.first):
        kernels = []
        for configuration in synthetic.CONFIGURATIONS:
            tiles = pricer.table.tiles(call.operator, pricer.batch, call.position, configuration)
            ns = [int(x) + o.dispatch_ns + o.signal_ns for x in tiles.ns]
            kernels.append(max(sum(ns[lane :: configuration.workers]) for lane in range(configuration.workers)))
        expected += o.gap_ns + min(kernels)
    assert pricer.predict(conventional(pricer.program, "replay")).ttfo_ns == expected


@settings(max_examples=20, deadline=None)
@given(seeds, compositions)
def test_an_eager_calls_host_part_is_what_the_fastest_tiles_do_not_take(seed: int, number: int) -> None:
    pricer, _ = case(seed, number)
    o = pricer.device.overheads["replay"][2]
    host = 0
    for call in calls(pricer.program.first):
        best = None
        for configuration in sorted(synthetic.CONFIGURATIONS):
            ns = pricer.table.tiles(call.operator, pricer.batch, call.position, configuration).ns.tolist()
            lanes = [ns[lane :: configuration.workers] for lane in range(configuration.workers)]
            with_overheads = max(sum(lane) + len(lane) * (o.dispatch_ns + o.signal_ns) for lane in lanes)
            if best is None or with_overheads < best[0]:
                best = with_overheads, max(map(sum, lanes))
        assert best is not None
        assert isinstance(pricer.table, CostTable)
        host += max(0, int(pricer.table.whole(call.operator, pricer.batch, call.position, "eager").ns[0]) - best[1])
    assert pricer.predict(conventional(pricer.program, "eager")).causes_ns["host"] == host


@settings(max_examples=25, deadline=None)
@given(seeds, compositions)
def test_a_levels_executions_are_its_loops_unrolled(seed: int, number: int) -> None:
    pricer, _ = case(seed, number)
    for level in pricer.levels:
        runs = executions(level)
        total = 1
        for loop in level.around:
            total *= loop.count
        assert sum(times for _, times in runs) == total
        assert all(set(index) == {loop.name for loop in level.around} for index, _ in runs)
        assert len({tuple(sorted(index.items())) for index, _ in runs}) == len(runs)


# -- what a prediction may depend on -----------------------------------------------------------------------------------


def test_a_prediction_opens_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleting every measured run changes nothing, for nothing is read (claim C9)."""
    pricer, composition = case(11)
    before = pricer.predict(composition), k_best(pricer, 5)  # compiles, imports

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"a prediction opened {args}")

    with monkeypatch.context() as patch:
        for module in (builtins, io):
            patch.setattr(module, "open", refuse)
        for name in ("open", "listdir", "scandir", "stat"):
            patch.setattr(os, name, refuse)
        fresh, composition = case(11)
        after = fresh.predict(composition), k_best(fresh, 5)
    assert after == before


@settings(max_examples=20, deadline=None)
@given(seeds, compositions)
def test_a_prediction_made_twice_or_after_others_is_the_same(seed: int, number: int) -> None:
    first, composition = case(seed, number)
    again, _ = case(seed, number)
    again.predict(monolith(again.program, TWO))
    k_best(again, 3)
    assert first.predict(composition) == again.predict(composition) == again.predict(composition)


@settings(max_examples=20, deadline=None)
@given(seeds, compositions, st.integers(1, 5000))
def test_a_dearer_launch_costs_its_price_once_a_launch(seed: int, number: int, more: int) -> None:
    pricer, composition = case(seed, number)
    before = pricer.predict(composition)
    for arm, workers in (("eager", 2), ("replay", 2), ("megakernel", 1), ("megakernel", 2)):
        old = pricer.device.overheads[arm][workers].launch_ns
        device = changed_overheads(pricer.device, arm, workers, launch_ns=old + more)
        after = Pricer(pricer.program, device, pricer.table, pricer.batch).predict(composition)
        launches = sum(
            part.launches for part in before.regions
            if part.region.arm == arm or (part.region.configuration and arm == "megakernel"
                                          and part.region.configuration.workers == workers)
        )  # fmt: skip
        assert after.ttfo_ns - before.ttfo_ns == launches * more
        assert after.causes_ns["launch"] - before.causes_ns["launch"] == launches * more


MECHANISMS = ("launch_ns", "gap_ns", "dispatch_ns", "event_ns", "signal_ns", "drain_ns")


@settings(max_examples=25, deadline=None)
@given(seeds, compositions, st.sampled_from(MECHANISMS), st.integers(1, 3000))
def test_no_overhead_that_grows_makes_a_composition_faster(seed: int, number: int, name: str, more: int) -> None:
    pricer, composition = case(seed, number)
    before = pricer.predict(composition).ttfo_ns
    device = pricer.device
    for arm, by_workers in pricer.device.overheads.items():
        for workers, o in by_workers.items():
            device = changed_overheads(device, arm, workers, **{name: getattr(o, name) + more})
    assert Pricer(pricer.program, device, pricer.table, pricer.batch).predict(composition).ttfo_ns >= before


@settings(max_examples=25, deadline=None)
@given(seeds, compositions, st.integers(1, 5000), st.data())
def test_no_tile_that_slows_down_makes_a_composition_faster(
    seed: int, number: int, more: int, data: st.DataObject
) -> None:
    """True here because queues are static and in order; a dynamic queue has Graham's anomalies."""
    pricer, composition = case(seed, number)
    assert isinstance(pricer.table, CostTable)
    rows = pricer.table.rows.copy()
    at = data.draw(st.integers(0, len(rows) - 1))
    rows.loc[at, ["median_ns", "q75_ns"]] += more
    slower = Pricer(pricer.program, pricer.device, CostTable(rows), pricer.batch)
    before, after = pricer.predict(composition).ttfo_ns, slower.predict(composition).ttfo_ns
    times = sum(call.operator.name == rows.loc[at, "operator"] for call in calls(pricer.program.first))
    assert before <= after <= before + more * times


# -- further outputs ---------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(seeds, compositions)
def test_throughput_is_the_batch_over_the_walk_through_what_follows(seed: int, number: int) -> None:
    pricer, composition = case(seed, number)
    got = pricer.predict(composition)
    assert got.throughput_per_s == pytest.approx(pricer.batch * 1e9 / got.ttfo_ns, rel=1e-12)


def test_further_outputs_of_other_shapes_have_no_throughput() -> None:
    program = demo_tts.program(first_frames=1, chunk_frames=2)
    pricer = Pricer(program, synthetic.device(1), synthetic.table(program, 1), 1)
    assert pricer.predict(monolith(program, TWO)).throughput_per_s is None


def test_a_program_without_further_outputs_has_no_throughput() -> None:
    original = synthetic.program(4)
    program = Program("once", original.first, ())
    pricer = Pricer(program, synthetic.device(1), synthetic.table(program, 1), 1)
    assert pricer.predict(monolith(program, TWO)).throughput_per_s is None


# -- provenance, notes, refusals ---------------------------------------------------------------------------------------


def test_a_prediction_is_as_good_as_the_worst_number_in_it() -> None:
    program = synthetic.program(2)
    table = synthetic.table(program, 2, (1, 4))
    for batch, provenance in (
        (1, Provenance.MEASURED), (2, Provenance.INTERPOLATED), (8, Provenance.EXTRAPOLATED)
    ):  # fmt: skip
        got = Pricer(program, synthetic.device(2), table, batch).predict(monolith(program, TWO))
        assert got.provenance is provenance
        assert provenance.value in str(got)


def test_what_is_assumed_of_a_model_is_noted_on_each_prediction() -> None:
    original = synthetic.program(2)
    program = Program("p", original.first, original.further, assumed="a stand-in")
    pricer = Pricer(program, synthetic.device(2), synthetic.table(program, 2), 1)
    assert pricer.predict(monolith(program, ONE)).notes == ("a stand-in",)


def test_more_workers_than_the_device_runs_at_once_are_refused() -> None:
    pricer, _ = case(1)
    with pytest.raises(
        CompositionError, match=r"3 workers wait for each other but invented runs 2 at once: .*deadlock"
    ):
        pricer.predict(monolith(pricer.program, Configuration(3)))


def test_an_arm_that_the_device_does_not_have_is_refused() -> None:
    pricer, _ = case(1)
    with pytest.raises(MeasureError, match="'graph'"):
        pricer.predict(conventional(pricer.program, "graph"))


def test_an_illegal_composition_is_refused_before_it_is_priced() -> None:
    pricer, composition = case(3)
    with pytest.raises(CompositionError, match=r"regions cover|no regions"):
        pricer.predict(Composition(composition.regions[1:]))


@pytest.mark.parametrize("batch", [0, -1])
def test_an_empty_batch_is_refused(batch: int) -> None:
    pricer, _ = case(1)
    with pytest.raises(WorkbenchError, match=f"batch {batch}: at least one request is needed"):
        Pricer(pricer.program, pricer.device, pricer.table, batch)


def test_configurations_that_do_not_fit_the_device_are_left_out() -> None:
    """A table from a larger machine: its two-worker rows serve neither megakernels nor kernels of one worker."""
    program = synthetic.program(6)
    pricer = Pricer(program, synthetic.device(6, workers=1), synthetic.table(program, 6), 1)
    assert pricer.configurations == (ONE,)
    got = pricer.predict(conventional(program, "replay"))
    o = pricer.device.overheads["replay"][1]
    tiles = [pricer.table.tiles(c.operator, 1, c.position, ONE).ns for c in calls(program.first)]
    assert got.ttfo_ns == o.launch_ns + o.drain_ns + sum(
        o.gap_ns + o.dispatch_ns + int(ns.sum()) + o.signal_ns for ns in tiles
    )


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_a_program_of_three_operators_by_hand() -> None:
    """dense (2 tiles) → attention (positions 3, 4; 2 tiles) → argmax, in a loop of two steps.

    ::

        lane 0 |launch 10|1|---dense 100---|2|  5  |-attention 20-|2|        |argmax 7|2|  5  |---dense 100---| …
        lane 1 |         |1|-dense 60-|2|      5   |-attention 30----|2|  5  |
    """
    loop = Loop("step", 2, (
        Operator(name="dense", shape=Matmul(rows=1, inner=8, outer=32), reads=("x",), writes=("q",)),
        Operator(name="attention", shape=Attention(rows=1, heads=2, kv_heads=1, head_dim=8), reads=("q", "kv"),
                 writes=("a",), position=3, position_loop="step"),
        Operator(name="argmax", shape=Argmax(width=16), reads=("a",), writes=("x",)),
    ))  # fmt: skip
    program = Program("hand", (loop,), (loop,))
    o = Overheads(
        launch_ns=10, gap_ns=3, dispatch_ns=1, event_ns=5, signal_ns=2, drain_ns=4, spread_frac=0.0, source="hand",
        provenance=Provenance.MEASURED,
    )  # fmt: skip
    device = Device(
        name="hand", workers=2, overheads={"megakernel": {2: o}, "replay": {2: o}}, machine={}, taken="",
        run_spread_frac=0.0,
    )  # fmt: skip
    table = synthetic.table(program, 0)
    rows = table.rows[table.rows["how"] == "2x1"].reset_index(drop=True)
    ns = {("dense", 0, 0): 100, ("dense", 0, 1): 60, ("attention", 3, 0): 20, ("attention", 3, 1): 30,
          ("attention", 4, 0): 40, ("attention", 4, 1): 50, ("argmax", 0, 0): 7}  # fmt: skip
    for name in ("median_ns", "q25_ns", "q75_ns"):
        rows[name] = [ns[key] for key in zip(rows["operator"], rows["position"], rows["tile"], strict=True)]
    pricer = Pricer(program, device, CostTable(rows), 1)
    # a megakernel: dispatch is hidden behind the event, but for a launch's first call
    begin, after = 10 + 1, 2 + 5
    steps = [(100 + after) + (slowest + after) + (7 + 2) for slowest in (30, 50)]
    whole = pricer.predict(monolith(program, TWO))
    assert whole.ttfo_ns == begin + steps[0] + 5 + steps[1] + 4 == 346
    assert whole.causes_ns["compute"] == 100 + 30 + 7 + 100 + 50 + 7
    assert whole.causes_ns["event_wait"] == 6 * 2 + 5 * 5
    assert (whole.tiles, whole.events, whole.serial_stages) == (10, 6, 6)
    # two launches where the back edge is cut
    opened = pricer.predict(from_cuts(program, {"step@"}, configuration=TWO))
    assert opened.ttfo_ns == (begin + steps[0] + 4) + (begin + steps[1] + 4) == 356
    assert opened.regions[0].launches == 2
    # one kernel an operator
    kernels = [3 + 1 + ns + 2 for ns in (100, 30, 7, 100, 50, 7)]
    assert pricer.predict(conventional(program, "replay")).ttfo_ns == 10 + sum(kernels) + 4 == 344
    # nothing is uncertain here, so neither is the prediction
    assert whole.interval_ns == (346, 346)
