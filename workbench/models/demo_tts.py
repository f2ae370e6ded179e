"""demo_tts: a small streaming text-to-speech model with the shape of its big sisters, for the machine at hand.

Prompt prefill, then for each frame one talker step (code 0) and a code predictor that runs once for each remaining
codebook, then a causal convolutional codec that turns a chunk of frames into PCM. Weights are random; the sizes are
ours, chosen so that launches and arithmetic both matter on two CPU cores. The module is in ``demo_tts_torch``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from workbench.program import Loop, Node, Operator, Program, Seq
from workbench.shapes import Argmax, Attention, Conv, Gather, Matmul


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """Sizes of demo_tts. ``rates`` are the codec's upsampling factors, ``codec_channels`` one more than the rates."""

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    ff: int = 256
    predictor_layers: int = 2
    codebooks: int = 4
    codes: int = 256
    text_vocab: int = 256
    prompt: int = 8
    latent: int = 64
    codec_channels: tuple[int, ...] = (96, 48, 24, 12)
    rates: tuple[int, ...] = (8, 5, 4)
    kernel: int = 7
    dilation: int = 3
    frame_ms: int = 80

    @property
    def samples_per_frame(self) -> int:
        """PCM samples that one frame becomes."""
        return prod(self.rates)


CONFIG = DemoConfig()


def _block(config: DemoConfig, stage: str, rows: int, position: int, position_loop: str, kv: str) -> tuple[Node, ...]:
    d, ff = config.hidden, config.ff
    x, q, a, f = (f"{stage}.{tensor}" for tensor in "xqaf")
    return (
        Operator(
            name=f"{stage}.qkv",
            shape=Matmul(
                rows=rows,
                inner=d,
                outer=(config.heads + 2 * config.kv_heads) * config.head_dim,
                norm=True,
                heads=config.head_dim,
            ),
            reads=(x,),
            writes=(q, kv),
            position=position,
            position_loop=position_loop,
        ),
        Operator(
            name=f"{stage}.attention",
            shape=Attention(rows=rows, heads=config.heads, kv_heads=config.kv_heads, head_dim=config.head_dim),
            reads=(q, kv),
            writes=(a,),
            position=position,
            position_loop=position_loop,
        ),
        Operator(
            name=f"{stage}.o_proj",
            shape=Matmul(rows=rows, inner=config.heads * config.head_dim, outer=d, residual=True),
            reads=(a, x),
            writes=(x,),
        ),
        Operator(
            name=f"{stage}.gate_up",
            shape=Matmul(rows=rows, inner=d, outer=ff, norm=True, gated=True),
            reads=(x,),
            writes=(f,),
        ),
        Operator(
            name=f"{stage}.down",
            shape=Matmul(rows=rows, inner=ff, outer=d, residual=True),
            reads=(f, x),
            writes=(x,),
        ),
    )


def _prefill(config: DemoConfig) -> Seq:
    embed = Operator(
        name="prefill.embed",
        shape=Gather(rows=config.prompt, tables=1, entries=config.text_vocab, width=config.hidden),
        reads=("text",),
        writes=("prefill.x",),
    )
    layers = Loop("prefill.layers", config.layers, _block(config, "prefill", config.prompt, 0, "", "kv"))
    return Seq("prefill", (embed, layers))


def _talker(config: DemoConfig, position: int) -> Seq:
    embed = Operator(
        name="talker.embed",
        shape=Gather(rows=1, tables=config.codebooks, entries=config.codes + 1, width=config.hidden, extra=True),
        reads=("codes", "prefill.x"),
        writes=("talker.x",),
    )
    layers = Loop("talker.layers", config.layers, _block(config, "talker", 1, position, "frames", "kv"))
    return Seq("talker", (embed, layers, *_sampler(config, "talker")))


def _predictor(config: DemoConfig) -> Seq:
    embed = Operator(
        name="predictor.embed",
        shape=Gather(rows=1, tables=1, entries=config.codes, width=config.hidden, extra=True),
        reads=("codes", "talker.x"),
        writes=("predictor.x",),
    )
    block = _block(config, "predictor", 1, 0, "predictor.steps", "predictor.kv")
    layers = Loop("predictor.layers", config.predictor_layers, block)
    step = (embed, layers, *_sampler(config, "predictor"))
    return Seq("predictor", (Loop("predictor.steps", config.codebooks - 1, step),))


def _sampler(config: DemoConfig, stage: str) -> tuple[Node, ...]:
    return (
        Operator(
            name=f"{stage}.head",
            shape=Matmul(rows=1, inner=config.hidden, outer=config.codes, norm=True),
            reads=(f"{stage}.x",),
            writes=(f"{stage}.logits",),
        ),
        Operator(
            name=f"{stage}.argmax",
            shape=Argmax(width=config.codes),
            reads=(f"{stage}.logits",),
            writes=("codes",),
        ),
    )


def _codec(config: DemoConfig, frames: int) -> Seq:
    channels = config.codec_channels
    nodes: list[Node] = [
        Operator(
            name="codec.embed",
            shape=Gather(rows=frames, tables=config.codebooks, entries=config.codes, width=config.latent),
            reads=("codes",),
            writes=("codec.z",),
        ),
        Operator(
            name="codec.conv_in",
            shape=Conv(rows=frames, channels_in=config.latent, channels_out=channels[0], kernel=3),
            reads=("codec.z",),
            writes=("codec.y",),
        ),
    ]
    source, rows = "codec.y", frames
    for i, rate in enumerate(config.rates):
        up, mid, out = f"codec.u{i}", f"codec.h{i}", f"codec.y{i}"
        wide, narrow = channels[i], channels[i + 1]
        shape = Conv(rows=rows, channels_in=wide, channels_out=narrow, stride=rate, snake=True)
        nodes.append(Operator(name=f"codec.up{i}", shape=shape, reads=(source,), writes=(up,)))
        rows *= rate
        shape = Conv(
            rows=rows,
            channels_in=narrow,
            channels_out=narrow,
            kernel=config.kernel,
            dilation=config.dilation,
            snake=True,
        )
        nodes.append(Operator(name=f"codec.conv{i}", shape=shape, reads=(up,), writes=(mid,)))
        shape = Conv(rows=rows, channels_in=narrow, channels_out=narrow, snake=True, residual=True)
        nodes.append(Operator(name=f"codec.mix{i}", shape=shape, reads=(mid, up), writes=(out,)))
        source = out
    shape = Conv(rows=rows, channels_in=channels[-1], channels_out=1, kernel=config.kernel, snake=True)
    nodes.append(Operator(name="codec.conv_out", shape=shape, reads=(source,), writes=("pcm",)))
    return Seq("codec", tuple(nodes))


def program(*, first_frames: int = 2, chunk_frames: int = 2, config: DemoConfig = CONFIG) -> Program:
    """demo_tts to its first chunk of ``first_frames`` frames, and per further chunk of ``chunk_frames``."""

    def frames(count: int, before: int) -> Loop:
        return Loop("frames", count, (_talker(config, config.prompt + before), _predictor(config)))

    return Program(
        name="demo_tts",
        first=(_prefill(config), frames(first_frames, 0), _codec(config, first_frames)),
        further=(frames(chunk_frames, first_frames), _codec(config, chunk_frames)),
        parameters={"first_frames": first_frames, "chunk_frames": chunk_frames, "prompt": config.prompt},
        output_ns=chunk_frames * config.frame_ms * 1_000_000,
    )
