"""The events of a Kineto trace that matter here, sorted by role, with times as integer nanoseconds.

Timestamps are decimal microseconds in the file and go to nanoseconds through their text, never through a float: a
float64 holds an epoch in microseconds to a quarter of one only.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any, NamedTuple

from workbench.profiles.json_events import TraceNotes
from workbench.profiles.kernels import LATEST_NS

NS_PER_US = 1_000
LONGEST_NUMBER = 60  # characters; a longer one is no time
ROLES = {
    "kernel": "kernel", "Kernel": "kernel",
    "gpu_memcpy": "memcpy", "Memcpy": "memcpy",
    "gpu_memset": "memset", "Memset": "memset",
    "cpu_op": "operator", "Operator": "operator",
    "cuda_runtime": "runtime", "cuda_driver": "runtime", "hip_runtime": "runtime", "Runtime": "runtime",
    "xpu_runtime": "runtime", "xpu_driver": "runtime",
    "user_annotation": "annotation",
    "gpu_user_annotation": "gpu_annotation",
}  # fmt: skip
LEGACY_ROLES = {"CPU functions": "operator", "CUDA functions": "kernel"}
# In 2021 annotations were Operator events like any other; these names are known not to be operators.
_ANNOTATION_NAME = re.compile(r"ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)")
_LAUNCH_NAME = re.compile(r"Launch(?!HostFunc)")
_INTEGER = re.compile(r"(?:[^\d.]*\s)?(-?\d{1,18})(?:\.0*)?")  # "7", "7.0", "stream 7"

Thread = tuple[Any, Any]  # pid and tid, as the file has them


class ArgColumn(NamedTuple):
    """Where an integer column of the kernel table stands in a kernel event's ``args``."""

    name: str  # ours
    raw: tuple[str, ...]  # the profiler's, newest first
    zero_is_missing: bool  # 0 is the writer's way to say "none"


KINETO_COLUMNS = (
    ArgColumn("correlation", ("correlation",), zero_is_missing=False),
    ArgColumn("external_id", ("External id", "external id"), zero_is_missing=True),
    ArgColumn("registers_per_thread", ("registers per thread",), zero_is_missing=False),
    ArgColumn("shared_memory_bytes", ("shared memory",), zero_is_missing=False),
    ArgColumn("graph_id", ("graph id",), zero_is_missing=True),
    ArgColumn("graph_node_id", ("graph node id",), zero_is_missing=True),
)


class Span(NamedTuple):
    """A named stretch of one thread or stream; `end_ns` is exclusive."""

    start_ns: int
    end_ns: int
    name: str


class HostOperator(NamedTuple):
    """A host operator's span, where it ran, and the id that kernels refer to."""

    thread: Thread
    span: Span
    external_id: int | None


@dataclass(slots=True)
class Collected:
    """The events of one trace by role. Rows have the columns of the kernel table but op and annotation."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    operators: list[HostOperator] = field(default_factory=list)
    annotations: dict[Thread, list[Span]] = field(default_factory=dict)
    gpu_annotations: dict[tuple[str, int | None], list[Span]] = field(default_factory=dict)
    calls: dict[int, tuple[Thread, int]] = field(default_factory=dict)  # correlation -> where and when on the host
    launches: list[int | None] = field(default_factory=list)  # correlation of each kernel or graph launch
    graph_launches: list[int | None] = field(default_factory=list)  # of these, those of a whole graph
    categories: Counter[str] = field(default_factory=Counter)
    first_ns: int | None = None
    fractional: bool = False  # some time has decimals, or was a string
    graph_ids: bool = False
    legacy: bool = False
    hip: bool = False


def to_ns(microseconds: object) -> int | None:
    """Whole nanoseconds from a JSON number of microseconds, given as int or as its text; None for what is no time.

    Digits below a nanosecond are rounded half to even.

    >>> to_ns("1712195495505543.140"), to_ns(3), to_ns("1e3"), to_ns("soon"), to_ns(True)
    (1712195495505543140, 3000, 1000000, None, None)
    """
    if type(microseconds) is int:
        ns = microseconds * NS_PER_US
    elif type(microseconds) is str and len(microseconds) <= LONGEST_NUMBER and microseconds.isascii():
        whole, _, decimals = microseconds.partition(".")
        if whole.isdigit() and len(decimals) <= 3 and (decimals + "0").isdigit():
            ns = int(whole) * NS_PER_US + int((decimals + "000")[:3])
        else:
            try:
                exact = Decimal(microseconds)
                if not exact.is_finite() or exact.adjusted() > 18:
                    return None
                ns = int(exact.scaleb(3).to_integral_value(ROUND_HALF_EVEN))
            except InvalidOperation:
                return None
    else:
        return None
    return ns if -LATEST_NS < ns < LATEST_NS else None


def _below_ns(microseconds: object) -> bool:
    return type(microseconds) is str and len(microseconds.partition(".")[2]) > 3


def to_int(value: object) -> int | None:
    """An integer that fits 64 bits, from a number, its text, or a thread's name such as "stream 7"."""
    if type(value) is int:
        return value if -(2**63) <= value < 2**63 else None
    match = _INTEGER.fullmatch(value) if isinstance(value, str) else None
    return int(match[1]) if match else None


