"""The constants that are fitted, and the one public pair of runs that they are fitted to.

Llama-3.2-1B on an H100 SXM, batch 1, bf16, a decode step: as a captured graph with PDL, and as Hazy Research's
megakernel (msaroufim/megakernels-vs-cuda-graphs, llama/docs/RESULTS.md). The graph gives ``kernel_ramp_ns``, and then
the megakernel, cut as it is published, gives ``event_ns``. Whatever those two runs have that the model has not is in
these constants; no other published run is used to choose a number. Devices without a pair of their own take them over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from workbench.compose import Composition, conventional, monolith
from workbench.cost import Roofline
from workbench.cost.roofline import TILINGS
from workbench.gpu import Gpu
from workbench.models import load_program
from workbench.predict import Pricer
from workbench.program import Program

DEVICE, MODEL = "h100_sxm", "llama_3_2_1b"
SOURCE = "Llama-3.2-1B, batch 1, H100 SXM, msaroufim/megakernels-vs-cuda-graphs"
GRAPH_PDL_NS, MEGAKERNEL_NS = 979_510, 972_780
LONGEST_NS = 20_000  # more than any kernel boundary costs


@dataclass(frozen=True, slots=True)
class Fitted:
    """A constant, what its run took and what it takes with the constant, all in ns."""

    name: str
    value_ns: int
    published_ns: int
    predicted_ns: int


def step_of(program: Program) -> Program:
    """A further output alone: a decode step."""
    return Program(program.name, program.further, program.further)


def calibrate(gpu: Gpu) -> tuple[Fitted, ...]:
    """The constants of the GPU that the pair was run on; each is the least ns with which its run is not too fast."""
    program = step_of(load_program(MODEL))
    runs = {
        "kernel_ramp_ns": (GRAPH_PDL_NS, lambda pricer: conventional(program, "graph_pdl")),
        "event_ns": (MEGAKERNEL_NS, lambda pricer: monolith(program, pricer.configurations[0])),
    }
    assert TILINGS[0] == "1+c16+i2048+p1", "the first tiling is the published one"
    found: list[Fitted] = []
    for name, (published_ns, composition) in runs.items():
        value_ns = _least(gpu, name, program, composition, published_ns)
        gpu = with_value(gpu, name, value_ns)
        found.append(Fitted(name, value_ns, published_ns, _step_ns(gpu, program, composition)))
    return tuple(found)


def with_value(gpu: Gpu, name: str, value: float) -> Gpu:
    """The same GPU with one quantity changed."""
    quantity = replace(gpu.quantities[name], value=float(value))
    return replace(gpu, quantities={**gpu.quantities, name: quantity})


def _step_ns(gpu: Gpu, program: Program, composition: Callable[[Pricer], Composition]) -> int:
    pricer = Pricer(program, gpu.device(), Roofline(gpu), 1)
    return pricer.total_ns(composition(pricer))


def _least(
    gpu: Gpu, name: str, program: Program, composition: Callable[[Pricer], Composition], published_ns: int
) -> int:
    """Bisection: a run never gets faster when a boundary costs more."""
    low, high = 0, LONGEST_NS
    while low < high:
        middle = (low + high) // 2
        if _step_ns(with_value(gpu, name, middle), program, composition) >= published_ns:
            high = middle
        else:
            low = middle + 1
    return low
