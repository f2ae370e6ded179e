"""Why a composition takes as long as it does, and why another takes longer: exact splits, in whole nanoseconds.

A prediction is a sum over regions and causes, and its critical path a sum over operators; so a difference between two
of them splits without a remainder. What is compared are two critical paths: a cause that shrinks may lay bare another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from workbench.compose import Composition, Region, check_composition, operators_in
from workbench.predict import ALL_CAUSES, Launch, Prediction, Pricer, RegionPrediction
from workbench.predict.regions import treatment_of
from workbench.simulate import CAUSES, path_of

if TYPE_CHECKING:
    import pandas as pd

ONCE = "(once a run)"
LAUNCHES = "(launch and drain)"
COMPUTE, WEIGHTS = CAUSES.index("compute"), CAUSES.index("weights")
WATERFALL_COLUMNS = ("cause", "where", "a_ns", "b_ns", "difference_ns")


def path_by_name(pricer: Pricer, composition: Composition) -> pd.DataFrame:
    """The critical path by stage and operator: one row an operator, in program order, all its launches together.

    Columns: stage, operator, how (configuration or arm), calls (on the path), ns, share_frac and one a cause, ns. All
    is of the first output. The column ns sums to ``ttfo_ns``, a cause's to ``causes_ns``. A gap before an operator is
    that operator's ramp; a region's launches and drains are a row LAUNCHES, whose stage is the region's, first … last
    where it has several; what a run has once is a row ONCE. CompositionError if the composition is illegal here.
    """
    import pandas as pd

    check_composition(pricer.program, composition)
    prediction = pricer.predict(composition, throughput=False)
    stages = pricer.program.stages()
    found: dict[tuple[str, str, str], dict[str, int]] = {}

    def row(stage: str, operator: str, how: str) -> dict[str, int]:
        return found.setdefault((stage, operator, how), dict.fromkeys(("calls", *ALL_CAUSES), 0))

    once = row("", ONCE, "")
    for cause, ns in _beside_regions(prediction).items():
        once[cause] = ns
    for region in composition.regions:
        how = treatment_of(region)
        outside = row(_stages_of(pricer, region, stages), LAUNCHES, how)
        for launch in pricer.runs(region, composition):
            for name, cause, ns in _segments(launch):
                mine = row(_stage(name, stages), name, how) if name else outside
                mine[cause] += launch.times * ns
            for name, calls in _calls(launch):
                row(_stage(name, stages), name, how)["calls"] += launch.times * calls
    rows = [
        {"stage": stage, "operator": operator, "how": how, "calls": values["calls"], "ns": ns,
         "share_frac": ns / prediction.ttfo_ns if prediction.ttfo_ns else 0.0}
        | {cause: values[cause] for cause in ALL_CAUSES}
        for (stage, operator, how), values in found.items()
        if (ns := sum(values[cause] for cause in ALL_CAUSES)) or values["calls"]
    ]  # fmt: skip
    columns = ("stage", "operator", "how", "calls", "ns", "share_frac", *ALL_CAUSES)
    return pd.DataFrame(rows, columns=list(columns))


def _segments(launch: Launch) -> Iterator[tuple[str, str, int]]:
    """Operator (or "": the region's own), cause and ns of the critical path of one launch; some of 0 or less."""
    priced, run, _ = launch
    path = path_of(run)
    owned = path.tile >= 0
    streaming = owned & (path.cause == COMPUTE) & priced.streams[path.tile]
    cause = np.where(streaming, WEIGHTS, path.cause)
    op = np.full(len(path.tile), run.queue.ops, np.int64)  # ops: the region's own
    op[owned] = run.queue.op[path.tile[owned]]
    ramp = CAUSES.index("ramp")
    for i in reversed(range(len(op) - 1)):  # a gap belongs to the operator after it
        if not owned[i] and cause[i] == ramp:
            op[i] = op[i + 1]
    total = np.zeros((run.queue.ops + 1, len(CAUSES)), np.int64)
    np.add.at(total, (op, cause), path.length_ns)
    for at, index in zip(*np.nonzero(total), strict=True):
        name = "" if at == run.queue.ops else priced.calls[at].operator.name
        yield name, CAUSES[index], int(total[at, index])
    for at in range(run.start_op, run.stop_op):
        if host := int(priced.host_ns[at]):
            name = priced.calls[at].operator.name
            yield name, "host", host
            yield name, "compute", -host


def _calls(launch: Launch) -> Iterator[tuple[str, int]]:
    """Operators on the critical path of a launch, and how many of their calls are."""
    priced, run, _ = launch
    tiles = path_of(run).tile
    names = [priced.calls[op].operator.name for op in np.unique(run.queue.op[tiles[tiles >= 0]]).tolist()]
    for name in dict.fromkeys(names):
        yield name, names.count(name)


def _stage(operator: str, stages: dict[str, str]) -> str:
    """Stage of an operator, or of that whose parts it sums up."""
    return stages.get(operator, stages.get(operator.removesuffix("+reduce"), ""))


def _stages_of(pricer: Pricer, region: Region, stages: dict[str, str]) -> str:
    depth, start = pricer.place[region.items[0]]
    chosen = pricer.levels[depth].items[start : start + len(region.items)]
    names = list(dict.fromkeys(stages.get(op.name, "") for item in chosen for op in operators_in(item)))
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def _beside_regions(prediction: Prediction) -> dict[str, int]:
    """By cause, what of a prediction is of no region."""
    return {
        cause: ns - sum(part.causes_ns.get(cause, 0) for part in prediction.regions)
        for cause, ns in prediction.causes_ns.items()
    }


# -- differences -------------------------------------------------------------------------------------------------------


def waterfall(a: Prediction, b: Prediction) -> pd.DataFrame:
    """What ``b`` takes more than ``a``, by cause and within it by place: WATERFALL_COLUMNS, differences b - a.

    Causes are in the order of ALL_CAUSES, places in that of the program. A place is the least stretch of the program
    that regions of both cover exactly: where both cut, or between. ``difference_ns`` sums to
    ``b.ttfo_ns - a.ttfo_ns``; rows that are 0 in both are left out. The two may differ in anything (composition,
    device, batch); where they are of two programs, places are told apart by items' names alone.
    """
    places: list[tuple[str, str, int, int]] = []
    beside = _beside_regions(a), _beside_regions(b)
    places += [(ONCE, cause, beside[0].get(cause, 0), beside[1].get(cause, 0)) for cause in ALL_CAUSES]
    for name, mine, theirs in _places(a.regions, b.regions):
        for cause in ALL_CAUSES:
            totals = [sum(part.causes_ns[cause] for part in parts) for parts in (mine, theirs)]
            places.append((name, cause, totals[0], totals[1]))
    return _waterfall(places)


def stage_waterfall(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """What path ``b`` takes more than ``a`` (both from `path_by_name`), by cause and stage; else as `waterfall`.

    A row's place is a stage's name, LAUNCHES for launches and drains of all regions, or ONCE.
    """
    sides = [_by_stage(path) for path in (a, b)]
    keys = dict.fromkeys(key for side in sides for key in side)
    return _waterfall([(*key, sides[0].get(key, 0), sides[1].get(key, 0)) for key in keys])


def _by_stage(path: pd.DataFrame) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for row in path.to_dict("records"):
        where = str(row["operator"] if row["operator"] in (ONCE, LAUNCHES) else row["stage"])
        for cause in ALL_CAUSES:
            found[where, cause] = found.get((where, cause), 0) + int(row[cause])
    return found


def _waterfall(rows: list[tuple[str, str, int, int]]) -> pd.DataFrame:
    import pandas as pd

    rows = sorted(rows, key=lambda row: ALL_CAUSES.index(row[1]))
    shown = [(cause, where, mine, theirs, theirs - mine) for where, cause, mine, theirs in rows if mine or theirs]
    table = pd.DataFrame(shown, columns=list(WATERFALL_COLUMNS))
    return table.astype({name: "int64" for name in WATERFALL_COLUMNS if name.endswith("_ns")})


Parts = list[RegionPrediction]


def _places(a: tuple[RegionPrediction, ...], b: tuple[RegionPrediction, ...]) -> Iterator[tuple[str, Parts, Parts]]:
    """The finest stretches that regions of both sides cover exactly: name, regions of each.

    An item that both name joins its two regions. One that only one side names is a loop or a part of one that the other
    opened: it lies between the same common items as what it stands for.
    """
    sides = [[(item, part) for part in side for item in part.region.items] for side in (a, b)]
    common = {item for item, _ in sides[0]} & {item for item, _ in sides[1]}
    groups: dict[int, int] = {}  # region by id, to the number of its stretch
    members: dict[object, list[int]] = {}  # regions that must be of one stretch, by common item or gap between some
    for side in sides:
        seen = 0
        for item, part in side:
            seen += item in common
            members.setdefault(item if item in common else seen, []).append(id(part))
            groups[id(part)] = id(part)
    for together in members.values():
        old = {groups[part] for part in together}
        groups = {part: min(old) if group in old else group for part, group in groups.items()}
    for group in dict.fromkeys(groups[id(part)] for part in (*a, *b)):
        mine, theirs = ([part for part in side if groups[id(part)] == group] for side in (a, b))
        names = [[item for part in parts for item in part.region.items] for parts in (mine, theirs) if parts]
        shown = min(names, key=lambda items: (len(items), items))
        yield shown[0] if len(shown) == 1 else f"{shown[0]} … {shown[-1]}", mine, theirs
