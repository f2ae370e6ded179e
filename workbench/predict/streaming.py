"""Predictions as a stream: when each request of a batch has its first output, and what the host adds.

A request is done when the last tile that carries it is done; the host sees that as late after the tile as it sees the
end of a launch after the last one (the drain), by a flag a request: an assumption of ours. In a conventional region a
kernel ends for all requests at once, so all are done with the last kernel.

*Batch p95* is the nearest-rank 95th percentile of the B first outputs of one batch, at B <= 19 the largest. *Mean
batch-p95* is its mean over repeated batches, here over the draws of ``uncertainty``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workbench.errors import WorkbenchError
from workbench.simulate import Run
from workbench.tiles import Grid
from workbench.uncertainty import Draws, interval_of

PERCENT = 95
P95_RULE = "nearest rank"
HOUR_NS = 3_600 * 10**9


@dataclass(frozen=True, slots=True)
class HostTime:
    """What a person says the host takes for a batch, ns, beside what a run of the device has of its own.

    ``first_ns``: once, before the first launch (tokenising, embedding the prompt), in TTFO. ``further_ns``: before each
    further output, in throughput and continuity and not in TTFO. Neither is hidden behind the device's work.
    """

    first_ns: int = 0
    further_ns: int = 0

    def __post_init__(self) -> None:
        for name in ("first_ns", "further_ns"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= HOUR_NS:
                raise WorkbenchError(f"host time {name}={value!r:.40}: whole ns from 0 to an hour are needed")

    def __str__(self) -> str:
        again = f"{self.further_ns / 1e3:,.1f} µs before each further one" if self.further_ns else "not again"
        return f"host time as given: {self.first_ns / 1e3:,.1f} µs before the first output, {again}"


def nearest_rank_p95(values: Sequence[int]) -> int:
    """The ceil(0.95 · B)-th smallest of B values.

    >>> nearest_rank_p95(range(1, 20)), nearest_rank_p95(range(1, 21))
    (19, 19)
    """
    return sorted(values)[_rank(len(values)) - 1]


def _rank(count: int) -> int:
    return -(-PERCENT * count // 100)


def ahead_of_end_ns(run: Run, grids: Sequence[Grid], batch: int) -> tuple[int, ...]:
    """(batch,) how long before the end of a megakernel's launch the last tile that carries each request is done.

    ``grids`` are the cuts of the queue's calls.
    """
    op = run.queue.op[run.tiles]
    first = np.flatnonzero(np.diff(op.astype(np.int64), prepend=-1))  # first tile of each call that has any
    stop = np.append(first[1:], len(op))
    latest = np.maximum.reduceat(run.end_ns, first)
    end = np.full(batch, -1, np.int64)
    for call in np.argsort(-latest, kind="stable").tolist():
        if latest[call] <= end.min():
            break
        edges = grids[op[first[call]]].requests  # a cut's slowest axis
        carried = run.end_ns[first[call] : stop[call]].reshape(len(edges) - 1, -1).max(axis=1)
        end = np.maximum(end, np.repeat(carried, np.diff(edges)))
    return tuple((end.max() - end).tolist())


def mean_batch_p95(
    draws: Draws, ttfo_ns: int, ahead_ns: Sequence[int], last_frac: npt.NDArray[np.float64]
) -> tuple[int, tuple[int, int]]:
    """Mean over the draws of a draw's batch p95, ns, and the central 95 % of those.

    ``draws`` are of the time to first output; a request is ahead of it by ``ahead_ns`` (batch,), longer by the relative
    error ``last_frac`` (draws,) of the last region. What the draws' mean is off ``ttfo_ns`` is taken out.
    """
    rank = _rank(len(ahead_ns))
    each = draws - np.maximum(0.0, np.outer(ahead_ns, 1 + last_frac))
    p95 = np.partition(each, rank - 1, axis=0)[rank - 1]
    mean = round(float(p95.mean()) - (float(draws.mean()) - ttfo_ns))
    return mean, interval_of(p95, mean)
