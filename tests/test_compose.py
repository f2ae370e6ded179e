"""Compositions: cuts and JSON there and back, what is legal by an independent rule, and each reason for a refusal."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.compose import (
    Composition,
    Configuration,
    Kind,
    Region,
    boundaries,
    check_composition,
    conventional,
    cuts_of,
    from_cuts,
    from_json,
    levels,
    monolith,
    operators_in,
    per_stage,
    stage_cuts,
    to_json,
)
from workbench.errors import CompositionError
from workbench.models import demo_tts
from workbench.predict import Pricer
from workbench.program import Item, Loop, Program, items
from workbench.search import enumerate_compositions

DEMO = demo_tts.program()
ONE = Configuration(1)


# -- independent rules -------------------------------------------------------------------------------------------------


def cuts_are_legal(program: Program, cuts: set[str]) -> bool:
    """The rule again, as a check of any set of boundaries."""

    def inside(loop: Loop) -> set[str]:
        body = items(loop.body)
        found = {f"{a.name}|{b.name}" for a, b in pairwise(body)}
        for item in body:
            if isinstance(item, Loop):
                found |= {f"{item.name}@"} | inside(item)
        return found

    def fine(level: tuple[Item, ...]) -> bool:
        for i, item in enumerate(level):
            if not isinstance(item, Loop):
                continue
            if f"{item.name}@" in cuts:
                beside = {f"{a.name}|{b.name}" for a, b in pairwise(level[max(0, i - 1) : i + 2])}
                if not (beside <= cuts and fine(items(item.body))):
                    return False
            elif inside(item) & cuts:
                return False
        return True

    return fine(items(program.first))


def covers_once_in_order(program: Program, composition: Composition) -> bool:
    """Legality by another road: regions are runs of siblings, and their operators end to end are the program's text."""
    siblings: dict[str, tuple[str, ...]] = {}
    item_of: dict[str, Item] = {}
    for level in levels(program):
        names = tuple(item.name for item in level.items)
        siblings |= dict.fromkeys(names, names)
        item_of |= {item.name: item for item in level.items}
    flat: list[str] = []
    for region in composition.regions:
        if not region.items or any(name not in siblings for name in region.items):
            return False
        row = siblings[region.items[0]]
        start = row.index(region.items[0])
        if row[start : start + len(region.items)] != region.items:
            return False
        flat += [op.name for name in region.items for op in operators_in(item_of[name])]
    return flat == list(program.operators())


def treatments(composition: Composition, rng: random.Random) -> dict[str, str]:
    return {region.items[0]: rng.choice(("1x1", "2x2", "eager", "replay")) for region in composition.regions}


# -- there and back ----------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 100_000))
def test_cuts_make_a_composition_that_has_those_cuts(seed: int) -> None:
    rng = random.Random(seed)
    program = synthetic.program(seed, size=4)
    cuts = synthetic.cuts(program, rng)
    kinds = treatments(from_cuts(program, cuts), rng)
    composition = from_cuts(program, cuts, kinds, Configuration(2), "mine")
    assert cuts_of(program, composition) == cuts
    assert {r.items[0]: str(r.configuration or r.arm) for r in composition.regions} == kinds
    assert covers_once_in_order(program, composition)
    assert from_cuts(program, cuts_of(program, composition), kinds).regions == composition.regions


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 100_000), st.data())
def test_any_set_of_boundaries_is_taken_or_refused_by_the_rule(seed: int, data: st.DataObject) -> None:
    program = synthetic.program(seed)
    cuts = data.draw(st.sets(st.sampled_from(sorted(boundaries(program)) or [""]))) - {""}
    if cuts_are_legal(program, cuts):
        assert cuts_of(program, from_cuts(program, cuts)) == cuts
    else:
        with pytest.raises(CompositionError, match="entered again after it was left"):
            from_cuts(program, cuts)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 100_000), st.text(max_size=20))
