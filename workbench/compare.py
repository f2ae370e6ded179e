"""Predictions against measured runs: error, order, regret, and whether there is skill over constant guesses.

Regret is the measured time of a pick over the measured best, minus one: 0 is a perfect pick. Constant guesses pick
one design always; a predictor that does not beat the best of them has no skill, whatever its error. Only compositions
that were measured take part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from workbench.errors import MeasureError
from workbench.measure.store import all_samples, load_bench
from workbench.predict import Prediction, Pricer
from workbench.program import Program
from workbench.search import select

BOOTSTRAPS = 500
CONSTANT_GUESSES = ("always monolith", "always conventional", "always a megakernel a stage")


@dataclass(frozen=True, slots=True)
class Comparison:
    """``table``: a row a batch and composition. ``by_batch``: a row a batch with error, order and regrets.

    ``bias_frac`` is the mean of predicted / measured - 1, ``mape`` the mean of its absolute value, ``rank`` Spearman's
    correlation within a batch. ``verdict`` is one sentence about skill.
    """

    table: pd.DataFrame
    by_batch: pd.DataFrame
    verdict: str

    def __str__(self) -> str:
        shown = self.by_batch.round(3).to_string(index=False)
        return f"{shown}\n{self.verdict}"


def compare(
    predictions: Mapping[int, list[Prediction]], samples: pd.DataFrame, tied: Mapping[int, set[str]]
) -> Comparison:
    """Compare predictions by batch with measured samples (columns batch, digest, ttfo_ns).

    ``tied`` has the digests of each batch's predicted tie set.
    """
    rows: list[dict[str, object]] = []
    summaries: list[dict[str, object]] = []
    leads: dict[str, list[np.ndarray]] = {what: [] for what in CONSTANT_GUESSES}
    for batch, predicted in sorted(predictions.items()):
        measured = {d: g["ttfo_ns"].to_numpy() for d, g in samples[samples["batch"] == batch].groupby("digest")}
        both = [p for p in predicted if p.composition.digest in measured]
        if len(both) < 2:
            raise MeasureError(
                f"batch {batch}: {len(both)} of {len(predicted)} predicted compositions were measured; "
                "at least 2 are needed to compare"
            )
        times = [measured[p.composition.digest] for p in both]
        rows.extend(_row(batch, p, t) for p, t in zip(both, times, strict=True))
        summary, lead = _summary(batch, both, times, tied.get(batch, set()))
        summaries.append(summary)
        for what, drawn in lead.items():
            leads[what].append(drawn)
    by_batch = pd.DataFrame(summaries)
    return Comparison(pd.DataFrame(rows), by_batch, _verdict(by_batch, leads))


def median_interval_ns(times: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval (percentile) of the median; the value itself where there is one sample."""
    if len(times) < 2:
        return float(times[0]), float(times[0])
    resampled = np.random.default_rng(0).choice(times, (BOOTSTRAPS, len(times)))
    low, high = np.quantile(np.median(resampled, axis=1), [0.025, 0.975])
    return float(low), float(high)


def _row(batch: int, p: Prediction, times: np.ndarray) -> dict[str, object]:
    low, high = median_interval_ns(times)
    measured = float(np.median(times))
    return {
        "batch": batch,
        "composition": p.composition.name or p.composition.digest,
        "shape": p.composition.shape,
        "predicted_us": p.ttfo_ns / 1e3,
        "predicted_low_us": p.interval_ns[0] / 1e3,
        "predicted_high_us": p.interval_ns[1] / 1e3,
        "measured_us": measured / 1e3,
        "measured_low_us": low / 1e3,
        "measured_high_us": high / 1e3,
        "error_frac": p.ttfo_ns / measured - 1,
        "samples": len(times),
        "provenance": p.provenance.value,
        "digest": p.composition.digest,
    }


def _guess(predictions: list[Prediction], medians: np.ndarray, what: str) -> int | None:
    """The best measured design of a constant guess's kind, which stands for it; None if none was measured."""
    names = [p.composition.name for p in predictions]
    shapes = [p.composition.shape for p in predictions]
    if what == "always monolith":
        mine = [i for i, shape in enumerate(shapes) if shape == "monolith"]
    elif what == "always conventional":
        mine = [i for i, shape in enumerate(shapes) if shape == "conventional"]
    else:
        mine = [i for i, name in enumerate(names) if name.startswith("per-stage")]
    return min(mine, key=lambda i: float(medians[i])) if mine else None


