"""The check: every published row predicted that can be, nothing refitted, beside naive models and constant guesses.

Times are compared as times, rates and multiples of real time turned into them, so that a positive error is a prediction
that is too slow; of a ratio (conventional over megakernel), one that favours the megakernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from workbench.errors import CompositionError, MeasureError
from workbench.published.cases import Case
from workbench.published.explain import explain
from workbench.published.mapping import CALIBRATION, MODELS, REASONS, case_of, found
from workbench.published.pairs import CALLED, CLOSE_FRAC, pair_records
from workbench.published.parts import family_of
from workbench.published.predicted import Predicted, Predictor
from workbench.published.rows import NS, Row, duplicates, read_rows

if TYPE_CHECKING:
    import pandas as pd

ESTIMATES = {"predicted": "workbench", "naive": "naive", "naive_whole": "naive as published", "guess": "constant guess"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A row and what became of it: ``predicted``, ``calibration``, ``duplicate`` or a key of REASONS."""

    row: Row
    status: str
    case: Case | None = None
    predicted: Predicted | None = None


def published_value(row: Row, case: Case) -> float:
    """A row's value as it is compared: ns, or a ratio."""
    number = row.number
    if number is None or number <= 0:
        raise MeasureError(f"{row.table} line {row.line}: {row.value!r} is not a positive number")
    match row.scale:
        case "time":
            return number * NS[row.unit.partition(" ")[0].partition("/")[0]]
        case "rate":
            return case.batch * 1e9 / number
        case "xrt":
            return case.audio_ns / number
        case "rtf":
            return case.audio_ns * number
        case "ratio":
            return number
    raise MeasureError(f"{row.table} line {row.line}: a value in {row.unit!r} cannot be compared with a time")


