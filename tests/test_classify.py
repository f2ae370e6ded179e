"""Categories: the rules on tie sets made by hand, and machines tuned so that each category must come out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache

import numpy as np
import pandas as pd
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.classify import CATEGORIES, Category, Ties, classify, coverage, decide
from workbench.compose import Composition, conventional, from_cuts, monolith
from workbench.cost import COLUMNS, CostTable
from workbench.errors import WorkbenchError
from workbench.hardware import Device
from workbench.predict import Pricer
from workbench.program import Loop, Operator, Program, calls
from workbench.shapes import Matmul

ONE, TWO, _ = synthetic.CONFIGURATIONS

# -- the rules ---------------------------------------------------------------------------------------------------------


def ties(*names: str, conventional: bool = False, low: float = 0.0, high: float | None = None) -> Ties:
    return Ties(frozenset(names), conventional, (low, low if high is None else high))


DECIDED: dict[str, tuple[dict[int, Ties], str, str]] = {
    "conventional alone": (
        {1: ties(conventional=True), 8: ties(conventional=True)},
        "averse", "a fully conventional composition is best or tied with the best at every batch",
    ),
    "conventional tied": (
        {1: ties("a", conventional=True, high=1.0), 8: ties("b", conventional=True, high=0.3)},
        "averse", "a fully conventional composition is best or tied",
    ),
    "conventional once": (
        {1: ties("a", low=1.0), 8: ties(conventional=True)}, "receding", "coverage falls from batch 1 to batch 8",
    ),
    "one composition": ({1: ties("a", "b", low=0.5), 8: ties("a", low=1.0)}, "stable", "composition a is best or tied"),
    "one composition, conventional tied at times": (
        {1: ties("a", low=1.0), 8: ties("a", conventional=True, high=1.0)}, "stable", "composition a is best or tied",
    ),
    "receding": (
        {1: ties("a", low=1.0), 4: ties("b", low=0.6), 8: ties("c", low=0.2)},
        "receding", "coverage falls from batch 1 to batch 4, and never rises",
    ),
    "receding with a plateau": (
        {1: ties("a", low=1.0), 4: ties("b", low=1.0), 8: ties("c", low=0.2)}, "receding", "from batch 1 to batch 8",
    ),
    "receding through wide ties": (
        {1: ties("a", low=0.9, high=1.0), 4: ties("b", low=0.3, high=0.95), 8: ties("c", low=0.1, high=0.4)},
        "receding", "coverage falls from batch 1 to batch 8, and never rises",
    ),
    "advancing": (
        {1: ties("a", low=0.1), 4: ties("b", low=0.6), 8: ties("c", low=0.7)},
        "advancing", "coverage rises from batch 1 to 4, and never falls",
    ),
    "there and back": (
        {1: ties("a", low=1.0), 4: ties(conventional=True), 8: ties("c", low=1.0)},
        "unclassified", "coverage falls from batch 1 to 4 but rises from 4 to 8",
    ),
    "back and there": (
        {1: ties(conventional=True), 4: ties("b", low=1.0), 8: ties("c", low=0.5)},
        "unclassified", "coverage falls from batch 4 to 8 but rises from 1 to 4",
    ),
    "within the ties": (
        {1: ties("a", low=0.4, high=1.0), 8: ties("b", low=0.2, high=0.5)},
        "unclassified", "no one composition is tied at every batch, yet coverage does not move beyond the ties",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("by_batch", "name", "reason"), DECIDED.values(), ids=DECIDED)
def test_tie_sets_by_hand(by_batch: dict[int, Ties], name: str, reason: str) -> None:
    got, reasons = decide(by_batch)
    assert got == (name if name == "unclassified" else f"megakernel-{name}")
    assert reason in reasons[0]
    assert decide(dict(reversed(by_batch.items()))) == (got, reasons), "the order of a mapping matters"


def test_where_both_kinds_are_tied_everywhere_that_is_said() -> None:
    both = ties("b", "a", conventional=True, high=1.0)
    name, reasons = decide({1: both, 8: both})
    assert name == "megakernel-averse"
    assert reasons[1] == "so is one with megakernels (a): the two are not told apart"


tie_sets = st.builds(
    lambda names, conventional, ends: Ties(
        frozenset(names), conventional or not names, (0.0 if conventional or not names else min(ends), max(ends))
    ),
    st.sets(st.sampled_from("abcd")), st.booleans(), st.tuples(st.floats(0, 1), st.floats(0, 1)),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(tie_sets, min_size=2, max_size=5))
def test_turning_the_batches_round_swaps_receding_and_advancing(sets: list[Ties]) -> None:
    forward, _ = decide(dict(enumerate(sets)))
    backward, _ = decide(dict(enumerate(reversed(sets))))
    swapped = {"megakernel-receding": "megakernel-advancing", "megakernel-advancing": "megakernel-receding"}
    assert backward == swapped.get(forward, forward)
    assert forward in CATEGORIES


@settings(max_examples=100, deadline=None)
@given(st.lists(tie_sets, min_size=2, max_size=5))
def test_a_category_is_what_its_definition_says(sets: list[Ties]) -> None:
    got, _ = decide(dict(enumerate(sets)))
    names = [name for name in "abcd" if all(name in each.megakernel for each in sets)]
    low, high = np.array([each.coverage for each in sets]).T
    step = np.triu(np.ones((len(sets), len(sets)), bool), 1)
    falls, rises = bool((step & (low[:, None] > high)).any()), bool((step & (high[:, None] < low)).any())
    if all(each.conventional for each in sets):
        assert got == "megakernel-averse"
    elif names:
        assert got == "megakernel-stable"
    else:
        move = {(True, False): "megakernel-receding", (False, True): "megakernel-advancing"}
        assert got == move.get((falls, rises), "unclassified")


# -- tuned machines ----------------------------------------------------------------------------------------------------


def operator(name: str) -> Operator:
    return Operator(name=name, shape=Matmul(rows=1, inner=8, outer=32), reads=("x",), writes=("x",))


PROGRAM = Program("three", (operator("a"), Loop("twice", 2, (operator("b"),)), operator("c")), (operator("a"),))
Price = Callable[[str, int], int]  # operator's total ns by how and batch


def tuned(price: Price, batches: tuple[int, ...], **launch_ns: int) -> Category:
    """The verdict where an operator takes ``price(how, batch)`` ns and a launch of each arm ``launch_ns``."""
    device = dataclasses.replace(synthetic.device(0), run_spread_frac=0.001)
    free = dict.fromkeys(("launch_ns", "gap_ns", "dispatch_ns", "event_ns", "signal_ns", "drain_ns"), 0)
    overheads = {
        arm: {
            n: dataclasses.replace(o, **(free | {"launch_ns": launch_ns.get(arm, 0)}))  # type: ignore[arg-type]
            for n, o in by_workers.items()
        }
        for arm, by_workers in device.overheads.items()
    }
    device = dataclasses.replace(device, overheads=overheads)
    rows = []
    for name in PROGRAM.operators():
        for batch in batches:
            for how, tiles in (("1x1", 1), ("2x1", 2), ("eager", 1)):
                ns = price(how, batch) // tiles
                rows += [(name, batch, 0, how, tile, ns, ns, ns, 9) for tile in range(tiles)]
    table = CostTable(pd.DataFrame(rows, columns=list(COLUMNS)))
    return classify({batch: pricer(device, table, batch) for batch in batches})


def pricer(device: Device, table: CostTable, batch: int) -> Pricer:
    return Pricer(PROGRAM, device, table, batch, (ONE, TWO), ("eager",))


def flat(eager: int, one: int = 10_000, two: int = 12_000) -> Price:
    return lambda how, batch: {"eager": eager, "1x1": one, "2x1": two}[how]


def eager_grows_less(how: str, batch: int) -> int:
    return 20_000 if how == "eager" else 10_000 * batch


def eager_grows_more(how: str, batch: int) -> int:
    return 2_000 * batch**2 if how == "eager" else 10_000 * batch


def eager_is_best_at_4(how: str, batch: int) -> int:
    return (1_000 if batch == 4 else 90_000) if how == "eager" else 10_000


def one_worker_grows(how: str, batch: int) -> int:
    return {"eager": 90_000, "1x1": 9_000 * batch, "2x1": 40_000}[how]


MACHINES: dict[str, tuple[Price, tuple[int, ...], dict[str, int], str]] = {
    "a launch costs a lot": (flat(10_000), (1, 8), {"eager": 50_000, "megakernel": 50}, "megakernel-stable"),
    "eager is cheap": (flat(1_000), (1, 8), {"megakernel": 50}, "megakernel-averse"),
    "megakernel launches cost a lot": (flat(10_000), (1, 8), {"megakernel": 10**6}, "megakernel-averse"),
    "eager grows less with the batch": (eager_grows_less, (1, 2, 8), {}, "megakernel-receding"),
    "eager grows more with the batch": (eager_grows_more, (1, 4, 8), {}, "megakernel-advancing"),
    "eager is best in the middle": (eager_is_best_at_4, (1, 4, 8), {}, "unclassified"),
    "another configuration": (one_worker_grows, (1, 8), {}, "unclassified"),
}


@cache
def machine(name: str) -> Category:
    price, batches, launch_ns, _ = MACHINES[name]
    return tuned(price, batches, **launch_ns)


@pytest.mark.parametrize("which", MACHINES)
def test_a_tuned_machine_gets_the_category_it_must_have(which: str) -> None:
    got, name = machine(which), MACHINES[which][-1]
    assert got.name == name
    assert set(got.probabilities) == set(CATEGORIES)
    assert sum(got.probabilities.values()) == pytest.approx(1)
    assert got.probabilities[name] > 0.95
    assert got.evidence["batch"].tolist() == list(got.selections)
    assert f"{name} (share of draws: " in str(got)


def test_the_evidence_and_the_margins_show_what_was_decided_on() -> None:
    got = machine("eager grows less with the batch")
    assert got.evidence["coverage_low"].tolist()[::2] == got.evidence["coverage_high"].tolist()[::2] == [1, 0]
    assert got.evidence["shape"].tolist()[0] == "monolith"
    assert got.evidence["shape"].tolist()[-1] == "conventional"
    #  batch 1: four calls of 20 µs eager, of 5 µs on two workers; batch 8: of 40 µs, of which one makes a mixed design
    assert "batch 1: megakernels ahead by 300.0%; a change of that size would turn it" in got.reasons
    assert "batch 8: conventional ahead by 25.0%; a change of that size would turn it" in got.reasons


def test_there_and_back_names_the_batches_that_contradict() -> None:
    got = machine("eager is best in the middle")
    assert got.reasons[0] == "coverage falls from batch 1 to 4 but rises from 4 to 8"


def test_one_batch_is_not_a_trend() -> None:
    table = synthetic.table(PROGRAM)
    with pytest.raises(WorkbenchError, match="1 batch is not a trend; a category needs at least 2 batches"):
        classify({1: pricer(synthetic.device(), table, 1)})


def test_each_batch_is_ticked_once_and_ones_own_composition_takes_part() -> None:
    table = synthetic.table(PROGRAM, batches=(1, 8))
    seen: list[int] = []
    mine = Composition(from_cuts(PROGRAM, {"a|twice"}, {"a": "eager"}).regions, "mine")
    pricers = {batch: pricer(synthetic.device(), table, batch) for batch in (8, 1)}
    got = classify(pricers, [mine], seen.append)
    assert seen == [1, 8]
    assert all("mine" in [p.composition.name for p in s.shortlist] for s in got.selections.values())


# -- coverage ----------------------------------------------------------------------------------------------------------


def test_coverage_is_the_share_of_eager_time_run_in_megakernels() -> None:
    table = synthetic.table(PROGRAM, 3)
    priced = pricer(synthetic.device(), table, 1)
    eager = {name: int(table.whole(op, 1, 0, "eager").ns[0]) for name, op in PROGRAM.operators().items()}
    total = eager["a"] + 2 * eager["b"] + eager["c"]
    assert coverage(priced, monolith(PROGRAM, ONE)) == 1
    assert coverage(priced, conventional(PROGRAM, "eager")) == 0
    without_a = from_cuts(PROGRAM, {"a|twice"}, {"a": "eager"})
    assert coverage(priced, without_a) == pytest.approx((2 * eager["b"] + eager["c"]) / total)
    only_b = from_cuts(PROGRAM, {"a|twice", "twice@", "twice|c"}, {"a": "eager", "c": "eager"})
    assert coverage(priced, only_b) == pytest.approx(2 * eager["b"] / total)


@pytest.mark.parametrize("arms", [("replay",), ()])
def test_without_an_eager_arm_coverage_is_of_the_fastest_tiles(arms: tuple[str, ...]) -> None:
    table = synthetic.table(PROGRAM, 3)
    priced = Pricer(PROGRAM, synthetic.device(), table, 1, (ONE, TWO), arms)
    ns = {name: 0 for name in PROGRAM.operators()}
    for call in calls(PROGRAM.first):
        configuration = priced.kernel_configuration(call, next(iter(arms or priced.device.arms)))
        tiles = table.tiles(call.operator, 1, 0, configuration).ns.tolist()
        ns[call.operator.name] += max(
            sum(tiles[lane :: configuration.workers]) for lane in range(configuration.workers)
        )
    composition = from_cuts(PROGRAM, {"a|twice"}, {"a": "replay"})
    assert coverage(priced, composition) == pytest.approx((ns["b"] + ns["c"]) / sum(ns.values()))
