"""A stack of transformer layers as program text, fused as megakernels fuse it: what every model here has.

The fusions are those of the Llama-1B latency megakernel (HazyResearch/Megakernels @7309cec): norm + QKV + RoPE + cache
append; attention; output projection + residual; norm + gate and up + SiLU; down + residual. Its attention reduction is
left out, as it is there when a head's attention is one piece.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workbench.errors import ProgramError
from workbench.program import Loop, Operator
from workbench.shapes import Argmax, Attention, Experts, Matmul, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Sizes of a stack. ``ff`` is the dense layers' intermediate size; with ``experts`` each is a mixture instead.

    ``layer_scale``: outputs are scaled a column before they are added. ``gated``: SiLU(gate) · up, else one product.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    head_norm: bool = False
    qkv_bias: bool = False
    layer_scale: bool = False
    gated: bool = True
    window: int = 0
    experts: int = 0
    chosen: int = 0
    shared_ff: int = 0
    element_bytes: int = 2

    def __post_init__(self) -> None:
        sizes = (self.hidden, self.layers, self.heads, self.kv_heads, self.head_dim, self.ff, self.element_bytes)
        if min(sizes) < 1 or min(self.window, self.experts, self.chosen, self.shared_ff) < 0:
            raise ProgramError(f"{self}: sizes must be positive")
        if self.heads % self.kv_heads:
            raise ProgramError(f"{self.heads} query heads cannot share {self.kv_heads} key and value heads evenly")
        if self.chosen > self.experts or (self.experts and not self.chosen):
            raise ProgramError(
                f"{self.chosen} of {self.experts} experts a token: at least 1 and at most all are chosen"
            )


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass: operators are named ``stage.…``; ``rows`` new positions follow those cached.

    Their number is ``position`` plus the index of ``position_loop``. ``cache`` is the tensor of keys and values.
    """

    stage: str
    rows: int
    position: int = 0
    position_loop: str = ""
    cache: str = "kv"


def attention(decoder: Decoder, step: Step, prefix: str = "") -> tuple[Operator, ...]:
    """Attention's three operators of one layer, on the tensor ``stage.x``."""
    d, width, rows = decoder.hidden, decoder.head_dim, step.rows
    name, (x, q, a) = f"{step.stage}.{prefix}", (f"{step.stage}.{tensor}" for tensor in "xqa")
    qkv = Matmul(
        rows=rows, inner=d, outer=(decoder.heads + 2 * decoder.kv_heads) * width, norm=True, heads=width,
        head_norm=decoder.head_norm, per_column=int(decoder.qkv_bias),
    )  # fmt: skip
    attend = Attention(rows=rows, heads=decoder.heads, kv_heads=decoder.kv_heads, head_dim=width, window=decoder.window)
    back = Matmul(rows=rows, inner=decoder.heads * width, outer=d, residual=True, per_column=int(decoder.layer_scale))

    def operator(kind: str, shape: Shape, reads: tuple[str, ...], writes: tuple[str, ...]) -> Operator:
        placed = kind != "o_proj"
        return Operator(
            name=name + kind, shape=shape, reads=reads, writes=writes, element_bytes=decoder.element_bytes,
            position=step.position if placed else 0, position_loop=step.position_loop if placed else "",
        )  # fmt: skip

    return (
        operator("qkv", qkv, (x,), (q, step.cache)),
        operator("attention", attend, (q, step.cache), (a,)),
        operator("o_proj", back, (a, x), (x,)),
    )


def feed_forward(decoder: Decoder, step: Step, prefix: str = "") -> tuple[Operator, ...]:
    """The feed-forward operators of one layer: two dense products, or router and two products of experts."""
    d, ff, rows = decoder.hidden, decoder.ff, step.rows
    x, f, r = (f"{step.stage}.{tensor}" for tensor in "xfr")
    upwards = "gate_up" if decoder.gated else "up"

    def operator(kind: str, shape: Shape, reads: tuple[str, ...], writes: str) -> Operator:
        name, size = f"{step.stage}.{prefix}{kind}", decoder.element_bytes
        return Operator(name=name, shape=shape, reads=reads, writes=(writes,), element_bytes=size)

    if not decoder.experts:
        up = Matmul(rows=rows, inner=d, outer=ff, norm=True, gated=decoder.gated)
        down = Matmul(rows=rows, inner=ff, outer=d, residual=True, per_column=int(decoder.layer_scale))
        return operator(upwards, up, (x,), f), operator("down", down, (f, x), x)
    ups = Experts(
        rows=rows, inner=d, outer=ff, experts=decoder.experts, chosen=decoder.chosen, shared=decoder.shared_ff,
        gated=decoder.gated, norm=True,
    )  # fmt: skip
    downs = replace(ups, inner=ff, outer=d, gated=False, norm=False, residual=True, down=True)
    return (
        operator("router", Matmul(rows=rows, inner=d, outer=decoder.experts, norm=True), (x,), r),
        operator(upwards, ups, (x, r), f),
        operator("down", downs, (f, x), x),
    )


def layers(decoder: Decoder, step: Step) -> Loop:
    """All layers as a loop."""
    return Loop(f"{step.stage}.layers", decoder.layers, (*attention(decoder, step), *feed_forward(decoder, step)))


def sampler(
    stage: str, hidden: int, vocab: int, element_bytes: int = 2, writes: str = "codes", name: str = ""
) -> tuple[Operator, ...]:
    """Norm + head on the last row of ``stage.x``, and the choice of a token, counted as a search for the maximum."""
    logits = f"{stage}.{name}logits"
    head = Matmul(rows=1, inner=hidden, outer=vocab, norm=True)
    return (
        Operator(
            name=f"{stage}.{name}head", shape=head, reads=(f"{stage}.x",), writes=(logits,),
            element_bytes=element_bytes,
        ),
        Operator(
            name=f"{stage}.{name}sample", shape=Argmax(width=vocab), reads=(logits,), writes=(writes,),
            element_bytes=element_bytes,
        ),
    )  # fmt: skip