def test_a_composition_survives_json(seed: int, name: str) -> None:
    rng = random.Random(seed)
    program = synthetic.program(seed, size=4)
    cuts = synthetic.cuts(program, rng)
    composition = from_cuts(program, cuts, treatments(from_cuts(program, cuts), rng), name=name)
    again = from_json(program, json.loads(json.dumps(to_json(composition))))
    assert again == composition
    assert again.digest == composition.digest


def mutated(composition: Composition, rng: random.Random, names: list[str]) -> Composition:
    """A composition with one thing changed: items or regions dropped, doubled, swapped, moved, merged, renamed."""
    regions = [list(region.items) for region in composition.regions]
    at = rng.randrange(len(regions))
    change = rng.randrange(7)
    if change == 0:
        regions[at].pop(rng.randrange(len(regions[at])))
    elif change == 1:
        regions[at].insert(rng.randrange(len(regions[at]) + 1), rng.choice(names))
    elif change == 2:
        rng.shuffle(regions)
    elif change == 3:
        rng.shuffle(regions[at])
    elif change == 4 and at:
        regions[at - 1 : at + 1] = [regions[at - 1] + regions[at]]
    elif change == 5:
        del regions[at]
    else:
        regions[at][rng.randrange(len(regions[at]))] = rng.choice(names)
    return Composition(tuple(Region(tuple(region), Kind.MEGAKERNEL, ONE) for region in regions))


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 100_000))
def test_a_changed_composition_is_legal_only_if_it_still_covers_the_program_once_in_order(seed: int) -> None:
    rng = random.Random(seed)
    program = synthetic.program(seed % 50)
    names = [item.name for level in levels(program) for item in level.items]
    composition = mutated(from_cuts(program, synthetic.cuts(program, rng)), rng, names)
    if covers_once_in_order(program, composition):
        check_composition(program, composition)
    else:
        with pytest.raises(CompositionError):
            check_composition(program, composition)


def small_programs(most: int) -> Iterator[tuple[Pricer, list[Composition]]]:
    for seed in range(25):
        program = synthetic.program(seed, size=2)
        pricer = Pricer(program, synthetic.device(seed), synthetic.table(program, seed), 1, (ONE,), ("eager", "replay"))
        found = list(enumerate_compositions(pricer))
        if len(found) <= most:
            yield pricer, found


def test_every_enumerated_composition_is_legal_and_none_comes_twice() -> None:
    seen = 0
    for pricer, found in small_programs(3000):
        for composition in found:
            check_composition(pricer.program, composition)
            assert covers_once_in_order(pricer.program, composition)
        assert len({composition.digest for composition in found}) == len(found)
        assert len({composition.regions for composition in found}) == len(found)
        seen += len(found)
    assert seen > 3000


# -- named things ------------------------------------------------------------------------------------------------------


def test_the_stages_of_demo_tts_are_cut_where_a_person_would() -> None:
    assert stage_cuts(DEMO) == {
        "prefill.layers|frames", "frames@", "talker.argmax|predictor.steps", "frames|codec.embed",
    }  # fmt: skip
    stages = per_stage(DEMO, Configuration(2))
    assert [region.items[0] for region in stages.regions] == [
        "prefill.embed", "talker.embed", "predictor.steps", "codec.embed",
    ]  # fmt: skip
    assert stages.regions[2].items == ("predictor.steps",)
    assert cuts_of(DEMO, stages) == stage_cuts(DEMO)
    assert stages.shape == "megakernels"


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 100_000))
def test_a_program_of_one_stage_is_not_cut_into_stages(seed: int) -> None:
    program = synthetic.program(seed)
    assert stage_cuts(program) == frozenset()
    assert per_stage(program, ONE).regions == monolith(program, ONE).regions


def test_boundaries_are_named_by_their_neighbours_and_loops_by_their_back_edge() -> None:
    found = boundaries(DEMO)
    assert found["prefill.embed|prefill.layers"] == "in program"
    assert found["talker.qkv|talker.attention"] == "in talker.layers"
    assert found["frames@"] == "back edge × 2"
    inner = sum(len(level.items) - 1 for level in levels(DEMO))
    assert len(found) == inner + len(DEMO.loops())


