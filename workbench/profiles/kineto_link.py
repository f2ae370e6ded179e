"""Kineto rows completed: operators and annotations of device kernels, kernels of a CPU run, impossible durations."""

from collections import defaultdict
from typing import Any

from workbench.profiles.kernels import annotation_path
from workbench.profiles.kineto_events import Collected, Span, Thread, to_int
from workbench.profiles.nesting import names_around, outermost

# Kernels of one stream run one after the other; ahead-of-time starts (PDL) overlap by a few us. ROCm's late end stamps
# run over by milliseconds to seconds (TraceLens #669, Hyperloom #1116). The threshold between them is ours.
OVERRUN_NS = 1_000_000


def link_to_host(found: Collected) -> None:
    """Give device rows their operator and annotation, in place.

    Both are what lies around the launch call with the row's correlation, on the launching thread: the innermost host
    operator, and all user annotations. All kernels of a graph launch share one call. Where the file lacks the call,
    the operator is the one with the row's external id, and the annotations are those that Kineto projected on the
    row's stream.

    In 2022 the external id of a kernel was its correlation again and pointed to unrelated operators, hence the order,
    and hence it is forgotten where it is so for all rows. In the other eras both ways agree (a test says so).
    """
    if all(row["external_id"] in (None, row["correlation"]) for row in found.rows):
        for row in found.rows:
            row["external_id"] = None
    operators: dict[Thread, list[Span]] = defaultdict(list)
    names: dict[int, str] = {}
    for operator in found.operators:
        operators[operator.thread].append(operator.span)
        if operator.external_id is not None:
            names.setdefault(operator.external_id, operator.span.name)
    by_thread: dict[Thread, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    by_stream: dict[tuple[str, int | None], list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for row in found.rows:
        call = found.calls.get(row["correlation"])
        if call is not None:
            by_thread[call[0]].append((call[1], row))
        else:
            by_stream[row["device"], row["stream"]].append((row["start_ns"], row))
            row["op"] = names.get(row["external_id"])
    for thread, asked in by_thread.items():
        _annotate(found.annotations.get(thread, []), asked)
        around = names_around(operators.get(thread, []), [moment for moment, _ in asked])
        for (_, row), stack in zip(asked, around, strict=True):
            row["op"] = stack[-1] if stack else None
    for stream, asked in by_stream.items():
        _annotate(found.gpu_annotations.get(stream, []), asked)


def _annotate(spans: list[Span], asked: list[tuple[int, dict[str, Any]]]) -> None:
    around = names_around(spans, [moment for moment, _ in asked])
    for (_, row), names in zip(asked, around, strict=True):
        row["annotation"] = annotation_path(names)


def cpu_rows(found: Collected) -> list[dict[str, Any]]:
    """The outermost operators of every thread, as kernels of device "cpu"."""
    rows: list[dict[str, Any]] = []
    by_thread: dict[Thread, list[int]] = defaultdict(list)
    for i, operator in enumerate(found.operators):
        by_thread[operator.thread].append(i)
    for thread, members in by_thread.items():
        operators = [found.operators[i] for i in members]
        top = [operators[i] for i in outermost([(o.span.start_ns, o.span.end_ns) for o in operators])]
        around = names_around(found.annotations.get(thread, []), [o.span.start_ns for o in top])
        for operator, names in zip(top, around, strict=True):
            start, end, name = operator.span
            rows.append(
                {
                    "device": "cpu", "stream": to_int(thread[1]), "kind": "cpu_op", "name": name, "op": name,
                    "start_ns": start, "duration_ns": end - start, "external_id": operator.external_id,
                    "annotation": annotation_path(names),
                }
            )  # fmt: skip
    return rows


def keep_outermost_rows(found: Collected) -> int:
    """Drop device rows inside other ones of their device, in place; how many.

    The legacy export has no kernels but CUDA-event intervals around operators, and operators nest.
    """
    by_device: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in found.rows:
        by_device[row["device"]].append(row)
    before = len(found.rows)
    found.rows = []
    for rows in by_device.values():
        kept = outermost([(row["start_ns"], row["start_ns"] + row["duration_ns"]) for row in rows])
        found.rows += [rows[i] for i in kept]
    return before - len(found.rows)


def clip_overruns(rows: list[dict[str, Any]]) -> int:
    """Cut rows that run over a later one on their stream by more than OVERRUN_NS to its start, in place; how many.

    Rows that start together do not contradict each other, and kernels of one graph launch may run side by side.
    """
    by_stream: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["stream"] is not None:
            by_stream[row["device"], row["stream"]].append(row)
    clipped = 0
    for members in by_stream.values():
        members.sort(key=lambda row: int(row["start_ns"]))
        later = None  # the next row that starts after this one
        for row, following in zip(reversed(members), [None, *reversed(members)], strict=False):
            if following is not None and following["start_ns"] > row["start_ns"]:
                later = following
            if later is None or (row["correlation"] is not None and row["correlation"] == later["correlation"]):
                continue
            if row["start_ns"] + row["duration_ns"] - later["start_ns"] > OVERRUN_NS:
                row["duration_ns"] = later["start_ns"] - row["start_ns"]
                clipped += 1
    return clipped
