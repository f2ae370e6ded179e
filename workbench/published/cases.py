"""Cases: what a published row is in our words. ``mapping`` has the tables that say so.

A case is a sum of terms, each a stretch of a program run in one way some number of times; a ratio has a second sum
above it. ``How`` says the way by stage, so that it means the same for a whole model and for one stage of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from workbench.compose import (
    Composition,
    Configuration,
    Kind,
    conventional,
    from_cuts,
    levels,
    monolith,
    operators_in,
    per_stage,
    stage_cuts,
)
from workbench.program import Program
from workbench.published.parts import Part

MEGAKERNEL = "megakernel"
FRAME_NS = 80_000_000  # of Qwen3-TTS at 12.5 frames a second


@dataclass(frozen=True, slots=True)
class How:
    """How stages run: as megakernels or in an arm; those not named as ``default`` says.

    ``whole``: one composition of one kind, not cut at stages (a monolith, or one arm throughout).
    """

    default: str
    stages: tuple[tuple[str, str], ...] = ()
    whole: bool = False

    def compositions(self, program: Program, configurations: Iterable[Configuration]) -> list[Composition]:
        """Candidates, one a configuration; one alone where there is no megakernel."""
        if self.default != MEGAKERNEL and not self.stages:
            return [conventional(program, self.default)]
        if self.whole:
            return [monolith(program, configuration) for configuration in configurations]
        if not self.stages:
            return [per_stage(program, configuration) for configuration in configurations]
        made = (self._by_stage(program, configuration) for configuration in configurations)
        return list({composition.digest: composition for composition in made}.values())

    def _by_stage(self, program: Program, configuration: Configuration) -> Composition:
        base = from_cuts(program, stage_cuts(program), configuration=configuration, name="by stage")
        stage, treatment = program.stages(), dict(self.stages)
        named = {item.name: item for level in levels(program) for item in level.items}
        regions = []
        for region in base.regions:
            first = next(operators_in(named[region.items[0]])).name
            how = treatment.get(stage[first], self.default)
            arm = replace(region, kind=Kind.CONVENTIONAL, configuration=None, arm=how)
            regions.append(region if how == MEGAKERNEL else arm)
        return Composition(tuple(regions), base.name)


EAGER, GRAPH, GRAPH_PDL = How("eager"), How("graph"), How("graph_pdl")
MONOLITH, PER_STAGE = How(MEGAKERNEL, whole=True), How(MEGAKERNEL)


@dataclass(frozen=True, slots=True)
class Term:
    """One addend: a part, how it runs, and how often."""

    part: Part
    how: How
    times: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    """What to predict for a row; ``subject`` names what is timed, so that two ways of doing it can be compared.

    ``over``: terms above the ratio's line, for a row that is one. ``without``: an effect that the system is said to
    lack. ``audio_ns``: playing time of what is produced, for rows in multiples of real time. ``notes``: what was
    assumed to make a case of the row.
    """

    device: str
    batch: int
    subject: str
    terms: tuple[Term, ...]
    over: tuple[Term, ...] = ()
    without: str = ""
    audio_ns: int = 0
    notes: tuple[str, ...] = ()
