"""Exact splits of a time to first output, and of the difference between two: sums, and tables drawn by hand."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.cli import main
from workbench.compose import Composition, Configuration, boundaries, conventional, from_cuts, monolith, operators_in
from workbench.cost import Roofline
from workbench.errors import CompositionError
from workbench.gpu import gpu_files, read_gpu
from workbench.measure import store
from workbench.models import demo_tts
from workbench.predict import ALL_CAUSES, Pricer
from workbench.program import Loop, Program, calls
from workbench.why import LAUNCHES, ONCE, path_by_name, stage_waterfall, waterfall

seeds = st.integers(0, 40)
numbers = st.integers(0, 10**6)
TWO = Configuration(2)


@cache
def pricer_of(seed: int) -> Pricer:
    """A random program, on a random CPU or, for odd seeds, on a random GPU whose launches may overlap."""
    program = synthetic.program(seed)
    if seed % 2:
        return Pricer(program, *synthetic.gpu(seed), 1)
    return Pricer(program, synthetic.device(seed), synthetic.table(program, seed), 1)


def composition_of(pricer: Pricer, number: int) -> Composition | None:
    """A random composition of a pricer's treatments, None if it cannot run."""
    made = synthetic.composition(pricer.program, random.Random(number), pricer.treatments)
    try:
        for region in made.regions:
            pricer.check_resources(region)
    except CompositionError:
        return None
    return made


def two(seed: int, first: int, second: int) -> tuple[Pricer, Composition, Composition] | None:
    pricer = pricer_of(seed)
    a, b = composition_of(pricer, first), composition_of(pricer, second)
    return None if a is None or b is None else (pricer, a, b)


# -- the path by name --------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(seeds, numbers)
def test_a_path_sums_to_the_prediction_and_its_causes(seed: int, number: int) -> None:
    pricer = pricer_of(seed)
    if (composition := composition_of(pricer, number)) is None:
        return
    prediction, path = pricer.predict(composition), path_by_name(pricer, composition)
    assert path["ns"].sum() == prediction.ttfo_ns
    assert {cause: int(path[cause].sum()) for cause in ALL_CAUSES} == dict(prediction.causes_ns)
    assert path[list(ALL_CAUSES)].sum(axis=1).tolist() == path["ns"].tolist()
    assert path["share_frac"].sum() == pytest.approx(1)
    assert path["calls"].sum() == prediction.serial_stages
    assert (path[list(ALL_CAUSES)] >= 0).all().all()


@settings(max_examples=30, deadline=None)
@given(seeds, numbers)
def test_operators_of_a_path_are_the_programs_own_with_their_stage(seed: int, number: int) -> None:
    pricer = pricer_of(seed)
    if (composition := composition_of(pricer, number)) is None:
        return
    path = path_by_name(pricer, composition)
    operators = path[~path["operator"].isin([LAUNCHES, ONCE])]
    stages = pricer.program.stages()
    for name, stage in zip(operators["operator"], operators["stage"], strict=True):
        assert stages[name.removesuffix("+reduce")] == stage
    assert not operators.duplicated(["operator", "how"]).any()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 20).map(lambda half: 2 * half))
def test_kernels_one_after_another_are_a_path_of_all_calls_and_their_gaps(seed: int) -> None:
    pricer = pricer_of(seed)
    path = path_by_name(pricer, conventional(pricer.program, "replay")).set_index("operator")
    o = pricer.device.overheads["replay"][2]
    counts: dict[str, int] = {}
    for call in calls(pricer.program.first):
        counts[call.operator.name] = counts.get(call.operator.name, 0) + 1
    for name, count in counts.items():
        assert path.loc[name, "calls"] == count
        assert path.loc[name, "ramp"] == count * o.gap_ns
    if o.launch_ns + o.drain_ns:
        assert path.loc[LAUNCHES, ["launch", "drain"]].tolist() == [o.launch_ns, o.drain_ns]


def test_the_host_of_a_gpu_run_is_a_row_of_its_own() -> None:
    pricer = pricer_of(1)
    path = path_by_name(pricer, conventional(pricer.program, pricer.arms[0])).set_index("operator")
    assert path.loc[ONCE, "host"] == path.loc[ONCE, "ns"] == pricer.device.host_ns > 0


def test_what_cannot_run_is_refused() -> None:
    pricer = pricer_of(0)
    with pytest.raises(CompositionError, match="at once"):
        path_by_name(pricer, monolith(pricer.program, Configuration(3)))


# -- differences -------------------------------------------------------------------------------------------------------


def turned(table: pd.DataFrame) -> list[tuple[str, str, int, int, int]]:
    """The rows of a waterfall the other way round."""
    return [
        (row["cause"], row["where"], row["b_ns"], row["a_ns"], -row["difference_ns"])
        for row in table.to_dict("records")
    ]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(seeds, numbers, numbers)
def test_a_waterfall_sums_to_the_difference_cause_by_cause_and_turns_around(seed: int, one: int, other: int) -> None:
    if (case := two(seed, one, other)) is None:
        return
    pricer, *compositions = case
    a, b = (pricer.predict(c) for c in compositions)
    paths = [path_by_name(pricer, c) for c in compositions]
    for forth, back in (
        (waterfall(a, b), waterfall(b, a)),
        (stage_waterfall(*paths), stage_waterfall(*reversed(paths))),
    ):
        assert forth["difference_ns"].sum() == b.ttfo_ns - a.ttfo_ns
        assert (forth["a_ns"].sum(), forth["b_ns"].sum()) == (a.ttfo_ns, b.ttfo_ns)
        assert (forth["difference_ns"] == forth["b_ns"] - forth["a_ns"]).all()
        for cause in ALL_CAUSES:
            mine = forth[forth["cause"] == cause]
            assert mine["difference_ns"].sum() == b.causes_ns[cause] - a.causes_ns[cause]
        assert not forth.duplicated(["cause", "where"]).any()
        assert sorted(turned(forth)) == sorted(map(tuple, back.to_numpy().tolist()))
        order = [ALL_CAUSES.index(cause) for cause in forth["cause"]]
        assert order == sorted(order)


