"""Figures of one composition in time and in the program's text: table in, figure out."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.figures.drawing import INK, blank, colour, frame, ink_on, look, ordered, origins, require, safe

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
    figure = blank()
    kinds = KIND_LOOKS if is_launch.any() else {}
    for kind, marker in kinds.items():
        _lane_bars(figure, spans[is_launch & (spans["stage"] == kind)], f"{kind} launch", dict(marker), 0.5)
    for rank, stage in enumerate(ordered(spans.loc[~is_launch, "stage"])):
        _lane_bars(figure, spans[~is_launch & (spans["stage"] == stage)], stage, look(rank), 0.85)
    lanes = ([-1] if kinds else []) + sorted(used | set(range(workers)))
    shown = float(spans["shown"].iloc[0]) if "shown" in spans else 1.0
    cut_short = "" if shown >= 1 else f"Only the first {shown:.1%} of the time is drawn."
    figure = frame(
        figure, title="Tiles of each worker until the first output", x="time (µs)", y="worker",
        caption=[cut_short, "Simulated. White between bars: waits and overheads.", origins(spans), caption],
        height=70 + 44 * min(len(lanes), 14),
    )  # fmt: skip
    few = lanes if len(lanes) <= 40 else lanes[:: len(lanes) // 20]
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(tickformat=",", rangemode="tozero")
    figure.update_yaxes(
        range=[lanes[-1] + 0.6, lanes[0] - 0.6],
        tickvals=few,
        ticktext=["launch" if lane < 0 else str(lane) for lane in few],
        showgrid=False,
    )
    return figure


def _lane_bars(figure: go.Figure, part: pd.DataFrame, name: str, marker: dict[str, object], width: float) -> None:
    figure.add_bar(
        y=part["lane"].to_numpy().clip(-1), x=(part["end_ns"] - part["begin_ns"]) / 1e3, base=part["begin_ns"] / 1e3,
        orientation="h", name=safe(name), marker=marker, width=width, customdata=[safe(op) for op in part["op_name"]],
        hovertemplate="%{customdata}<br>from %{base:,.2f} µs, %{x:,.2f} µs<extra></extra>", showlegend=True,
    )  # fmt: skip


def composition_strip(table: pd.DataFrame, caption: str = "") -> go.Figure:
    """The chain of operators as boxes as wide as their conventional time, cuts marked; has CHAIN_COLUMNS.

    Colour is the region; conventional regions are hatched. A dashed line is a cut; ``cut_before`` has its name.
    """
    require(table, CHAIN_COLUMNS, "composition_strip")
    right = table["conventional_us"].cumsum()
    left = right - table["conventional_us"]
    figure = blank()
    for region, group in table.groupby("region", sort=True):
        first, rank = group.iloc[0], int(str(region)) - 1
        marker: dict[str, object] = {"color": colour(rank), "line": {"color": "white", "width": 1}}
        text_ink = ink_on(rank)
        if first["kind"] == "conventional":
            pattern = {
                "shape": "/",
                "fillmode": "replace",
                "bgcolor": "white",
                "fgcolor": colour(rank),
                "solidity": 0.25,
                "size": 7,
            }
            marker |= {"pattern": pattern, "line": {"color": colour(rank), "width": 1}}
            text_ink = INK
        how = f"{first['kind']} {first['how']}"
        figure.add_bar(
            x=group["conventional_us"], base=left[group.index], y=[0] * len(group), width=1, orientation="h",
            name=safe(f"{region}. {how}"), marker=marker, text=[safe(op) for op in group["operator"]],
            textangle=-90, textposition="inside", insidetextanchor="middle", insidetextfont={"color": text_ink},
            customdata=[[safe(a), safe(b)] for a, b in zip(group["operator"], group["loops"], strict=True)],
            hovertemplate="%{customdata[0]}<br>%{x:,.1f} µs in all calls<br>%{customdata[1]}<extra></extra>",
        )  # fmt: skip
    for at, cuts in zip(left, table["cut_before"], strict=True):
        if cuts:
            figure.add_shape(
                type="line", x0=at, x1=at, y0=-0.62, y1=0.62, line={"color": INK, "width": 2, "dash": "dash"}
            )
            edges = any(cut.endswith("@") for cut in str(cuts).split())
            figure.add_annotation(
                x=at, y=0.62, text="✂ ↻" if edges else "✂", showarrow=False, yanchor="bottom", font={"size": 12}
            )
    _stage_brackets(figure, table, left, right)
    what = (
        "Dashed: cuts; ↻ a back edge is cut there too. Hatched: conventional. Width: all calls until the first output"
    )
    arm = str(table["arm"].iloc[0])
    figure = frame(
        figure, title="The composition along the program's text", x=f"time of the operators alone, {safe(arm)} (µs)",
        y="", caption=[f"{what}, as {arm} kernels without launch.", origins(table), caption], height=240,
    )  # fmt: skip
    figure.update_layout(barmode="overlay", bargap=0, uniformtext={"minsize": 8, "mode": "hide"})
    figure.update_yaxes(visible=False, range=[-0.95, 0.95])
    figure.update_xaxes(tickformat=",", range=[0, float(right.iloc[-1])])
    return figure


def _stage_brackets(figure: go.Figure, table: pd.DataFrame, left: pd.Series, right: pd.Series) -> None:
    """A line under the boxes of each stage, with its name."""
    gap = float(right.iloc[-1]) / 400
    for stage in ordered(table["stage"]):
        mine = table["stage"] == stage
        start, stop = float(left[mine].min()), float(right[mine].max())
        figure.add_shape(type="line", x0=start + gap, x1=stop - gap, y0=-0.7, y1=-0.7, line={"color": INK, "width": 3})
        figure.add_annotation(
            x=(start + stop) / 2, y=-0.73, text=safe(stage), showarrow=False, yanchor="top", font={"size": 12}
        )
