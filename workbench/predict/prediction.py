"""What a prediction says: time to first output of a composition, region by region and cause by cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench.compose import Composition, Region
from workbench.hardware import Provenance
from workbench.predict.streaming import P95_RULE, nearest_rank_p95
from workbench.simulate import CAUSES

ALL_CAUSES = ("host", *CAUSES)


@dataclass(frozen=True, slots=True)
class RegionPrediction:
    """One region: ``ns`` for all its ``launches``, split into causes; tiles and events of all launches.

    ``ahead_ns`` (batch,) is how long before the end of its last launch each request is done, if that ends the program;
    empty where all are done at the end.
    """

    region: Region
    ns: int
    launches: int
    causes_ns: Mapping[str, int]
    tiles: int
    events: int
    stages: int
    sigma_ns: Mapping[str, float]  # one standard deviation by source of error, see ``uncertainty``
    provenance: Provenance
    ahead_ns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Prediction:
    """Time to first output of one composition, and what it is made of; ``causes_ns`` sum to ``ttfo_ns``.

    ``interval_ns`` is the central 95 % of the draws of ``uncertainty``; ``throughput_per_s`` counts further outputs of
    the whole batch, None where their shapes were not benchmarked. ``serial_stages`` are operator calls that follow each
    other on the critical path.

    As a stream: ``further_ns`` is the steady cost of a further output of the whole batch, ``output_ns`` what one plays
    for, each None if there is no such thing. ``mean_batch_p95_ns`` is the mean over the draws of the 95th percentile of
    a draw's first outputs, and ``p95_interval_ns`` holds 95 % of those. ``parameters`` are the program's.
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
    further_ns: int | None = None
    output_ns: int | None = None
    mean_batch_p95_ns: int | None = None
    p95_interval_ns: tuple[int, int] | None = None
    parameters: Mapping[str, int] = field(default_factory=dict)

    @property
    def first_outputs_ns(self) -> tuple[int, ...]:
        """(batch,): when each request has its first output, see ``streaming``; the last of them is ``ttfo_ns``."""
        ahead_ns = self.regions[-1].ahead_ns if self.regions else ()
        return tuple(self.ttfo_ns - ns for ns in ahead_ns) or (self.ttfo_ns,) * self.batch

    @property
    def batch_p95_ns(self) -> int:
        """95th percentile of ``first_outputs_ns`` by P95_RULE: of up to 19 requests the last."""
        return nearest_rank_p95(self.first_outputs_ns)

    @property
    def continuity_slack_ns(self) -> int | None:
        """What a further output plays for less its steady cost; negative: the stream stutters."""
        return None if self.further_ns is None or self.output_ns is None else self.output_ns - self.further_ns

    @property
    def real_time_factor(self) -> float | None:
        """Steady cost of a further output over what it plays for: below 1 the stream keeps up."""
        return None if self.further_ns is None or self.output_ns is None else self.further_ns / self.output_ns

    @property
    def playback_per_s(self) -> float | None:
        """Seconds played a second, by all requests together: comparable where further outputs differ in length."""
        if self.further_ns is None or self.output_ns is None:
            return None
        return self.batch * self.output_ns / self.further_ns

    @property
    def stream(self) -> str:
        """The stream in a line: first outputs of the batch, what follows, and whether it keeps up."""
        first = self.first_outputs_ns
        text = f"first outputs of {self.batch}: {min(first) / 1e3:,.1f} to {max(first) / 1e3:,.1f} µs"
        text += f", batch p95 {self.batch_p95_ns / 1e3:,.1f} µs ({P95_RULE})"
        if self.mean_batch_p95_ns is not None and self.p95_interval_ns is not None:
            low, high = self.p95_interval_ns
            text += f", its mean {self.mean_batch_p95_ns / 1e3:,.1f} µs ({low / 1e3:,.1f} to {high / 1e3:,.1f})"
        if self.further_ns is None:
            return f"{text}; {self.provenance.value}"
        text += f"; a further output of all {self.further_ns / 1e3:,.1f} µs"
        if self.continuity_slack_ns is not None:
            text += (
                f", continuity slack {self.continuity_slack_ns / 1e3:,.1f} µs"
                f"{' (the stream stutters)' if self.continuity_slack_ns < 0 else ''}, real-time factor "
                f"{self.real_time_factor:.4f} (cost over playing time, below 1 keeps up), "
                f"{self.playback_per_s:,.1f} s played a second"
            )
        return f"{text}; {self.provenance.value}"

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
