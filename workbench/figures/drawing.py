"""What all figures share: the palette, names made safe, the check of columns, the frame with its caption.

Colours are Okabe and Ito's (2008), told apart with any common colour vision; bars carry a hatch as well.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

import pandas as pd
import plotly.graph_objects as go

from workbench.errors import WorkbenchError

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
HATCHES = ("", "/", ".", "\\", "x", "-", "|", "+")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down", "cross")
INK, GRID = "#222222", "#E6E9EE"
FONT_SIZE, CAPTION_SIZE, CAPTION_WIDTH = 13, 11, 135


Trace = dict[str, object]  # a part of a figure as plotly.js has it


def safe(name: object) -> str:
    """A name as plotly shows it literally: it reads tags, entities and ``$`` (TeX) in every label."""
    text = str(name).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("$", "&#36;").replace("%{", "%&#123;")


def trace(kind: str, **parts: object) -> Trace:
    """One trace of a figure, of plotly's type ``kind``."""
    return {"type": kind, **parts}


def require(table: pd.DataFrame, columns: Iterable[str], where: str) -> None:
    """Raise WorkbenchError unless ``table`` has rows and every one of ``columns``."""
    if missing := [name for name in columns if name not in table.columns]:
        there = ", ".join(map(str, table.columns)) or "no columns"
        raise WorkbenchError(f"{where}: the table lacks {', '.join(missing)}; it has {there}")
    if table.empty:
        raise WorkbenchError(f"{where}: the table has no rows, so there is nothing to draw")


def colour(rank: int) -> str:
    """The colour of the ``rank``-th thing of a figure."""
    return PALETTE[rank % len(PALETTE)]


def look(rank: int) -> Trace:
    """Colour and hatch of the ``rank``-th kind of bar; the hatch moves on when the colours have run out."""
    hatch = HATCHES[(rank + rank // len(PALETTE)) % len(HATCHES)]
    pattern = {"shape": hatch, "fillmode": "overlay", "fgcolor": "white", "solidity": 0.25, "size": 6}
    return {"color": colour(rank), "pattern": pattern, "line": {"width": 0}}


def ink_on(rank: int) -> str:
    """A colour of text that can be read on ``colour(rank)``."""
    return "white" if rank % len(PALETTE) == 0 else "black"


def origins(table: pd.DataFrame) -> str:
    """The provenances that a table's ``provenance`` column names, as a sentence for the caption."""
    found = list(dict.fromkeys(map(str, table["provenance"])))
    return f"Provenance: {', '.join(found)}."


def ordered(values: Iterable[object]) -> list[str]:
    """Each value once, as text, in order of first appearance."""
    return list(dict.fromkeys(map(str, values)))


def frame(
    traces: Sequence[Trace],
    *,
    title: str,
    x: str,
    y: str,
    caption: Sequence[str],
    height: int,
    legend: bool = True,
    xaxis: Trace | None = None,
    yaxis: Trace | None = None,
    annotations: Sequence[Trace] = (),
    legend_at: Trace | None = None,
    **layout: object,
) -> go.Figure:
    """A figure of ``traces`` with its title, axis titles, legend above the plot and caption below it.

    Made in one go, without a template: every later change of a plotly figure checks and copies much of it again.
    """
    lines = textwrap.wrap(" ".join(part for part in caption if part), CAPTION_WIDTH)
    below = 64 + 15 * len(lines)
    note = {
        "text": "<br>".join(map(safe, lines)), "showarrow": False, "align": "left", "name": "caption",
        "font": {"size": CAPTION_SIZE, "color": "#555555"}, "x": 0, "xref": "paper", "xanchor": "left",
        "y": 0, "yref": "paper", "yanchor": "top", "yshift": -52,
    }  # fmt: skip
    axis = {"automargin": True, "gridcolor": GRID, "zerolinecolor": GRID, "zerolinewidth": 1, "linecolor": GRID}
    common = {
        "template": "none", "showlegend": legend, "plot_bgcolor": "white", "paper_bgcolor": "white",
        "title": {
            "text": safe(title), "x": 0, "xref": "paper", "y": 1, "yref": "container", "yanchor": "top",
            "pad": {"t": 10}, "font": {"size": 16},
        },
        "font": {"family": "Liberation Sans, Arial, Helvetica, sans-serif", "size": FONT_SIZE, "color": INK},
        "height": height + below, "margin": {"l": 80, "r": 25, "t": 70 if legend else 50, "b": below},
        "legend": {
            "orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "font": {"size": 12},
            **(legend_at or {}),
        },
        "xaxis": {**axis, "title": {"text": x, "standoff": 8}, "tickformat": ",", **(xaxis or {})},
        "yaxis": {**axis, "title": {"text": y, "standoff": 8}, "tickformat": ",", **(yaxis or {})},
        "annotations": [*annotations, note],
    }  # fmt: skip
    return go.Figure(data=list(traces), layout=common | layout)
