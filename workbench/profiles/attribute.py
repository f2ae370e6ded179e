"""Kernels to operators, by the annotations around their launches; and the idle time between kernels.

The names are those that a run gave with ``torch.profiler.record_function(name)`` around each operator. A kernel that no
such annotation encloses is unmatched: it stays NA and has a row of its own in the summary.
"""

from collections import Counter
from collections.abc import Iterable

import pandas as pd

from workbench.errors import ProfileError
from workbench.profiles.kernels import ANNOTATION_SEPARATOR, by_stream, only_kernels


def attribute_kernels(kernels: pd.DataFrame, operators: Iterable[str]) -> pd.DataFrame:
    """A copy of a kernel table with a column ``operator``.

    The innermost annotation whose name is, in full, one of `operators`; NA where there is none. Copies and fills are
    attributed too.

    Raises
    ------
    ProfileError
        Where a name is empty or given twice, so that a kernel could not belong to one operator.
    """
    names = list(operators)
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated or "" in names:
        raise ProfileError(f"operator names must differ and not be empty; given twice: {repeated[:3]}")
    known = frozenset(names)
    with_separator = [name for name in names if ANNOTATION_SEPARATOR in name]
    paths = kernels["annotation"].dropna().unique().tolist()
    owner = {path: _innermost(path, known, with_separator) for path in paths}
    found = [pd.NA if pd.isna(path) else owner[path] or pd.NA for path in kernels["annotation"]]
    return kernels.assign(operator=pd.array(found, dtype="string"))


def _innermost(path: str, known: frozenset[str], with_separator: list[str]) -> str | None:
    """The operator of `known` that ends last in an annotation path; of two that end together, the longer."""
    framed = f"{ANNOTATION_SEPARATOR}{path}{ANNOTATION_SEPARATOR}"
    ends: list[tuple[int, int, str]] = []
    end = len(path)
    for name in reversed(path.split(ANNOTATION_SEPARATOR)):
        if name in known:
            ends.append((end, len(name), name))
            break
        end -= len(name) + len(ANNOTATION_SEPARATOR)
    for name in with_separator:
        at = framed.rfind(f"{ANNOTATION_SEPARATOR}{name}{ANNOTATION_SEPARATOR}")
        if at >= 0:
            ends.append((at + len(name), len(name), name))
    return max(ends)[2] if ends else None


def operator_summary(attributed: pd.DataFrame, operators: Iterable[str]) -> pd.DataFrame:
    """One row an operator, in the order given, and a last one for what is unmatched.

    Columns: ``operator`` (NA in the last row), ``count`` and ``sum_ns`` over kernels without copies and fills, and
    ``share`` of all kernels' time (NA where there is no time at all). The rows add up to the whole table; an operator
    that no kernel matches has count 0.
    """
    kernels = only_kernels(attributed)
    grouped = kernels.groupby("operator", dropna=True)["duration_ns"].agg(["count", "sum"])
    rows = grouped.reindex(list(operators), fill_value=0)
    unmatched = kernels.loc[kernels["operator"].isna(), "duration_ns"]
    sums = [*rows["sum"].tolist(), int(unmatched.sum())]
    total = int(kernels["duration_ns"].sum())
    if sum(sums) != total:
        raise ProfileError("operator_summary: the table is attributed to operators that are not among those given")
    return pd.DataFrame(
        {
            "operator": pd.array([*rows.index.tolist(), pd.NA], dtype="string"),
            "count": [*rows["count"].tolist(), len(unmatched)],
            "sum_ns": sums,
            "share": pd.array([ns / total if total else pd.NA for ns in sums], dtype="Float64"),
        }
    )


def stream_gaps(kernels: pd.DataFrame) -> pd.DataFrame:
    """Idle time between consecutive rows of each stream, copies and fills included.

    Columns: ``device``, ``stream``, ``before`` and ``after`` (row labels in `kernels`), ``start_ns`` (when the stream
    fell idle), ``gap_ns`` (0 where the later row starts before all earlier ones have ended).
    """
    found: list[tuple[str, int | None, int, int, int, int]] = []
    for (device, stream), rows in by_stream(kernels):
        starts, durations, labels = rows["start_ns"].tolist(), rows["duration_ns"].tolist(), rows.index.tolist()
        reach = starts[0] + durations[0]
        for i in range(1, len(rows)):
            found.append((device, stream, labels[i - 1], labels[i], reach, max(0, starts[i] - reach)))
            reach = max(reach, starts[i] + durations[i])
    table = pd.DataFrame(found, columns=["device", "stream", "before", "after", "start_ns", "gap_ns"])
    return table.astype(
        {
            "device": "string",
            "stream": "Int64",
            "before": "int64",
            "after": "int64",
            "start_ns": "int64",
            "gap_ns": "int64",
        }
    )
