"""A naive analytic model beside the simulator, in the style of AutoMegaKernel's: a baseline to beat, never a source.

AutoMegaKernel (RightNow-AI/AutoMegaKernel, schedule/cost_model.py) scores a megakernel by ``t = max(exposed · bytes /
(0.80 · bandwidth), FLOPs / (0.70 · peak)) + 1.5 µs`` a task, 0.05 µs more for a tile of a product, with ``exposed =
max(0.5, 1 / (1 + 0.6 · depth))`` at its default prefetch depth of 2, and takes the longest path over tasks that wait
for each other and tasks of one SM's queue. Bandwidth and peak are those of the data sheet.

How it is read here. Bytes are weights and attention's cache, as there. An operator is cut as Hazy's kernel cuts it, its
tiles dealt out to the SMs in turn, and an operator waits for all of the one before, so the longest path is the sum over
operators of ``ceil(tiles / SMs)`` tasks. A conventional kernel is one task on the whole device with nothing prefetched;
arms are not told apart. There each task has the device's whole bandwidth to itself, however many run at once
(``whole``), which can beat the time that DRAM needs; in the kinder reading, the default, an SM has its share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from math import ceil
from types import MappingProxyType

from workbench.compose import Composition, Configuration, Kind, levels, operators_in
from workbench.cost.roofline import TILINGS
from workbench.gpu import Gpu
from workbench.lower.lowering import operator_cut
from workbench.program import Node, Operator, Program, calls
from workbench.shapes import Attention, Conv, Experts, Matmul, Scan

MEGAKERNEL = str(Kind.MEGAKERNEL)
BANDWIDTH_FRAC, FLOPS_FRAC = 0.80, 0.70
TASK_NS, TILE_NS = 1_500.0, 50.0
GAIN, LEAST_EXPOSED, DEPTH = 0.6, 0.5, 2


def exposed_frac(depth: int) -> float:
    """Share of a task's bytes that prefetching ``depth`` tasks ahead does not hide."""
    return max(LEAST_EXPOSED, 1 / (1 + GAIN * depth))


def moved_bytes(operator: Operator, batch: int, position: int) -> int:
    """What an operator's call reads from DRAM at least: weights, and a cache or state."""
    work = operator.work(batch, position)
    return work.weight_bytes + (work.read_bytes if isinstance(operator.shape, Attention | Scan) else 0)


def operator_ns(operator: Operator, batch: int, position: int, gpu: Gpu, *, fused: bool, whole: bool = False) -> float:
    """Time of one call: ``fused`` in a megakernel, else as a kernel; ``whole`` as in the module's text."""
    product = isinstance(operator.shape, Matmul | Experts | Conv)
    tasks = len(operator_cut(operator, batch, _tiling(gpu.sm_count))) if fused else 1
    share = gpu.sm_count if fused and not whole else 1
    bytes_ns = moved_bytes(operator, batch, position) / (BANDWIDTH_FRAC * gpu["dram_bytes_per_s"]) * 1e9
    flops_ns = operator.work(batch, position).flops / (FLOPS_FRAC * gpu["bf16_flops_per_s"]) * 1e9
    exposed = exposed_frac(DEPTH if fused else 0)
    task_ns = max(exposed * bytes_ns, flops_ns) * share / tasks + TASK_NS + (TILE_NS if fused and product else 0.0)
    return ceil(tasks / gpu.sm_count) * task_ns


@lru_cache(64)
def _tiling(workers: int) -> Configuration:
    return Configuration.parse(f"{workers}x{TILINGS[0]}")


@lru_cache(256)
def work_by_call(nodes: tuple[Node, ...]) -> Mapping[tuple[str, int], int]:
    """How often each operator is called at each position; only attention's position counts."""
    found = Counter(
        (call.operator.name, call.position if isinstance(call.operator.shape, Attention) else 0)
        for call in calls(nodes)
    )
    return MappingProxyType(found)


def treatments(program: Program, composition: Composition) -> dict[str, str]:
    """Each operator's arm, or ``megakernel``."""
    named = {item.name: item for level in levels(program) for item in level.items}
    return {
        operator.name: region.arm or MEGAKERNEL
        for region in composition.regions
        for item in region.items
        for operator in operators_in(named[item])
    }


def composition_ns(program: Program, composition: Composition, gpu: Gpu, batch: int, *, whole: bool = False) -> float:
    """Time to first output by the naive model."""
    operators, how = program.operators(), treatments(program, composition)
    return sum(
        times * operator_ns(operators[name], batch, position, gpu, fused=how[name] == MEGAKERNEL, whole=whole)
        for (name, position), times in work_by_call(program.first).items()
    )


def floor_ns(program: Program, gpu: Gpu, batch: int) -> float:
    """The least time that DRAM needs for a program's weights and caches at its peak bandwidth."""
    operators = program.operators()
    total = sum(
        times * moved_bytes(operators[name], batch, position)
        for (name, position), times in work_by_call(program.first).items()
    )
    return total / gpu["dram_bytes_per_s"] * 1e9