@dataclass(frozen=True)
class Check:
    """All rows with what became of them."""

    entries: tuple[Entry, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Rows by status, those of REASONS last; they add up to all rows."""
        order = ["predicted", "calibration", "duplicate", *REASONS]
        return {status: sum(entry.status == status for entry in self.entries) for status in order}

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each that has a prediction; those used for calibration are not ``counted``.

        Times in µs, or ratios (``quantity``); ``…_error_pct`` of each estimate against ``published``.
        """
        import pandas as pd

        table = pd.DataFrame(
            [_record(e.row, e.status, e.case, e.predicted) for e in self.entries if e.case and e.predicted]
        )
        if table.empty:
            raise MeasureError(f"none of {len(self.entries)} published rows is covered; the counts say why")
        table["guess"] = _guesses(table)
        for estimate in ESTIMATES:
            table[f"{estimate}_error_pct"] = 100 * (table[estimate] / table["published"] - 1)
        return table

    @property
    def counted(self) -> pd.DataFrame:
        """The rows of ``table`` that count as predicted."""
        return self.table[self.table["counted"]]

    def summary(self) -> pd.DataFrame:
        """Errors by estimate and scope (all, family, kind): absolute and signed medians in %, and the median factor.

        The factor is the larger of estimate and published over the smaller: 2 is off by two, either way. ``inside`` is
        the share of published values within the predicted interval.
        """
        import pandas as pd

        scopes = _scopes(self.counted, family="family", kind="kind")
        return pd.DataFrame([_errors(scope, group) for scope, group in scopes])

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """``pair_records`` of the rows that count."""
        import pandas as pd

        return pd.DataFrame(pair_records(self.counted))

    def pair_summary(self) -> pd.DataFrame:
        """Winners called rightly, % of the pairs that have one, by scope (all, choice, family, kinds)."""
        import pandas as pd

        if self.pairs.empty:
            return pd.DataFrame(columns=["scope", "pairs", *CALLED])
        scored = self.pairs[~self.pairs["close"]]
        return pd.DataFrame(
            {"scope": scope, "pairs": len(group), **{who: 100 * group[f"{who}_right"].mean() for who in CALLED}}
            for scope, group in _scopes(scored, choice="", family="family", kinds="")
        )

    def worst(self, count: int = 10, kind: str = "") -> pd.DataFrame:
        """The rows that are most off (of one kind), and what would make up for it: see ``explain``.

        ``ratio`` is predicted over published, ``naive_ratio`` the same of the naive model.
        """
        of_kind = self.counted[self.counted["kind"] == kind] if kind else self.counted
        off = np.abs(np.log((of_kind["predicted"] / of_kind["published"]).to_numpy()))
        chosen = of_kind.iloc[np.argsort(-off, kind="stable")[:count]]
        columns = ["table", "line", "model", "device", "batch", "subject", "kind", "published", "predicted"]
        ratio = chosen["predicted"] / chosen["published"]
        naive = chosen["naive"] / chosen["published"]
        return chosen[columns].assign(
            ratio=ratio, naive_ratio=naive, effect=chosen["effect"], arithmetic=chosen["arithmetic"]
        )

    def effects(self) -> pd.DataFrame:
        """What would make up for the errors, by effect, kind and device: rows, and the median of µs each."""
        grouped = self.counted.groupby(["effect", "kind", "device"])["each_us"]
        return grouped.agg(["size", "median"]).set_axis(["rows", "each_us"], axis=1).reset_index()

    def _calibration(self) -> list[str]:
        said = "calibration: {system}, {published:,.1f} µs published, {predicted:,.1f} predicted"
        return [said.format_map(row) for row in self.table[~self.table["counted"]].to_dict("records")]

    def __str__(self) -> str:
        counts, closed = self.counts, int(self.pairs["close"].sum()) if len(self.pairs) else 0
        left = ", ".join(f"{count} {reason}" for reason, count in counts.items() if reason in REASONS and count)
        shown = ["scope", "rows", "inside", *(f"workbench {what}" for what in ("|%|", "%", "factor"))]
        shown += [f"{name} {what}" for name in ("naive", "constant guess") for what in ("|%|", "factor")]
        return "\n".join(
            (
                f"{len(self.entries)} published rows: {counts['predicted']} predicted, {counts['calibration']} used for"
                f" calibration (not counted), {counts['duplicate']} said twice; not covered: {left or 'none'}",
                *self._calibration(),
                "median errors, absolute and signed, in %, and factors:",
                self.summary()[shown].round(2).to_string(index=False),
                f"winners of pairs, % called rightly ({closed} pairs within {CLOSE_FRAC:.0%} left out):",
                self.pair_summary().round(1).to_string(index=False),
            )
        )


def published_check(rows: Sequence[Row] | None = None, predictor: Predictor | None = None) -> Check:
    """Predict every row that is covered; by default of the shipped tables. No published value reaches a prediction."""
    rows, predictor = list(read_rows() if rows is None else rows), predictor or Predictor()
    twice = duplicates(rows)
    entries = []
    for row in rows:
        case = case_of(row)
        if row in twice:
            entries.append(Entry(row, "duplicate"))
        elif isinstance(case, str):
            entries.append(Entry(row, case))
        else:
            status = "calibration" if found(CALIBRATION, row) else "predicted"
            try:
                entries.append(Entry(row, status, case, predictor.predict(case)))
            except CompositionError:
                entries.append(Entry(row, "illegal", case))
    return Check(tuple(entries))


def rows_of(model: str, rows: Sequence[Row]) -> list[Row]:
    """The rows whose case is of this model; MeasureError names the models that there are."""
    cases = [(row, case) for row in rows if not isinstance(case := case_of(row), str)]
    names = {row: {term.part.model for term in case.terms} for row, case in cases}
    if chosen := [row for row, named in names.items() if model in named]:
        return chosen
    known = ", ".join(sorted(set().union(*names.values())))
    raise MeasureError(f"no published row that is covered is of {model!r:.80}; there are rows of {known}")


def _record(row: Row, status: str, case: Case, predicted: Predicted) -> dict[str, object]:
    published, unit = published_value(row, case), 1.0 if case.over else 1e3
    why, (low, high) = explain(predicted, published), predicted.interval
    assumed = (term.part.program().assumed for term in case.terms)
    return {
        "table": row.table, "line": row.line, "source": row.source, "model": row.model, "device": case.device,
        "batch": case.batch, "what": row.what, "system": row.system, "metric": row.metric, "value": row.value,
        "unit": row.unit, "family": _family(row), "kind": "ratio" if case.over else predicted.below.kind,
        "over_kind": predicted.over.kind if predicted.over else "", "below_kind": predicted.below.kind,
        "subject": case.subject, "quantity": "ratio" if case.over else "us", "published": published / unit,
        "predicted": predicted.value / unit, "low": low / unit, "high": high / unit, "naive": predicted.naive / unit,
        "naive_whole": predicted.naive_whole / unit, "floor": predicted.floor / unit, "counted": status == "predicted",
        "provenance": predicted.below.provenance.value, "effect": why.effect, "each_us": why.each_us,
        "arithmetic": why.arithmetic, "note": "; ".join(dict.fromkeys(filter(None, (*case.notes, *assumed)))),
    }  # fmt: skip


def _family(row: Row) -> str:
    return next(family_of(key) for pattern, key, _ in MODELS if re.search(pattern, row.model))


def _guesses(table: pd.DataFrame) -> list[float]:
    """DRAM's least time, times the median of all other counted rows' published over theirs; ratios among themselves."""
    factor = (table["published"] / table["floor"]).to_numpy()
    counted, quantity = table["counted"].to_numpy(), table["quantity"].to_numpy()
    guesses = []
    for i, floor in enumerate(table["floor"]):
        others = counted & (quantity == quantity[i]) & (np.arange(len(table)) != i)
        guesses.append(float(floor * np.median(factor[others])) if others.any() else float("nan"))
    return guesses


def _scopes(table: pd.DataFrame, **columns: str) -> list[tuple[str, pd.DataFrame]]:
    """All rows, then those of each value of each column, its name after a prefix."""
    found = [("all", table)]
    for column, prefix in columns.items():
        found += [(f"{prefix} {name}".strip(), group) for name, group in table.groupby(column)]
    return found


def _errors(scope: str, group: pd.DataFrame) -> dict[str, object]:
    inside = (group["low"] <= group["published"]) & (group["published"] <= group["high"])
    errors: dict[str, object] = {"scope": scope, "rows": len(group), "inside": inside.mean()}
    for estimate, name in ESTIMATES.items():
        error = group[f"{estimate}_error_pct"]
        off = np.abs(np.log((group[estimate] / group["published"]).to_numpy()))
        errors |= {
            f"{name} |%|": error.abs().median(),
            f"{name} %": error.median(),
            f"{name} factor": np.exp(np.median(off)),
        }
    return errors
