"""A composition simulated anew for each draw of its errors: what the linear draws of ``uncertainty`` approximate.

The sources of error and their draws are those of ``uncertainty`` (`operator/treatment`, `launch/arm`, `run/treatment`),
so compositions that share a source share its error, and replication r here is draw r there. The factor rule: a source
of relative standard deviation s and draw z multiplies by ``max(0, 1 + s·z)``: an operator's tile times by that of its
benchmark's spread, a region's launches, gaps, dispatches, events, signals and drains by that of their arm, and the
region's sum by that of the run. A normal factor and not a lognormal one, so that the linear draws are these to first
order, and what differs is the critical path and not the law of the errors; 0 because no time is negative. What the
linear draws take as fixed is free here: the critical path, so a lane that is slow by chance makes the others wait.
Still fixed, as predicted for the mean: each kernel's configuration, a megakernel's rung, and how the launch before an
overlapping one ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from workbench.compose import Composition, Region, check_composition
from workbench.errors import WorkbenchError
from workbench.predict.prediction import Prediction
from workbench.predict.pricer import Entry, Pricer
from workbench.predict.regions import treatment_of
from workbench.simulate.replicate import replicate
from workbench.uncertainty import REPLICATIONS, normals, tied_with_best

Replications = npt.NDArray[np.int64]


def replications(pricer: Pricer, composition: Composition, count: int = REPLICATIONS) -> Replications:
    """(count,) times to first output, ns; CompositionError if the composition is illegal here."""
    return _replications(pricer, composition, count, {})


def replicated_ties(
    pricer: Pricer, predictions: Sequence[Prediction], count: int = REPLICATIONS
) -> tuple[list[bool], list[float]]:
    """``uncertainty.tied_with_best`` of the predictions, by replications instead of the linear draws."""
    known: dict[tuple[object, ...], Replications] = {}
    table = [_replications(pricer, p.composition, count, known).astype(np.float64) for p in predictions]
    return tied_with_best(table)


def _replications(
    pricer: Pricer, composition: Composition, count: int, known: dict[tuple[object, ...], Replications]
) -> Replications:
    if count < 1:
        raise WorkbenchError(f"{count} replications: at least one is needed")
    check_composition(pricer.program, composition)
    total = np.full(count, pricer.device.host_ns, np.int64)
    for region in composition.regions:
        pricer.check_resources(region)
        entries = pricer.entries(region, composition)
        key = region, tuple((entry.at, id(entry.before), entry.times) for entry in entries)
        if key not in known:
            known[key] = _region(pricer, region, entries, count)
        total += known[key]
    return total


def _region(pricer: Pricer, region: Region, entries: list[Entry], count: int) -> Replications:
    depth, start = pricer.place[region.items[0]]
    how, held = treatment_of(region), None if region.configuration is None else pricer.held(region)
    spread = pricer.overheads(region).spread_frac
    overheads = _factors(f"launch/{region.arm or 'megakernel'}", spread, count)
    total = np.zeros(count, np.int64)
    for entry in entries:
        priced = pricer.level_queue(depth, dict(entry.at), how, held)
        names = [call.operator.name for call in priced.calls]
        columns = {name: i for i, name in enumerate(dict.fromkeys(names))}
        factors = [_factors(f"{name}/{how}", priced.spread_frac[name], count) for name in columns]
        ops = priced.ops(start, start + len(region.items))
        ns = replicate(
            priced.queue, priced.mechanism, np.stack(factors, axis=1), overheads, *ops,
            column=np.array([columns[name] for name in names], np.uint32), before=entry.before,
        )  # fmt: skip
        total += entry.times * ns
    run = _factors(f"run/{how}", pricer.device.run_spread_frac, count)
    found: Replications = np.rint(total * run).astype(np.int64)
    return found


def _factors(source: str, spread_frac: float, count: int) -> npt.NDArray[np.float64]:
    """(count,) factors of one source."""
    draws = [normals(source, seed) for seed in range(-(-count // REPLICATIONS))]
    return np.maximum(0.0, 1 + spread_frac * np.concatenate(draws)[:count])
