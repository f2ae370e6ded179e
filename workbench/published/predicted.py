"""Predictions of cases: each term's fastest configuration as predicted, summed, with the errors drawn together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from workbench.cost import Roofline
from workbench.gpu import Gpu, gpu_files, read_gpu
from workbench.hardware import Provenance, worst
from workbench.predict import Prediction, Pricer
from workbench.program import Program
from workbench.published.analytic import MEGAKERNEL, composition_ns, floor_ns, treatments, work_by_call
from workbench.published.cases import Case, Term
from workbench.published.parts import Part
from workbench.uncertainty import LEVEL, Draws


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of terms, ns; by the two readings of ``analytic``; and what DRAM needs at least.

    ``kind`` is how it runs: an arm, ``monolith``, ``per-stage`` or ``mixed``. ``launches`` counts by arm (its kernels)
    or ``megakernel``; ``stages`` are operator calls that follow each other on the critical path.
    """

    ns: float
    draws: Draws
    naive_ns: float
    naive_whole_ns: float
    floor_ns: float
    causes_ns: Counter[str]
    launches: Counter[str]
    stages: int
    kind: str
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Predicted:
    """The prediction of a case: ns, or a ratio where ``over`` is there."""

    below: Sum
    over: Sum | None

    @property
    def value(self) -> float:
        """Time, ns, or ratio."""
        return self.below.ns if self.over is None else self.over.ns / self.below.ns

    @property
    def interval(self) -> tuple[float, float]:
        """The central LEVEL of the draws; a ratio's are of the same draws above and below."""
        draws = self.below.draws if self.over is None else self.over.draws / self.below.draws
        low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return min(self.value, float(low)), max(self.value, float(high))

    @property
    def naive(self) -> float:
        """By the naive model."""
        return self.below.naive_ns if self.over is None else self.over.naive_ns / self.below.naive_ns

    @property
    def naive_whole(self) -> float:
        """By the naive model as it is published."""
        return self.below.naive_whole_ns if self.over is None else self.over.naive_whole_ns / self.below.naive_whole_ns

    @property
    def floor(self) -> float:
        """What a constant factor is guessed from: DRAM's least time; 1 for a ratio."""
        return self.below.floor_ns if self.over is None else 1.0


class Predictor:
    """Predicts cases; pricers and their results are kept, so that rows alike are priced once."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str], Roofline] = {}
        self._pricers: dict[tuple[Part, str, int, str], Pricer] = {}
        self._fastest: dict[tuple[Term, str, int, str], Prediction] = {}

    def pricer(self, part: Part, device: str, batch: int, without: str = "") -> Pricer:
        """The pricer of a part on a shipped device; ``without`` leaves out an effect."""
        key = part, device, batch, without
        if key not in self._pricers:
            gpu = _gpu(device, without)
            table = self._tables.setdefault((device, without), Roofline(gpu))
            self._pricers[key] = Pricer(part.program(), gpu.device(), table, batch)
        return self._pricers[key]

    def fastest(self, term: Term, device: str, batch: int, without: str = "") -> Prediction:
        """A term's prediction, once: of the compositions that its way allows, the fastest; CompositionError if none."""
        one = replace(term, times=1)
        key = one, device, batch, without
        if key not in self._fastest:
            pricer = self.pricer(term.part, device, batch, without)
            candidates = term.how.compositions(pricer.program, pricer.configurations)
            best = min(candidates, key=pricer.total_ns)
            self._fastest[key] = pricer.predict(best, throughput=False)
        return self._fastest[key]

    def predict(self, case: Case) -> Predicted:
        """The prediction of a case."""
        return Predicted(self._sum(case, case.terms), self._sum(case, case.over) if case.over else None)

    def _sum(self, case: Case, terms: tuple[Term, ...]) -> Sum:
        gpu = _gpu(case.device, case.without)
        ns = naive_ns = naive_whole_ns = least_ns = 0.0
        draws = np.zeros(1)
        causes: Counter[str] = Counter()
        launches: Counter[str] = Counter()
        stages = regions = 0
        provenances: set[Provenance] = set()
        for term in terms:
            found, times = self.fastest(term, case.device, case.batch, case.without), term.times
            pricer = self.pricer(term.part, case.device, case.batch, case.without)
            program, composition = pricer.program, found.composition
            ns += times * found.ttfo_ns
            draws = draws + times * pricer.draws(composition, found.ttfo_ns, found.regions)
            naive_ns += times * composition_ns(program, composition, gpu, case.batch)
            naive_whole_ns += times * composition_ns(program, composition, gpu, case.batch, whole=True)
            least_ns += times * floor_ns(program, gpu, case.batch)
            causes.update({cause: times * length for cause, length in found.causes_ns.items()})
            launches.update({how: times * count for how, count in _launches(program, found).items()})
            regions += len(composition.regions)
            stages += times * found.serial_stages
            provenances.add(found.provenance)
        return Sum(
            ns=ns, draws=np.maximum(draws - draws.mean() + ns, 1.0), naive_ns=naive_ns, naive_whole_ns=naive_whole_ns,
            floor_ns=least_ns, causes_ns=causes, launches=launches, stages=stages,
            kind=kind_of(set(launches), regions), provenance=worst(provenances),
        )  # fmt: skip


def _launches(program: Program, prediction: Prediction) -> Counter[str]:
    how = treatments(program, prediction.composition)
    found: Counter[str] = Counter()
    for (name, _), times in work_by_call(program.first).items():
        if how[name] != MEGAKERNEL:
            found[how[name]] += times
    for part in prediction.regions:
        if part.region.configuration is not None:
            found[MEGAKERNEL] += part.launches
    return found


def kind_of(used: set[str], regions: int) -> str:
    """How a case runs: with graphs it is called by them though parts are eager, with both kinds it is mixed."""
    if used == {MEGAKERNEL}:
        return "monolith" if regions == 1 else "per-stage"
    if MEGAKERNEL in used:
        return "mixed"
    return next(arm for arm in ("graph_pdl", "graph", "eager") if arm in used)


@cache
def _gpu(device: str, without: str) -> Gpu:
    gpu = read_gpu(gpu_files()[device])
    return replace(gpu, effects=gpu.effects.without(without)) if without else gpu
