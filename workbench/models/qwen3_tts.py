"""Qwen3-TTS-12Hz, 0.6B and 1.7B: talker, code predictor, codec. Sizes are the checkpoints', not the package's defaults.

A frame is 80 ms: one talker step gives code 0, then 15 forwards of the predictor, one after another, the other codes;
the codec turns a chunk of frames into PCM. The first frame's code 0 comes with the prefill, so the loop ``frames`` runs
one time less than the first chunk has frames. The next token of the text is added at each talker step, so the prompt
does not grow with the text: ten positions with language and speaker (three of the role, four of language tags, one each
of speaker, start and first text token). Projected text embeddings of later tokens are at hand before they are needed.
Sampling (temperature, top 50, repetition penalty) is counted as reading the logits once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workbench.models import decoder
from workbench.models.codec import Codec, codec
from workbench.models.decoder import Decoder, Step
from workbench.models.streaming import Stream, stream
from workbench.program import Loop, Node, Operator, Program, Seq
from workbench.shapes import Gather, Matmul, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenConfig:
    """Sizes of Qwen3-TTS. ``project``: the talker's hidden size is projected to the predictor's at every forward."""

    name: str
    talker: Decoder
    predictor: Decoder
    project: bool
    codes: int = 3072
    predictor_codes: int = 2048
    text_vocab: int = 151_936
    text_hidden: int = 2048
    codec: Codec = field(default_factory=Codec)
    frame_ms: int = 80


def _stack(hidden: int, layers: int, ff: int) -> Decoder:
    return Decoder(hidden=hidden, layers=layers, heads=16, kv_heads=8, head_dim=128, ff=ff, head_norm=True)


PREDICTOR = _stack(1024, 5, 3072)
SMALL = QwenConfig(name="qwen3_tts_0_6b", talker=_stack(1024, 28, 3072), predictor=PREDICTOR, project=False)
LARGE = QwenConfig(name="qwen3_tts_1_7b", talker=_stack(2048, 28, 6144), predictor=PREDICTOR, project=True)


def program(
    config: QwenConfig,
    *,
    first_frames: int = 4,
    chunk_frames: int = 4,
    prompt: int = 10,
    codec: str | None = None,
    context: int | None = None,
) -> Program:
    """To the first chunk of ``first_frames`` frames, and per further chunk of ``chunk_frames``."""
    plan = stream(first_frames, chunk_frames, prompt, codec, context)

    def frames(count: int, position: int) -> tuple[Loop, ...]:
        body = _talker(config, position), _predictor(config, "predictor", "talker.x")
        return (Loop("frames", count, body),) if count else ()

    first = (_prefill(config, prompt), _predictor(config, "first_predictor", "prefill.x"))
    return Program(
        name=config.name,
        first=(*first, *frames(first_frames - 1, prompt), _codec(config, plan, first_frames, 0)),
        further=(*frames(chunk_frames, prompt + first_frames - 1), _codec(config, plan, chunk_frames, first_frames)),
        parameters=plan.parameters,
        output_ns=chunk_frames * config.frame_ms * 1_000_000,
    )


def _codec(config: QwenConfig, plan: Stream, frames: int, before: int) -> Seq:
    return codec(config.codec, plan.codec_rows(frames), plan.codec_position(before))


def _operator(name: str, shape: Shape, reads: tuple[str, ...], writes: str) -> Operator:
    return Operator(name=name, shape=shape, reads=reads, writes=(writes,), element_bytes=2)


def _prefill(config: QwenConfig, prompt: int) -> Seq:
    """Text embeddings projected to the talker's size, code embeddings added, all layers, code 0 of the first frame."""
    wide, d = config.text_hidden, config.talker.hidden
    words = Gather(rows=prompt, tables=1, entries=config.text_vocab, width=wide)
    tags = Gather(rows=prompt, tables=1, entries=config.codes, width=d, extra=True)
    text = (
        _operator("prefill.words", words, ("text",), "prefill.w"),
        _operator(
            "prefill.text_up", Matmul(rows=prompt, inner=wide, outer=wide, per_column=1), ("prefill.w",), "prefill.u"
        ),
        _operator(
            "prefill.text_down", Matmul(rows=prompt, inner=wide, outer=d, per_column=1), ("prefill.u",), "prefill.t"
        ),
        _operator("prefill.embed", tags, ("text", "prefill.t"), "prefill.x"),
    )
    stack = decoder.layers(config.talker, Step("prefill", prompt))
    return Seq("prefill", (*text, stack, *decoder.sampler("prefill", d, config.codes)))


def _talker(config: QwenConfig, position: int) -> Seq:
    d = config.talker.hidden
    summed = Gather(rows=1, tables=config.codec.codebooks, entries=config.codes, width=d, extra=True)
    embed = _operator("talker.embed", summed, ("codes", "text.embedded"), "talker.x")
    stack = decoder.layers(config.talker, Step("talker", 1, position, "frames"))
    return Seq("talker", (embed, stack, *decoder.sampler("talker", d, config.codes)))


def _predictor(config: QwenConfig, stage: str, hidden: str) -> Seq:
    """15 forwards of one frame: the talker's hidden state and code 0 together, then a code at a time."""
    pair, steps, cache = f"{stage}.pair", f"{stage}.steps", "predictor.kv"
    lookup = Gather(rows=2, tables=1, entries=config.codes, width=config.talker.hidden, copied=1)
    start = _forward(config, Step(pair, 2, cache=cache), lookup, ("codes", hidden))
    lookup = Gather(rows=1, tables=1, entries=config.predictor_codes, width=config.talker.hidden)
    step = _forward(config, Step(stage, 1, 2, steps, cache), lookup, ("codes",))
    return Seq(stage, (*start, Loop(steps, config.codec.codebooks - 2, step)))


def _forward(config: QwenConfig, step: Step, lookup: Gather, reads: tuple[str, ...]) -> tuple[Node, ...]:
    stage, d = step.stage, config.predictor.hidden
    embed: tuple[Node, ...] = (_operator(f"{stage}.embed", lookup, reads, f"{stage}.x"),)
    if config.project:
        project = Matmul(rows=step.rows, inner=config.talker.hidden, outer=d, per_column=1)
        embed = (
            _operator(f"{stage}.embed", lookup, reads, f"{stage}.e"),
            _operator(f"{stage}.project", project, (f"{stage}.e",), f"{stage}.x"),
        )
    return *embed, decoder.layers(config.predictor, step), *decoder.sampler(stage, d, config.predictor_codes)
