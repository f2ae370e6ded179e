"""Figures of times by composition: table in, figure out. Each names the columns that it needs, and computes nothing."""

from __future__ import annotations

from itertools import accumulate

import pandas as pd
import plotly.graph_objects as go

from workbench.figures.drawing import INK, SYMBOLS, Trace, colour, frame, look, ordered, origins, require, safe, trace

TTFO_COLUMNS = ("batch", "composition", "source", "ttfo_us", "low_us", "high_us", "provenance")
SCATTER_COLUMNS = (
    "batch", "composition", "shape", "predicted_us", "predicted_low_us", "predicted_high_us",
    "measured_us", "measured_low_us", "measured_high_us", "provenance",
)  # fmt: skip
RANKING_COLUMNS = ("composition", "shape", "ttfo_us", "low_us", "high_us", "tied", "chance", "provenance", "digest")
CAUSES_COLUMNS = ("composition", "batch", "cause", "us", "provenance")
DIFFERENCE_COLUMNS = ("cause", "base_us", "other_us", "difference_us", "base", "other", "provenance")
RANKING_ROWS = 25
CAUSE_ORDER = (  # the greatest parts have the plainest looks
    "compute", "host", "event_wait", "ramp", "tail", "launch", "dispatch", "drain", "weights", "activations",
)  # fmt: skip
TTFO = "time to first output (µs)"


LOG: Trace = {"type": "log", "dtick": "D2"}  # ticks at 1, 2 and 5 of each decade


def _bars(low: pd.Series, middle: pd.Series, high: pd.Series) -> dict[str, object]:
    """Error bars from ``low`` to ``high``."""
    return {
        "type": "data", "array": (high - middle).tolist(), "arrayminus": (middle - low).tolist(), "symmetric": False,
        "thickness": 1.3, "width": 4,
    }  # fmt: skip


def ttfo_by_batch(table: pd.DataFrame, caption: str = "") -> go.Figure:
    """Time to first output against batch, a line a composition and source; ``table`` has TTFO_COLUMNS."""
    require(table, TTFO_COLUMNS, "ttfo_by_batch")
    names = ordered(table["composition"])
    traces: list[Trace] = []
    for (name, source), group in table.groupby(["composition", "source"], sort=False):
        rank, group = names.index(str(name)), group.sort_values("batch")
        predicted = source == "predicted"
        traces.append(trace(
            "scatter", x=group["batch"] * (1 + 0.014 * (rank - (len(names) - 1) / 2)), y=group["ttfo_us"],
            name=safe(f"{name}, {source}"), mode="lines+markers", customdata=group["batch"],
            legendgroup=str(rank), error_y=_bars(group["low_us"], group["ttfo_us"], group["high_us"]),
            line={"color": colour(rank), "dash": "dot" if predicted else "solid", "width": 1.5},
            marker={"symbol": SYMBOLS[rank % len(SYMBOLS)] + ("-open" if predicted else ""), "size": 9},
            hovertemplate="batch %{customdata}: %{y:,.1f} µs",
        ))  # fmt: skip
    batches = sorted(table["batch"].unique().tolist())
    what = (
        "Markers are moved sideways a little, so that bars are told apart. Open markers and dotted lines: predicted, "
        "bars are the central 95 % of the draws. Filled markers and whole lines: measured median, bars are its 95 % "
        "bootstrap interval."
    )
    return frame(
        traces, title="Time to first output by batch", x="batch (requests)", y=TTFO,
        caption=[what, origins(table), caption], height=470, yaxis=LOG,
        xaxis={"type": "log", "tickvals": batches, "ticktext": list(map(str, batches))},
        legend_at={"orientation": "v", "x": 1.02, "y": 1, "yanchor": "top"},
    )  # fmt: skip


def predicted_vs_measured(table: pd.DataFrame, caption: str = "") -> go.Figure:
    """Predicted against measured with the diagonal, a marker a batch and composition; has SCATTER_COLUMNS."""
    require(table, SCATTER_COLUMNS, "predicted_vs_measured")
    shapes = ordered(table["shape"])
    edge = table[["predicted_low_us", "measured_low_us"]].min().min() * 0.85
    top = table[["predicted_high_us", "measured_high_us"]].max().max() * 1.18
    dashed = {"color": INK, "width": 1, "dash": "dash"}
    traces = [trace("scatter", x=[edge, top], y=[edge, top], mode="lines", name="predicted = measured", line=dashed)]
    for (shape, batch), group in table.groupby(["shape", "batch"], sort=False):
        rank = shapes.index(str(shape))
        traces.append(trace(
            "scatter", x=group["measured_us"], y=group["predicted_us"], mode="markers", name=safe(shape),
            legendgroup=str(rank), showlegend=bool(batch == table.loc[table["shape"] == shape, "batch"].iloc[0]),
            error_x=_bars(group["measured_low_us"], group["measured_us"], group["measured_high_us"]),
            error_y=_bars(group["predicted_low_us"], group["predicted_us"], group["predicted_high_us"]),
            marker={"color": colour(rank), "symbol": SYMBOLS[rank % len(SYMBOLS)], "size": 8},
            customdata=[f"{safe(name)}, batch {batch}" for name in group["composition"]],
            hovertemplate="%{customdata}<br>measured %{x:,.1f} µs, predicted %{y:,.1f} µs<extra></extra>",
        ))  # fmt: skip
    return frame(
        traces, title="Predicted against measured time to first output",
        x="measured " + TTFO, y="predicted " + TTFO, height=520,
        caption=[
            "Across: measured median and its 95 % bootstrap interval. Up: predicted, the central 95 % of the draws.",
            origins(table), caption,
        ],
        xaxis={**LOG, "constrain": "domain"}, yaxis={**LOG, "constrain": "domain", "scaleanchor": "x"},
    )  # fmt: skip


