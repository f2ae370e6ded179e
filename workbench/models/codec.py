"""Codec decoders: frames of codes to PCM. The 12 Hz one of Qwen3-TTS, and its convolutional half for stand-ins.

Sizes are the checkpoint's (Qwen3-TTS-Tokenizer-12Hz decoder), not the package's defaults. All convolutions are causal.
What a stateful codec's convolutions remember of the chunk before is not counted: under half a megabyte a request beside
weights of 400 MB. Its transformer's cache is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

from workbench.models import decoder
from workbench.models.decoder import Decoder, Step
from workbench.program import Node, Operator, Seq
from workbench.shapes import Conv, Depthwise, Gather, Matmul, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocoder:
    """The convolutional half: conv_in from ``wide`` channels, a block a rate, conv_out; one more channels than rates.

    A block: Snake and a transposed convolution of kernel 2 · rate, then for each dilation a residual unit of a long
    convolution and a pointwise one, Snake before both.
    """

    wide: int = 1024
    channels: tuple[int, ...] = (1536, 768, 384, 192, 96)
    rates: tuple[int, ...] = (8, 5, 4, 3)
    kernel: int = 7
    dilations: tuple[int, ...] = (1, 3, 9)
    element_bytes: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """Qwen3-TTS's decoder: quantiser, convolution, transformer, ``upsamples`` doublings with ConvNeXt, vocoder."""

    codebooks: int = 16  # 1 semantic, the others acoustic
    entries: int = 2048
    code_width: int = 256
    latent: int = 512
    wide: int = 1024
    convnext_ff: int = 4096
    upsamples: int = 2
    transformer: Decoder = field(
        default_factory=lambda: Decoder(
            hidden=512, layers=8, heads=16, kv_heads=16, head_dim=64, ff=1024, layer_scale=True, window=72,
            element_bytes=4,
        )
    )  # fmt: skip
    vocoder: Vocoder = field(default_factory=Vocoder)

    @property
    def samples_per_frame(self) -> int:
        """PCM samples that one frame becomes."""
        return prod((2,) * self.upsamples) * prod(self.vocoder.rates)


class _Text:
    """Operators in a row, each reading what the one before wrote unless told otherwise."""

    def __init__(self, source: str, element_bytes: int) -> None:
        self.source, self.size = source, element_bytes
        self.nodes: list[Node] = []

    def add(self, name: str, shape: Shape, *reads: str, writes: str = "") -> str:
        """Append an operator; its output has its own name unless ``writes`` gives one."""
        self.source, reads = writes or f"{name}.out", reads or (self.source,)
        self.nodes.append(Operator(name=name, shape=shape, reads=reads, writes=(self.source,), element_bytes=self.size))
        return self.source


def vocoder(sizes: Vocoder, source: str, rows: int) -> tuple[Node, ...]:
    """The convolutional half over ``rows`` time steps of tensor ``source``."""
    text = _Text(source, sizes.element_bytes)
    text.add(
        "codec.conv_in", Conv(rows=rows, channels_in=sizes.wide, channels_out=sizes.channels[0], kernel=sizes.kernel)
    )
    for i, rate in enumerate(sizes.rates):
        wide, narrow = sizes.channels[i : i + 2]
        x = text.add(
            f"codec.block{i}.up", Conv(rows=rows, channels_in=wide, channels_out=narrow, stride=rate, snake=True)
        )
        rows *= rate
        for j, dilation in enumerate(sizes.dilations):
            long = Conv(
                rows=rows, channels_in=narrow, channels_out=narrow, kernel=sizes.kernel, dilation=dilation, snake=True
            )
            point = Conv(rows=rows, channels_in=narrow, channels_out=narrow, snake=True, residual=True)
            h = text.add(f"codec.block{i}.conv{j}", long)
            x = text.add(f"codec.block{i}.mix{j}", point, h, x)
    last = Conv(rows=rows, channels_in=sizes.channels[-1], channels_out=1, kernel=sizes.kernel, snake=True)
    text.add("codec.conv_out", last, writes="pcm")
    return tuple(text.nodes)


def codec(sizes: Codec, rows: int, position: int) -> Seq:
    """Decode ``rows`` frames, the transformer's cache holding ``position`` before them."""
    t, size = sizes.transformer, sizes.transformer.element_bytes
    text = _Text("codes", size)

    def gather(name: str, tables: int) -> str:
        return text.add(name, Gather(rows=rows, tables=tables, entries=sizes.entries, width=sizes.code_width), "codes")

    project = Matmul(rows=rows, inner=sizes.code_width, outer=sizes.latent)
    semantic, acoustic = gather("codec.semantic", 1), gather("codec.acoustic", sizes.codebooks - 1)
    z = text.add("codec.semantic_proj", project, semantic)
    text.add("codec.acoustic_proj", replace(project, residual=True), acoustic, z)
    text.add("codec.pre_conv", Conv(rows=rows, channels_in=sizes.latent, channels_out=sizes.wide, kernel=3))
    text.add("codec.in_proj", Matmul(rows=rows, inner=sizes.wide, outer=t.hidden, per_column=1), writes="codec.x")
    text.nodes.append(decoder.layers(t, Step("codec", rows, position, cache="codec.kv")))
    text.add("codec.out_proj", Matmul(rows=rows, inner=t.hidden, outer=sizes.wide, norm=True, per_column=1))
    for i in range(sizes.upsamples):
        name = f"codec.up{i}"
        x = text.add(f"{name}.conv", Conv(rows=rows, channels_in=sizes.wide, channels_out=sizes.wide, stride=2, taps=1))
        rows *= 2
        text.add(f"{name}.depthwise", Depthwise(rows=rows, channels=sizes.wide, kernel=7))
        wider = Matmul(rows=rows, inner=sizes.wide, outer=sizes.convnext_ff, norm=True, per_column=1)
        back = Matmul(rows=rows, inner=sizes.convnext_ff, outer=sizes.wide, residual=True, per_column=2)
        text.add(f"{name}.wider", wider)
        text.add(f"{name}.back", back, text.source, x)
    return Seq("codec", (*text.nodes, *vocoder(sizes.vocoder, text.source, rows)))
