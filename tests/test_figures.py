"""Figures: what they refuse, that they draw the numbers of their table, their units, and the files they leave."""

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest
import synthetic
import synthetic_store

from workbench import figures
from workbench.compose import Configuration, conventional, cuts_of, from_cuts, monolith, per_stage
from workbench.errors import WorkbenchError
from workbench.figures import plots, timeline
from workbench.models import load_program
from workbench.predict import Pricer
from workbench.search import enumerate_compositions, select

HOSTILE = "<b>bold</b> $x$ %{y} a&b"
FIGURES: dict[str, tuple[Callable[[pd.DataFrame], go.Figure], tuple[str, ...]]] = {
    "ttfo_by_batch": (figures.ttfo_by_batch, plots.TTFO_COLUMNS),
    "predicted_vs_measured": (figures.predicted_vs_measured, plots.SCATTER_COLUMNS),
    "ranking": (figures.ranking, plots.RANKING_COLUMNS),
    "causes_bar": (figures.causes_bar, plots.CAUSES_COLUMNS),
    "waterfall": (figures.waterfall, plots.DIFFERENCE_COLUMNS),
    "tile_timeline": (figures.tile_timeline, timeline.TIMELINE_COLUMNS),
    "composition_strip": (figures.composition_strip, timeline.CHAIN_COLUMNS),
}
TEXTS = {
    "composition": HOSTILE, "shape": HOSTILE, "source": "measured", "provenance": "measured here", "digest": "0123",
    "cause": "event_wait", "base": HOSTILE, "other": HOSTILE, "op_name": HOSTILE, "stage": HOSTILE, "operator": HOSTILE,
    "loops": HOSTILE, "arm": HOSTILE, "kind": "megakernel", "how": HOSTILE, "cut_before": HOSTILE,
}  # fmt: skip


@pytest.fixture(scope="module")
def pricer() -> Pricer:
    program = load_program("demo_tts")
    return Pricer(program, synthetic.device(), synthetic.table(program), 1)


@pytest.fixture
def no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWSER_PATH", "/nowhere/chromium")


def one_row(columns: tuple[str, ...]) -> pd.DataFrame:
    return pd.DataFrame({name: [TEXTS.get(name, True if name == "tied" else 1)] for name in columns})


def drawn(figure: go.Figure, axis: str) -> list[float]:
    return sorted(float(value) for trace in figure.data for value in trace[axis])


@pytest.mark.parametrize("name", FIGURES)
def test_a_table_without_a_column_is_refused_by_name(name: str) -> None:
    draw, columns = FIGURES[name]
    for missing in columns:
        with pytest.raises(WorkbenchError, match=f"{name}: the table lacks {missing}; it has "):
            draw(one_row(columns).drop(columns=missing))


@pytest.mark.parametrize("name", FIGURES)
def test_a_table_without_rows_is_refused(name: str) -> None:
    draw, columns = FIGURES[name]
    with pytest.raises(WorkbenchError, match=f"{name}: the table has no rows"):
        draw(one_row(columns).head(0))


@pytest.mark.parametrize("name", FIGURES)
def test_times_have_their_unit_on_the_axis_and_the_provenance_is_below(name: str) -> None:
    draw, columns = FIGURES[name]
    figure = draw(one_row(columns))
    titles = [figure.layout.xaxis.title.text, figure.layout.yaxis.title.text]
    assert any("(µs)" in title for title in titles)
    caption = next(note.text for note in figure.layout.annotations if note.name == "caption")
    assert "Provenance: measured here." in caption


@pytest.mark.parametrize("name", FIGURES)
def test_names_are_shown_as_they_are_and_not_read_as_markup(name: str) -> None:
    draw, columns = FIGURES[name]
    text = draw(one_row(columns)).to_json()
    assert "bold" in text
    assert "<b>" not in text
    assert "$x$" not in text
    assert "%{y} a" not in text


def test_a_name_is_escaped_for_plotly_once() -> None:
    assert figures.safe("a<b & $c") == "a&lt;b &amp; &#36;c"


def test_a_bar_of_the_timeline_is_a_tile_and_the_last_ends_at_the_time_to_first_output(pricer: Pricer) -> None:
    for composition in (
        monolith(pricer.program, Configuration(2)),
        per_stage(pricer.program, Configuration(2, 2)),
        conventional(pricer.program, "eager"),
        conventional(pricer.program, "replay"),
    ):
        prediction = pricer.predict(composition)
        spans = figures.timeline_table(pricer, composition)
        tiles = spans[spans["lane"] != figures.LAUNCH_LANE]
        assert spans["end_ns"].max() == prediction.ttfo_ns
        assert len(tiles) == prediction.tiles
        assert len(spans) - len(tiles) == sum(region.launches for region in prediction.regions)
        for _, lane in spans.sort_values("begin_ns").groupby("lane"):
            assert (lane["begin_ns"].to_numpy()[1:] >= lane["end_ns"].to_numpy()[:-1]).all()
        figure = figures.tile_timeline(spans)
        assert drawn(figure, "base") == sorted(spans["begin_ns"] / 1e3)
        assert drawn(figure, "x") == sorted((spans["end_ns"] - spans["begin_ns"]) / 1e3)