@settings(max_examples=20, deadline=None)
@given(seeds, numbers)
def test_nothing_differs_from_itself(seed: int, number: int) -> None:
    pricer = pricer_of(seed)
    if (composition := composition_of(pricer, number)) is None:
        return
    prediction = pricer.predict(composition)
    table = waterfall(prediction, prediction)
    assert (table["difference_ns"] == 0).all()
    wheres = {name for name in table["where"] if name != ONCE}
    assert len(wheres) == len(composition.regions)  # each region is a place of its own


def covered(program: Program, composition: Composition) -> list[tuple[set[str], int]]:
    """For each region its operators, by an unrolling of the names that it holds, and its place in the list."""
    items = {op.name: op for op in program.operators().values()} | dict(program.loops())
    return [
        ({op.name for name in region.items for op in operators_in(items[name])}, i)
        for i, region in enumerate(composition.regions)
    ]


def finest(program: Program, a: Composition, b: Composition) -> int:
    """How many stretches two compositions share: connected regions, where two connect if they share an operator."""
    sides = [covered(program, a), covered(program, b)]
    groups = [(ops, {(0, i)}) for ops, i in sides[0]]
    for ops, i in sides[1]:
        mine = [group for group in groups if group[0] & ops]
        groups = [group for group in groups if group not in mine]
        merged = set().union(*(group[0] for group in mine), ops)
        groups.append((merged, {(1, i)}.union(*(group[1] for group in mine))))
    return len(groups)


@settings(max_examples=60, deadline=None)
@given(seeds, numbers, numbers)
def test_places_are_at_most_the_stretches_that_both_cover_exactly(seed: int, one: int, other: int) -> None:
    if (case := two(seed, one, other)) is None:
        return
    pricer, a, b = case
    table = waterfall(pricer.predict(a), pricer.predict(b))
    places = {name for name in table["where"] if name != ONCE}
    assert 1 <= len(places) <= finest(pricer.program, a, b)
    if not any(isinstance(item, Loop) for level in pricer.levels for item in level.items):
        assert len(places) == finest(pricer.program, a, b)


def test_a_cut_that_both_have_separates_two_places() -> None:
    program = demo_tts.program()
    pricer = Pricer(program, synthetic.device(5), synthetic.table(program, 5), 1)
    cut = next(name for name in boundaries(program) if "|" in name and name.startswith("prefill.layers|"))
    a, b = from_cuts(program, {cut}, configuration=TWO), from_cuts(program, {cut}, {"prefill.embed": "replay"}, TWO)
    table = waterfall(pricer.predict(a), pricer.predict(b))
    first, second = dict.fromkeys(name for name in table["where"] if name != ONCE)
    assert first.startswith("prefill.embed")
    behind = table[table["where"] == second]
    assert (behind["difference_ns"] == 0).all()  # the second region is the same in both
    assert table["difference_ns"].sum() == table[table["where"] == first]["difference_ns"].sum()


def test_devices_may_differ() -> None:
    program = demo_tts.program()
    made = conventional(program, "graph")
    gpus = [read_gpu(gpu_files()[name]) for name in ("h100_sxm", "l4")]
    a, b = (Pricer(program, gpu.device(), Roofline(gpu), 1).predict(made) for gpu in gpus)
    assert waterfall(a, b)["difference_ns"].sum() == b.ttfo_ns - a.ttfo_ns != 0


# -- on the command line -----------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with invented benchmarks, as this machine's own."""
    program = demo_tts.program()
    store.save_bench(tmp_path, synthetic.device(), synthetic.table(program))
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path))


def answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, Any], str]:
    """What a command says as JSON and as text."""
    assert main([*arguments, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert main(arguments) == 0
    return data, capsys.readouterr().out


def test_predict_says_why_and_against_what(here: None, capsys: pytest.CaptureFixture[str]) -> None:
    data, text = answered(
        capsys, "predict", "demo_tts", "--composition", "per-stage", "--why", "--against", "conventional"
    )
    assert sum(row["ns"] for row in data["path"]) == data["ttfo_ns"]
    other = data["against"]["prediction"]
    assert data["against"]["difference_ns"] == data["ttfo_ns"] - other["ttfo_ns"]
    for split in ("by_place", "by_stage"):
        assert sum(row["difference_ns"] for row in data["against"][split]) == data["against"]["difference_ns"]
    shown = text.partition("µs more:\n")[2].splitlines()
    totals = [float(line.split()[-1].replace(",", "")) for line in shown if not line.startswith(" ")]
    parts = [float(line.split()[-1].replace(",", "")) for line in shown if line.startswith(" ")]
    assert totals[-1] == pytest.approx(sum(totals[:-1])) == pytest.approx(sum(parts))
    assert round(1e3 * totals[-1]) == data["against"]["difference_ns"]


def test_select_says_where_it_would_choose_otherwise(here: None, capsys: pytest.CaptureFixture[str]) -> None:
    data, text = answered(capsys, "select", "demo_tts", "--sensitivity")
    assert len(data["sensitivity"]["sentences"]) == 1 + len(data["sensitivity"]["table"]) > 3
    assert all(sentence in text for sentence in data["sensitivity"]["sentences"])
