"""Selection against brute force over every composition, and ties against the closed forms of normal differences."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.walk import Walk
from scipy import stats

from workbench.compose import Composition, Configuration, Kind, check_composition, from_cuts, monolith, stage_cuts
from workbench.errors import CompositionError
from workbench.models import demo_tts
from workbench.predict import ILLEGAL_NS, Pricer
from workbench.program import Loop, Program
from workbench.search import count_compositions, enumerate_compositions, k_best, mixed_compositions, select
from workbench.uncertainty import LEVEL, REPLICATIONS, draw, interval_ns, normals, tied_with_best

ONE, TWO, HALVES = synthetic.CONFIGURATIONS
MOST = 500  # compositions of a program that brute force is tried on


def pricers(programs: int) -> Iterator[Pricer]:
    """Small random programs, each priced with a random choice of configurations and arms."""
    found, seed = 0, 0
    any_table = synthetic.table(synthetic.program(0))  # counting compositions looks up no time
    while found < programs:
        seed += 1
        rng = random.Random(seed)
        configurations = tuple(rng.sample(synthetic.CONFIGURATIONS, rng.choice((0, 1, 2, 2, 3))))
        arms = tuple(rng.sample(("eager", "replay"), rng.randrange(0 if configurations else 1, 3)))
        program = synthetic.program(seed, rng.choice((2, 3)))
        device = synthetic.device(seed)
        if count_compositions(Pricer(program, device, any_table, 2, configurations, arms)) <= MOST:
            found += 1
            table = synthetic.table(program, seed, (2,))
            yield Pricer(program, device, table, 2, configurations, arms)


# -- exact -------------------------------------------------------------------------------------------------------------


def test_the_k_best_are_those_of_brute_force_on_200_programs() -> None:
    sizes = []
    for pricer in pricers(200):
        every = list(enumerate_compositions(pricer))
        sizes.append(len(every))
        regions = {region for composition in every for region in composition.regions}
        ns = {region: sum(times * run.makespan_ns for _, run, times in pricer.runs(region)) for region in regions}
        price = {c.digest: sum(ns[region] for region in c.regions) for c in every}
        assert len(price) == len(every) == count_compositions(pricer)
        expected = sorted(price.values())
        for k in (1, 10):
            found = k_best(pricer, k)
            assert [total for total, _ in found] == expected[:k]
            assert all(price[c.digest] == total for total, c in found), "a composition is not priced as it is sold"
            assert len({c.digest for _, c in found}) == len(found)
    assert np.median(sizes) > 20
    assert max(sizes) > 400


GPU_MOST = 400


def gpu_pricers(programs: int) -> Iterator[Pricer]:
    """Small random programs on random GPUs: loads and prefetch, unions of bodies, launches that overlap."""
    found, seed = 0, 0
    while found < programs:
        seed += 1
        rng = random.Random(seed)
        configurations = tuple(rng.sample(synthetic.GPU_CONFIGURATIONS, rng.choice((0, 1, 1, 2))))
        arms = tuple(rng.sample(("graph_pdl", "graph", "eager"), rng.randrange(1, 3)))
        if rng.random() < 0.8 and "graph_pdl" not in arms:
            arms = ("graph_pdl", *arms[1:])
        program = synthetic.program(seed, rng.choice((2, 2, 3)))
        device, table = synthetic.gpu(seed)
        pricer = Pricer(program, device, table, rng.choice((1, 3)), configurations, arms)
        if count_compositions(pricer) <= GPU_MOST:
            found += 1
            yield pricer


def test_with_prefetch_unions_and_overlap_the_k_best_are_those_of_brute_force_on_500_programs() -> None:
    sizes, overlapped, opened, depths, illegal, choices = [], 0, 0, set[int](), 0, 0
    for pricer in gpu_pricers(500):
        every = list(enumerate_compositions(pricer))
        sizes.append(len(every))
        price = {c.digest: pricer.total_ns(c) for c in every}
        assert len(price) == len(every) == count_compositions(pricer)
        expected = sorted(price.values())
        for k in (1, 10):
            found = k_best(pricer, k)
            assert [total for total, _ in found] == expected[:k]
            assert all(price[c.digest] == total for total, c in found), "a composition is not priced as it is sold"
            assert len({c.digest for _, c in found}) == len(found)
        best = found[0][1]
        overlapped += found[0][0] != sum(map(pricer.region_ns, best.regions)) + pricer.device.host_ns
        opened += any(name not in {i for r in best.regions for i in r.items} for name in pricer.program.loops())
        for configuration in pricer.configurations:
            count = len(pricer.levels[0].items)
            ladders = [pricer._ladder(0, configuration)[i][j] for i in range(count) for j in range(count - i)]
            depths |= {held.pages for rungs in ladders for held in rungs if held is not None}
            illegal += () in ladders
            choices += any(len(rungs) > 1 for rungs in ladders)
    assert np.median(sizes) >= 15
    assert max(sizes) > 300
    assert depths == {0, 1, 2, 3}, "every depth of prefetch is met"
    assert min(overlapped, opened, illegal, choices) >= 30, "the best hangs on what is tested"


def test_a_composition_is_priced_as_it_is_simulated_and_as_it_is_walked_on_random_gpus() -> None:
    handed = 0
    for number, pricer in enumerate(gpu_pricers(60)):
        rng = random.Random(number)
        how = [*map(str, pricer.configurations), *pricer.arms]
        for composition in [k_best(pricer)[0][1], *(synthetic.composition(pricer.program, rng, how) for _ in range(4))]:
            if any(pricer.region_ns(region) >= ILLEGAL_NS for region in composition.regions):
                with pytest.raises(CompositionError, match="cut the region"):
                    pricer.predict(composition)
                continue
            got = pricer.predict(composition)
            assert got.ttfo_ns == pricer.total_ns(composition)
            assert got.ttfo_ns == Walk(pricer.device, pricer.table, pricer.batch).run(pricer.program.first, composition)
            assert sum(got.causes_ns.values()) == got.ttfo_ns
            handed += got.ttfo_ns != pricer.device.host_ns + sum(map(pricer.region_ns, composition.regions))
    assert handed > 50


def test_the_best_is_priced_as_the_program_is_walked() -> None:
    for pricer in pricers(40):
        (ns, best), *_ = k_best(pricer)
        check_composition(pricer.program, best)
        assert ns == pricer.predict(best).ttfo_ns
        assert ns == Walk(pricer.device, pricer.table, pricer.batch).run(pricer.program.first, best)


def test_the_best_of_demo_tts_beats_random_compositions() -> None:
    program = demo_tts.program()
    pricer = Pricer(program, synthetic.device(3), synthetic.table(program, 3), 1)
    (best, composition), *_ = k_best(pricer)
    assert pricer.predict(composition).ttfo_ns == best
    rng = random.Random(0)
    for _ in range(150):
        other = synthetic.composition(program, rng)
        assert sum(pricer.region(region).ns for region in other.regions) >= best


def test_neighbouring_conventional_regions_of_one_arm_are_one_region() -> None:
    for pricer in pricers(40):
        for composition in enumerate_compositions(pricer):
            for a, b in zip(composition.regions, composition.regions[1:], strict=False):
                if a.kind is b.kind is Kind.CONVENTIONAL and a.arm == b.arm:
                    depth_a, place_a = pricer.place[a.items[-1]]
                    depth_b, place_b = pricer.place[b.items[0]]
                    assert (depth_a, place_a + 1) != (depth_b, place_b)


@pytest.mark.parametrize("operators", range(1, 7))
@pytest.mark.parametrize(("megakernels", "arms"), [(1, 0), (2, 0), (0, 1), (1, 1), (3, 2)])
def test_a_straight_program_has_the_closed_number_of_compositions(operators: int, megakernels: int, arms: int) -> None:
    """Colourings of a path with cuts: m + a ways to begin, then join, or cut to anything but the same arm."""
    made = synthetic.program(0)
    first = next(iter(made.operators().values()))
    nodes = tuple(type(first)(name=f"o{i}", shape=first.shape, reads=("t",), writes=("t",)) for i in range(operators))
    program = Program("straight", nodes, nodes)
    pricer = Pricer(
        program, synthetic.device(), synthetic.table(program), 1, synthetic.CONFIGURATIONS[:megakernels],
        ("eager", "replay")[:arms],
    )  # fmt: skip
    by_megakernel, by_arm = 1, 1
    for _ in range(operators - 1):
        everything = megakernels * by_megakernel + arms * by_arm
        by_megakernel, by_arm = by_megakernel + everything, by_arm + everything - by_arm
    assert count_compositions(pricer) == megakernels * by_megakernel + arms * by_arm


def test_a_loop_multiplies_what_its_body_may_be() -> None:
    #  a, loop(b), c    with one megakernel: closed, 4; open, the body alone: 1 × 1 × 1
    made = synthetic.program(0)
    first = next(iter(made.operators().values()))
    a, b, c = (type(first)(name=n, shape=first.shape, reads=("t",), writes=("t",)) for n in "abc")
    program = Program("p", (a, Loop("l", 3, (b,)), c), (a,))
    pricer = Pricer(program, synthetic.device(), synthetic.table(program), 1, (ONE,), ())
    assert count_compositions(pricer) == 4 + 1
    assert [str(x) for x in enumerate_compositions(pricer)].count(
        "megakernel 1x1(a) | megakernel 1x1(b) | megakernel 1x1(c)"
    ) == 1


# -- the tie set -------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 150))
def test_the_tie_set_holds_the_best_and_is_drawn_from_the_shortlist(seed: int) -> None:
    program = synthetic.program(seed)
    pricer = Pricer(program, synthetic.device(seed), synthetic.table(program, seed), 1)
    extra = synthetic.composition(program, random.Random(seed))
    got = select(pricer, shortlist=12, also=[extra])
    assert got.best is got.tie_set[0] is got.shortlist[0]
    assert got.best.ttfo_ns == k_best(pricer)[0][0] == min(p.ttfo_ns for p in got.shortlist)
    digests = [p.composition.digest for p in got.shortlist]
    assert len(set(digests)) == len(digests)
    assert {p.composition.digest for p in got.tie_set} <= set(digests)
    assert extra.digest in digests
    assert {"eager", "replay", "monolith 1x1", "monolith 2x2", "per-stage 2x1"} & {
        p.composition.name for p in got.shortlist
    }
    assert sum(got.chance) == pytest.approx(1)
    assert [p.ttfo_ns for p in got.shortlist] == sorted(p.ttfo_ns for p in got.shortlist)
    assert got.resolved == (len(got.tie_set) == 1)
    table = got.table()
    assert table["tied"].sum() == len(got.tie_set)
    assert table["ttfo_us"].is_monotonic_increasing
    assert f"{got.candidates:,} compositions" in str(got)


def test_a_winner_is_claimed_only_where_nothing_ties() -> None:
    #  one operator, eager far dearer: a single megakernel wins; equal prices: all tie
    made = synthetic.program(0)
    first = next(iter(made.operators().values()))
    program = Program("p", (first,), (first,))
    device = synthetic.device(0)
    dear = synthetic.table(program, spread=0.001)
    rows = dear.rows.copy()
    rows.loc[rows["how"] != "2x1", ["median_ns", "q25_ns", "q75_ns"]] += 10**7
    pricer = Pricer(program, device, type(dear)(rows), 1, (ONE, TWO), ("eager",))
    got = select(pricer)
    assert got.resolved
    assert str(got.best.composition.regions[0].configuration) == "2x1"
    assert "one winner" in str(got)
    assert got.chance[0] == 1.0


def test_mixed_designs_leave_the_last_stage_to_each_arm() -> None:
    program = demo_tts.program()
    pricer = Pricer(program, synthetic.device(), synthetic.table(program), 1)
    made = mixed_compositions(pricer)
    assert [c.name for c in made] == ["stages, codec replay", "stages, codec eager"]
    assert all(c.shape == "mixed" and c.regions[-1].items[0] == "codec.embed" for c in made)
    assert made[1] == from_cuts(program, stage_cuts(program), {"codec.embed": "eager"}, TWO, made[1].name)


def test_a_last_stage_that_is_a_loop_is_left_to_each_arm_too() -> None:
    original = demo_tts.program()
    program = Program("no codec", original.first[:-1], original.further[:-1])
    pricer = Pricer(program, synthetic.device(), synthetic.table(original), 1)
    assert all(c.shape == "mixed" and c.regions[-1].arm for c in mixed_compositions(pricer))


# -- uncertainty -------------------------------------------------------------------------------------------------------


def quantile_error(level: float, sigma: float) -> float:
    """Four standard errors of a sample quantile of REPLICATIONS normal draws."""
    density = stats.norm.pdf(stats.norm.ppf(level)) / sigma
    return float(4 * np.sqrt(level * (1 - level) / REPLICATIONS) / density)


@pytest.mark.parametrize("level", [0.025, 0.16, 0.5, 0.84, 0.975])
@pytest.mark.parametrize("sigmas", [(100.0,), (60.0, 80.0), (10.0, 20.0, 30.0, 40.0)])
def test_draws_of_independent_sources_have_normal_quantiles(level: float, sigmas: tuple[float, ...]) -> None:
    draws = draw(5000, {f"source {i} of {len(sigmas)}": sigma for i, sigma in enumerate(sigmas)})
    sigma = float(np.sqrt(sum(s * s for s in sigmas)))
    expected = stats.norm.ppf(level, 5000, sigma)
    assert np.quantile(draws, level) == pytest.approx(expected, abs=quantile_error(level, sigma))


def test_sources_are_independent_of_each_other_and_fixed_by_their_names() -> None:
    names = [f"source {i}" for i in range(30)]
    correlation = np.corrcoef([normals(name) for name in names]) - np.eye(len(names))
    assert np.abs(correlation).max() < 5 / np.sqrt(REPLICATIONS)
    normals.cache_clear()
    again = normals("source 3")
    normals.cache_clear()
    assert (normals("source 3") == again).all()
    assert not (normals("source 3", seed=1) == again).any()


@pytest.mark.parametrize("sigma", [10.0, 300.0])
def test_an_interval_is_the_normal_one_and_is_centred_on_the_mean(sigma: float) -> None:
    low, high = interval_ns(10_000, {"a": sigma})
    half = stats.norm.ppf((1 + LEVEL) / 2) * sigma
    assert low == pytest.approx(10_000 - half, abs=1 + quantile_error(0.025, sigma))
    assert high == pytest.approx(10_000 + half, abs=1 + quantile_error(0.975, sigma))
    assert interval_ns(10_000, {}) == (10_000, 10_000)
    assert interval_ns(10, {"a": sigma})[0] == 0


def test_a_source_that_two_predictions_share_cancels_in_their_difference() -> None:
    shared = {"run": 1e6}
    tied, chance = tied_with_best([draw(1000, shared), draw(1001, shared)])
    assert tied == [True, False]
    assert chance == [1.0, 0.0]
    # the same spread, but each its own: nothing is told apart
    tied, chance = tied_with_best([draw(1000, {"a": 1e6}), draw(1001, {"b": 1e6})])
    assert tied == [True, True]
    assert chance[0] == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(REPLICATIONS))


@pytest.mark.parametrize(("lead", "is_tied"), [(0.0, True), (150.0, True), (240.0, False), (400.0, False)])
def test_a_lead_is_resolved_beyond_1_96_deviations_of_the_difference(lead: float, is_tied: bool) -> None:
    #  difference: lead ± sqrt(60² + 80²) = 100, so 196 decides; the draws' own quantile errs by at most 17
    draws = [draw(1000, {"first": 60.0, "run": 500.0}), draw(1000 + lead, {"second": 80.0, "run": 500.0})]
    tied, _ = tied_with_best(draws)
    assert tied[int(draws[1].mean() > draws[0].mean())] is is_tied
    assert 196 - quantile_error(0.025, 100) > 150
    assert 196 + quantile_error(0.025, 100) < 240


@pytest.mark.parametrize("lead", [0.0, 50.0, 100.0, 200.0])
def test_the_chance_to_be_fastest_is_the_normal_one(lead: float) -> None:
    _, chance = tied_with_best([draw(1000, {"u": 60.0}), draw(1000 + lead, {"v": 80.0})])
    expected = stats.norm.cdf(lead / 100)
    assert chance[0] == pytest.approx(expected, abs=4 * np.sqrt(0.25 / REPLICATIONS))
    assert sum(chance) == pytest.approx(1)


def test_equal_draws_share_the_chance() -> None:
    same = draw(1000, {"a": 5.0})
    tied, chance = tied_with_best([same, same, same + 1e5])
    assert tied == [True, True, False]
    assert chance == [0.5, 0.5, 0.0]


def test_a_spread_comes_from_the_tiles_on_the_path_and_adds_up_over_regions() -> None:
    #  a chain of one-tile calls: all of each call is on the path
    program = synthetic.program(7)
    table = synthetic.table(program, 7)
    pricer = Pricer(program, synthetic.device(7), table, 1)
    part = pricer.region(monolith(program, ONE).regions[0])
    expected: dict[str, float] = {}
    for call in pricer.level_queue(0, {}, "1x1").calls:
        costs = table.tiles(call.operator, 1, call.position, ONE)
        name = f"{call.operator.name}/1x1"
        expected[name] = expected.get(name, 0.0) + int(costs.ns.sum()) * costs.spread_frac
    got = {source: sigma for source, sigma in part.sigma_ns.items() if not source.startswith("launch/")}
    assert got == pytest.approx(expected)
    total = pricer.sigma_ns((part, part))
    assert total["run/1x1"] == pytest.approx(0.01 * 2 * part.ns)
    assert all(total[source] == pytest.approx(2 * sigma) for source, sigma in part.sigma_ns.items())


def test_named_designs_keep_their_names_among_the_fastest() -> None:
    program = synthetic.program(5)
    pricer = Pricer(program, synthetic.device(5), synthetic.table(program, 5), 1, (ONE,), ("eager",))
    got = select(pricer, shortlist=10**4)
    named = [p.composition.name for p in got.shortlist if p.composition.name]
    assert named in (["eager", "per-stage 1x1"], ["per-stage 1x1", "eager"])  # with one stage that is the monolith


def test_a_composition_of_ones_own_keeps_its_name() -> None:
    program = synthetic.program(5)
    pricer = Pricer(program, synthetic.device(5), synthetic.table(program, 5), 1)
    mine = Composition(monolith(program, Configuration(2)).regions, "mine")
    assert "mine" in [p.composition.name for p in select(pricer, also=[mine]).shortlist]
