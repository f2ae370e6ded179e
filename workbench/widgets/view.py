"""What the explorer shows: controls, texts and drawings, and how each is redrawn. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets as w

from workbench.figures import difference_table, tile_timeline, timeline_table, waterfall
from workbench.predict import Prediction, Pricer
from workbench.widgets import texts
from workbench.widgets.controls import WRAP, CutPanel, RegionPanel
from workbench.widgets.drawings import Drawing

TILES_DRAWN = 4_000
SMALL = {"width": "auto", "margin": "2px 4px 2px 0"}


def column(title: str, child: Any, flex: str) -> Any:
    """A titled column that scrolls within itself and may shrink."""
    head = w.HTML(f'<b style="font-size: 12px">{title}</b>')
    inner = w.Box([child], layout={"max_height": "520px", "overflow": "auto", "display": "block"})
    return w.VBox([head, inner], layout={"flex": flex, "min_width": "0"})


class View(w.VBox):
    """The widgets of an explorer, by name, laid out."""

    def __init__(self) -> None:
        choice = {"width": "auto", "margin": "2px 14px 2px 0"}
        self.model = w.Dropdown(description="model", layout=choice, style={"description_width": "initial"})
        self.device = w.Dropdown(description="device", layout=choice, style={"description_width": "initial"})
        self.batch = w.Dropdown(description="batch", layout=choice, style={"description_width": "initial"})
        self.designs = w.Box(layout=WRAP)
        self.everywhere = w.Dropdown(description="all regions:", layout=choice, style={"description_width": "initial"})
        self.headline, self.causes, self.problem, self.error = w.HTML(), w.HTML(), w.HTML(), w.HTML()
        self.also_cut, self.drop_idle = w.Button(layout=SMALL), w.Button(layout=SMALL)
        self.fixes = w.Box([self.also_cut, self.drop_idle], layout=WRAP)
        self.cuts, self.regions = CutPanel(), RegionPanel()
        self.timeline = Drawing({"l": 60, "r": 10, "t": 34, "b": 48})
        self.waterfall = Drawing({"l": 60, "r": 10, "t": 26, "b": 48})
        self.measured = w.HTML()
        self.drawn = w.VBox(
            [self.headline, self.causes, self.timeline, self.waterfall], layout={"width": "100%", "min_width": "0"}
        )
        panels = w.HBox(
            [
                column("Cuts: a pressed boundary is a kernel boundary; ↻ is a loop's back edge", self.cuts, "3 1 0"),
                column("Regions: how each runs", self.regions, "2 1 0"),
            ],
            layout={"width": "100%", "min_width": "0"},
        )
        super().__init__(
            [
                w.HTML(texts.STYLE),
                w.Box([self.model, self.device, self.batch], layout=WRAP),
                w.Box([self.designs, self.everywhere], layout=WRAP),
                panels, self.error, self.problem, self.fixes, self.drawn, self.measured,
            ],
            layout={"width": "100%", "min_width": "0"},
        )  # fmt: skip

    def set_designs(self, actions: Mapping[str, Callable[[], None]]) -> None:
        """Make a button for each of ``actions``."""
        buttons = []
        for name, act in actions.items():
            button = w.Button(description=name, layout=SMALL)
            button.on_click(lambda _, act=act: act())
            buttons.append(button)
        self.designs.children = buttons

    def draw(self, pricer: Pricer, p: Prediction, best: Prediction) -> None:
        """Redraw everything that follows from a legal composition."""
        self.headline.value = texts.headline_html(p, best)
        self.causes.value = texts.html_table(*texts.causes_rows(p, best))
        workers = pricer.device.workers
        spans = timeline_table(pricer, p.composition, TILES_DRAWN)
        self.timeline.draw(tile_timeline(spans, workers=workers), 160 + 44 * min(workers, 14))
        self.waterfall.draw(waterfall(difference_table(best, p), "From the selected best."), 290)

    def refuse(self, problem: str, still_shown: bool, missing: Sequence[str], idle: Sequence[str]) -> None:
        """Show why the cuts are refused, with the two ways out; with ``problem`` empty, that they are not."""
        self.problem.value = texts.problem_html(problem, still_shown)
        for button, verb, names in ((self.also_cut, "also cut", missing), (self.drop_idle, "drop", idle)):
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            button.description, button.tooltip = f"{verb} {shown}", ", ".join(names)
            button.layout.display = "" if names else "none"
        if problem and still_shown:
            self.drawn.add_class("wb-stale")
        else:
            self.drawn.remove_class("wb-stale")
        self.drawn.layout.display = "none" if problem and not still_shown else ""

    def show_measured(self, rows: Mapping[str, Sequence[object]], here: str, note: str) -> None:
        """The measured runs beside their predictions; the composition at hand stands out where it was measured."""
        table = texts.measured_html(rows, here, note)
        self.measured.value = table

    def hide(self) -> None:
        """Show nothing of a composition: there is none for what is chosen."""
        self.drawn.layout.display = "none"
        self.measured.value = ""

    def show_busy(self, text: str) -> None:
        """What is being done, while it takes seconds; an error, or none, takes its place."""
        self.error.value = texts.note_html(text)

    def show_error(self, text: str) -> None:
        """An error in words; nothing where there is none."""
        self.error.value = texts.error_html(text)
