"""A stand-in for NH-TTS: Nemotron-H backbone (Mamba-2, mixture of experts, attention), local transformer, codec.

No public text names NH-TTS. The backbone's sizes are those of NeMo's EasyMagpieTTS (NVIDIA-NeMo/Speech
easy_magpietts.yaml @01df918), which is our guess at what it is; all else that is assumed is in ASSUMED. A frame is one
step of the backbone, 80 ms: two codec frames of 40 ms, whose 16 codes the local transformer gives one after another.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workbench.errors import ProgramError
from workbench.models import decoder
from workbench.models.codec import Vocoder, vocoder
from workbench.models.decoder import Decoder, Step
from workbench.models.streaming import stream
from workbench.program import Loop, Node, Operator, Program, Seq
from workbench.shapes import Depthwise, Gather, Matmul, Scan, Shape

ASSUMED = (
    "NH-TTS is not public: this stand-in takes the sizes of NeMo's EasyMagpieTTS; assumed besides are uniform routing "
    "of experts, fp32 Mamba states, a 4x feed-forward in the local transformer, four prompt positions (speaker "
    "context cached already), and the codec: a causal convolutional decoder of our own sizes in fp32"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NemotronConfig:
    """Sizes; replace any of them. ``pattern`` (M Mamba-2, E experts, * attention) stands ``repeats`` times in a row.

    ``state_ratio``: bytes of an element of Mamba's state over those of an activation.
    """

    name: str = "nh_tts_standin"
    assumed: str = ASSUMED
    pattern: str = "MEMEM*"
    repeats: int = 8
    hidden: int = 1536
    heads: int = 12
    kv_heads: int = 4
    head_dim: int = 128
    mamba_heads: int = 64
    mamba_head_dim: int = 24
    state: int = 128
    state_ratio: int = 2
    groups: int = 8
    conv_kernel: int = 4
    experts: int = 48
    chosen: int = 6
    expert_ff: int = 1024
    shared_ff: int = 2048
    phonemes: int = 2051
    local_layers: int = 3
    local_heads: int = 12
    local_ff: int = 6144
    codebooks: int = 8
    stacked: int = 2
    codes: int = 1032  # 1024 and 8 special ones
    latent: int = 512
    vocoder: Vocoder = field(
        default_factory=lambda: Vocoder(wide=512, channels=(1024, 512, 256, 128, 64), rates=(7, 7, 6, 3))
    )
    element_bytes: int = 2
    frame_ms: int = 80

    @property
    def backbone(self) -> Decoder:
        """Attention and experts of the backbone; experts are two products without a gate (squared ReLU)."""
        return Decoder(
            hidden=self.hidden, layers=self.repeats, heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim,
            ff=self.expert_ff, gated=False, experts=self.experts, chosen=self.chosen, shared_ff=self.shared_ff,
            element_bytes=self.element_bytes,
        )  # fmt: skip

    @property
    def local(self) -> Decoder:
        """The local transformer."""
        return Decoder(
            hidden=self.hidden, layers=self.local_layers, heads=self.local_heads, kv_heads=self.local_heads,
            head_dim=self.hidden // self.local_heads, ff=self.local_ff, gated=False, element_bytes=self.element_bytes,
        )  # fmt: skip


CONFIG = NemotronConfig()


def program(
    *,
    first_frames: int = 4,
    chunk_frames: int = 4,
    prompt: int = 4,
    codec: str | None = None,
    context: int | None = None,
    config: NemotronConfig = CONFIG,
) -> Program:
    """To the first chunk of ``first_frames`` frames (steps of the backbone), and per further chunk."""
    plan = stream(first_frames, chunk_frames, prompt, codec, context)

    def frames(count: int, position: int) -> tuple[Loop, ...]:
        body = _backbone(config, Step("backbone", 1, position, "frames")), _local(config, "local", "backbone.x")
        return (Loop("frames", count, body),) if count else ()

    first = (_backbone(config, Step("prefill", prompt)), _local(config, "first_local", "prefill.x"))
    return Program(
        name=config.name,
        first=(*first, *frames(first_frames - 1, prompt), _codec(config, plan.codec_rows(first_frames))),
        further=(*frames(chunk_frames, prompt + first_frames - 1), _codec(config, plan.codec_rows(chunk_frames))),
        parameters=plan.parameters,
        output_ns=chunk_frames * config.frame_ms * 1_000_000,
        assumed=config.assumed,
    )


def _operator(
    config: NemotronConfig, name: str, shape: Shape, reads: tuple[str, ...], writes: tuple[str, ...]
) -> Operator:
    return Operator(name=name, shape=shape, reads=reads, writes=writes, element_bytes=config.element_bytes)


def _backbone(config: NemotronConfig, step: Step) -> Seq:
    """One pass: codes of the frame before, one phoneme and one text token looked up; all layers; the next phoneme."""
    stage, d, body = step.stage, config.hidden, list[Node]()
    for i, letter in enumerate(config.pattern):
        if letter == "M":
            body.extend(_mamba(config, step, i))
        elif letter == "E":
            body.extend(decoder.feed_forward(config.backbone, step, f"experts{i}."))
        elif letter == "*":
            body.extend(decoder.attention(config.backbone, step, f"attention{i}."))
        else:
            raise ProgramError(f"pattern {config.pattern!r:.40}: {letter!r} is none of M (Mamba-2), E (experts), *")
    tables = config.codebooks * config.stacked + 1
    lookup = Gather(rows=step.rows, tables=tables, entries=config.codes, width=d, extra=True)
    embed = _operator(config, f"{stage}.embed", lookup, ("codes", "text.embedded"), (f"{stage}.x",))
    phoneme = decoder.sampler(stage, d, config.phonemes, config.element_bytes, name="phoneme_")
    return Seq(stage, (embed, Loop(f"{stage}.layers", config.repeats, tuple(body)), *phoneme))


def _mamba(config: NemotronConfig, step: Step, i: int) -> tuple[Operator, ...]:
    """One Mamba-2 layer: norm + projection; convolution of x, B and C; scan + gate; norm + projection + residual."""
    stage, rows = step.stage, step.rows
    inner = config.mamba_heads * config.mamba_head_dim
    x, p, c, y = (f"{stage}.{tensor}" for tensor in "xpcy")
    state, window = f"mamba{i}.state", f"mamba{i}.window"
    scan = Scan(
        rows=rows, heads=config.mamba_heads, head_dim=config.mamba_head_dim, state=config.state, groups=config.groups,
        state_ratio=config.state_ratio,
    )  # fmt: skip
    into = Matmul(rows=rows, inner=config.hidden, outer=scan.projected, norm=True)
    conv = Depthwise(
        rows=rows, channels=scan.channels, kernel=config.conv_kernel, offset=inner, width=scan.projected, state=True
    )
    back = Matmul(rows=rows, inner=inner, outer=config.hidden, norm=True, residual=True)
    return (
        _operator(config, f"{stage}.mamba{i}.in_proj", into, (x,), (p,)),
        _operator(config, f"{stage}.mamba{i}.conv", conv, (p, window), (c, window)),
        _operator(config, f"{stage}.mamba{i}.scan", scan, (c, p, state), (y, state)),
        _operator(config, f"{stage}.mamba{i}.out_proj", back, (y, x), (x,)),
    )


def _local(config: NemotronConfig, stage: str, hidden: str) -> Seq:
    """The codes of one frame, one after another: each step adds the code before to the backbone's hidden state."""
    steps = f"{stage}.steps"
    lookup = Gather(rows=1, tables=1, entries=config.codes, width=config.hidden, extra=True)
    embed = _operator(config, f"{stage}.embed", lookup, ("codes", hidden), (f"{stage}.x",))
    stack = decoder.layers(config.local, Step(stage, 1, 0, steps, "local.kv"))
    head = decoder.sampler(stage, config.hidden, config.codes, config.element_bytes)
    return Seq(stage, (Loop(steps, config.codebooks * config.stacked, (embed, stack, *head)),))


def _codec(config: NemotronConfig, frames: int) -> Seq:
    """Decode ``frames`` frames, each of ``stacked`` codec frames."""
    rows, size = frames * config.stacked, config.vocoder.element_bytes
    lookup = Gather(rows=rows, tables=config.codebooks, entries=config.codes, width=config.latent)
    embed = Operator(name="codec.embed", shape=lookup, reads=("codes",), writes=("codec.z",), element_bytes=size)
    return Seq("codec", (embed, *vocoder(config.vocoder, "codec.z", rows)))