def test_the_digest_is_of_what_a_composition_is_not_of_its_name() -> None:
    a, b = monolith(DEMO, ONE), Composition(monolith(DEMO, ONE).regions, "another name")
    assert a.digest == b.digest
    assert len(a.digest) == 12
    digests = {
        c.digest
        for c in (
            a, monolith(DEMO, Configuration(2)), monolith(DEMO, Configuration(1, 2)), conventional(DEMO, "eager"),
            conventional(DEMO, "replay"), per_stage(DEMO, ONE), from_cuts(DEMO, {"prefill.layers|frames"}),
        )
    }  # fmt: skip
    assert len(digests) == 7


def test_shapes_have_the_names_people_use() -> None:
    cut = {"prefill.layers|frames"}
    assert monolith(DEMO, ONE).shape == "monolith"
    assert conventional(DEMO, "eager").shape == "conventional"
    assert from_cuts(DEMO, cut).shape == "megakernels"
    assert from_cuts(DEMO, cut, {"frames": "eager"}).shape == "mixed"
    assert from_cuts(DEMO, cut, {"frames": "eager", "prefill.embed": "replay"}).shape == "conventional"
    assert from_cuts(DEMO, cut, {"frames": "eager"}).megakernels == 1


def test_a_treatment_is_found_by_the_first_item_of_its_region_or_by_its_first_operator() -> None:
    cut = {"prefill.layers|frames"}
    assert from_cuts(DEMO, cut, {"frames": "eager"}) == from_cuts(DEMO, cut, {"talker.embed": "eager"})
    with pytest.raises(CompositionError, match="demo_tts has no operator or loop 'frame'"):
        from_cuts(DEMO, cut, {"frame": "eager"})


def test_a_composition_prints_as_its_regions() -> None:
    made = from_cuts(DEMO, {"prefill.embed|prefill.layers"}, {"prefill.embed": "eager"}, Configuration(2), "mine")
    assert str(made) == "mine: eager(prefill.embed) | megakernel 2x1(prefill.layers … codec.conv_out)"


# -- refusals ----------------------------------------------------------------------------------------------------------

HEAD = ["prefill.embed", "prefill.layers"]
CODEC = [name for name in DEMO.operators() if name.startswith("codec.")]
FRAME = ["talker.embed", "talker.layers", "talker.head", "talker.argmax", "predictor.steps"]
ALL = [*HEAD, "frames", *CODEC]
BLOCK = [f"talker.{part}" for part in ("qkv", "attention", "o_proj", "gate_up", "down")]


def mega(*names: str, **more: object) -> dict[str, object]:
    return {"kind": "megakernel", "configuration": "1x1", "items": list(names), **more}


def data(*regions: object) -> dict[str, object]:
    return {"name": "x", "regions": list(regions)}