def _rank(predicted: np.ndarray, medians: np.ndarray) -> float:
    """Spearman's correlation; NaN where either has one value only, so that there is no order to compare."""
    if len(set(predicted)) == 1 or len(set(medians)) == 1:
        return float("nan")
    return float(stats.spearmanr(predicted, medians).statistic)


def _summary(
    batch: int, predictions: list[Prediction], times: list[np.ndarray], tied: set[str]
) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """A batch's row, and by constant guess the draws (BOOTSTRAPS,) of the pick's regret minus the guess's."""
    predicted = np.array([p.ttfo_ns for p in predictions], np.float64)
    medians = np.array([np.median(t) for t in times])
    pick, best = int(predicted.argmin()), int(medians.argmin())
    error = predicted / medians - 1
    rng = np.random.default_rng(batch)
    drawn = np.array([np.median(rng.choice(t, (BOOTSTRAPS, len(t))), axis=1) for t in times])
    regret = drawn[pick] / drawn.min(axis=0) - 1
    spread = np.quantile(drawn - drawn[best], 0.025, axis=1)
    guesses = {what: _guess(predictions, medians, what) for what in CONSTANT_GUESSES}
    leads = {w: (drawn[pick] - drawn[i]) / drawn.min(axis=0) for w, i in guesses.items() if i is not None}
    row: dict[str, object] = {
        "batch": batch,
        "compositions": len(predictions),
        "bias_frac": error.mean(),
        "mape": np.abs(error).mean(),
        "rank": _rank(predicted, medians),
        "picked": predictions[pick].composition.name or predictions[pick].composition.digest,
        "measured_best": predictions[best].composition.name or predictions[best].composition.digest,
        "measured_tied": int((spread <= 0).sum()),
        "best_in_tie_set": predictions[best].composition.digest in tied or best == pick,
        "regret": medians[pick] / medians[best] - 1,
        "regret_low": np.quantile(regret, 0.025),
        "regret_high": np.quantile(regret, 0.975),
        **{f"regret {w}": None if i is None else float(medians[i] / medians[best] - 1) for w, i in guesses.items()},
    }
    return row, leads


def _verdict(by_batch: pd.DataFrame, leads: Mapping[str, list[np.ndarray]]) -> str:
    """One sentence: skill, or worse, where the draws of the mean difference to the best guess leave no doubt."""
    mine = float(by_batch["regret"].mean())
    low, high = float(by_batch["regret_low"].mean()), float(by_batch["regret_high"].mean())
    guesses = {
        what: float(by_batch[f"regret {what}"].astype(float).mean())
        for what in CONSTANT_GUESSES
        if by_batch[f"regret {what}"].notna().all()
    }
    if not guesses:
        return f"mean regret {mine:.1%}; no constant guess was measured at every batch, so skill cannot be judged"
    what, best = min(guesses.items(), key=lambda item: item[1])
    batches = ", ".join(map(str, by_batch["batch"]))
    behind, ahead = np.quantile(np.mean(leads[what], axis=0), [0.025, 0.975])
    if ahead < 0:
        return (
            f"skill: mean regret {mine:.1%} ({low:.1%} to {high:.1%}) against {best:.1%} for {what}, batches {batches}"
        )
    if behind > 0:
        return (
            f"worse than {what}: mean regret {mine:.1%} ({low:.1%} to {high:.1%}) against {best:.1%}, batches {batches}"
        )
    return (
        f"no skill over {what} is shown: mean regret {mine:.1%} ({low:.1%} to {high:.1%}) against {best:.1%}, "
        f"a difference within the noise of the measurements, batches {batches}"
    )


def compare_store(folder: Path, program: Program) -> Comparison:
    """Compare all of a store's measured runs of a program with what its benchmarks alone predict."""
    device, table = load_bench(folder)
    samples, compositions = all_samples(folder, program.name, program.parameters)
    predictions, tied = {}, {}
    for batch in sorted(samples["batch"].unique()):
        pricer = Pricer(program, device, table, int(batch))
        measured = [compositions[d] for d in samples.loc[samples["batch"] == batch, "digest"].unique()]
        predictions[int(batch)] = [pricer.predict(c) for c in measured]
        tied[int(batch)] = {p.composition.digest for p in select(pricer, also=measured).tie_set}
    return compare(predictions, samples, tied)
