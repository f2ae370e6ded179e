"""The canonical kernel table: one row a kernel, copy or fill, whatever profiler wrote it.

Times are whole nanoseconds, intervals half-open ``[start_ns, start_ns + duration_ns)``. ``start_ns`` counts from the
first timed event that the reader kept, device or host; ``LoadReport.clock_base_ns`` says when that was. What a file
does not say is NA, never 0.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from workbench.errors import ProfileError

ANNOTATION_SEPARATOR = " > "  # between the names of an annotation path, outermost first
KINDS = ("kernel", "memcpy", "memset", "cpu_op")
LATEST_NS = 2**62  # a time beyond this is corruption: 146 years, and sums of two still fit int64
MAX_NAMED = 3  # rows named in an error


class KernelColumn(NamedTuple):
    """One column of the kernel table."""

    name: str  # unit last, where there is one
    dtype: str
    required: bool  # False: NA where the file does not say
    meaning: str


KERNEL_COLUMNS = (
    KernelColumn("device", "string", True, "'gpu:N', 'gpu' where the number is unknown, or 'cpu'"),
    KernelColumn("stream", "Int64", False, "the device's stream; on 'cpu' the thread"),
    KernelColumn("kind", "string", True, "kernel, memcpy or memset; cpu_op: an outermost operator of a CPU run"),
    KernelColumn("name", "string", False, "as the profiler wrote it, mangled or not"),
    KernelColumn("start_ns", "int64", True, "from the first timed event that the reader kept"),
    KernelColumn("duration_ns", "int64", True, "0 in a microsecond trace means: not known, below 1 us"),
    KernelColumn("correlation", "Int64", False, "launch id; all kernels of one graph launch share it"),
    KernelColumn("external_id", "Int64", False, "the profiler's id of the host operator that launched it"),
    KernelColumn("op", "string", False, "name of that host operator"),
    KernelColumn("annotation", "string", False, "user annotations around the launch, outermost first, ' > ' between"),
    KernelColumn("grid", "object", False, "blocks (x, y, z)"),
    KernelColumn("block", "object", False, "threads (x, y, z)"),
    KernelColumn("registers_per_thread", "Int64", False, "as compiled"),
    KernelColumn("shared_memory_bytes", "Int64", False, "static and dynamic together, per block"),
    KernelColumn("graph_id", "Int64", False, "captured graph; NA outside one"),
    KernelColumn("graph_node_id", "Int64", False, "node of that graph; NA outside one"),
)


def build_kernels(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows to a checked table, in order of start, then device, stream, graph node and the file's own order.

    A key that a row lacks, and None, become NA.
    """
    ordered = sorted(
        rows,
        key=lambda r: (r["start_ns"], r["device"], _or_last(r.get("stream")), _or_last(r.get("graph_node_id"))),
    )
    table = pd.DataFrame({c.name: _column([row.get(c.name) for row in ordered], c.dtype) for c in KERNEL_COLUMNS})
    check_kernels(table)
    return table


def _or_last(number: int | None) -> int:
    return LATEST_NS if number is None else number


def _column(values: list[Any], dtype: str) -> Any:
    if dtype == "object":
        return pd.Series([pd.NA if v is None else v for v in values], dtype=object)
    return pd.array(values, dtype=dtype)  # type: ignore[call-overload]


def check_kernels(kernels: pd.DataFrame) -> None:
    """Raise unless `kernels` is a kernel table that later stages may rely on.

    Raises
    ------
    ProfileError
        Naming the first column or rows that break a rule: columns and dtypes of KERNEL_COLUMNS, nothing required
        missing, known kinds, times not negative nor absurd, rows in order of start, no mix of device and CPU rows.
    """
    for column in KERNEL_COLUMNS:
        if column.name not in kernels.columns:
            raise ProfileError(f"kernel table lacks column {column.name!r} ({column.meaning})")
        if str(kernels[column.name].dtype) != column.dtype:
            got = kernels[column.name].dtype
            raise ProfileError(f"kernel table: column {column.name!r} has dtype {got}; expected {column.dtype}")
        if column.required and bool(kernels[column.name].isna().any()):
            raise ProfileError(f"kernel table: required column {column.name!r} has missing values")
    start, duration = kernels["start_ns"], kernels["duration_ns"]
    cpu = kernels["kind"] == "cpu_op"
    for broken, rule in (
        (~kernels["kind"].isin(KINDS), f"kind must be one of {', '.join(KINDS)}"),
        ((start < 0) | (start > LATEST_NS), f"start_ns must lie in [0, {LATEST_NS}]"),
        ((duration < 0) | (duration > LATEST_NS), f"duration_ns must lie in [0, {LATEST_NS}]"),
        (cpu != (kernels["device"] == "cpu"), "device is 'cpu' exactly for cpu_op rows"),
        (start.diff() < 0, "rows must be in order of start_ns"),
    ):
        bad = [int(i) for i in broken.to_numpy(dtype=bool).nonzero()[0]]
        if bad:
            raise ProfileError(f"kernel table: rows {bad[:MAX_NAMED]} of {len(bad)} break the rule: {rule}")
    if bool(cpu.any()) and not bool(cpu.all()):
        raise ProfileError("kernel table: operators of a CPU run and device rows are mixed; they are two timelines")


def annotation_path(names: Sequence[str]) -> str | None:
    """The table's text for nested annotations, outermost first; None for none."""
    return ANNOTATION_SEPARATOR.join(names) or None


def only_kernels(kernels: pd.DataFrame) -> pd.DataFrame:
    """Kernels proper: without copies and fills; on the CPU, the outermost operators."""
    return kernels[kernels["kind"].isin(("kernel", "cpu_op"))]


def by_stream(kernels: pd.DataFrame) -> Iterator[tuple[tuple[str, int | None], pd.DataFrame]]:
    """Rows of each stream of each device, in order of start; a stream that the file does not name is None."""
    for device, on_device in kernels.groupby("device", sort=True):
        for stream, rows in on_device.groupby("stream", sort=True):
            yield (str(device), int(str(stream))), rows
        unnamed = on_device[on_device["stream"].isna()]
        if len(unnamed):
            yield (str(device), None), unnamed


def spans(kernels: pd.DataFrame) -> list[tuple[int, int]]:
    """``(start_ns, end_ns)`` of each row, half-open."""
    starts, durations = kernels["start_ns"].tolist(), kernels["duration_ns"].tolist()
    return [(start, start + duration) for start, duration in zip(starts, durations, strict=True)]


def length_of_union(intervals: Iterable[tuple[int, int]]) -> int:
    """Length that half-open intervals cover together.

    >>> length_of_union([(0, 10), (5, 12), (20, 21)])
    13
    """
    total, reach = 0, None
    for start, end in sorted(intervals):
        if reach is None or start > reach:
            total, reach = total + end - start, end
        elif end > reach:
            total, reach = total + end - reach, end
    return total


def union_ns(kernels: pd.DataFrame) -> int:
    """Time during which a device runs at least one kernel, over all its streams together, added up over devices.

    Copies and fills do not count. Integer arithmetic, so that it never exceeds the sum of the durations.
    """
    busy = only_kernels(kernels)
    return sum(length_of_union(spans(rows)) for _, rows in busy.groupby("device", sort=True))


def overlaps_ns(kernels: pd.DataFrame) -> list[int]:
    """For each kernel that starts before an earlier one on its stream has ended: by how much."""
    found = []
    for _, rows in by_stream(only_kernels(kernels)):
        reach = 0
        for start, end in spans(rows):
            if start < reach:
                found.append(reach - start)
            reach = max(reach, end)
    return found