ILLEGAL: dict[str, tuple[object, str]] = {
    # not a composition at all
    "null": (None, "a composition is an object with a list 'regions'"),
    "number": (3, "a composition is an object with a list 'regions'"),
    "NaN": (float("nan"), "a composition is an object with a list 'regions'"),
    "text": ("monolith", "a composition is an object with a list 'regions'"),
    "bare list": ([mega(*ALL)], "a composition is an object with a list 'regions'"),
    "no regions": ({"name": "x"}, "a composition is an object with a list 'regions'"),
    "regions object": ({"regions": {}}, "a composition is an object with a list 'regions'"),
    "regions null": ({"regions": None}, "a composition is an object with a list 'regions'"),
    "regions text": ({"regions": "all"}, "a composition is an object with a list 'regions'"),
    "empty": (data(), "a composition of demo_tts has no regions; it must cover every operator once"),
    # regions that are not regions
    "region null": (data(None), "region 1: 'items' must be a list of operator and loop names"),
    "region number": (data(mega(*HEAD), 7), "region 2: 'items' must be a list"),
    "region list": (data([[]]), "region 1: 'items' must be a list"),
    "items null": (data({"kind": "megakernel", "configuration": "1x1", "items": None}), "region 1: 'items' must be"),
    "items text": (data({"kind": "megakernel", "configuration": "1x1", "items": "frames"}), "region 1: 'items' must"),
    "items missing": (data({"kind": "megakernel", "configuration": "1x1"}), "region 1: 'items' must be a list"),
    "items nested": (data(mega(*HEAD) | {"items": [HEAD]}), "region 1: 'items' must be a list"),
    "items numbers": (data(mega() | {"items": [1, 2]}), "region 1: 'items' must be a list"),
    "items NaN": (data(mega() | {"items": [float("nan")]}), "region 1: 'items' must be a list"),
    "kind number": (data(mega(*ALL, kind=7)), "region 1: kind 7 is not one of megakernel, conventional"),
    "kind list": (data(mega(*ALL, kind=["megakernel"])), r"kind \['megakernel'\] is not one of"),
    "kind object": (data(mega(*ALL, kind={})), "kind {} is not one of"),
    "kind NaN": (data(mega(*ALL, kind=float("nan"))), "kind nan is not one of"),
    "kind missing": (data({"items": ALL, "configuration": "1x1"}), "kind None is not one of"),
    "kind unknown": (data(mega(*ALL, kind="Megakernel")), "kind 'Megakernel' is not one of"),
    "configuration number": (data(mega(*ALL, configuration=3)), "configuration 3: expected WORKERSxTILES"),
    "configuration bool": (data(mega(*ALL, configuration=True)), "configuration True: expected WORKERSxTILES"),
    "configuration list": (data(mega(*ALL, configuration=[2, 1])), r"configuration \[2, 1\]: expected"),
    "configuration word": (data(mega(*ALL, configuration="two")), "configuration 'two': expected"),
    "configuration half": (data(mega(*ALL, configuration="2")), "configuration '2': expected"),
    "configuration long": (data(mega(*ALL, configuration="2x1x1")), "configuration '2x1x1': expected"),
    "configuration zero": (data(mega(*ALL, configuration="0x1")), "configuration '0x1': .*two positive integers"),
    "configuration no tiles": (data(mega(*ALL, configuration="2x0")), "configuration '2x0': expected"),
    "configuration negative": (data(mega(*ALL, configuration="-1x1")), "configuration '-1x1': expected"),
    "configuration real": (data(mega(*ALL, configuration="1.5x1")), "configuration '1.5x1': expected"),
    "configuration digit": (data(mega(*ALL, configuration="²x1")), "configuration '²x1': expected"),
    "configuration huge": (data(mega(*ALL, configuration="9" * 5000 + "x1")), "expected WORKERSxTILES, .*as in '2x1'"),
    "configuration empty": (data(mega(*ALL, configuration="")), "configuration '': expected"),
    "arm number": (data(mega(*ALL, arm=3)), "region 1: arm 3 is not text"),
    "arm null": (data({"kind": "conventional", "items": ALL, "arm": None}), "region 1: arm None is not text"),
    "megakernel bare": (data({"kind": "megakernel", "items": ALL}), "a megakernel has a configuration and no arm"),
    "megakernel armed": (data(mega(*ALL, arm="eager")), "region 1: a megakernel has a configuration and no arm"),
    "conventional bare": (data({"kind": "conventional", "items": ALL}), "a conventional region has an arm and no conf"),
    "conventional configured": (
        data({"kind": "conventional", "items": ALL, "arm": "eager", "configuration": "1x1"}),
        "region 1: a conventional region has an arm and no configuration",
    ),
    "arm reads as configuration": (
        data({"kind": "conventional", "items": ALL, "arm": "2x1"}),
        "region 1: arm '2x1' begins with a digit, as configurations do",
    ),
    "arm is the other kind": (
        data({"kind": "conventional", "items": ALL, "arm": "megakernel"}),
        "region 1: 'megakernel' is not an arm",
    ),
    # regions that do not make a composition
    "region empty": (data(mega(), mega(*ALL)), "region 1 is empty"),
    "unknown item": (data(mega("talker")), "region 1: demo_tts has no operator or loop 'talker'"),
    "item twice in a region": (data(mega("prefill.embed", "prefill.embed")), "region 1 is not convex: 'prefill.embed'"),
    "item in two regions": (data(mega(*ALL), mega("codec.conv_out")), "'codec.conv_out' is in two regions"),
    "all twice": (data(mega(*ALL), mega(*ALL)), "'codec.conv0' is in two regions; regions cover the program once"),
    "a hole": (data(mega(*HEAD), mega(*CODEC)), "no region holds 'talker.embed'; regions cover every operator"),
    "beginning missing": (data(mega("frames", *CODEC)), "no region holds 'prefill.embed'"),
    "end missing": (data(mega(*ALL[:-1])), "no region holds 'codec.conv_out'"),
    "order of regions": (data(mega("frames", *CODEC), mega(*HEAD)), "regions are not in program order: 'frames'"),
    "order of items": (data(mega("prefill.layers", "prefill.embed")), "is not convex: 'prefill.embed' does not follow"),
    "skipping": (data(mega("prefill.embed", "frames")), "not convex: 'frames' does not follow 'prefill.embed'"),
    "two depths": (data(mega(*HEAD, "talker.embed")), "'prefill.layers' and 'talker.embed', which lie at different de"),
    "out of a loop": (data(mega(*HEAD), mega(*FRAME, *CODEC)), "region 2 holds .* it would be entered again"),
    "loop and its operator": (
        data(mega(*HEAD), mega("frames", *CODEC), mega("talker.qkv")),
        "'talker.qkv' is covered twice: a loop around it is already whole in a region",
    ),
    "loop and its body": (
        data(mega(*HEAD), mega(*FRAME), mega(*BLOCK), mega(*CODEC)),
        "'talker.qkv' is covered twice",
    ),
    "half a loop": (data(mega(*HEAD), mega(*FRAME[:2]), mega(*CODEC)), "no region holds 'talker.head'"),
}  # fmt: skip


