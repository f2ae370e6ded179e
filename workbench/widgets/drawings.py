"""A plotly figure in a notebook that is redrawn by sending the numbers that changed."""

from __future__ import annotations

from typing import Any

import ipywidgets as w
import plotly.graph_objects as go

NUMBERS = ("x", "y", "base", "text", "measure", "customdata", "name", "visible")
AXES = ("xaxis", "yaxis")


class Drawing(w.Box):
    """Shows one figure at the width there is; ``figure`` is the FigureWidget."""

    def __init__(self, margin: dict[str, int] | None = None) -> None:
        # A FigureWidget keeps its first width unless what holds it may shrink.
        super().__init__(layout={"width": "100%", "min_width": "0", "overflow": "hidden"})
        self.add_class("wb-drawing")
        self.figure: Any = None
        self.margin = margin or {}

    def draw(self, figure: go.Figure) -> None:
        """Show ``figure``; where it has the traces of the one shown, only numbers and captions are sent."""
        figure.update_layout(autosize=True, margin=self.margin, title_text=None)
        mine = None if self.figure is None else [(trace.type, trace.name) for trace in self.figure.data]
        if mine != [(trace.type, trace.name) for trace in figure.data]:
            self.figure = go.FigureWidget(figure)
            self.figure._config = {**self.figure._config, "displaylogo": False, "plotlyServerURL": "", "responsive": True}
            self.children = [self.figure]
            return
        with self.figure.batch_update():
            for old, new in zip(self.figure.data, figure.data, strict=True):
                for key in NUMBERS:
                    if key in new:
                        old[key] = new[key]
            self.figure.layout.height = figure.layout.height
            self.figure.layout.annotations = figure.layout.annotations
            self.figure.layout.yaxis.tickvals = figure.layout.yaxis.tickvals
            self.figure.layout.yaxis.ticktext = figure.layout.yaxis.ticktext
