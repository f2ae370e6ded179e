"""What each physical effect is worth: predictions without it, and whether the selection changes.

Also how far the one-pass engine, in which tiles that load at once each have their fair share of DRAM bandwidth, is from
an exact one in which what nobody uses is shared out again (``simulate.shared``).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from workbench.compose import Composition, Kind, conventional, monolith, per_stage
from workbench.cost import Roofline
from workbench.cost.resources import PAGE_BYTES
from workbench.effects import EFFECTS, Effects
from workbench.errors import WorkbenchError
from workbench.gpu import Gpu
from workbench.predict import Pricer
from workbench.predict.regions import ILLEGAL_NS, treatment_of
from workbench.program import Program
from workbench.search import k_best
from workbench.simulate import SharedBandwidth, TileLoads, simulate_shared

if TYPE_CHECKING:
    import pandas as pd

DESIGNS = ("monolith", "per_stage", "conventional")
BUILDS = ("inlined", "capped", "called")
SCHEDULERS = 4  # SMs that MPK keeps for scheduling on an H100, of 132


def variants(effects: Effects) -> dict[str, Effects]:
    """By name: the effects as they are, each of them left out, each build for all regions, and scheduler SMs."""
    return {
        "all": effects,
        **{f"no {name}": effects.without(name) for name in EFFECTS},
        **{f"{build} alone": replace(effects, build=build) for build in BUILDS},
        f"{SCHEDULERS} scheduler SMs": replace(effects, scheduler_sms=SCHEDULERS),
    }


def worth(program: Program, gpu: Gpu, batches: Sequence[int], tick: Callable[[], None] = lambda: None) -> pd.DataFrame:
    """One row a batch and variant: times of the named designs and of the best, ns, and what the variant changes.

    ``monolith_ns``, ``per_stage_ns`` and ``conventional_ns`` are of the fastest configuration or arm; missing where
    none can run. ``…_frac`` are changes against ``all``. ``best`` is the digest of the selected composition,
    ``same_selection`` whether it cuts where that of ``all`` does, and ``regret_frac`` what its cuts cost more than the
    best ones where all effects are there: what is lost by one who does not know of the effect. ``tick`` is called
    after each row.
    """
    import pandas as pd

    rows = []
    for batch in batches:
        for row in _rows(program, gpu, batch):
            rows.append(row)
            tick()
    return pd.DataFrame(rows)


def _rows(program: Program, gpu: Gpu, batch: int) -> Iterator[dict[str, object]]:
    full = _pricer(program, gpu, batch)
    base: dict[str, int | None] = {}
    for name, effects in variants(gpu.effects).items():
        pricer = full if name == "all" else _pricer(program, replace(gpu, effects=effects), batch)
        (best_ns, best), *_ = k_best(pricer)
        times = {**_designs(pricer), "best": best_ns}
        if name == "all":
            base, wanted, least_ns = times, best, best_ns
        row: dict[str, object] = {"program": program.name, "device": gpu.key, "batch": batch, "variant": name}
        row |= {f"{design}_ns": ns for design, ns in times.items()}
        row |= {f"{design}_frac": _change(ns, base[design]) for design, ns in times.items()}
        again = full.total_ns(_on(best, full))
        del pricer
        gc.collect()  # a search and its nodes hold each other, and hundreds of megabytes of queues
        yield row | {
            "best": best.digest,
            "megakernels": best.megakernels,
            "regions": len(best.regions),
            "same_selection": _cuts(best) == _cuts(wanted),
            "regret_frac": again / least_ns - 1 if again < ILLEGAL_NS else None,
        }


def _pricer(program: Program, gpu: Gpu, batch: int) -> Pricer:
    return Pricer(program, gpu.device(), Roofline(gpu), batch)


def _designs(pricer: Pricer) -> dict[str, int | None]:
    """Each named design's fastest time, ns."""
    program = pricer.program
    made: dict[str, list[Composition]] = {
        "monolith": [monolith(program, configuration) for configuration in pricer.configurations],
        "per_stage": [per_stage(program, configuration) for configuration in pricer.configurations],
        "conventional": [conventional(program, arm) for arm in pricer.arms],
    }
    fastest = {design: min(map(pricer.total_ns, compositions)) for design, compositions in made.items()}
    return {design: ns if ns < ILLEGAL_NS else None for design, ns in fastest.items()}


def _change(ns: int | None, base: int | None) -> float | None:
    return None if ns is None or base is None else ns / base - 1


def _cuts(composition: Composition) -> list[tuple[tuple[str, ...], Kind]]:
    """Where a composition cuts, and the kinds between."""
    return [(region.items, region.kind) for region in composition.regions]


def _on(composition: Composition, pricer: Pricer) -> Composition:
    """The same cuts with each region in its fastest configuration or arm there."""
    regions = []
    for region in composition.regions:
        if region.kind is Kind.MEGAKERNEL:
            tried = [replace(region, configuration=configuration) for configuration in pricer.configurations]
            regions.append(min(tried, key=pricer.region_ns))
        else:
            regions.append(region)
    return Composition(tuple(regions))


def sharing(pricer: Pricer, composition: Composition) -> pd.DataFrame:
    """The megakernels of a composition under exact sharing of DRAM bandwidth: one row a launch that differs.

    ``fair_ns`` is what the one-pass engine gives, where a tile has its fair share however few load; ``shared_ns`` where
    all loads share what there is at each moment, a lane no more than its pages in flight or its SM's port; ``times``
    counts the launches. Weights that stream within a body keep their times; inputs from L2 count by the share of
    bandwidth that L2 leaves of them.
    """
    import pandas as pd

    table = pricer.table
    if not isinstance(table, Roofline):
        raise WorkbenchError("only a GPU's loads are known in bytes; a benchmark's tiles have them in their time")
    rows = []
    for region in composition.regions:
        if region.configuration is None:
            continue
        held = pricer.held(region)
        for launch in pricer.runs(region, composition):
            queue, run = launch.priced.queue, launch.run
            costs = [table.call_tiles(call, pricer.batch, region.configuration, held) for call in launch.priced.calls]
            loads = TileLoads(*(np.concatenate([cost.loads[i] for cost in costs if cost.loads]) for i in (0, 1)))
            staged = (max(1, held.pages) if held else 1) * PAGE_BYTES / table.gpu["latency_ns"] * 1e9
            bandwidth = SharedBandwidth(table.gpu.achieved_bytes_per_s, min(table.gpu.port_bytes_per_s, staged))
            shared = simulate_shared(queue, loads, bandwidth, run.mechanism, run.start_op, run.stop_op)
            rows.append(
                {
                    "region": ", ".join(region.items[:1] + region.items[-1:]),
                    "how": treatment_of(region),
                    "times": launch.times,
                    "fair_ns": run.makespan_ns,
                    "shared_ns": shared.makespan_ns,
                    "difference_frac": shared.makespan_ns / run.makespan_ns - 1,
                }
            )
    return pd.DataFrame(rows)