def test_a_timeline_of_any_composition_of_a_random_program_ends_at_its_prediction() -> None:
    for seed in range(6):
        program = synthetic.program(seed, size=2)
        small = Pricer(program, synthetic.device(seed), synthetic.table(program, seed), 1)
        for _, composition in zip(range(40), enumerate_compositions(small), strict=False):
            assert figures.timeline_table(small, composition)["end_ns"].max() == small.predict(composition).ttfo_ns


@pytest.mark.parametrize("limit", [1, 10, 100])
def test_a_timeline_cut_short_holds_the_earliest_tiles_and_says_so(pricer: Pricer, limit: int) -> None:
    composition = per_stage(pricer.program, Configuration(2))
    whole, spans = (figures.timeline_table(pricer, composition, n) for n in (10_000, limit))
    tiles, all_tiles = (table[table["lane"] != figures.LAUNCH_LANE] for table in (spans, whole))
    assert len(tiles) == limit
    assert sorted(tiles["begin_ns"]) == sorted(all_tiles["begin_ns"])[:limit]
    reached_ns = sorted(all_tiles["begin_ns"])[limit]
    assert spans["shown"].iloc[0] == pytest.approx(reached_ns / whole["end_ns"].max())
    caption = figures.tile_timeline(spans).layout.annotations[-1].text
    assert f"Only the first {spans['shown'].iloc[0]:.1%} of the time is drawn." in caption


def test_idle_workers_have_a_lane(pricer: Pricer) -> None:
    spans = figures.timeline_table(pricer, conventional(pricer.program, "eager"))
    assert list(figures.tile_timeline(spans).layout.yaxis.ticktext) == ["launch", "0"]
    assert list(figures.tile_timeline(spans, workers=2).layout.yaxis.ticktext) == ["launch", "0", "1"]


def test_the_strip_holds_every_operator_once_and_names_every_cut(pricer: Pricer) -> None:
    program = pricer.program
    cuts = {
        "frames@",
        "prefill.layers|frames",
        "frames|codec.embed",
        "talker.argmax|predictor.steps",
        "predictor.steps@",
    }
    composition = from_cuts(program, cuts, {"codec.embed": "replay"}, Configuration(2))
    table = figures.chain_table(pricer, composition)
    assert list(table["operator"]) == list(program.operators())
    assert {cut for cell in table["cut_before"] for cut in cell.split()} == cuts_of(program, composition)
    assert list(table["region"].unique()) == list(range(1, len(composition.regions) + 1))
    assert set(table.loc[table["kind"] == "conventional", "operator"]) == {
        o for o in program.operators() if "codec" in o
    }
    figure = figures.composition_strip(table)
    assert drawn(figure, "x") == sorted(table["conventional_us"])
    assert sum(note.text.startswith("✂") for note in figure.layout.annotations) == (table["cut_before"] != "").sum()


def test_the_steps_of_a_waterfall_lead_from_one_time_to_the_other(pricer: Pricer) -> None:
    base = pricer.predict(monolith(pricer.program, Configuration(2)))
    other = pricer.predict(conventional(pricer.program, "eager"))
    table = figures.difference_table(base, other)
    steps = figures.waterfall(table).data[0]
    assert steps.y[0] == pytest.approx(base.ttfo_ns / 1e3)
    assert sum(steps.y) == pytest.approx(other.ttfo_ns / 1e3)
    assert table["difference_us"].sum() == pytest.approx((other.ttfo_ns - base.ttfo_ns) / 1e3)


def test_predictions_of_two_batches_are_not_taken_apart_against_each_other(pricer: Pricer) -> None:
    table = synthetic.table(pricer.program, batches=(1, 8))
    composition = conventional(pricer.program, "eager")
    a, b = (Pricer(pricer.program, pricer.device, table, batch).predict(composition) for batch in (1, 8))
    with pytest.raises(WorkbenchError, match="at batch 1 and demo_tts on invented at batch 8 are not compared"):
        figures.difference_table(a, b)


def test_the_causes_of_a_bar_sum_to_its_time(pricer: Pricer) -> None:
    prediction = pricer.predict(per_stage(pricer.program, Configuration(2)))
    figure = figures.causes_bar(figures.causes_table([prediction]))
    assert sum(drawn(figure, "x")) == pytest.approx(prediction.ttfo_ns / 1e3)


def test_a_ranking_too_long_keeps_the_named_designs_and_each_keeps_its_place(pricer: Pricer) -> None:
    table = select(pricer).table()
    figure = figures.ranking(table, rows=12)
    names = list(figure.layout.yaxis.categoryarray)
    assert len(names) == 12
    named = table.index[table["composition"] != table["digest"]]
    assert {f"{i + 1}. {table['composition'][i]}" for i in named} <= set(names)


