"""What a reading found, beside the kernels: enough to decide whether the numbers may be used.

`sum_ns` and `union_ns` are over kernels alone, without copies and fills, in whole nanoseconds. Where kernels of one
device overlap, `sum_ns` exceeds `union_ns`; the opposite is impossible.
"""

import html
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import pandas as pd

from workbench.profiles.kernels import by_stream, only_kernels, overlaps_ns, union_ns

PDL_TAIL_NS = 10_000  # same-stream overlaps up to here look like programmatic dependent launch (ours; B200: <= 3.7 us)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """One file's reading. None is "the file does not say"."""

    path: Path
    kind: str  # the format: "kineto"
    era: str  # of the format, by content
    sha256: str
    timing_regime: str  # "timeline": durations within one run, clocks as they were
    units: str
    platform: str | None  # "cuda", "rocm", "xpu", "cpu"
    devices: tuple[str, ...]  # product names
    kernels: int
    memcpys: int
    memsets: int
    sum_ns: int
    union_ns: int  # per device over all its streams, added up over devices
    streams: int  # that run a kernel
    overlaps: int  # kernels that start before an earlier one on their stream has ended
    zero_durations: int  # kernels whose duration is 0 in the file
    launches: int | None  # kernel and graph launches on the host
    launches_without_kernels: int | None
    opaque_graph_share: float | None  # of device time, inside graphs whose kernels the file does not hold
    clock_base_ns: int | None  # Unix epoch at start_ns == 0
    truncated: bool
    events: int  # read from the file, of any kind
    dropped: Mapping[str, int]
    repaired: Mapping[str, int]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Plain values under the fields' names, ready for ``json.dumps``."""
        plain: dict[str, object] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Path):
                value = str(value)
            elif isinstance(value, tuple):
                value = list(value)
            elif isinstance(value, Mapping):
                value = dict(value)
            plain[field.name] = value
        return plain

    def lines(self) -> list[tuple[str, str]]:
        """Label and text of each line that a person reads."""
        shown = [
            ("file", f"{self.path} (sha256 {self.sha256[:12]})"),
            ("format", f"{self.kind}, era {self.era}, {self.platform or 'platform unknown'}"),
            ("devices", ", ".join(name or "(unnamed)" for name in self.devices) or "not named"),
            ("kernels", f"{self.kernels:,} on {self.streams} streams; {self.memcpys:,} copies, {self.memsets:,} fills"),
            ("sum", f"{self.sum_ns:,} ns"),
            ("union", f"{self.union_ns:,} ns"),
            ("overlaps", f"{self.overlaps:,}"),
            ("zero durations", f"{self.zero_durations:,}"),
            ("launches", f"{_known(self.launches)}, of which {_known(self.launches_without_kernels)} without a kernel"),
            ("opaque graphs", "unknown" if self.opaque_graph_share is None else f"{self.opaque_graph_share:.1%}"),
            ("clock base", f"{_known(self.clock_base_ns)} ns since 1970"),
            ("timing", f"{self.timing_regime}; {self.units}"),
        ]
        lost = [(label, counts) for label, counts in (("dropped", self.dropped), ("repaired", self.repaired)) if counts]
        shown += [(label, f"{n:,} {what}") for label, counts in lost for what, n in counts.items()]
        return shown + [("warning", text) for text in self.warnings]

    def __str__(self) -> str:
        return "\n".join(f"{label:<15}{_printable(text)}" for label, text in self.lines())

    def _repr_html_(self) -> str:
        """For a notebook; everything that comes from the file is escaped."""
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(label)}</th>"
            f"<td style='text-align:left'>{html.escape(_printable(text))}</td></tr>"
            for label, text in self.lines()
        )
        return f"<table>{rows}</table>"


@dataclass(frozen=True, slots=True)
class Profile:
    """A file read: its kernel table (see `kernels.KERNEL_COLUMNS`) and the report on the reading."""

    kernels: pd.DataFrame
    report: LoadReport


def _known(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _printable(text: str) -> str:
    """One line, without control characters that could play with a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """The part of a report that the kernel table alone determines, the same for every format."""

    kernels: int
    memcpys: int
    memsets: int
    sum_ns: int
    union_ns: int
    streams: int
    overlaps: int
    longest_overlap_ns: int
    zero_durations: int


def kernel_facts(table: pd.DataFrame) -> KernelFacts:
    """Count and add up a kernel table."""
    kernels = only_kernels(table)
    overlaps = overlaps_ns(table)
    return KernelFacts(
        kernels=len(kernels),
        memcpys=int((table["kind"] == "memcpy").sum()),
        memsets=int((table["kind"] == "memset").sum()),
        sum_ns=sum(kernels["duration_ns"].tolist()),  # Python integers: no overflow
        union_ns=union_ns(table),
        streams=sum(1 for _ in by_stream(kernels)),
        overlaps=len(overlaps),
        longest_overlap_ns=max(overlaps, default=0),
        zero_durations=int((kernels["duration_ns"] == 0).sum()),
    )


def kernel_warnings(facts: KernelFacts, *, whole_us: bool) -> list[str]:
    """What a person must know before using the durations; `whole_us`: the file's times have no decimals."""
    found = []
    if facts.zero_durations:
        known = "their cost is below 1 us and not known, not zero" if whole_us else "their cost is not known, not zero"
        found.append(f"{facts.zero_durations:,} kernels last 0 in the file: {known}")
    if facts.overlaps:
        longest = facts.longest_overlap_ns
        kind = (
            "as programmatic dependent launch does"
            if longest <= PDL_TAIL_NS
            else "too long for programmatic dependent launch: side by side in a graph, or wrong end stamps"
        )
        found.append(
            f"{facts.overlaps:,} kernels start before an earlier one on their stream has ended, by up to "
            f"{longest:,} ns, {kind}"
        )
    return found
