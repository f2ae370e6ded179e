"""A plotly figure in a notebook that is redrawn by sending the numbers that changed."""

from __future__ import annotations

from typing import Any

import anywidget
import ipywidgets as w
import plotly.graph_objects as go

NUMBERS = ("x", "y", "base", "text", "measure", "customdata")


FIT = """
export default {
    render({ el }) {
        let timer = 0, tries = 0, stopped = false;
        const fit = () => {
            const plot = el.parentElement.querySelector(".wb-drawing > *");
            const fits = !plot || !plot._fullLayout || Math.abs(plot._fullLayout.width - plot.clientWidth) < 2;
            tries = fits ? 0 : tries + 1;
            if (!fits && tries < 20) window.dispatchEvent(new Event("resize"));
        };
        const soon = () => { clearTimeout(timer); timer = setTimeout(fit, 150); };
        const resized = new ResizeObserver(soon), redrawn = new MutationObserver(soon);
        const start = () => {
            const room = el.parentElement && el.parentElement.querySelector(".wb-drawing");
            if (room) {
                resized.observe(room);
                redrawn.observe(room, { childList: true, subtree: true });
            } else if (!stopped) requestAnimationFrame(start);
        };
        start();
        return () => { stopped = true; clearTimeout(timer); resized.disconnect(); redrawn.disconnect(); };
    },
};
"""


class Fit(anywidget.AnyWidget):
    """Makes the figure beside it fit its room: plotly draws it before it has one, and then follows the window alone."""

    _esm = FIT


class Drawing(w.VBox):
    """Shows one figure at the width there is and a fixed height; ``figure`` is the FigureWidget."""

    def __init__(self, margin: dict[str, int]) -> None:
        # A FigureWidget does not shrink unless what holds it may.
        self._held = w.Box(layout={"width": "100%", "min_width": "0", "overflow": "hidden"})
        self._held.add_class("wb-drawing")
        self._caption = w.HTML()
        super().__init__([self._held, Fit(), self._caption], layout={"width": "100%", "min_width": "0"})
        self.figure: Any = None
        self.margin = margin

    def draw(self, figure: go.Figure, height: int) -> None:
        """Show ``figure``; where it has the traces of the one shown, only their numbers and the captions are sent."""
        notes = [note.text.replace("<br>", " ") for note in figure.layout.annotations if note.name == "caption"]
        self._caption.value = f'<div class="wb-note">{" ".join(notes)}</div>'  # plotly's text is escaped as HTML is
        figure.layout.annotations = ()
        figure.update_layout(autosize=True, margin=self.margin, title_text=None, height=height)
        if self.figure is None:
            self.figure = go.FigureWidget(figure)
            page = {"displaylogo": False, "plotlyServerURL": "", "responsive": True}
            self.figure._config = {**self.figure._config, **page}
            self._held.children = [self.figure]
            return
        if _names(self.figure) != _names(figure):
            self.figure.data = ()
            self.figure.add_traces(figure.data)
        with self.figure.batch_update():
            for old, new in zip(self.figure.data, figure.data, strict=True):
                for key in NUMBERS:
                    if key in new:
                        old[key] = new[key]
            layout, wanted = self.figure.layout, figure.layout
            layout.height, layout.yaxis.range = height, wanted.yaxis.range
            layout.yaxis.tickvals, layout.yaxis.ticktext = wanted.yaxis.tickvals, wanted.yaxis.ticktext


def _names(figure: go.Figure) -> list[tuple[str, str]]:
    return [(trace.type, trace.name) for trace in figure.data]
