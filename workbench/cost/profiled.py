"""A conventional profile in the place of benchmarks: how long each operator takes in the run as it is today."""

from __future__ import annotations

import pandas as pd

from workbench.cost.table import COLUMNS, CostTable
from workbench.errors import ProfileError
from workbench.profiles import only_kernels
from workbench.program import Program, calls

UNMATCHED_LIMIT = 0.05


def profiled_times(attributed: pd.DataFrame, program: Program) -> pd.DataFrame:
    """Time of each operator a call, ns, in a profile of one run to the first output.

    ``attributed`` is a kernel table with a column ``operator``. An operator's time is that of its kernels and of the
    idle time just before each of them, within its stream. Columns: operator (NA for what no operator owns), calls,
    kernels, kernel_ns, gap_ns, call_ns (NA for the unmatched row).

    Raises ProfileError where an operator of the program has no kernel, or more than 5 % of the time is unmatched.
    """
    kernels = only_kernels(attributed).sort_values(["device", "stream", "start_ns"])
    end = kernels["start_ns"] + kernels["duration_ns"]
    busy_until = end.groupby([kernels["device"], kernels["stream"]]).cummax()
    before = busy_until.groupby([kernels["device"], kernels["stream"]]).shift()
    gap = (kernels["start_ns"] - before).clip(lower=0).fillna(0).astype("int64")
    summed = kernels.assign(gap_ns=gap).groupby("operator", dropna=False)
    found = summed.agg(kernels=("duration_ns", "size"), kernel_ns=("duration_ns", "sum"), gap_ns=("gap_ns", "sum"))
    count: dict[str, int] = {}
    for call in calls(program.first):
        count[call.operator.name] = count.get(call.operator.name, 0) + 1
    if missing := [name for name in count if name not in found.index]:
        raise ProfileError(
            f"the profile has no kernel of operator {missing[0]!r} ({len(missing)} of {len(count)} lack one); annotate "
            "each operator with torch.profiler.record_function, as `workbench capture` does"
        )
    table = found.reset_index()
    table.insert(1, "calls", table["operator"].map(count).astype("Int64"))
    total = table["kernel_ns"] + table["gap_ns"]
    table["call_ns"] = (total / table["calls"]).round().astype("Int64")
    lost = float(total[table["operator"].isna()].sum() / total.sum())
    if lost > UNMATCHED_LIMIT:
        raise ProfileError(
            f"{lost:.0%} of the profile's time belongs to no operator; at most {UNMATCHED_LIMIT:.0%} may"
        )
    return table


def with_profile(table: CostTable, times: pd.DataFrame, batch: int) -> tuple[CostTable, pd.DataFrame]:
    """``table`` with the eager times of one batch taken from a profile, and the difference to what it had.

    The difference has a row an operator: benchmark_ns and profile_ns a call (attention's positions averaged).
    """
    owned = times.dropna(subset=["operator"]).set_index("operator")["call_ns"]
    mine = (table.rows["how"] == "eager") & (table.rows["batch"] == batch)
    old = table.rows[mine].groupby("operator")["median_ns"].mean().rename("benchmark_ns")
    names = list(dict.fromkeys([*old.index, *owned.index]))
    rows = [(name, batch, 0, "eager", 0, *[max(1, int(owned[name]))] * 3, 1) for name in names if name in owned.index]
    new = pd.DataFrame(rows, columns=list(COLUMNS))
    difference = pd.concat([old, owned.astype("float64").rename("profile_ns")], axis=1).rename_axis("operator")
    difference["ratio"] = difference["profile_ns"] / difference["benchmark_ns"]
    return CostTable(pd.concat([table.rows[~mine], new], ignore_index=True)), difference.reset_index()