@pytest.mark.parametrize(("given_data", "reason"), ILLEGAL.values(), ids=ILLEGAL)
def test_an_illegal_composition_is_refused_with_its_reason_in_one_line(given_data: object, reason: str) -> None:
    with pytest.raises(CompositionError, match=reason) as refused:
        from_json(DEMO, given_data)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([*ALL, "megakernel", "eager", "2x1"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["items", "kind", "configuration", "arm", "regions", "name"]), inner, max_size=5
        )
    ),
    max_leaves=12,
)


@settings(max_examples=120, deadline=None)
@given(json_values, st.lists(json_values, max_size=3))
def test_garbage_is_refused_as_a_composition_error_and_nothing_else(whole: object, regions: list[object]) -> None:
    for garbage in (whole, {"regions": regions}):
        message = ""
        try:
            composition = from_json(DEMO, garbage)
        except CompositionError as error:
            message = str(error)
        assert "\n" not in message
        assert message or covers_once_in_order(DEMO, composition)


def test_a_boundary_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(CompositionError, match=r"demo_tts has no boundary 'frames\|prefill.layers'"):
        from_cuts(DEMO, {"frames|prefill.layers"})


@pytest.mark.parametrize("text", ["1x1", "2x1", "16x4", "132x2"])
def test_a_configuration_reads_as_it_prints(text: str) -> None:
    assert str(Configuration.parse(text)) == text


@pytest.mark.parametrize(("workers", "tiles"), [(0, 1), (1, 0), (-2, 1)])
def test_a_configuration_without_workers_or_tiles_cannot_be_made(workers: int, tiles: int) -> None:
    with pytest.raises(CompositionError, match=f"configuration '{workers}x{tiles}': expected WORKERSxTILES"):
        Configuration(workers, tiles)
