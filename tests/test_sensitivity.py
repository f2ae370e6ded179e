"""At what device the choice flips: thresholds re-evaluated at both sides, and in closed form."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pandas as pd
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.compose import Composition, Configuration, conventional, monolith
from workbench.cost import CostTable, Roofline
from workbench.errors import WorkbenchError
from workbench.gpu import OVERHEADS, gpu_files, read_gpu
from workbench.hardware import MECHANISM_FIELDS, Device, Overheads, Provenance
from workbench.models import demo_tts, load_program
from workbench.predict import Pricer
from workbench.program import Operator, Program
from workbench.search import Selection, enumerate_compositions, k_best, select
from workbench.sensitivity import TOLERANCE, Knob, knobs, rivals_of, sensitivity
from workbench.shapes import Matmul

ONE, TWO = Configuration(1), Configuration(2)
H100 = read_gpu(gpu_files()["h100_sxm"])


def random_case(seed: int) -> tuple[Pricer, Composition, list[Composition]] | None:
    """A random device with its best composition and the best of each other shape; None if there is no other."""
    program = synthetic.program(seed, 2)
    pricer = Pricer(program, synthetic.device(seed), synthetic.table(program, seed), 1)
    selection = select(pricer, 8)
    rivals = rivals_of(selection)
    return (pricer, selection.best.composition, rivals) if rivals else None


def by_name(pricer: Pricer, name: str) -> Knob:
    return next(knob for knob in knobs(pricer) if knob.name == name)


# -- by hand -----------------------------------------------------------------------------------------------------------


def hand(megakernel_launch_ns: int = 100, gap_ns: int = 40) -> Pricer:
    """Three operators of one tile each, on one worker: a megakernel takes its launch, kernels a gap each.

    Beside the tiles: a megakernel launch, against 10 + 3 gaps.
    """
    ops = tuple(
        Operator(name=f"op{i}", shape=Matmul(rows=1, inner=8, outer=8), reads=("x",), writes=("x",)) for i in range(3)
    )
    program = Program("hand", ops, ())
    nothing = Overheads(
        launch_ns=0, gap_ns=0, dispatch_ns=0, event_ns=0, signal_ns=0, drain_ns=0, spread_frac=0.0, source="hand",
        provenance=Provenance.MEASURED,
    )  # fmt: skip
    device = Device(
        name="hand", workers=1, machine={}, taken="", run_spread_frac=0.0,
        overheads={
            "megakernel": {1: dataclasses.replace(nothing, launch_ns=megakernel_launch_ns)},
            "replay": {1: dataclasses.replace(nothing, launch_ns=10, gap_ns=gap_ns)},
        },
    )  # fmt: skip
    table = synthetic.table(program, 0)
    return Pricer(program, device, CostTable(table.rows[table.rows["how"] == "1x1"].reset_index(drop=True)), 1)


def test_thresholds_by_hand() -> None:
    """100 against 10 + 3 · 40: kernels win over a megakernel's launch of 130, or under a gap of 30."""
    pricer = hand()
    best, rival = monolith(pricer.program, ONE), conventional(pricer.program, "replay")
    found = sensitivity(pricer, best, [rival])
    table = found.table.set_index("quantity")
    assert set(table.index) == {"megakernel.launch_ns", "replay.launch_ns", "replay.gap_ns"}
    launch, own, gap = (table.loc[name] for name in ("megakernel.launch_ns", "replay.launch_ns", "replay.gap_ns"))
    assert (launch["flip_above"], launch["above"]) == (130, "replay")
    assert (gap["flip_below"], gap["below"]) == (30, "replay")
    assert pd.isna(launch["flip_below"]) & pd.isna(gap["flip_above"])
    assert pd.isna(own["flip_below"]) & pd.isna(own["flip_above"])  # 100 against 2 + 120, and 40 + 120
    assert (launch["low"], launch["high"]) == (25, 400)
    assert launch["rival_high_ns"] - launch["best_high_ns"] == 130 - 400
    assert gap["rival_low_ns"] - gap["best_low_ns"] == 10 + 3 * 10 - 100
    claim, *sentences = found.sentences
    assert "1/4, 1/2, 2 and 4 of its value" in claim
    assert sentences == [
        "megakernel's launch (0.1 µs): the choice flips to replay over 0.13 µs",
        "replay's launch (0.01 µs): no flip within 0.002 µs … 0.04 µs",
        "replay's launch gap (0.04 µs): the choice flips to replay under 0.03 µs",
    ]


def test_a_wider_range_finds_what_a_narrow_one_does_not() -> None:
    pricer = hand(gap_ns=400)
    best, rival = monolith(pricer.program, ONE), conventional(pricer.program, "replay")
    for span, flips in ((4.0, False), (16.0, True)):
        row = sensitivity(pricer, best, [rival], span=span, ends=False).table.set_index("quantity").loc["replay.gap_ns"]
        assert (row["flip_below"] == 30) == flips
        assert pd.isna(row["flip_below"]) != flips


# -- both sides of a threshold -----------------------------------------------------------------------------------------


def check_both_sides(pricer: Pricer, best: Composition, rivals: list[Composition], *, ends: bool = False) -> int:
    """Re-evaluate every threshold with pricers of its own; how many there are."""
    flips = 0
    table = sensitivity(pricer, best, rivals, ends=ends).table.set_index("quantity")
    for knob in knobs(pricer):
        for side, direction in (("below", -1), ("above", 1)):
            held = table.loc[knob.name, f"flip_{side}"]
            if pd.isna(held):
                continue
            flips += 1
            beyond = held + direction if knob.whole else held * (1 + direction * 2 * TOLERANCE)
            at_held, at_beyond = (
                [knob.pricer(value).predict(c, throughput=False).ttfo_ns for c in (best, *rivals)]
                for value in (held, beyond)
            )
            assert at_held[0] <= min(at_held[1:])
            assert at_beyond[0] > min(at_beyond[1:])
    return flips


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 30))
def test_the_choice_holds_at_a_threshold_and_not_beyond(seed: int) -> None:
    if (case := random_case(seed)) is not None:
        check_both_sides(*case)


