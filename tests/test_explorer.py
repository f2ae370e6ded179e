"""The explorer driven from Python: its traits are its state, and what it shows follows from them."""

import re
from collections.abc import Iterator
from itertools import chain, combinations
from pathlib import Path

import numpy as np
import pytest
import synthetic_store
import traitlets
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.compose import Composition, boundaries, conventional, cuts_of, from_cuts, per_stage
from workbench.errors import CompositionError, WorkbenchError
from workbench.gpu import gpu_files
from workbench.measure.store import read_runs
from workbench.models import load_program
from workbench.program import Loop, Operator, Program
from workbench.shapes import Argmax
from workbench.widgets import Explorer, idle_cuts, missing_cuts

PROGRAM = load_program("demo_tts")
INSIDE = "prefill.qkv|prefill.attention"  # lies in the loop prefill.layers
NEEDED = {"prefill.layers@", "prefill.embed|prefill.layers", "prefill.layers|frames"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_store.store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def opened(folder: Path) -> Explorer:
    return Explorer({"synthetic": folder, "gpu": gpu_files()["h200"]})


@pytest.fixture
def explorer(opened: Explorer) -> Iterator[Explorer]:
    """One explorer for all tests, at the monolith of batch 1."""
    opened.device, opened.batch = "synthetic", 1
    opened.monolith()
    assert opened.error == ""
    yield opened
    assert opened.error == "", "a callback failed"


def shown_ns(explorer: Explorer) -> int:
    """The time in the headline."""
    found = re.search(r'class="wb-ttfo">([\d,.]+) µs<', explorer.view.headline.value)
    assert found
    return round(float(found[1].replace(",", "")) * 1e3)


# ---- the loop rule ----


def legal(program: Program, cuts: frozenset[str]) -> bool:
    try:
        from_cuts(program, cuts)
    except CompositionError:
        return False
    return True


def subsets(names: frozenset[str]) -> Iterator[frozenset[str]]:
    return map(frozenset, chain.from_iterable(combinations(sorted(names), n) for n in range(len(names))))


def nested() -> Program:
    def operator(name: str) -> Operator:
        return Operator(name=name, shape=Argmax(width=8), reads=("t",), writes=("t",))

    inner = Loop("in", 2, (operator("c"), operator("d")))
    return Program("nested", (operator("a"), Loop("out", 2, (inner, operator("e"))), operator("b")), (operator("z"),))


@pytest.mark.parametrize("cuts", list(subsets(frozenset(boundaries(nested())))))
def test_missing_and_idle_cuts_are_the_fewest(cuts: frozenset[str]) -> None:
    program = nested()
    missing, idle = missing_cuts(program, cuts), idle_cuts(program, cuts)
    assert legal(program, cuts | missing)
    assert legal(program, cuts - idle)
    assert not any(legal(program, cuts | some) for some in subsets(missing))
    assert not any(legal(program, cuts - some) for some in subsets(idle))


@settings(max_examples=60, deadline=None)
@given(st.frozensets(st.sampled_from(sorted(boundaries(PROGRAM)))))
def test_both_ways_out_are_legal(cuts: frozenset[str]) -> None:
    assert legal(PROGRAM, cuts | missing_cuts(PROGRAM, cuts))
    assert legal(PROGRAM, cuts - idle_cuts(PROGRAM, cuts))
    assert legal(PROGRAM, cuts) == (not missing_cuts(PROGRAM, cuts)) == (not idle_cuts(PROGRAM, cuts))


def test_a_name_that_is_no_boundary_is_idle() -> None:
    assert idle_cuts(PROGRAM, {"nowhere|here", "frames|codec.embed"}) == {"nowhere|here"}
    assert missing_cuts(PROGRAM, {"nowhere|here"}) == frozenset()


# ---- toggles ----


def test_every_boundary_has_a_toggle_and_back_edges_are_marked(explorer: Explorer) -> None:
    toggles = explorer.view.cuts.toggles
    assert list(toggles) == list(boundaries(PROGRAM))
    assert {name for name, toggle in toggles.items() if toggle.description.startswith("↻")} == {
        f"{loop}@" for loop in PROGRAM.loops()
    }


def test_pressing_a_toggle_cuts_there_and_everything_follows(explorer: Explorer) -> None:
    before = explorer.prediction
    explorer.view.cuts.toggles["frames|codec.embed"].value = True
    assert explorer.cuts == {"frames|codec.embed"}
    assert explorer.composition is not None
    assert cuts_of(PROGRAM, explorer.composition) == explorer.cuts
    assert explorer.prediction == explorer.source.pricer.predict(explorer.composition)
    assert explorer.prediction != before
    assert shown_ns(explorer) == pytest.approx(explorer.prediction.ttfo_ns, abs=50)
    bars = explorer.view.timeline.figure.data
    ends = [np.max(np.add(bar.base, bar.x)) for bar in bars if len(bar.x)]
    assert max(ends) == pytest.approx(explorer.prediction.ttfo_ns / 1e3)
    steps = explorer.view.waterfall.figure.data[0].y
    assert steps[0] == pytest.approx(explorer.source.selection.best.ttfo_ns / 1e3)
    assert sum(steps) == pytest.approx(explorer.prediction.ttfo_ns / 1e3)


def test_setting_the_cuts_presses_the_toggles(explorer: Explorer) -> None:
    explorer.cuts = ["codec.up0|codec.conv0"]
    pressed = {name for name, toggle in explorer.view.cuts.toggles.items() if toggle.value}
    assert pressed == explorer.cuts == {"codec.up0|codec.conv0"}


def test_a_redraw_keeps_the_figures_that_are_on_the_page(explorer: Explorer) -> None:
    before = explorer.view.timeline.figure, explorer.view.waterfall.figure
    explorer.per_stage()
    explorer.conventional("eager")
    assert (explorer.view.timeline.figure, explorer.view.waterfall.figure) == before


def test_text_is_not_taken_for_a_set_of_cuts(explorer: Explorer) -> None:
    with pytest.raises(traitlets.TraitError, match="cuts='frames@': expected a set of boundary names"):
        explorer.cuts = "frames@"


# ---- illegal cuts ----


def test_a_cut_in_a_closed_loop_is_refused_in_words_and_the_last_legal_prediction_stays_greyed(
    explorer: Explorer,
) -> None:
    last = explorer.prediction
    assert last is not None
    explorer.view.cuts.toggles[INSIDE].value = True
    assert explorer.composition is None
    assert explorer.prediction is None
    assert explorer.shown == last
    assert "lies in loop 'prefill.layers', whose back edge is not cut" in explorer.problem
    assert "back edge is not cut" in explorer.view.problem.value
    assert "wb-stale" in explorer.view.drawn._dom_classes
    assert shown_ns(explorer) == pytest.approx(last.ttfo_ns, abs=50)
    assert explorer.as_text().startswith("Refused. boundary prefill.qkv|prefill.attention lies in loop")


def test_the_needed_cuts_are_offered_and_applied(explorer: Explorer) -> None:
    explorer.cuts = {INSIDE}
    button = explorer.view.also_cut
    assert button.layout.display != "none"
    assert set(button.tooltip.split(", ")) == NEEDED
    button.click()
    assert explorer.cuts == {INSIDE, *NEEDED}
    assert explorer.problem == ""
    assert explorer.prediction is not None
    assert "wb-stale" not in explorer.view.drawn._dom_classes
    assert button.layout.display == "none"


def test_the_idle_cuts_are_offered_and_dropped(explorer: Explorer) -> None:
    explorer.cuts = {INSIDE, "frames|codec.embed"}
    assert explorer.view.drop_idle.description == f"drop {INSIDE}"
    explorer.view.drop_idle.click()
    assert explorer.cuts == {"frames|codec.embed"}
    assert explorer.prediction is not None


def test_a_treatment_that_is_not_known_is_refused_in_words(explorer: Explorer) -> None:
    explorer.treatments = {"prefill.embed": "banana"}
    assert explorer.prediction is None
    assert "no figures for arm 'banana'" in explorer.problem
    explorer.treatments = {"prefill.embed": "9x1"}
    assert explorer.prediction is None
    assert "9 workers wait for each other but invented runs 2 at once" in explorer.problem
    explorer.monolith()
    assert explorer.problem == ""


# ---- treatments ----


def test_a_region_that_a_cut_makes_runs_as_the_one_it_came_from(explorer: Explorer) -> None:
    explorer.conventional("replay")
    explorer.cuts = {"frames|codec.embed"}
    assert explorer.treatments == {"prefill.embed": "replay", "codec.embed": "replay"}
    explorer.view.regions.choices["codec.embed"].value = "2x1"
    explorer.cuts = {"frames|codec.embed", "codec.up0|codec.conv0"}
    assert explorer.treatments == {"prefill.embed": "replay", "codec.embed": "2x1", "codec.conv0": "2x1"}


def test_an_opened_loop_runs_as_the_region_that_held_it(explorer: Explorer) -> None:
    explorer.show(conventional(PROGRAM, "eager"))
    explorer.cuts = {INSIDE, *NEEDED}
    assert set(explorer.treatments.values()) == {"eager"}


def test_choosing_a_treatment_changes_that_region_alone(explorer: Explorer) -> None:
    explorer.per_stage()
    before = explorer.treatments
    explorer.view.regions.choices["codec.embed"].value = "eager"
    assert explorer.treatments == {**before, "codec.embed": "eager"}
    assert explorer.composition is not None
    assert explorer.composition.shape == "mixed"
    assert explorer.composition.regions[-1].arm == "eager"


def test_all_regions_can_be_run_in_one_way(explorer: Explorer) -> None:
    explorer.per_stage()
    explorer.view.everywhere.value = "replay"
    assert set(explorer.treatments.values()) == {"replay"}
    assert len(explorer.treatments) == 4


@pytest.mark.parametrize("name", ["monolith", "per stage", "replay", "eager", "select best"])
def test_a_design_is_one_press_away(explorer: Explorer, name: str) -> None:
    explorer.cuts = {"codec.up0|codec.conv0"}
    next(button for button in explorer.view.designs.children if button.description == name).click()
    assert explorer.composition is not None
    if name == "select best":
        assert explorer.composition.digest == explorer.source.selection.best.composition.digest
    elif name == "per stage":
        assert explorer.cuts == cuts_of(PROGRAM, per_stage(PROGRAM, explorer.source.configuration))
    else:
        assert explorer.composition.name.startswith(name)
        assert explorer.cuts == frozenset()


# ---- measured runs ----


def test_measured_runs_stand_beside_the_predictions(explorer: Explorer, folder: Path) -> None:
    (run,) = read_runs(folder)
    here = run.samples[run.samples["batch"] == 1]
    medians = here.groupby("digest")["ttfo_ns"].median().sort_values()
    cells = re.findall(r"<td>(.*?)</td>", explorer.view.measured.value)
    rows = [cells[i : i + 6] for i in range(0, len(cells), 6)]  # name, median, interval, samples, predicted, error
    predicted = [explorer.source.pricer.predict(run.compositions[d]).ttfo_ns for d in medians.index]
    assert [row[1] for row in rows] == [f"{ns / 1e3:,.1f}" for ns in medians]
    assert [row[4] for row in rows] == [f"{ns / 1e3:,.1f}" for ns in predicted]
    assert [row[3] for row in rows] == [str(synthetic_store.SAMPLES)] * len(medians)


def test_the_composition_at_hand_stands_out_where_it_was_measured(explorer: Explorer) -> None:
    explorer.conventional("replay")
    assert re.search(r"<tr class=wb-here><td>replay</td>", explorer.view.measured.value)
    explorer.cuts = {"codec.up0|codec.conv0"}
    assert "wb-here" not in explorer.view.measured.value
    assert "The composition above is not among them." in explorer.view.measured.value


def test_runs_with_other_parameters_are_left_out(tmp_path: Path) -> None:
    store = synthetic_store.store(tmp_path, batches=(1,))
    (record,) = store.glob("runs/*/run.json")
    record.write_text(record.read_text().replace('"first_frames": 2', '"first_frames": 3'))
    explorer = Explorer({"synthetic": store})
    assert explorer.source.samples.empty
    assert "No measured run at batch 1 on this device" in explorer.view.measured.value


def test_a_damaged_run_is_said_and_predictions_stay(tmp_path: Path) -> None:
    store = synthetic_store.store(tmp_path, batches=(1,))
    (record,) = store.glob("runs/*/run.json")
    record.write_text("{")
    explorer = Explorer({"synthetic": store})
    assert explorer.prediction is not None
    assert "The measured runs cannot be read" in explorer.view.measured.value


def test_names_from_files_are_not_read_as_markup(tmp_path: Path) -> None:
    store = synthetic_store.store(tmp_path, batches=(1,))
    (record,) = store.glob("runs/*/run.json")
    record.write_text(record.read_text().replace('"name": "replay"', '"name": "<script>alert(1)</script>"'))
    explorer = Explorer({"<i>device</i>": store})
    explorer.conventional("replay")
    pages = [explorer.view.measured.value, explorer.view.causes.value, explorer.view.waterfall.children[-1].value]
    assert all("&lt;script&gt;" in page for page in pages)
    assert not any("<script" in page for page in pages)


# ---- models, devices, batches ----


def test_another_batch_is_priced_anew_and_the_cuts_stay(explorer: Explorer) -> None:
    explorer.cuts = {"frames|codec.embed"}
    before = explorer.prediction
    explorer.view.batch.value = 8
    assert explorer.batch == 8
    assert explorer.prediction is not None
    assert before is not None
    assert explorer.prediction.batch == 8
    assert explorer.prediction.composition.digest == before.composition.digest


def test_a_batch_between_the_measured_ones_can_be_set_from_python(explorer: Explorer) -> None:
    explorer.batch = 3
    assert explorer.prediction is not None
    assert explorer.prediction.provenance.value == "interpolated"
    assert "No measured run at batch 3" in explorer.view.measured.value


def test_another_device_keeps_the_cuts_and_runs_them_in_its_own_way(explorer: Explorer) -> None:
    explorer.cuts = {"frames|codec.embed"}
    explorer.device = "gpu"
    assert explorer.error == ""
    assert explorer.prediction is not None
    assert explorer.prediction.device == "h200"
    assert explorer.cuts == {"frames|codec.embed"}
    assert set(explorer.treatments.values()) <= set(explorer.source.pricer.treatments)
    assert "Nothing was measured on this device" in explorer.view.measured.value
    assert explorer.view.timeline.figure.layout.yaxis.ticktext[0] == "launch"


def test_what_goes_wrong_in_a_callback_is_said_in_the_widget(opened: Explorer) -> None:
    opened.device = "nowhere"
    assert opened.error == "no device is called 'nowhere'; there are: synthetic, gpu"
    assert "no device is called &#x27;nowhere&#x27;" in opened.view.error.value
    assert opened.prediction is None
    assert opened.view.drawn.layout.display == "none"
    assert opened.as_text() == opened.error
    opened.device = "synthetic"
    assert opened.view.error.value == ""
    assert opened.prediction is not None
    assert opened.view.drawn.layout.display == ""


def test_a_store_without_benchmarks_is_said(tmp_path: Path) -> None:
    explorer = Explorer({"empty": tmp_path})
    assert "holds no benchmarks; `workbench bench` makes them" in explorer.as_text()
    with pytest.raises(WorkbenchError, match="no device was found"):
        Explorer({})


def test_the_text_says_what_the_widgets_show(explorer: Explorer) -> None:
    explorer.per_stage()
    text = explorer.as_text()
    assert explorer.prediction is not None
    assert f"{explorer.prediction.ttfo_ns / 1e3:,.1f} µs predicted to first output" in text
    assert "cuts: frames@, frames|codec.embed, prefill.layers|frames, talker.argmax|predictor.steps" in text
    assert "monolith 2x1" in text
    assert "<" not in text


def test_a_composition_can_be_taken_over(explorer: Explorer) -> None:
    wanted = from_cuts(PROGRAM, {"frames|codec.embed"}, {"prefill.embed": "2x2", "codec.embed": "eager"})
    explorer.show(wanted)
    assert explorer.composition is not None
    assert Composition(explorer.composition.regions) == wanted
