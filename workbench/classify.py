"""How the best composition changes with the batch: megakernel-stable, -receding, -advancing, -averse.

The paper gives the four names; the definitions here are ours. T(b) is the tie set at batch b. Coverage κ of a
composition is the share of the conventional graph's time (benchmarks alone, eager where there is such an arm) whose
operators it runs in megakernels; at a batch it is the range over T(b).

- averse: a fully conventional composition is in T(b) for every b
- stable: one composition with megakernels is in T(b) for every b
- receding: κ falls somewhere by more than ties explain (the ranges do not meet), and rises so nowhere
- advancing: the reverse
- unclassified: otherwise, with the batches that contradict

They are tried in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from workbench.compose import Composition, operators_in
from workbench.errors import WorkbenchError
from workbench.predict import Prediction, Pricer
from workbench.program import calls
from workbench.search import Selection, select
from workbench.uncertainty import LEVEL, REPLICATIONS, draw

CATEGORIES = ("megakernel-averse", "megakernel-stable", "megakernel-receding", "megakernel-advancing", "unclassified")
DRAWS = 200


@dataclass(frozen=True, slots=True)
class Ties:
    """What classification needs of one batch's tie set."""

    megakernel: frozenset[str]  # digests of tied compositions that have megakernels
    conventional: bool  # whether a fully conventional one is tied
    coverage: tuple[float, float]  # least and greatest over the tie set


@dataclass(frozen=True, slots=True)
class Category:
    """The verdict. ``probabilities`` are shares of draws; ``evidence`` has a row a batch; ``reasons`` are sentences."""

    name: str
    probabilities: Mapping[str, float]
    evidence: pd.DataFrame
    reasons: tuple[str, ...]
    selections: Mapping[int, Selection]

    def __str__(self) -> str:
        lines = [f"{self.name} (share of draws: {self.probabilities[self.name]:.0%})", *self.reasons]
        return "\n".join([*lines, self.evidence.round(3).to_string(index=False)])


def coverage(pricer: Pricer, composition: Composition) -> float:
    """Share of the conventional graph's time whose operators ``composition`` runs in megakernels."""
    inside: set[str] = set()
    for region in composition.regions:
        if region.configuration is not None:
            depth, start = pricer.place[region.items[0]]
            for item in pricer.levels[depth].items[start : start + len(region.items)]:
                inside |= {op.name for op in operators_in(item)}
    total = covered = 0
    for call in calls(pricer.program.first):
        ns = pricer.conventional_ns(call)
        total += ns
        covered += ns if call.operator.name in inside else 0
    return covered / total


def decide(ties: Mapping[int, Ties]) -> tuple[str, tuple[str, ...]]:
    """The category of tie sets by batch, and why."""
    batches = sorted(ties)
    common = frozenset.intersection(*(ties[b].megakernel for b in batches))
    if all(ties[b].conventional for b in batches):
        reasons = ["a fully conventional composition is best or tied with the best at every batch"]
        if common:
            reasons.append(f"so is one with megakernels ({sorted(common)[0]}): the two are not told apart")
        return "megakernel-averse", tuple(reasons)
    if common:
        return "megakernel-stable", (f"composition {sorted(common)[0]} is best or tied at every batch",)
    falls = [(a, b) for a, b in combinations(batches, 2) if ties[a].coverage[0] > ties[b].coverage[1]]
    rises = [(a, b) for a, b in combinations(batches, 2) if ties[a].coverage[1] < ties[b].coverage[0]]
    if falls and not rises:
        return "megakernel-receding", (
            f"coverage falls from batch {falls[0][0]} to batch {falls[0][1]}, and never rises",
        )
    if rises and not falls:
        return "megakernel-advancing", (f"coverage rises from batch {rises[0][0]} to {rises[0][1]}, and never falls",)
    if not falls:
        return "unclassified", (
            "no one composition is tied at every batch, yet coverage does not move beyond the ties",
        )
    return "unclassified", (
        f"coverage falls from batch {falls[0][0]} to {falls[0][1]} but rises from {rises[0][0]} to {rises[0][1]}",
    )