def ranking(table: pd.DataFrame, caption: str = "", rows: int = RANKING_ROWS) -> go.Figure:
    """The shortlist of a selection, fastest on top, ties filled; ``table`` has RANKING_COLUMNS.

    Of more than ``rows``, the named designs and the fastest of the others are drawn, each with its place.
    """
    require(table, RANKING_COLUMNS, "ranking")
    shown = table.assign(place=range(1, len(table) + 1), unnamed=table["composition"] == table["digest"])
    shown = shown.sort_values("unnamed", kind="stable").head(rows).sort_values("place")
    unnamed = shown["unnamed"]
    title = shown["composition"].where(~unnamed, shown["shape"] + " " + shown["digest"].str[:6])
    names = [f"{place}. {safe(name)}" for place, name in zip(shown["place"], title, strict=True)]
    traces: list[Trace] = []
    for tied, label, ink in ((True, "tied with the best", colour(0)), (False, "slower, resolved", colour(5))):
        mine = shown["tied"].to_numpy(bool) == tied
        part = shown[mine]
        traces.append(trace(
            "scatter", x=part["ttfo_us"], y=[name for name, is_mine in zip(names, mine, strict=True) if is_mine],
            mode="markers", name=label, error_x=_bars(part["low_us"], part["ttfo_us"], part["high_us"]),
            marker={"size": 9, "color": ink, "symbol": "circle" if tied else "square-open"}, customdata=part["chance"],
            hovertemplate="%{x:,.1f} µs, fastest in %{customdata:.0%} of draws<extra></extra>",
        ))  # fmt: skip
    what = f"{len(shown)} of a shortlist of {len(table)}; {int(table['tied'].sum())} tied with the best."
    what += " Bars: the central 95 % of the draws of each alone; ties are judged on differences, so bars may overlap."
    return frame(
        traces, title="Which composition is fastest, and which are not told apart", x="predicted " + TTFO,
        y="composition", caption=[what, origins(table), caption], height=120 + 21 * len(shown), xaxis=LOG,
        yaxis={"categoryorder": "array", "categoryarray": names, "autorange": "reversed", "tickfont": {"size": 11}},
    )  # fmt: skip


def causes_bar(table: pd.DataFrame, caption: str = "") -> go.Figure:
    """Where the time goes, a stacked bar a composition; ``table`` has CAUSES_COLUMNS."""
    require(table, CAUSES_COLUMNS, "causes_bar")
    several = table["batch"].nunique() > 1
    bars = table["composition"].astype(str) + (", batch " + table["batch"].astype(str) if several else "")
    traces: list[Trace] = []
    for cause in ordered(table["cause"]):
        part = table["cause"] == cause
        rank = CAUSE_ORDER.index(cause) if cause in CAUSE_ORDER else len(CAUSE_ORDER)
        if table.loc[part, "us"].any():
            traces.append(trace(
                "bar", y=[safe(bar) for bar in bars[part]], x=table.loc[part, "us"],
                name=safe(cause.replace("_", " ")), orientation="h", marker=look(rank), hovertemplate="%{x:,.1f} µs",
            ))  # fmt: skip
    return frame(
        traces, title="Where the time to first output goes, along the critical path", x="predicted " + TTFO,
        y="composition", caption=["The causes of a bar sum to its time.", origins(table), caption],
        height=110 + 30 * bars.nunique(), yaxis={"autorange": "reversed"}, barmode="stack", bargap=0.25,
        legend_at={"traceorder": "normal"},
    )  # fmt: skip


def waterfall(table: pd.DataFrame, caption: str = "") -> go.Figure:
    """Why one composition differs from another, a step a cause; ``table`` has DIFFERENCE_COLUMNS."""
    require(table, DIFFERENCE_COLUMNS, "waterfall")
    base, other = str(table["base"].iloc[0]), str(table["other"].iloc[0])
    table = table[(table["base_us"] != 0) | (table["other_us"] != 0)]
    steps = table["difference_us"].tolist()
    total = float(table["base_us"].sum())
    steps_drawn = trace(
        "waterfall",
        name="difference", x=["from", *(safe(cause.replace("_", " ")) for cause in table["cause"]), "to"],
        y=[total, *steps, 0.0], measure=["absolute", *["relative"] * len(steps), "total"],
        text=[f"{total:,.1f}", *(f"{step:+,.1f}" if step else "0" for step in steps), f"{total + sum(steps):,.1f}"],
        textposition="outside", cliponaxis=False, hovertemplate="%{x}: %{text} µs<extra></extra>",
        connector={"line": {"color": INK, "width": 0.7}}, increasing={"marker": {"color": colour(5)}},
        decreasing={"marker": {"color": colour(2)}}, totals={"marker": {"color": colour(0)}},
    )  # fmt: skip
    reached = list(accumulate(steps, initial=total))
    span = max(reached) - min(reached)
    floor = min(reached) - 2 * span if 0 < 3 * span < min(reached) else 0.0
    cut = f"The axis starts at {floor:,.0f} µs, so that the steps are seen." if floor else ""
    return frame(
        [steps_drawn], title="What the difference is made of", x="cause", y=TTFO, height=300, legend=False,
        caption=[f"From: {base}. To: {other}. Signed steps in µs.", cut, origins(table), caption],
        yaxis={"range": [floor, max(reached) + 0.12 * (max(reached) - floor)]},
    )  # fmt: skip