def test_written_files_hold_the_plotted_numbers_the_page_and_the_trail(
    pricer: Pricer, tmp_path: Path, no_browser: None
) -> None:
    source = tmp_path / "source.csv"
    source.write_text("numbers\n")
    spans = figures.timeline_table(pricer, per_stage(pricer.program, Configuration(2)))
    figure = figures.tile_timeline(spans)
    said: list[str] = []
    trail = figures.trail("workbench.figures.tile_timeline", [source], "workbench figures")
    paths = figures.write(figure, spans, tmp_path / "out", "timeline", trail, said.append)
    assert [path.name for path in paths] == ["timeline.csv", "timeline.html", "timeline.json"]
    assert said == [figures.NO_BROWSER]
    read = pd.read_csv(paths[0])
    assert drawn(figure, "base") == sorted(read["begin_ns"] / 1e3)
    assert json.loads(paths[2].read_text()) == {
        "made_by": "workbench.figures.tile_timeline",
        "inputs": {"source.csv": f"sha256:{hashlib.sha256(source.read_bytes()).hexdigest()}"},
        "command": "workbench figures",
    }


def test_a_page_refers_to_nothing_on_a_network(pricer: Pricer, tmp_path: Path) -> None:
    table = figures.causes_table([pricer.predict(conventional(pricer.program, "eager"))])
    page = figures.write_page(figures.causes_bar(table), table, tmp_path, "causes", {})[1].read_text()
    assert re.findall(r"(?:https?:)?//[\w.]+", page) == []
    assert re.findall(r'src="([^"]*)"', page) == ["plotly.min.js"]
    assert (tmp_path / "plotly.min.js").stat().st_size > 1_000_000


def test_writing_twice_gives_the_same_bytes(pricer: Pricer, tmp_path: Path) -> None:
    table = figures.causes_table([pricer.predict(conventional(pricer.program, "eager"))])
    texts = [
        [path.read_bytes() for path in figures.write_page(figures.causes_bar(table), table, tmp_path / n, "causes", {})]
        for n in "ab"
    ]
    assert texts[0] == texts[1]


def test_a_figure_is_not_written_outside_its_folder(tmp_path: Path) -> None:
    with pytest.raises(WorkbenchError, match=r"figure name '\.\./x': expected a plain file name"):
        figures.write_page(go.Figure(), pd.DataFrame(), tmp_path, "../x", {})


def test_pictures_are_drawn_by_the_browser(pricer: Pricer, tmp_path: Path) -> None:
    if figures.browser() is None:
        if os.environ.get("CI"):
            pytest.fail(figures.NO_BROWSER)
        pytest.skip(figures.NO_BROWSER)
    table = figures.causes_table([pricer.predict(conventional(pricer.program, "eager"))])
    said: list[str] = []
    paths = figures.write_pictures([(figures.causes_bar(table), tmp_path / "causes")], said.append)
    assert said == []
    assert [path.suffix for path in paths] == [".pdf", ".svg", ".png"]
    heads = [path.read_bytes()[:8] for path in paths]
    assert heads[0].startswith(b"%PDF")
    assert heads[1].startswith(b"<svg")
    assert heads[2] == b"\x89PNG\r\n\x1a\n"


def test_a_browser_that_does_not_start_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("BROWSER_PATH", str(broken))
    said: list[str] = []
    figure = figures.causes_bar(one_row(plots.CAUSES_COLUMNS))
    assert figures.write_pictures([(figure, tmp_path / "causes")], said.append) == []
    assert len(said) == 1
    assert said[0].startswith(f"PDF, SVG and PNG could not be drawn with {broken}")
    assert "\n" not in said[0]


def test_all_figures_are_made_from_a_store(tmp_path: Path, no_browser: None) -> None:
    folder = synthetic_store.store(tmp_path / "store")
    paths = figures.make_all(tmp_path / "out", folder, lambda line: None)
    names = {path.stem for path in paths}
    assert {
        "ttfo_by_batch",
        "predicted_vs_measured",
        "ranking_batch1",
        "timeline_batch8",
        "composition_batch1",
    } <= names
    assert {path.suffix for path in paths} == {".csv", ".html", ".json"}
    run = "runs/2026-01-01-000000/"
    inputs = json.loads((tmp_path / "out" / "ttfo_by_batch.json").read_text())["inputs"]
    assert sorted(inputs) == ["bench.csv", "device.json", run + "run.json", run + "samples.csv"]
    lines = pd.read_csv(tmp_path / "out" / "ttfo_by_batch.csv")
    assert set(lines["source"]) == {"predicted", "measured"}
    assert set(lines["batch"]) == {1, 8}
    designs = [re.sub(r" \d+x\d+$", "", name) for name in lines["composition"].unique()]
    assert sorted(designs) == ["eager", "monolith", "per-stage", "replay"]
    assert (lines.groupby("composition").size() == 4).all()


def test_a_store_without_runs_gives_the_predicted_figures_and_a_line(tmp_path: Path) -> None:
    folder = synthetic_store.store(tmp_path, batches=(1,), runs=False)
    said: list[str] = []
    first = next(iter(figures.draw_all(folder, said.append)))
    assert first[0] == "ranking_batch1"
    assert said == [f"{folder} holds no measured run of demo_tts: figures of measured times are left out"]
