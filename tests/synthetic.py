"""Small programs, devices and benchmark tables made from a seed: what the predictor needs, with no machine behind."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from itertools import pairwise

import pandas as pd

from workbench.compose import Composition, Configuration, from_cuts
from workbench.cost import CostTable, Roofline
from workbench.gpu import gpu_files, read_gpu
from workbench.hardware import Device, Overheads, Provenance
from workbench.lower.lowering import operator_cut
from workbench.program import Item, Loop, Node, Operator, Program, calls, items
from workbench.shapes import Argmax, Attention, Matmul

CONFIGURATIONS = (Configuration(1), Configuration(2), Configuration(2, 2))


def overheads(rng: random.Random) -> Overheads:
    """Random overheads of a plausible size."""
    return Overheads(
        launch_ns=rng.randrange(0, 4000), gap_ns=rng.randrange(0, 900), dispatch_ns=rng.randrange(0, 40),
        event_ns=rng.randrange(0, 600), signal_ns=rng.randrange(0, 60), drain_ns=rng.randrange(0, 1000),
        spread_frac=0.05, source="invented", provenance=Provenance.MEASURED,
    )  # fmt: skip


def device(seed: int = 0, workers: int = 2) -> Device:
    """A device with random overheads for every arm."""
    rng = random.Random(seed)
    return Device(
        name="invented", workers=workers, machine={"cpu": "none"}, taken="2026-01-01", run_spread_frac=0.01,
        overheads={
            "megakernel": {n: overheads(rng) for n in range(1, workers + 1)},
            "replay": {workers: overheads(rng)},
            "eager": {workers: overheads(rng)},
        },
    )  # fmt: skip


def table(program: Program, seed: int = 0, batches: tuple[int, ...] = (1,), spread: float = 0.05) -> CostTable:
    """Random times for every tile of a program, and for every operator run whole."""
    rng = random.Random(seed)
    rows = []
    seen: dict[tuple[str, int], Operator] = {}
    for call in calls(program.first):
        position = call.position if isinstance(call.operator.shape, Attention) else 0
        seen[call.operator.name, position] = call.operator
    for (name, position), operator in seen.items():
        for batch in batches:
            scale = rng.randrange(200, 9000) * (1 + batch // 4)
            for configuration in CONFIGURATIONS:
                boxes = operator_cut(operator, batch, configuration).boxes()
                for tile in range(len(boxes)):
                    ns = 1 + scale // len(boxes) + rng.randrange(0, 200)
                    rows.append((name, batch, position, str(configuration), tile, ns))
            rows.append((name, batch, position, "eager", 0, 3000 + scale + rng.randrange(0, 4000)))
    frame = pd.DataFrame(rows, columns=["operator", "batch", "position", "how", "tile", "median_ns"])
    half = (frame["median_ns"] * spread).astype("int64")
    frame["q25_ns"], frame["q75_ns"], frame["samples"] = frame["median_ns"] - half, frame["median_ns"] + half, 9
    return CostTable(frame)


GPU_CONFIGURATIONS = tuple(map(Configuration.parse, ("3x1", "3x1+c16+i16+p2", "3x2+r2")))


def gpu(seed: int) -> tuple[Device, Roofline]:
    """A GPU of three SMs and of random figures: loads, prefetch by what the bodies leave, launches that overlap."""
    rng = random.Random(seed)
    real = read_gpu(gpu_files()["h100_sxm"])
    changed = {
        "sm_count": 3, "measured_dram_bytes_per_s": 10 ** rng.uniform(9, 10.5), "clock_hz": 10 ** rng.uniform(6, 8),
        "graph_gap_ns": rng.randrange(900),
        "kernel_ramp_ns": rng.randrange(900), "event_ns": rng.randrange(900), "signal_ns": rng.randrange(60),
        "dispatch_ns": rng.randrange(60), "drain_ns": rng.choice((0, 70)), "launch_ns": rng.randrange(5000),
        "shared_bytes_per_block": rng.choice((1_024, 8_200, 70_000, 90_000, 140_000, 200_000)),
        "bytes_in_flight_per_warp": rng.choice((4, 256)),
    }  # fmt: skip
    quantities = {
        name: dataclasses.replace(quantity, value=float(changed.get(name, quantity.value)))
        for name, quantity in real.quantities.items()
    }
    small = dataclasses.replace(real, quantities=quantities)
    priced = Roofline(small)
    priced.configurations = priced.kernel_configurations = list(GPU_CONFIGURATIONS)
    return small.device(), priced


def program(seed: int, size: int = 3) -> Program:
    """A random program of about ``size`` items a level, with up to two loops, one inside the other."""
    rng = random.Random(seed)
    counter = iter(range(1000))

    def operator(around: tuple[str, ...]) -> Operator:
        number = next(counter)
        reads, writes = (f"t{rng.randrange(3)}",), (f"t{rng.randrange(3)}",)
        loop = rng.choice(("", *around)) if around else ""
        kind = rng.randrange(3)
        if kind == 0:
            shape: Matmul | Attention | Argmax = Matmul(rows=1, inner=32, outer=rng.choice((16, 64)), norm=True)
        elif kind == 1:
            shape = Attention(rows=1, heads=4, kv_heads=2, head_dim=8)
        else:
            shape = Argmax(width=64)
        return Operator(name=f"op{number}", shape=shape, reads=reads, writes=writes, position_loop=loop)

    def nodes(around: tuple[str, ...], depth: int) -> tuple[Node, ...]:
        made: list[Node] = [operator(around) for _ in range(rng.randrange(1, size + 1))]
        if depth < 2 and rng.random() < 0.8:
            name = f"loop{next(counter)}"
            made.insert(
                rng.randrange(len(made) + 1), Loop(name, rng.randrange(1, 4), nodes((*around, name), depth + 1))
            )
        return tuple(made)

    first = nodes((), 0)
    return Program(f"random{seed}", first, first)


def cuts(program: Program, rng: random.Random) -> set[str]:
    """Random cuts that obey the rule: a loop is cut inside only if its back edge, its entry and its exit are cut."""
    found: set[str] = set()

    def walk(level: tuple[Item, ...]) -> None:
        opened = [isinstance(item, Loop) and rng.random() < 0.5 for item in level]
        for (a, a_open), (b, b_open) in pairwise(zip(level, opened, strict=True)):
            if a_open or b_open or rng.random() < 0.5:
                found.add(f"{a.name}|{b.name}")
        for item, is_open in zip(level, opened, strict=True):
            if isinstance(item, Loop) and is_open:
                found.add(f"{item.name}@")
                walk(items(item.body))

    walk(items(program.first))
    return found


def composition(program: Program, rng: random.Random, how: Sequence[str] | None = None) -> Composition:
    """A random legal composition of any kinds."""
    where = cuts(program, rng)
    how = (*map(str, CONFIGURATIONS), "eager", "replay") if how is None else how
    kinds = {region.items[0]: rng.choice(how) for region in from_cuts(program, where).regions}
    return from_cuts(program, where, kinds)
