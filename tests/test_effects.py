"""The constants are those of the public pair, and each physical effect changes what it should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from workbench import calibrate, worth
from workbench.compose import Configuration, conventional, monolith
from workbench.cost import Roofline
from workbench.cost.resources import PAGE_BYTES, Held, blocks_per_sm, builds, ladder, pages
from workbench.effects import ALL, EFFECTS, Effects
from workbench.errors import MeasureError
from workbench.gpu import Gpu, gpu_files, read_gpu
from workbench.models import load_program
from workbench.predict import Pricer
from workbench.program import Operator, Program
from workbench.shapes import Matmul

H100 = read_gpu(gpu_files()["h100_sxm"])
STEP = calibrate.step_of(load_program("llama_3_2_1b"))


def pricer(gpu: Gpu, program: Program = STEP, batch: int = 1) -> Pricer:
    return Pricer(program, gpu.device(), Roofline(gpu), batch)


def test_the_shipped_constants_are_what_the_public_pair_gives() -> None:
    for fitted in calibrate.calibrate(H100):
        assert H100[fitted.name] == fitted.value_ns
        assert 0 <= fitted.predicted_ns - fitted.published_ns < 1_000
        less = calibrate.with_value(H100, fitted.name, fitted.value_ns - 1)
        made = pricer(less)
        megakernel = monolith(STEP, made.configurations[0])
        run = conventional(STEP, "graph_pdl") if fitted.name == "kernel_ramp_ns" else megakernel
        assert made.total_ns(run) < fitted.published_ns, "the least that is not too fast"


@pytest.mark.parametrize("name", sorted(gpu_files()))
def test_devices_without_a_pair_take_the_fitted_constants_over_and_say_so(name: str) -> None:
    gpu = read_gpu(gpu_files()[name])
    for constant in ("kernel_ramp_ns", "event_ns"):
        assert gpu[constant] == H100[constant]
        assert "fitted" in gpu.quantities[constant].source


@pytest.mark.parametrize("name", sorted({*EFFECTS} - {"union", "l2", "waves"}))
def test_what_costs_time_costs_it(name: str) -> None:
    """Without an effect that only takes time no design is slower; without prefetch, which saves it, none is faster."""
    full, less = pricer(H100), pricer(replace(H100, effects=ALL.without(name)))
    designs = [conventional(STEP, "graph"), *(monolith(STEP, c) for c in full.configurations)]
    changes = [less.total_ns(design) - full.total_ns(design) for design in designs]
    assert (min(changes) >= 0) if name == "prefetch" else (max(changes) <= 0), changes
    assert any(changes), "it is worth something"


def test_counters_are_reset_once_a_megakernel_and_gaps_are_paid_once_a_kernel() -> None:
    full, calls = pricer(H100), pricer(H100).levels
    assert calls
    whole = monolith(STEP, full.configurations[0])
    for name in ("counter_reset", "launch_gaps"):
        less = pricer(replace(H100, effects=ALL.without(name)))
        assert full.total_ns(whole) - less.total_ns(whole) == H100["graph_gap_ns"]
    eager = conventional(STEP, "eager")
    kernels = sum(launch.times * (launch.run.stop_op - launch.run.start_op) for launch in full.runs(eager.regions[0]))
    less = pricer(replace(H100, effects=ALL.without("launch_gaps")))
    assert full.total_ns(eager) - less.total_ns(eager) == kernels * H100["eager_gap_ns"]


def test_without_waves_lanes_share_an_operators_work_evenly() -> None:
    """192 strips on 132 lanes take two turns; evenly divided they take 192/132 of one."""
    operator = Operator(
        name="m", shape=Matmul(rows=1, inner=2048, outer=3072), reads=("x",), writes=("y",), element_bytes=2
    )  # fmt: skip
    whole, even = (
        Roofline(gpu).tiles(operator, 1, 0, Configuration.parse("132x2+c16")) for gpu in
        (H100, replace(H100, effects=ALL.without("waves")))
    )  # fmt: skip
    assert len(whole.ns) == 192
    for before, after in ((whole.weight_ns, even.weight_ns), (whole.input_ns, even.input_ns)):
        assert before is not None
        assert after is not None
        assert np.abs(after - before * (192 / 132) / 2).max() <= 1


def test_rows_of_a_product_are_read_by_their_tiles_alone_and_weights_again_by_each_block_of_rows() -> None:
    operator = Operator(
        name="m", shape=Matmul(rows=256, inner=512, outer=1024), reads=("x",), writes=("y",), element_bytes=2
    )  # fmt: skip
    one, four = (Roofline(H100).tiles(operator, 1, 0, Configuration.parse(f"132x1{rows}")) for rows in ("", "+r64"))
    assert one.loads is not None
    assert four.loads is not None
    assert int(one.loads[0].sum()) == pytest.approx(512 * 1024 * 2, rel=0.01), "each weight once from DRAM"
    assert int(four.loads[0].sum()) == pytest.approx(4 * 512 * 1024 * 2 / 2, rel=0.01), "four times, from L2 at twice"
    strips = len(four.ns) // 4
    assert int(four.loads[1].sum()) * 2 == pytest.approx(strips * 256 * 512 * 2, rel=0.01), "L2 is twice as fast"


def test_a_union_is_the_maximum_and_more_blocks_leave_fewer_pages() -> None:
    sm = H100.multiprocessor
    for arch in ("sm_80", "sm_90", "sm_120"):
        for kinds in (frozenset({"gemv", "attention"}), frozenset({"mma_rows_64", "attention", "lookup"})):
            for (build, warps, shape), reading in builds(kinds, arch).items():
                for kind in kinds:
                    alone = builds(frozenset({kind}), arch).get((build, warps, shape))
                    assert alone is None or reading.shared_bytes >= alone.shared_bytes
                most = blocks_per_sm(reading, sm)
                left = [pages(reading, blocks, sm, 99) * PAGE_BYTES for blocks in range(1, most + 1)]
                used = [blocks * reading.shared_bytes for blocks in range(1, most + 1)]
                assert all(a + b <= sm.shared_bytes for a, b in zip(left, used, strict=True))


def test_the_ladder_keeps_no_rung_that_another_beats_and_a_build_can_be_asked_for() -> None:
    sm = H100.multiprocessor
    kinds = frozenset({"gemv", "attention", "convolution", "lookup"})
    rungs = ladder(kinds, sm, 3, ALL, 4)
    assert rungs
    assert not any(a.beats(b) for a in rungs for b in rungs if a is not b)
    for rung in ladder(kinds, sm, 3, Effects(build="called"), 1):
        assert rung.build.startswith("called")
    assert ladder(kinds, sm, 3, ALL.without("union"), 1)[0].own
    assert Held(2, blocks=2).beats(Held(2, blocks=1))
    assert not Held(1, blocks=2).beats(Held(2, blocks=1))


def test_schedulers_leave_fewer_workers_and_not_none() -> None:
    less = replace(H100, effects=Effects(scheduler_sms=4))
    made = pricer(less)
    assert {c.workers for c in made.configurations} == {128}
    assert {c.workers for c in made.kernels} == {132}, "kernels of their own have all SMs"
    with pytest.raises(MeasureError, match="leave none"):
        replace(H100, effects=Effects(scheduler_sms=132)).device()
    with pytest.raises(ValueError, match="no effect is called"):
        ALL.without("magic")


def test_the_worth_of_effects_is_what_pricers_say() -> None:
    program = load_program("demo_tts")
    rows: list[int] = []
    table = worth.worth(program, H100, [2], tick=lambda: rows.append(1))
    assert len(rows) == len(table) == len(worth.variants(ALL))
    assert set(table["variant"]) >= {f"no {name}" for name in EFFECTS}
    base = table[table["variant"] == "all"]
    assert (base["regret_frac"] == 0).all()
    assert base["same_selection"].all()
    assert (table["regret_frac"].dropna() >= 0).all(), "the best is the best where all effects are there"
    row = table[(table["variant"] == "no ramp") & (table["batch"] == 2)].iloc[0]
    less = pricer(replace(H100, effects=ALL.without("ramp")), program, 2)
    assert row["monolith_ns"] == min(less.total_ns(monolith(program, c)) for c in less.configurations)
    assert not pd.isna(row["best_ns"])


def test_exact_sharing_is_the_fair_share_where_all_lanes_load_alike() -> None:
    """132 equal tiles of one operator: each has its 1/132 either way, but inputs take theirs from the weights."""
    operator = Operator(
        name="m", shape=Matmul(rows=1, inner=512, outer=8448), reads=("x",), writes=("y",), element_bytes=2
    )  # fmt: skip
    made = pricer(replace(H100, effects=ALL.without("l2")), Program("one", (operator,), ()))
    found = worth.sharing(made, monolith(made.program, Configuration(132)))
    assert len(found) == 1
    inputs_ns = made.table.tiles(operator, 1, 0, Configuration(132)).input_ns
    assert inputs_ns is not None
    assert 0 <= int(found["shared_ns"][0]) - int(found["fair_ns"][0]) <= int(inputs_ns[0]) + 2
