"""A plotly figure in a notebook that is redrawn by sending the numbers that changed."""

from __future__ import annotations

from typing import Any

import ipywidgets as w
import plotly.graph_objects as go

NUMBERS = ("x", "y", "base", "text", "measure", "customdata")


class Drawing(w.Box):
    """Shows one figure at the width there is and a fixed height; ``figure`` is the FigureWidget."""

    def __init__(self, margin: dict[str, int]) -> None:
        # A FigureWidget keeps its first width unless what holds it may shrink.
        super().__init__(layout={"width": "100%", "min_width": "0", "overflow": "hidden"})
        self.add_class("wb-drawing")
        self.figure: Any = None
        self.margin = margin

    def draw(self, figure: go.Figure, height: int) -> None:
        """Show ``figure``; where it is like the one shown, only numbers, captions and ranges are sent."""
        figure.update_layout(autosize=True, margin=self.margin, title_text=None, height=height)
        if self.figure is None or _kind(self.figure) != _kind(figure):
            self.figure = go.FigureWidget(figure)
            page = {"displaylogo": False, "plotlyServerURL": "", "responsive": True}
            self.figure._config = {**self.figure._config, **page}
            self.children = [self.figure]
            return
        with self.figure.batch_update():
            for old, new in zip(self.figure.data, figure.data, strict=True):
                for key in NUMBERS:
                    if key in new:
                        old[key] = new[key]
            self.figure.layout.annotations = figure.layout.annotations
            self.figure.layout.yaxis.range = figure.layout.yaxis.range


def _kind(figure: go.Figure) -> object:
    """What must agree for one figure to be turned into another by its numbers; plotly stops fitting the width when
    the height is changed."""
    return [(trace.type, trace.name) for trace in figure.data], figure.layout.height
