"""What the explorer says, as HTML and as plain text; every name is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

import numpy as np
import pandas as pd

from workbench.compare import median_interval_ns
from workbench.figures import title_of
from workbench.predict import Prediction

STYLE = """<style>
.wb-headline {font-size: 15px; line-height: 1.5} .wb-headline b {font-size: 20px}
.wb-problem {border-left: 4px solid #D55E00; padding: 4px 10px; background: rgba(213, 94, 0, .08); line-height: 1.45}
.wb-note {opacity: .75; font-size: 12px; line-height: 1.45}
.wb-stale {opacity: .35}
table.wb {border-collapse: collapse; font-size: 12px; line-height: 1.4}
table.wb th, table.wb td {padding: 2px 9px; text-align: right; border-bottom: 1px solid rgba(128, 128, 128, .3)}
table.wb th:first-child, table.wb td:first-child {text-align: left}
table.wb tr.wb-here td {font-weight: bold; background: rgba(0, 114, 178, .14)}
.wb-cuts .widget-toggle-button {font-size: 11px; height: 24px; line-height: 22px; padding: 0 8px}
.wb-drawing > * {width: 100%; min-width: 0; flex: 1 1 auto}
</style>"""

Rows = Sequence[Sequence[object]]


def html_table(columns: Sequence[str], rows: Rows, here: int | None = None) -> str:
    """A table of escaped text; row ``here`` stands out."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr{' class=wb-here' if i == here else ''}>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>"
        for i, row in enumerate(rows)
    )
    return f'<div style="overflow-x: auto"><table class="wb"><tr>{head}</tr>{body}</table></div>'


def text_table(columns: Sequence[str], rows: Rows) -> str:
    """The same table as text."""
    return pd.DataFrame([list(map(str, row)) for row in rows], columns=list(columns)).to_string(index=False)


def microseconds(ns: float) -> str:
    """``1,234.5`` of 1,234,500 ns."""
    return f"{ns / 1e3:,.1f}"


def headline(p: Prediction, best: Prediction) -> list[str]:
    """The prediction in words: its time, what it is, and how it stands to the selected best."""
    low, high = p.interval_ns
    regions = len(p.composition.regions)
    against = p.ttfo_ns / best.ttfo_ns - 1
    standing = "the selected best" if against == 0 else f"{against:+.1%} against the selected best"
    further = f"; {p.throughput_per_s:,.1f} further outputs/s" if p.throughput_per_s else ""
    return [
        f"{microseconds(p.ttfo_ns)} µs",
        f"predicted to first output ({microseconds(low)} to {microseconds(high)}, 95 %), {standing}",
        f"{p.composition.shape}, {regions} region{'s' if regions > 1 else ''}, {p.tiles:,} tiles, {p.events:,} events, "
        f"{p.serial_stages} serial stages{further}",
        f"{p.program} on {p.device}, batch {p.batch}; provenance: {p.provenance.value}",
        *p.notes,
    ]


def headline_html(p: Prediction, best: Prediction) -> str:
    """``headline`` as HTML."""
    time, what, *notes = map(escape, headline(p, best))
    small = "".join(f'<div class="wb-note">{note}</div>' for note in notes)
    return f'<div class="wb-headline"><b class="wb-ttfo">{time}</b> {what}</div>{small}'


def problem_html(problem: str, still_shown: bool) -> str:
    """Why a composition is refused; nothing where it is not."""
    if not problem:
        return ""
    below = "<br>Greyed below: the last legal composition." if still_shown else ""
    return f'<div class="wb-problem"><b>Refused.</b> {escape(problem)}{below}</div>'


def note_html(text: str) -> str:
    """A line in small print."""
    return f'<div class="wb-note">{escape(text)}</div>'


def error_html(text: str) -> str:
    """What went wrong while reacting, in words; nothing where nothing did."""
    return f'<div class="wb-problem"><b>This could not be shown.</b> {escape(text)}</div>' if text else ""


def causes_rows(p: Prediction, best: Prediction) -> tuple[list[str], list[list[object]]]:
    """Columns and rows of the causes of a prediction and of the selected best; what neither has is left out."""
    names = [cause for cause, ns in p.causes_ns.items() if ns or best.causes_ns[cause]]
    columns = ["µs", *(name.replace("_", " ") for name in names), "sum"]
    rows: list[list[object]] = []
    for what, prediction in (("this", p), (f"selected best: {title_of(best.composition)}", best)):
        parts = [microseconds(prediction.causes_ns[name]) for name in names]
        rows.append([what, *parts, microseconds(prediction.ttfo_ns)])
    return columns, rows


MEASURED_COLUMNS = ("composition", "measured µs (median)", "95 %", "samples", "predicted µs", "error")


def measured_rows(samples: pd.DataFrame, batch: int, predicted: Mapping[str, Prediction]) -> dict[str, list[object]]:
    """A row of MEASURED_COLUMNS for each composition measured at ``batch``, by digest, fastest first."""
    found: list[tuple[float, str, list[object]]] = []
    for digest, group in samples[samples["batch"] == batch].groupby("digest"):
        times = group["ttfo_ns"].to_numpy()
        median, (low, high) = float(np.median(times)), median_interval_ns(times)
        p = predicted.get(str(digest))
        beside = [microseconds(p.ttfo_ns), f"{p.ttfo_ns / median - 1:+.1%}"] if p else ["no figures", ""]
        name = title_of(p.composition) if p else str(digest)
        interval = f"{microseconds(low)} to {microseconds(high)}"
        found.append((median, str(digest), [name, microseconds(median), interval, len(times), *beside]))
    return {digest: row for _, digest, row in sorted(found, key=lambda entry: entry[:2])}


def measured_html(rows: Mapping[str, Sequence[object]], here: str, note: str) -> str:
    """The table of ``measured_rows``; the composition with digest ``here`` stands out, or is said not to be there."""
    place = list(rows).index(here) if here in rows else None
    absent = "" if place is not None or not rows else " The composition above is not among them."
    table = html_table(MEASURED_COLUMNS, list(rows.values()), place) if rows else ""
    return f'<b style="font-size: 12px">Measured beside predicted</b>{table}{note_html(note + absent)}'


def as_text(
    p: Prediction, best: Prediction, problem: str, cuts: Iterable[str], rows: Mapping[str, Sequence[object]], note: str
) -> str:
    """All of the above as plain text."""
    parts = [f"Refused. {problem}\nThe last legal composition:"] if problem else []
    lines = headline(p, best)
    parts += [" ".join(lines[:2]), *lines[2:], str(p.composition), "cuts: " + (", ".join(sorted(cuts)) or "none")]
    parts.append(text_table(*causes_rows(p, best)))
    if rows:
        parts.append(text_table(MEASURED_COLUMNS, list(rows.values())))
    return "\n".join([*parts, note])