def classify(
    pricers: Mapping[int, Pricer],
    also: Sequence[Composition] = (),
    tick: Callable[[int], None] = lambda batch: None,
) -> Category:
    """Name the category over the batches of ``pricers``; ``tick`` is called with each batch when it is selected.

    Every batch's tie set is drawn from one pool: all batches' shortlists, the named designs and ``also``.
    """
    if len(pricers) < 2:
        raise WorkbenchError(f"{len(pricers)} batch is not a trend; a category needs at least 2 batches")
    pool = {c.digest: c for c in also}
    for batch, pricer in sorted(pricers.items()):
        pool |= {p.composition.digest: p.composition for p in select(pricer, also=also).tie_set}
        tick(batch)
    selections = {batch: select(p, also=list(pool.values())) for batch, p in sorted(pricers.items())}
    ties = {b: _ties(pricers[b], s.tie_set) for b, s in selections.items()}
    name, reasons = decide(ties)
    shares = _probabilities(pricers, selections)
    return Category(name, shares, _evidence(selections, ties), (*reasons, *_margins(selections)), selections)


def _ties(pricer: Pricer, tied: Sequence[Prediction]) -> Ties:
    covered = [coverage(pricer, p.composition) for p in tied]
    with_megakernels = frozenset(p.composition.digest for p in tied if p.composition.megakernels)
    conventional = any(not p.composition.megakernels for p in tied)
    return Ties(with_megakernels, conventional, (min(covered), max(covered)))


def _evidence(selections: Mapping[int, Selection], ties: Mapping[int, Ties]) -> pd.DataFrame:
    rows = []
    for batch, s in selections.items():
        low, high = ties[batch].coverage
        rows.append(
            {
                "batch": batch,
                "best": s.best.composition.name or s.best.composition.digest,
                "shape": s.best.composition.shape,
                "megakernels": s.best.composition.megakernels,
                "ttfo_us": s.best.ttfo_ns / 1e3,
                "tied": len(s.tie_set),
                "conventional_tied": ties[batch].conventional,
                "coverage_low": low,
                "coverage_high": high,
            }
        )
    return pd.DataFrame(rows)


def _margins(selections: Mapping[int, Selection]) -> list[str]:
    """What would change the verdict: how far the best of the other kind is behind, by batch."""
    found = []
    for batch, s in selections.items():
        kinds = {bool(p.composition.megakernels): p.ttfo_ns for p in reversed(s.shortlist)}
        if len(kinds) == 2:
            lead = kinds[False] / kinds[True] - 1
            ahead, by = ("megakernels", lead) if lead >= 0 else ("conventional", kinds[True] / kinds[False] - 1)
            found.append(f"batch {batch}: {ahead} ahead by {by:.1%}; a change of that size would turn it")
    return found


def _probabilities(pricers: Mapping[int, Pricer], selections: Mapping[int, Selection]) -> dict[str, float]:
    """Shares of draws in which the tie sets around the drawn times give each category."""
    prepared = {}
    for batch, s in selections.items():
        pricer = pricers[batch]
        table = np.array([draw(p.ttfo_ns, pricer.sigma_ns(p.regions)) for p in s.shortlist])
        covered = np.array([coverage(pricer, p.composition) for p in s.shortlist])
        prepared[batch] = (table, covered, s.shortlist)
    count = dict.fromkeys(CATEGORIES, 0)
    for r in range(min(DRAWS, REPLICATIONS)):
        ties = {}
        for batch, (table, covered, shortlist) in prepared.items():
            best = int(table[:, r].argmin())
            differences = table - table[best]
            # around the drawn difference the error has the spread that it has around the mean
            reach = np.quantile(differences.mean(axis=1, keepdims=True) - differences, (1 + LEVEL) / 2, axis=1)
            inside = np.flatnonzero(differences[:, r] <= np.maximum(reach, 0))
            digests = frozenset(shortlist[i].composition.digest for i in inside if shortlist[i].composition.megakernels)
            conventional = any(not shortlist[i].composition.megakernels for i in inside)
            ties[batch] = Ties(digests, conventional, (covered[inside].min(), covered[inside].max()))
        count[decide(ties)[0]] += 1
    return {name: n / min(DRAWS, REPLICATIONS) for name, n in count.items()}
