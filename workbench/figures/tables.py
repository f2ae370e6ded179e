"""The tables that figures draw, made from predictions, comparisons and simulated runs: here is what is computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from workbench.compare import Comparison
from workbench.compose import Composition, Kind, Level, Region, cuts_of
from workbench.errors import WorkbenchError
from workbench.hardware import worst
from workbench.predict import LevelQueue, Prediction, Pricer, relevant_loops
from workbench.program import Loop
from workbench.simulate import Run, simulate

LAUNCH_LANE = -1  # in a timeline: the row of the regions' launches
TILE_LIMIT = 20_000


def title_of(composition: Composition) -> str:
    """What a composition is called in figures: its name, else its shape and digest."""
    return composition.name or f"{composition.shape} {composition.digest[:6]}"


def predictions_table(predictions: Sequence[Prediction]) -> pd.DataFrame:
    """A row a prediction: batch, composition, source, ttfo_us, low_us, high_us, shape, provenance, device."""
    return pd.DataFrame(
        {
            "batch": p.batch,
            "composition": title_of(p.composition),
            "source": "predicted",
            "ttfo_us": p.ttfo_ns / 1e3,
            "low_us": p.interval_ns[0] / 1e3,
            "high_us": p.interval_ns[1] / 1e3,
            "shape": p.composition.shape,
            "provenance": p.provenance.value,
            "device": p.device,
        }
        for p in predictions
    )


def comparison_table(comparison: Comparison, device: str) -> pd.DataFrame:
    """Both halves of a comparison with the columns of ``predictions_table``; measured intervals are of the median."""
    t = comparison.table
    unnamed = t["composition"] == t["digest"]
    names = t["composition"].where(~unnamed, t["shape"] + " " + t["digest"].str[:6])
    halves = [
        pd.DataFrame(
            {
                "batch": t["batch"],
                "composition": names,
                "source": source,
                "ttfo_us": t[f"{source}_us"],
                "low_us": t[f"{source}_low_us"],
                "high_us": t[f"{source}_high_us"],
                "shape": t["shape"],
                "provenance": f"{source} on {device}" if source == "measured" else t["provenance"],
                "device": device,
            }
        )
        for source in ("predicted", "measured")
    ]
    return pd.concat(halves, ignore_index=True)


def causes_table(predictions: Sequence[Prediction]) -> pd.DataFrame:
    """A row a composition and cause: composition, batch, cause, us, provenance."""
    return pd.DataFrame(
        {
            "composition": title_of(p.composition),
            "batch": p.batch,
            "cause": cause,
            "us": ns / 1e3,
            "provenance": p.provenance.value,
        }
        for p in predictions
        for cause, ns in p.causes_ns.items()
    )


def difference_table(base: Prediction, other: Prediction) -> pd.DataFrame:
    """Why ``other`` differs from ``base``: a row a cause with base_us, other_us and difference_us."""
    if (base.program, base.device, base.batch) != (other.program, other.device, other.batch):
        raise WorkbenchError(
            f"{base.program} on {base.device} at batch {base.batch} and {other.program} on {other.device} at batch "
            f"{other.batch} are not compared: only within one program, device and batch"
        )
    provenance = worst({base.provenance, other.provenance}).value
    return pd.DataFrame(
        {
            "cause": cause,
            "base_us": ns / 1e3,
            "other_us": other.causes_ns[cause] / 1e3,
            "difference_us": (other.causes_ns[cause] - ns) / 1e3,
            "base": title_of(base.composition),
            "other": title_of(other.composition),
            "provenance": provenance,
        }
        for cause, ns in base.causes_ns.items()
    )


def launches(pricer: Pricer, composition: Composition) -> Iterator[tuple[Region, LevelQueue, Run]]:
    """Every launch of a composition to its first output, in the order of execution, with its simulated run."""
    region_of = {name: region for region in composition.regions for name in region.items}
    by_depth = pricer.levels
    depth_of = {level.around[-1].name: d for d, level in enumerate(by_depth) if level.around}
    runs: dict[tuple[Region, tuple[int, ...]], tuple[LevelQueue, Run]] = {}

    def run_of(depth: int, start: int, region: Region, index: Mapping[str, int]) -> tuple[LevelQueue, Run]:
        key = (region, tuple(index[name] for name in relevant_loops(by_depth[depth])))
        if key not in runs:
            queue = pricer.level_queue(depth, index, str(region.configuration or region.arm))
            runs[key] = queue, simulate(queue.queue, queue.mechanism, *queue.ops(start, start + len(region.items)))
        return runs[key]

    def walk(depth: int, level: Level, index: Mapping[str, int]) -> Iterator[tuple[Region, LevelQueue, Run]]:
        position = 0
        while position < len(level.items):
            item = level.items[position]
            region = region_of.get(item.name)
            if region is not None:
                yield (region, *run_of(depth, position, region, index))
                position += len(region.items)
                continue
            assert isinstance(item, Loop)
            inner = depth_of[item.name]
            for i in range(item.count):
                yield from walk(inner, by_depth[inner], {**index, item.name: i})
            position += 1

    yield from walk(0, by_depth[0], {})


def timeline_table(pricer: Pricer, composition: Composition, limit: int = TILE_LIMIT) -> pd.DataFrame:
    """The way to the first output as spans: lane, op_name, stage, begin_ns, end_ns, launch, provenance, shown.

    A tile is a row; a region's launch is a row in LAUNCH_LANE whose ``stage`` is its kind. At most ``limit`` tiles are
    listed, the earliest; ``shown`` is the share of the time to first output that they reach.
    """
    stage_of = pricer.program.stages()
    total_ns = pricer.predict(composition).ttfo_ns
    parts: list[pd.DataFrame] = []
    offset, room, listed = 0, limit, total_ns
    for number, (region, priced, run) in enumerate(launches(pricer, composition)):
        names = [call.operator.name for call in priced.calls]
        order = np.argsort(run.begin_ns, kind="stable")
        kept = np.sort(order[:room])
        op = run.queue.op[run.tiles][kept].tolist()
        parts.append(
            pd.DataFrame(
                {
                    "lane": [LAUNCH_LANE, *run.queue.lane[run.tiles][kept].tolist()],
                    "op_name": [str(region), *(names[i] for i in op)],
                    "stage": [region.kind.value, *(stage_of[names[i]] for i in op)],
                    "begin_ns": np.concatenate([[0], run.begin_ns[kept]]) + offset,
                    "end_ns": np.concatenate([[run.makespan_ns], run.end_ns[kept]]) + offset,
                    "launch": number,
                    "provenance": priced.provenance.value,
                }
            )
        )
        if len(order) > room:
            listed = offset + int(run.begin_ns[order[room]])
            break
        offset, room = offset + run.makespan_ns, room - len(order)
    return pd.concat(parts, ignore_index=True).assign(shown=listed / total_ns)


def chain_table(pricer: Pricer, composition: Composition) -> pd.DataFrame:
    """The operators in text order, with what each costs as a conventional kernel and where the composition cuts.

    Columns: operator, stage, loops, calls, conventional_us (all calls, launch and drain left out), arm, region (from
    1), kind, how, cut_before (the boundaries cut just before it, "" for none), provenance.
    """
    arm = "eager" if "eager" in pricer.arms else pricer.arms[0]
    stage_of, cuts = pricer.program.stages(), cuts_of(pricer.program, composition)
    opened = {cut.removesuffix("@") for cut in cuts if cut.endswith("@")}
    number_of = {name: i for i, region in enumerate(composition.regions) for name in region.items}
    rows: list[dict[str, object]] = []

    def walk(level: Level, region: int | None, lead: list[str]) -> None:
        for i, item in enumerate(level.items):
            mine = number_of.get(item.name, -1) if region is None else region
            edge = f"{level.items[i - 1].name}|{item.name}" if i else ""
            before = [*(lead if not i else []), *([edge] if edge in cuts else [])]
            if isinstance(item, Loop):
                inner = next(found for found in pricer.levels if found.around and found.around[-1].name == item.name)
                open_here = item.name in opened
                walk(inner, None if open_here else mine, [*before, *([f"{item.name}@"] if open_here else [])])
                continue
            alone = pricer.region(Region((item.name,), Kind.CONVENTIONAL, arm=arm))
            chosen = composition.regions[mine]
            rows.append(
                {
                    "operator": item.name,
                    "stage": stage_of[item.name],
                    "loops": " › ".join(f"{loop.name} × {loop.count}" for loop in level.around),
                    "calls": alone.launches,
                    "conventional_us": (alone.ns - alone.causes_ns["launch"] - alone.causes_ns["drain"]) / 1e3,
                    "arm": arm,
                    "region": mine + 1,
                    "kind": chosen.kind.value,
                    "how": str(chosen.configuration or chosen.arm),
                    "cut_before": " ".join(before),
                    "provenance": alone.provenance.value,
                }
            )

    walk(pricer.levels[0], None, [])
    return pd.DataFrame(rows)
