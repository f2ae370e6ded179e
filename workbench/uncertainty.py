"""How sure a prediction is: independent sources of error, drawn with common random numbers.

A prediction is its mean plus ``sigma_ns[source] · z[source]``, z standard normal. A source is an operator in one
treatment (the spread of its benchmark), a launch of one arm, or the run of a treatment (what all of it shares). The
draws of a source depend on its name alone, so two predictions that share a source share its error and their difference
does not have it. The model is linear in the critical path of the mean; that is an assumption of ours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

REPLICATIONS = 1_000
LEVEL = 0.95

Draws = npt.NDArray[np.float64]


@lru_cache(maxsize=4096)
def normals(source: str, seed: int = 0) -> Draws:
    """Standard normal draws (REPLICATIONS,) of one source of error."""
    digest = hashlib.sha256(f"{seed}/{source}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little")).standard_normal(REPLICATIONS)


def draw(mean_ns: float, sigma_ns: Mapping[str, float], seed: int = 0) -> Draws:
    """Draws (REPLICATIONS,) of one prediction, ns."""
    total = np.full(REPLICATIONS, float(mean_ns))
    for source, sigma in sigma_ns.items():
        total += sigma * normals(source, seed)
    return total


def interval_ns(mean_ns: float, sigma_ns: Mapping[str, float]) -> tuple[int, int]:
    """``interval_of`` the draws of one prediction."""
    return interval_of(draw(mean_ns, sigma_ns), mean_ns)


def interval_of(draws: Draws, mean_ns: float) -> tuple[int, int]:
    """The central LEVEL of some draws, shifted so that their mean is ``mean_ns``; never below 0."""
    low, high = np.quantile(draws - draws.mean() + mean_ns, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return max(0, int(np.floor(min(low, mean_ns)))), int(np.ceil(max(high, mean_ns)))


def tied_with_best(draws: Sequence[Draws]) -> tuple[list[bool], list[float]]:
    """Which predictions are not resolved from the one of least mean, and how often each is the least of all.

    Unresolved: the central LEVEL of the draws of the difference to the best reaches 0 or less. Several that are
    least in the same draw share it.
    """
    table = np.array(draws)
    best = int(table.mean(axis=1).argmin())
    lower = np.quantile(table - table[best], (1 - LEVEL) / 2, axis=1)
    least = table == table.min(axis=0)
    return [bool(x <= 0) for x in lower], [float(x) for x in (least / least.sum(axis=0)).mean(axis=1)]