def test_some_thresholds_exist_to_be_checked() -> None:
    assert sum(check_both_sides(*case) for seed in range(4) if (case := random_case(seed)) is not None) > 3


def test_on_a_gpu_with_quantities_that_are_not_whole() -> None:
    pricer = Pricer(load_program("llama_3_2_1b"), H100.device(), Roofline(H100), 1)
    selection = select(pricer, 8)
    check_both_sides(pricer, selection.best.composition, rivals_of(selection))


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 30))
def test_the_fastest_at_an_end_is_that_of_an_enumeration_there(seed: int) -> None:
    if (case := random_case(seed)) is None:
        return
    pricer, best, rivals = case
    knob = knobs(pricer)[0]
    row = sensitivity(pricer, best, rivals, chosen=[knob]).table.iloc[0]
    for end in ("low", "high"):
        there = knob.pricer(row[end])
        assert row[f"fastest_{end}_ns"] == min(there.total_ns(c) for c in enumerate_compositions(there))
        assert row[f"fastest_{end}_ns"] <= min(row[f"best_{end}_ns"], row[f"rival_{end}_ns"])


# -- quantities --------------------------------------------------------------------------------------------------------


def changes(pricer: Pricer, of: Callable[[Pricer], dict[str, object]], knob: Knob) -> set[str]:
    before, after = of(pricer), of(knob.pricer(2 * knob.value if knob.most == float("inf") else knob.value / 2))
    return {name for name in before if before[name] != after[name]}


def test_a_knob_of_a_cpu_turns_one_field_of_one_arm_at_every_number_of_workers() -> None:
    program = synthetic.program(3)
    pricer = Pricer(program, synthetic.device(3), synthetic.table(program, 3), 1)

    def fields(p: Pricer) -> dict[str, object]:
        return {
            f"{arm}.{field}": [getattr(o, field) for o in by_workers.values()]
            for arm, by_workers in p.device.overheads.items()
            for field in MECHANISM_FIELDS
        }

    found = knobs(pricer)
    assert {knob.name for knob in found} == {
        f"{arm}.{field}"
        for arm, by_workers in pricer.device.overheads.items()
        for field in MECHANISM_FIELDS
        if getattr(by_workers[2], field)
    }
    for knob in found:
        assert changes(pricer, fields, knob) == {knob.name}
        assert knob.pricer(knob.value).device == pricer.device


def test_a_knob_of_a_gpu_turns_one_quantity_of_its_file() -> None:
    pricer = Pricer(demo_tts.program(), H100.device(), Roofline(H100), 1)

    def quantities(p: Pricer) -> dict[str, object]:
        assert isinstance(p.table, Roofline)
        return {name: q.value for name, q in p.table.gpu.quantities.items()} | {
            "prefetch_depth": p.device.prefetch_depth
        }

    found = knobs(pricer)
    assert {"prefetch_depth", "dram_bytes_per_s", "bf16_flops_per_s", "latency_ns"} <= {knob.name for knob in found}
    assert {knob.name for knob in found if knob.name in OVERHEADS} == {name for name in OVERHEADS if H100[name]}
    for knob in found:
        together = {"dram_bytes_per_s", "measured_dram_bytes_per_s"} & set(H100.quantities)
        assert changes(pricer, quantities, knob) == (together if knob.name == "dram_bytes_per_s" else {knob.name})
        same = knob.pricer(knob.value)
        assert (same.device, same.treatments) == (pricer.device, pricer.treatments)


def test_a_fraction_stays_one() -> None:
    pricer = Pricer(demo_tts.program(), H100.device(), Roofline(H100), 1)
    knob = by_name(pricer, "compute_frac")
    assert knob.scaled(0.5) == knob.value / 2
    assert knob.scaled(1e6) == 1


def test_rivals_are_the_fastest_of_each_other_shape() -> None:
    pricer, *_ = next(case for seed in range(9) if (case := random_case(seed)) is not None)
    selection: Selection = select(pricer, 8)
    shapes = [p.composition.shape for p in selection.shortlist]
    rivals = rivals_of(selection)
    assert {rival.shape for rival in rivals} == set(shapes) - {selection.best.composition.shape}
    for rival in rivals:
        first = next(p for p in selection.shortlist if p.composition.shape == rival.shape)
        assert rival == first.composition
    assert selection.best.ttfo_ns == k_best(pricer)[0][0]


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_choice_needs_a_rival_that_is_not_faster() -> None:
    pricer = hand(megakernel_launch_ns=900)
    best, rival = monolith(pricer.program, ONE), conventional(pricer.program, "replay")
    with pytest.raises(WorkbenchError, match="no rival"):
        sensitivity(pricer, best, [])
    with pytest.raises(WorkbenchError, match=r"replay is faster than monolith .*to begin with"):
        sensitivity(pricer, best, [rival])


def test_a_rival_that_cannot_run_is_missing_and_never_wins() -> None:
    pricer = hand()
    found = sensitivity(pricer, monolith(pricer.program, ONE), [monolith(pricer.program, TWO)], ends=False)
    assert found.table[["rival_low_ns", "rival_high_ns"]].isna().all(axis=None)
    assert found.table[["below", "above"]].isna().all(axis=None)
    assert found.table["best_low_ns"].notna().all()
