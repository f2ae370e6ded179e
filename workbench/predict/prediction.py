"""What a prediction says: time to first output of a composition, region by region and cause by cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workbench.compose import Composition, Region
from workbench.hardware import Provenance
from workbench.simulate import CAUSES

ALL_CAUSES = ("host", *CAUSES)


@dataclass(frozen=True, slots=True)
class RegionPrediction:
    """One region: ``ns`` for all its ``launches``, split into causes; tiles and events of all launches."""

    region: Region
    ns: int
    launches: int
    causes_ns: Mapping[str, int]
    tiles: int
    events: int
    stages: int
    sigma_ns: Mapping[str, float]  # one standard deviation by source of error, see ``uncertainty``
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Prediction:
    """Time to first output of one composition, and what it is made of; ``causes_ns`` sum to ``ttfo_ns``.

    ``interval_ns`` is the central 95 % of the draws of ``uncertainty``; ``throughput_per_s`` counts further outputs of
    the whole batch, None where their shapes were not benchmarked. ``serial_stages`` are operator calls that follow each
    other on the critical path.
    """

    program: str
    device: str
    batch: int
    composition: Composition
    ttfo_ns: int
    interval_ns: tuple[int, int]
    causes_ns: Mapping[str, int]
    regions: tuple[RegionPrediction, ...]
    throughput_per_s: float | None
    provenance: Provenance
    notes: tuple[str, ...] = ()

    @property
    def tiles(self) -> int:
        """Tiles of all launches."""
        return sum(region.tiles for region in self.regions)

    @property
    def events(self) -> int:
        """Events of all launches."""
        return sum(region.events for region in self.regions)

    @property
    def serial_stages(self) -> int:
        """Operator calls along the critical path."""
        return sum(region.stages for region in self.regions)

    def __str__(self) -> str:
        low, high = self.interval_ns
        parts = ", ".join(f"{cause} {ns / 1e3:,.1f}" for cause, ns in self.causes_ns.items() if ns)
        return (
            f"{self.composition.name or self.composition.digest} on {self.device}, batch {self.batch}: "
            f"{self.ttfo_ns / 1e3:,.1f} µs ({low / 1e3:,.1f} to {high / 1e3:,.1f}; {self.provenance.value}); "
            f"µs: {parts}"
        )
