"""Figures of one composition in time and in the program's text: table in, figure out."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import plotly.graph_objects as go

from workbench.figures.drawing import INK, Trace, colour, frame, ink_on, look, ordered, origins, require, safe, trace

TIMELINE_COLUMNS = ("lane", "op_name", "stage", "begin_ns", "end_ns", "provenance")
CHAIN_COLUMNS = (
    "operator", "stage", "loops", "calls", "conventional_us", "arm", "region", "kind", "how", "cut_before",
    "provenance",
)  # fmt: skip
KIND_LOOKS = {
    "megakernel": {"color": INK, "line": {"width": 1, "color": "white"}},
    "conventional": {
        "color": "#BBBBBB", "line": {"width": 1, "color": "white"},
        "pattern": {"shape": "/", "fillmode": "overlay", "fgcolor": INK, "solidity": 0.2, "size": 6},
    },
}  # fmt: skip


def tile_timeline(spans: pd.DataFrame, caption: str = "", workers: int = 0) -> go.Figure:
    """A lane a worker, a bar a tile, coloured and hatched by stage; ``spans`` has TIMELINE_COLUMNS.

    At least ``workers`` lanes are drawn, so that idle ones are seen. Rows of a lane below 0 are launches, drawn on top,
    with their kind as ``stage``. A column ``shown`` below 1 says that the table stops at this share of the time.
    """
    require(spans, TIMELINE_COLUMNS, "tile_timeline")
    is_launch = spans["lane"] < 0
    used = {int(lane) for lane in spans.loc[~is_launch, "lane"].unique()}
    kinds = KIND_LOOKS if is_launch.any() else {}
    traces = [
        _lane_bars(spans[is_launch & (spans["stage"] == kind)], f"{kind} launch", dict(marker), 0.5)
        for kind, marker in kinds.items()
    ]
    for rank, stage in enumerate(ordered(spans.loc[~is_launch, "stage"])):
        traces.append(_lane_bars(spans[~is_launch & (spans["stage"] == stage)], stage, look(rank), 0.85))
    lanes = ([-1] if kinds else []) + sorted(used | set(range(workers)))
    few = lanes if len(lanes) <= 40 else lanes[:: len(lanes) // 20]
    shown = float(spans["shown"].iloc[0]) if "shown" in spans else 1.0
    cut_short = "" if shown >= 1 else f"Only the first {shown:.1%} of the time is drawn."
    return frame(
        traces, title="Tiles of each worker until the first output", x="time (µs)", y="worker", barmode="overlay",
        caption=[cut_short, "Simulated. White between bars: waits and overheads.", origins(spans), caption],
        height=70 + 44 * min(len(lanes), 14), xaxis={"rangemode": "tozero"},
        yaxis={
            "range": [lanes[-1] + 0.6, lanes[0] - 0.6], "tickvals": few, "showgrid": False, "zeroline": False,
            "ticktext": ["launch" if lane < 0 else str(lane) for lane in few],
        },
    )  # fmt: skip


def _lane_bars(part: pd.DataFrame, name: str, marker: Trace, width: float) -> Trace:
    return trace(
        "bar", y=part["lane"].to_numpy().clip(-1), x=(part["end_ns"] - part["begin_ns"]) / 1e3,
        base=part["begin_ns"] / 1e3, orientation="h", name=safe(name), marker=marker, width=width, showlegend=True,
        customdata=[safe(op) for op in part["op_name"]],
        hovertemplate="%{customdata}<br>from %{base:,.2f} µs, %{x:,.2f} µs<extra></extra>",
    )  # fmt: skip


def composition_strip(table: pd.DataFrame, caption: str = "") -> go.Figure:
    """The chain of operators as boxes as wide as their conventional time, cuts marked; has CHAIN_COLUMNS.

    Colour is the region; conventional regions are hollow. A dashed line is a cut; ``cut_before`` has its name.
    """
    require(table, CHAIN_COLUMNS, "composition_strip")
    right = table["conventional_us"].cumsum()
    left = right - table["conventional_us"]
    traces: list[Trace] = []
    for region, group in table.groupby("region", sort=True):
        first, rank = group.iloc[0], int(str(region)) - 1
        hollow = first["kind"] == "conventional"
        line = {"color": colour(rank) if hollow else "white", "width": 1.5 if hollow else 1}
        traces.append(trace(
            "bar", x=group["conventional_us"], base=left[group.index], y=[0] * len(group), width=1, orientation="h",
            name=safe(f"{region}. {first['kind']} {first['how']}"), text=[safe(op) for op in group["operator"]],
            marker={"color": "white" if hollow else colour(rank), "line": line},
            textangle=-90, textposition="inside", insidetextanchor="middle",
            insidetextfont={"color": INK if hollow else ink_on(rank)},
            customdata=[[safe(a), safe(b)] for a, b in zip(group["operator"], group["loops"], strict=True)],
            hovertemplate="%{customdata[0]}<br>%{x:,.1f} µs in all calls<br>%{customdata[1]}<extra></extra>",
        ))  # fmt: skip
    marks = [*_cut_marks(table, left), *_stage_brackets(table, left, right)]
    arm = str(table["arm"].iloc[0])
    what = "Dashed: cuts; ↻ a back edge is cut there too. Hollow: conventional. Width: all calls to the first output"
    return frame(
        traces, title="The composition along the program's text", x=f"time of the operators alone, {safe(arm)} (µs)",
        y="", caption=[f"{what}, as {arm} kernels without launch.", origins(table), caption], height=240,
        shapes=[shape for shape, _ in marks], annotations=[note for _, note in marks], barmode="overlay", bargap=0,
        uniformtext={"minsize": 8, "mode": "hide"}, xaxis={"range": [0, float(right.iloc[-1])]},
        yaxis={"visible": False, "range": [-0.95, 0.95]},
    )  # fmt: skip


def _cut_marks(table: pd.DataFrame, left: pd.Series) -> Iterator[tuple[Trace, Trace]]:
    """A dashed line before each operator that a cut precedes, and its sign."""
    for at, cuts in zip(left, table["cut_before"], strict=True):
        if cuts:
            edge = any(cut.endswith("@") for cut in str(cuts).split())
            line = {"color": INK, "width": 2, "dash": "dash"}
            note = {"x": at, "y": 0.62, "text": "✂ ↻" if edge else "✂", "showarrow": False, "yanchor": "bottom"}
            yield {"type": "line", "x0": at, "x1": at, "y0": -0.62, "y1": 0.62, "line": line}, note


def _stage_brackets(table: pd.DataFrame, left: pd.Series, right: pd.Series) -> Iterator[tuple[Trace, Trace]]:
    """A line under the boxes of each stage, and its name."""
    gap = float(right.iloc[-1]) / 400
    for stage in ordered(table["stage"]):
        mine = table["stage"] == stage
        start, stop = float(left[mine].min()) + gap, float(right[mine].max()) - gap
        note = {"x": (start + stop) / 2, "y": -0.73, "text": safe(stage), "showarrow": False, "yanchor": "top"}
        yield (
            {"type": "line", "x0": start, "x1": stop, "y0": -0.7, "y1": -0.7, "line": {"color": INK, "width": 3}},
            note,
        )