def collect(events: Iterable[dict[str, Any]], notes: TraceNotes) -> Collected:
    """Sort events by role; what has no usable time is counted in ``notes.dropped``."""
    found = Collected()
    for event in events:
        if event.get("ph") != "X":  # flow arrows, counters, marks, names; and what is no event at all
            continue
        category = event.get("cat")
        if isinstance(category, str):
            role = ROLES.get(category)
        else:
            pid = event.get("pid")
            role = LEGACY_ROLES.get(pid) if isinstance(pid, str) else None
            found.legacy |= role is not None
            category = "(none)"
        found.categories[category] += 1
        if role is None:
            continue
        start, duration = to_ns(event.get("ts")), to_ns(event.get("dur"))
        if start is None or duration is None or duration < 0:
            what = "start" if start is None else "duration"
            notes.dropped[f"{role} events without a usable {what}"] += 1
            continue
        if type(event["ts"]) is str:
            found.fractional = True
            if _below_ns(event["ts"]) or _below_ns(event["dur"]):
                notes.repaired["times with digits below 1 ns, rounded"] += 1
        if found.first_ns is None or start < found.first_ns:
            found.first_ns = start
        _keep(found, event, role, category, start, duration)
    return found


def _keep(found: Collected, event: dict[str, Any], role: str, category: str, start: int, duration: int) -> None:
    args = event.get("args")
    if not isinstance(args, dict):
        args = {}
    name = _text(event.get("name"))
    if role in ("kernel", "memcpy", "memset"):
        found.graph_ids |= "graph id" in args or "graph node id" in args
        found.rows.append(_row(event, args, role, name, start, duration))
        return
    thread = _thread(event)
    if role == "runtime":
        correlation = to_int(args.get("correlation"))
        if correlation is not None:
            found.calls.setdefault(correlation, (thread, start))
        found.hip |= name is not None and name.startswith("hip")
        if name is not None and _LAUNCH_NAME.search(name):
            found.launches.append(correlation)
            if "GraphLaunch" in name:
                found.graph_launches.append(correlation)
        return
    if name is None:
        return
    span = Span(start, start + duration, name)
    if role == "operator":
        if category in ("Operator", "(none)") and _ANNOTATION_NAME.match(name):
            role = "annotation"
        else:
            found.operators.append(HostOperator(thread, span, _argument(args, KINETO_COLUMNS[1])))
    if role == "annotation":
        found.annotations.setdefault(thread, []).append(span)
    elif role == "gpu_annotation":
        found.gpu_annotations.setdefault((_device(event, args), _stream(event, args)), []).append(span)


def _row(
    event: dict[str, Any], args: dict[str, Any], kind: str, name: str | None, start: int, duration: int
) -> dict[str, Any]:
    row: dict[str, Any] = {column.name: _argument(args, column) for column in KINETO_COLUMNS}
    row.update(
        device=_device(event, args),
        stream=_stream(event, args),
        kind=kind,
        name=name,
        start_ns=start,
        duration_ns=duration,
        grid=_triple(args.get("grid")),
        block=_triple(args.get("block")),
    )
    return row


def _argument(args: dict[str, Any], column: ArgColumn) -> int | None:
    for raw in column.raw:
        if raw in args:
            number = to_int(args[raw])
            return None if number == 0 and column.zero_is_missing else number
    return None


def _device(event: dict[str, Any], args: dict[str, Any]) -> str:
    number = to_int(args.get("device"))
    if number is None:
        number = to_int(event.get("tid" if event.get("pid") in LEGACY_ROLES else "pid"))
    return "gpu" if number is None else f"gpu:{number}"


def _stream(event: dict[str, Any], args: dict[str, Any]) -> int | None:
    stream = to_int(args.get("stream"))
    if stream is None and event.get("pid") not in LEGACY_ROLES:
        stream = to_int(event.get("tid"))
    return stream


def _thread(event: dict[str, Any]) -> Thread:
    pid, tid = event.get("pid"), event.get("tid")
    return pid if isinstance(pid, int | str) else None, tid if isinstance(tid, int | str) else None


def _triple(value: object) -> tuple[int, int, int] | None:
    if isinstance(value, list) and len(value) == 3:
        x, y, z = map(to_int, value)
        if x is not None and y is not None and z is not None:
            return x, y, z
    return None


def _text(value: object) -> str | None:
    """A name; lone surrogates, which no encoding can write, become question marks."""
    if not isinstance(value, str):
        return None
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
