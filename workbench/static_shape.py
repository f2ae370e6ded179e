"""Engines of static shape: what cannot speak before it is full, against regions that stream.

A codec engine that was built or captured for 15 frames computes 15 frames whenever it is called. So a composition that
runs an operator of such a stage by such an arm has a first chunk of at least that many frames, and further ones of as
many; it is predicted on the program with these chunks. Every other composition is predicted on the program as asked
for. Chunks differ in length then: compare ``playback_per_s``, not further outputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from workbench.compose import Composition, Region, operators_in
from workbench.errors import CompositionError, WorkbenchError
from workbench.predict import ILLEGAL_NS, Prediction, Pricer
from workbench.predict.regions import Costs
from workbench.search import (
    SHORTLIST,
    Selection,
    count_compositions,
    k_best,
    mixed_compositions,
    named_compositions,
)
from workbench.uncertainty import tied_with_best

RULE = "each on the program whose chunks fill its engines; the least time to first output wins"


@dataclass(frozen=True, slots=True, order=True)
class StaticEngine:
    """Operators of ``stage``, where conventional ``arm`` runs them, take whole chunks of ``frames`` frames."""

    stage: str
    arm: str
    frames: int

    def __str__(self) -> str:
        return f"{self.stage}:{self.arm}:{self.frames}"

    @classmethod
    def parse(cls, text: str) -> StaticEngine:
        """The engine that prints as ``text``.

        >>> StaticEngine.parse("codec:graph:15")
        StaticEngine(stage='codec', arm='graph', frames=15)
        """
        stage, _, rest = text.partition(":")
        arm, _, frames = rest.partition(":")
        if not (stage and arm and frames.isascii() and frames.isdecimal() and 0 < int(frames) < 2**31):
            raise WorkbenchError(f"static engine {text!r:.60}: expected STAGE:ARM:FRAMES, as in codec:graph:15")
        return cls(stage, arm, int(frames))


class StaticEngines:
    """Compositions of one model, some of them on engines of static shape.

    ``pricer_of(n)`` gives the pricer of the program whose chunks have at least n frames, of the one asked for where n
    is 0.
    """

    def __init__(self, engines: Sequence[StaticEngine], pricer_of: Callable[[int], Pricer]) -> None:
        self.engines, self._pricer_of = tuple(dict.fromkeys(engines)), pricer_of
        self.frames = (0, *sorted({engine.frames for engine in self.engines}))
        self._pricers: dict[int, Pricer] = {}
        self._stages: dict[str, frozenset[str]] = {}
        asked = self.pricer(0)
        for engine in self.engines:
            if engine.stage not in (stages := dict.fromkeys(asked.program.stages().values())):
                raise WorkbenchError(
                    f"static engine {engine}: {asked.program.name} has no stage {engine.stage!r:.40}; its stages are "
                    f"{', '.join(filter(None, stages))}"
                )
            if engine.arm not in asked.arms:
                raise WorkbenchError(
                    f"static engine {engine}: {asked.device.name} has no arm {engine.arm!r:.40}; its arms are "
                    f"{', '.join(asked.arms)}"
                )

    def pricer(self, frames: int) -> Pricer:
        """The pricer of the program whose chunks fill an engine of so many frames; 0: none."""
        if frames not in self._pricers:
            made = self._pricers[frames] = self._pricer_of(frames)
            stage = made.program.stages()
            for level in made.levels:
                for item in level.items:
                    self._stages[item.name] = frozenset(stage[op.name] for op in operators_in(item))
        return self._pricers[frames]

    def frames_of(self, composition: Composition) -> int:
        """Frames of the largest engine that a composition runs on; 0: on none."""
        for frames in self.frames:
            self.pricer(frames)
        return max(
            (engine.frames for engine in self.engines for region in composition.regions if self._on(engine, region)),
            default=0,
        )

    def _on(self, engine: StaticEngine, region: Region) -> bool:
        return region.arm == engine.arm and any(
            engine.stage in self._stages.get(item, frozenset()) for item in region.items
        )

    def predict(self, composition: Composition, *, throughput: bool = True) -> Prediction:
        """``Pricer.predict`` on the program whose chunks fill the engines that the composition runs on."""
        frames = self.frames_of(composition)
        found = self.pricer(frames).predict(composition, throughput=throughput)
        used = [e for e in self.engines if any(self._on(e, region) for region in composition.regions)]
        if not used:
            return found
        note = f"static engines {', '.join(map(str, used))} (stage:arm:frames): chunks of at least {frames} frames"
        return replace(found, notes=(*found.notes, note))

    def without(self, frames: int) -> Pricer:
        """``pricer(frames)`` less what runs on larger engines: a search of it finds what that program is right for."""
        return _Without(self.pricer(frames), tuple(engine for engine in self.engines if engine.frames > frames))

    def k_best(self, frames: int, k: int, below_ns: int = ILLEGAL_NS) -> list[Composition]:
        """Fastest compositions whose largest engine is of ``frames`` frames, up to ``k``.

        The first is the fastest there is, unless none is below ``below_ns``: then there may be none here.
        """
        pricer, asked = self.without(frames), k
        while True:
            plans = k_best(pricer, asked)
            found = [composition for _, composition in plans if self.frames_of(composition) == frames]
            if found or len(plans) < asked or plans[-1][0] >= below_ns:
                return found[:k]
            asked *= 2


def select(engines: StaticEngines, shortlist: int = SHORTLIST) -> Selection:
    """The fastest composition of all, each on the program whose chunks fill its engines (RULE), and the tie set.

    Exact: for each chunk that the engines ask for, the search leaves out what would need a larger one.
    """
    begun = time.perf_counter()
    chosen: dict[str, Composition] = {}
    best_ns, candidates = ILLEGAL_NS, 0
    for frames in engines.frames:
        pricer = engines.pricer(frames)
        mixed = mixed_compositions(pricer) if pricer.configurations else []
        designs = (c for c in (*named_compositions(pricer), *mixed) if engines.frames_of(c) == frames)
        named = [c for c in designs if pricer.total_ns(c) < ILLEGAL_NS]
        found = engines.k_best(frames, shortlist, best_ns)
        best_ns = min([best_ns, *(pricer.total_ns(c) for c in found[:1])])
        chosen = {c.digest: c for c in found} | chosen | {c.digest: c for c in named}
        candidates += count_compositions(engines.without(frames))
        if frames:  # less those that need no engine as large
            as_large = tuple(engine for engine in engines.engines if engine.frames >= frames)
            candidates -= count_compositions(_Without(pricer, as_large))
    predictions = sorted(
        (engines.predict(c, throughput=False) for c in chosen.values()), key=lambda p: (p.ttfo_ns, len(p.regions))
    )
    draws = [
        engines.pricer(engines.frames_of(p.composition)).draws(p.composition, p.ttfo_ns, p.regions) for p in predictions
    ]
    tied, chance = tied_with_best(draws)
    ties = tuple(p for p, is_tied in zip(predictions, tied, strict=True) if is_tied or p is predictions[0])
    seconds = time.perf_counter() - begun
    return Selection(predictions[0], tuple(predictions), ties, tuple(chance), candidates, seconds)


class _Without(Pricer):
    """A pricer to which regions on some engines are illegal."""

    def __init__(self, pricer: Pricer, engines: tuple[StaticEngine, ...]) -> None:
        super().__init__(
            pricer.program, pricer.device, pricer.table, pricer.batch, pricer.configurations, pricer.arms
        )  # fmt: skip
        self._without = engines
        stage = self.program.stages()
        self._of_item = [
            [frozenset(stage[op.name] for op in operators_in(item)) for item in level.items] for level in self.levels
        ]

    def _refused(self, depth: int, treatment: str) -> npt.NDArray[np.bool_]:
        """(items, items + 1): where a region has an operator on one of the engines."""
        stages = {engine.stage for engine in self._without if engine.arm == treatment}
        held = np.cumsum([0, *(bool(stages & mine) for mine in self._of_item[depth])])
        refused: npt.NDArray[np.bool_] = held[None, :] > held[:-1, None]
        return refused

    def interval_costs(self, depth: int, treatment: str) -> Costs:
        found = super().interval_costs(depth, treatment)
        costs: Costs = np.where((found >= 0) & self._refused(depth, treatment), ILLEGAL_NS, found)
        return costs

    def can_run(self, depth: int, treatment: str) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = super().can_run(depth, treatment) & ~self._refused(depth, treatment)
        return found

    def check_resources(self, region: Region) -> None:
        super().check_resources(region)
        depth, start = self.place[region.items[0]]
        if region.arm and self._refused(depth, region.arm)[start, start + len(region.items)]:
            raise CompositionError(
                f"{region}: runs on an engine whose frames are more than a chunk has; predict it on longer chunks"
            )
