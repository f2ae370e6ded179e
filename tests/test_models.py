"""The models that ship: bytes and operations against figures derived from the published shapes, streaming, refusals.

Figures marked *shapes* are the ``derived_*`` of ``reference/models.json``, worked out from the architectures before
this code was written and independently of it. They count matrices alone. What a step reads besides (gains of norms,
biases, the router, rows of embeddings) is in our count, and is at most 0.1 % of it unless said otherwise.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles.happens_before import Access, Memory, missing
from torch.utils.flop_counter import FlopCounterMode

from workbench.compose import Configuration
from workbench.errors import ProgramError
from workbench.lower import lower
from workbench.models import MODELS, llama, load_program, nemotron_h_tts, qwen3_tts
from workbench.models.codec import Codec, Vocoder
from workbench.models.decoder import Decoder
from workbench.program import Call, Node, Operator, Program, calls, items
from workbench.shapes import Attention, Conv, Depthwise, Experts, Gather, Matmul, Scan
from workbench.tiles import Box

CLOSE = 1e-3


def calls_of(nodes: tuple[Node, ...], stage: str) -> list[Call]:
    """Calls of the operators that a stage holds, in order."""
    stages = Program("p", nodes, ()).stages()
    return [call for call in calls(nodes) if stages[call.operator.name] == stage]


def weight_bytes(sequence: list[Call], batch: int = 1, but: tuple[str, ...] = ()) -> int:
    """Weights that the calls read, embeddings and operators whose name ends as in ``but`` left out."""
    return sum(
        call.operator.work(batch, call.position).weight_bytes
        for call in sequence
        if not isinstance(call.operator.shape, Gather) and not call.operator.name.endswith(but or "\0")
    )


def a_frame(program: Program, stage: str) -> list[Call]:
    """The calls of a stage in one iteration of the loop of frames."""
    return [call for call in calls_of(program.first, stage) if call.index.get("frames", 0) == 0]


# -- figures -----------------------------------------------------------------------------------------------------------

QWEN = {
    # talker step, predictor frame: bytes at bf16 (shapes)
    "qwen3_tts_0_6b": (887_095_296, 2_422_210_560),
    "qwen3_tts_1_7b": (2_831_155_200, 2_485_125_120),
}


def test_a_decode_step_of_llama_reads_the_published_bytes() -> None:
    step = calls_of(load_program("llama_3_2_1b").further, "decode")
    assert weight_bytes(step) == pytest.approx(2_471_493_632, rel=CLOSE)  # shapes, head included
    assert weight_bytes(step) - 2_471_493_632 == 2 * 33 * 2048, "gains of two norms a layer and of the last"
    assert weight_bytes(step, but=("head",)) == pytest.approx(2 * 973_078_528, rel=CLOSE)  # shapes, layers alone


@pytest.mark.parametrize("model", QWEN)
def test_a_talker_step_and_a_predictor_frame_read_the_published_bytes(model: str) -> None:
    program, (talker, predictor) = load_program(model), QWEN[model]
    assert weight_bytes(a_frame(program, "talker")) == pytest.approx(talker, rel=CLOSE)
    for stage in ("predictor", "first_predictor"):
        assert weight_bytes(a_frame(program, stage)) == pytest.approx(predictor, rel=CLOSE)
    layers = weight_bytes(a_frame(program, "predictor"), but=("head", "project"))
    assert layers == pytest.approx(15 * 2 * 78_643_200, rel=CLOSE)  # shapes: five layers, fifteen forwards


@pytest.mark.parametrize(
    ("model", "stage", "published"), [("llama_3_2_1b", "prefill", 32_768), ("qwen3_tts_0_6b", "talker", 114_688)]
)
def test_a_cached_token_takes_the_published_bytes(model: str, stage: str, published: int) -> None:
    attention = [c.operator for c in a_frame(load_program(model), stage) if isinstance(c.operator.shape, Attention)]
    one_more = sum(op.work(1, 101).read_bytes - op.work(1, 100).read_bytes for op in attention)
    assert one_more == published  # shapes, all layers


CODEC_MACS = {  # a frame (shapes); attention's own are not in them
    262_144: ("codec.semantic_proj", "codec.acoustic_proj"),
    1_572_864: ("codec.pre_conv",),
    30_408_704: ("codec.in_proj", "codec.qkv", "codec.o_proj", "codec.gate_up", "codec.down", "codec.out_proj"),
    56_666_112: ("codec.up0.", "codec.up1."),
    44_040_192: ("codec.conv_in",),
    528_482_304: ("codec.block0.",),
    660_602_880: ("codec.block1.", "codec.block2."),
    495_452_160: ("codec.block3.",),
    1_290_240: ("codec.conv_out",),
}


def codec_flops(program: Program) -> Counter[str]:
    found: Counter[str] = Counter()
    for call in calls_of(program.first, "codec"):
        if not isinstance(call.operator.shape, Attention):
            found[call.operator.name] += call.operator.work(1, call.position).flops
    return found


@pytest.mark.parametrize("model", QWEN)
def test_the_codecs_operations_a_frame_are_the_published_ones_part_by_part(model: str) -> None:
    flops = codec_flops(load_program(model, first_frames=1))
    for macs, names in CODEC_MACS.items():
        parts = 2 if names == ("codec.block1.", "codec.block2.") else 1
        assert sum(n for name, n in flops.items() if name.startswith(names)) == 2 * macs * parts, names
    assert sum(flops.values()) == 2 * 2_479_380_480


@pytest.mark.parametrize(
    ("frames", "context", "gflop"),
    [(1, 0, 5.0), (1, 25, 128.9), (4, 25, 143.8), (8, 25, 163.6), (25, 25, 247.9), (1, 72, 362.0), (25, 72, 481.0)],
)
def test_a_windowed_first_chunk_takes_the_published_operations(frames: int, context: int, gflop: float) -> None:
    program = load_program("qwen3_tts_0_6b", first_frames=frames, codec="windowed", context=context)
    assert sum(codec_flops(program).values()) / 1e9 == pytest.approx(gflop, abs=0.051)  # given to 0.1


STANDIN = {  # batch: distinct experts, GB of backbone weights (shapes)
    1: (6.0, 1.4), 2: (11.2, 1.93), 4: (19.9, 2.8), 8: (31.5, 3.97), 16: (42.3, 5.06), 32: (47.3, 5.56),
}  # fmt: skip
NOT_BACKBONE = ("phoneme_head", "router")  # the router is 0.17 % of a step at batch 1


@pytest.mark.parametrize("batch", STANDIN)
def test_the_standins_backbone_grows_with_the_batch_as_published(batch: int) -> None:
    distinct, gigabytes = STANDIN[batch]
    step = a_frame(load_program("nh_tts_standin"), "backbone")
    mixture = next(call.operator.shape for call in step if isinstance(call.operator.shape, Experts))
    assert mixture.distinct(batch) == pytest.approx(distinct, abs=0.051)  # given to 0.1
    assert weight_bytes(step, batch, NOT_BACKBONE) / 1e9 == pytest.approx(gigabytes, abs=0.0051)  # given to 0.01


def test_the_standins_layers_have_the_published_parameters() -> None:
    program = load_program("nh_tts_standin")
    step = [call for call in a_frame(program, "backbone") if call.index.get("backbone.layers", 0) == 0]

    def parameters(*names: str, batch: int = 1) -> float:
        return weight_bytes([c for c in step if any(n in c.operator.name for n in names)], batch, NOT_BACKBONE) / 2

    assert parameters("mamba0") == pytest.approx(10_336_256, rel=CLOSE)
    assert parameters("attention5") == pytest.approx(6_291_456, rel=CLOSE)
    everything = 8 * sum(parameters(kind, batch=10_000) for kind in ("mamba", "attention", "experts"))
    assert everything == pytest.approx(2_814_984_192, rel=CLOSE)
    assert weight_bytes(a_frame(program, "backbone"), 1, NOT_BACKBONE) / 2 == pytest.approx(701_054_976, rel=CLOSE)
    router = weight_bytes([c for c in a_frame(program, "backbone") if c.operator.name.endswith("router")]) / 2
    assert router == 16 * (1536 * 48 + 1536), "matrix and norm"
    local = [call for call in a_frame(program, "local") if call.index["local.steps"] == 0]
    assert weight_bytes(local, but=("head",)) / 2 == pytest.approx(84_934_656, rel=CLOSE)  # feed-forward assumed 4x


# -- streaming ---------------------------------------------------------------------------------------------------------


def stage_order(nodes: tuple[Node, ...]) -> list[str]:
    return [node.name for node in nodes if not isinstance(node, Operator)]


@pytest.mark.parametrize("model", QWEN)
def test_the_first_chunk_is_prefill_a_predictor_frame_further_frames_and_the_codec(model: str) -> None:
    program = load_program(model, first_frames=3, chunk_frames=5)
    assert stage_order(program.first) == ["prefill", "first_predictor", "frames", "codec"]
    assert stage_order(program.further) == ["frames", "codec"]
    assert program.loops()["frames"].count == 2
    one = load_program(model, first_frames=1)
    assert stage_order(one.first) == ["prefill", "first_predictor", "codec"]
    assert set(one.stages().values()) == {"prefill", "first_predictor", "codec"}
    assert stage_order(load_program("nh_tts_standin").first) == ["prefill", "first_local", "frames", "codec"]
    assert stage_order(load_program("llama_3_2_1b").first) == ["prefill"]
    assert stage_order(load_program("llama_3_2_1b").further) == ["decode"]
    assert program.output_ns == 5 * 80_000_000


@pytest.mark.parametrize("frames", [1, 2, 5])
@pytest.mark.parametrize("model", QWEN)
def test_a_frame_takes_fifteen_forwards_of_the_predictor_over_sixteen_positions(model: str, frames: int) -> None:
    program = load_program(model, first_frames=frames, chunk_frames=frames)
    for nodes, stage, times in ((program.first, "first_predictor", 1), (program.further, "predictor", frames)):
        forwards = [
            (call.operator.shape.rows, call.position)
            for call in calls_of(nodes, stage)
            if isinstance(call.operator.shape, Attention)
            and call.index.get(f"{stage}.layers", call.index.get(f"{stage}.pair.layers")) == 0
        ]
        assert forwards == [(2, 0), *((1, position) for position in range(2, 16))] * times
    heads = Counter(c.operator.name.rpartition(".")[2] for c in calls(program.first) if "predictor" in c.operator.name)
    assert heads["head"] == heads["sample"] == 15 * frames


@pytest.mark.parametrize(("model", "prompt"), [("qwen3_tts_0_6b", 10), ("nh_tts_standin", 4)])
def test_frames_go_on_where_the_prompt_and_the_first_chunk_end(model: str, prompt: int) -> None:
    program = load_program(model, first_frames=3, chunk_frames=2)

    def positions(nodes: tuple[Node, ...]) -> list[int]:
        names = ("talker.attention", "backbone.attention5.attention")
        found = [call for call in calls(nodes) if call.operator.name in names]
        return [call.position for call in found if 0 in (v for k, v in call.index.items() if k.endswith("layers"))]

    assert positions(program.first) == [prompt, prompt + 1]
    assert positions(program.further) == [prompt + 2, prompt + 3]
    longer = load_program(model, prompt=prompt + 90)
    assert positions(longer.first)[0] == prompt + 90


def codec_call(nodes: tuple[Node, ...], name: str) -> Call:
    return next(call for call in calls(nodes) if call.operator.name == name)


def test_a_stateful_codec_remembers_and_a_windowed_one_computes_its_context_again() -> None:
    def of(**arguments: Any) -> list[tuple[int, int, int]]:
        program = load_program("qwen3_tts_0_6b", first_frames=2, chunk_frames=4, **arguments)
        found = []
        for nodes in (program.first, program.further):
            attention, last = codec_call(nodes, "codec.attention"), codec_call(nodes, "codec.conv_out")
            shape = attention.operator.shape
            assert isinstance(shape, Attention)
            assert shape.window == 72
            found.append((shape.rows, attention.position, last.operator.shape.rows // 1920))
        return found

    assert of() == of(codec="stateful") == [(2, 0, 2), (4, 2, 4)]
    assert of(codec="windowed") == of(context=25) == [(27, 0, 27), (29, 0, 29)]
    assert of(codec="windowed", context=72) == [(74, 0, 74), (76, 0, 76)]


@pytest.mark.parametrize("model", [name for name in MODELS if name != "demo_tts"])
def test_a_programs_parameters_give_it_again(model: str) -> None:
    for arguments in ({}, {"prompt": 20}, *([] if model.startswith("llama") else [{"first_frames": 7, "context": 3}])):
        program = load_program(model, **arguments)
        assert load_program(model, **program.parameters) == program
    assert {op.element_bytes for name, op in program.operators().items() if "codec" not in name} == {2}
    assert {op.element_bytes for name, op in program.operators().items() if "codec" in name} <= {4}


def test_what_is_assumed_is_said() -> None:
    assert "NH-TTS is not public" in load_program("nh_tts_standin").assumed
    assert "recalled" in load_program("llama_3_2_1b").assumed
    mine = replace(nemotron_h_tts.CONFIG, pattern="ME*", repeats=2, assumed="mine")
    program = nemotron_h_tts.program(config=mine)
    assert program.assumed == "mine"
    assert program.loops()["backbone.layers"].count == 2
    with pytest.raises(ProgramError, match=r"pattern 'MX': 'X' is none of M \(Mamba-2\), E \(experts\), \*"):
        nemotron_h_tts.program(config=replace(mine, pattern="MX"))


# -- new families ------------------------------------------------------------------------------------------------------


def test_counted_convolutions_are_torchs() -> None:
    x = torch.zeros(3, 8, 20)
    plain = {
        Depthwise(rows=20, channels=8, kernel=7): lambda: torch.conv1d(x, torch.zeros(8, 1, 7), padding=6, groups=8),
        Conv(rows=20, channels_in=8, channels_out=5, stride=2, taps=1): lambda: torch.conv_transpose1d(
            x, torch.zeros(8, 5, 2), stride=2
        ),
        Conv(rows=20, channels_in=8, channels_out=5, stride=2, taps=3): lambda: torch.conv_transpose1d(
            x, torch.zeros(8, 5, 6), stride=2
        ),
    }
    for shape, run in plain.items():
        with FlopCounterMode(display=False) as counter:
            made = run()
        weights, _, _, flops = shape.elements(3, 0)
        if isinstance(shape, Conv):
            assert made.shape[2] - 20 * 2 == 2 * (shape.taps - 1), "what a causal convolution cuts off"
            assert weights == 8 * 5 * 2 * shape.taps + 5
        assert flops == counter.get_total_flops() * (20 / 26 if isinstance(shape, Depthwise) else 1)


def test_a_scans_operations_are_those_of_the_recurrence() -> None:
    shape, operations = Scan(rows=3, heads=2, head_dim=3, state=4, groups=1), 0
    for _batch, _row, _head, _p, _n in product(range(2), range(3), range(2), range(3), range(4)):
        operations += 1  # x_p B_n
        operations += 2  # h = a h + that
        operations += 2  # y += h C_n
    weights, reads, writes, flops = shape.elements(2, 0)
    assert flops == operations
    assert weights == 3 * 2  # A, D and the time steps' bias, one a head
    cells, inner = 2 * 3 * 4, 2 * 3
    assert (reads, writes) == (2 * (3 * (2 * inner + 8 + 2) + cells), 2 * (3 * inner + cells))
    assert replace(shape, state_ratio=2).elements(2, 0)[1] == reads + 2 * cells


@pytest.mark.parametrize(("experts", "chosen", "tokens"), [(4, 1, 3), (5, 2, 2), (4, 3, 2), (3, 3, 2)])
def test_distinct_experts_are_the_mean_over_every_routing(experts: int, chosen: int, tokens: int) -> None:
    routings = list(product(combinations(range(experts), chosen), repeat=tokens))
    mean = sum(len(set().union(*routing)) for routing in routings) / len(routings)
    shape = Experts(rows=1, inner=8, outer=16, experts=experts, chosen=chosen, shared=4, gated=True)
    assert shape.distinct(tokens) == pytest.approx(mean)
    assert replace(shape, rows=tokens).distinct(1) == pytest.approx(mean)
    assert shape.elements(tokens, 0)[0] == round(mean * 2 * 8 * 16) + 2 * 8 * 4
    assert shape.elements(tokens, 0)[3] == tokens * 2 * (chosen * 2 * 8 * 16 + 2 * 8 * 4)
    down = replace(shape, inner=16, outer=8, gated=False, down=True, residual=True)
    assert down.elements(tokens, 0)[1:3] == (tokens * (chosen * 16 + 4 + 8), tokens * 8)


def test_a_window_bounds_what_is_read_and_the_rest_of_the_extras_count_as_they_say() -> None:
    shape = Attention(rows=2, heads=4, kv_heads=2, head_dim=8, window=5)
    for position in range(20):
        seen = {p for row in (position, position + 1) for p in range(max(0, row - 4), row + 1)}
        assert shape.elements(1, position)[1] == 2 * 4 * 8 + 2 * len(seen) * 2 * 8
    plain = Matmul(rows=1, inner=8, outer=32, heads=4)
    assert replace(plain, head_norm=True).elements(1, 0)[0] - plain.elements(1, 0)[0] == 2 * 4
    assert replace(plain, per_column=2, gated=True).elements(1, 0)[0] == 2 * (8 * 32 + 2 * 32)
    pair = Gather(rows=2, tables=1, entries=9, width=8, copied=1)
    assert pair.elements(3, 0) == (3 * 8, 3 * 8, 3 * 2 * 8, 0)


# -- whole models, small, against the element-level oracle -------------------------------------------------------------


class StreamMemory(Memory):
    """The oracle for models other than demo_tts: a lookup may need any code, a head the last of several rows."""

    def reads(self, call: Call, box: Box) -> Iterator[Access]:
        for access in super().reads(call, box):
            known = self.writers[access.tensor].shape if access.tensor in self.writers else access.shape
            if known != access.shape and call.operator.name.endswith("head"):
                requests, _, columns = access.window
                yield Access(access.tensor, known, (requests, slice(-1, None), columns))
            else:
                yield access

    def _gather_reads(self, call: Call, shape: Gather, requests: slice) -> Iterator[Access]:
        for name in call.operator.reads:
            if name == "codes":
                yield Access("codes", (self.batch, self.positions, 8), (requests, slice(None), slice(None)))
            elif name in self.writers:
                yield Access(name, self.writers[name].shape, (requests, slice(None), slice(None)))


TINY = Decoder(hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, ff=48, head_norm=True)
TINY_CODEC = Codec(
    codebooks=4, entries=32, code_width=8, latent=16, wide=64, convnext_ff=96, upsamples=2,
    transformer=replace(TINY, window=3, layer_scale=True, element_bytes=4),
    vocoder=Vocoder(wide=64, channels=(96, 64, 16), rates=(3, 2), kernel=3, dilations=(1, 3)),
)  # fmt: skip
TINY_QWEN = qwen3_tts.QwenConfig(name="tiny", talker=replace(TINY, hidden=48), predictor=TINY, project=True, codes=32,
                                 predictor_codes=32, text_hidden=40, codec=TINY_CODEC)  # fmt: skip
TINY_NEMOTRON = nemotron_h_tts.NemotronConfig(
    repeats=2, hidden=32, heads=4, kv_heads=4, head_dim=8, mamba_heads=4, mamba_head_dim=8, state=4, groups=2,
    experts=6, chosen=2, expert_ff=24, shared_ff=16, phonemes=20, local_layers=1, local_heads=4, local_ff=32,
    codebooks=2, codes=20, latent=16, vocoder=Vocoder(wide=16, channels=(64, 16), rates=(3,), kernel=3, dilations=(1,)),
)  # fmt: skip
WHOLE: dict[str, Callable[[], Program]] = {
    "qwen": lambda: qwen3_tts.program(TINY_QWEN, first_frames=2, chunk_frames=1, prompt=3),
    "windowed": lambda: qwen3_tts.program(TINY_QWEN, first_frames=1, chunk_frames=1, prompt=3, context=5),
    "nemotron": lambda: nemotron_h_tts.program(first_frames=2, chunk_frames=1, prompt=3, config=TINY_NEMOTRON),
    "dense": lambda: llama.program(llama.DecoderConfig(name="tiny", stack=TINY, vocab=64), prompt=3),
    "mixture": lambda: llama.program(
        llama.DecoderConfig(name="tiny", stack=replace(TINY, experts=6, chosen=2, shared_ff=16), vocab=64), prompt=3
    ),
}


@pytest.mark.parametrize("part", ["first", "further"])
@pytest.mark.parametrize(("batch", "configuration"), [(1, Configuration(3, 2)), (5, Configuration(8, 2))], ids=str)
@pytest.mark.parametrize("model", WHOLE)
def test_tiles_of_whole_models_wait_for_all_that_they_need(
    model: str, batch: int, configuration: Configuration, part: str
) -> None:
    result = lower(items(getattr(WHOLE[model](), part)), {}, batch, configuration)
    assert missing(result.tiles, result.events, StreamMemory(batch, 4, 4 if model == "nemotron" else 2)) == []


# -- config.json -------------------------------------------------------------------------------------------------------

LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "rope_scaling": {"factor": 32.0},
}  # fmt: skip
CONFIGS: dict[str, tuple[dict[str, Any], int]] = {
    # the parameters are those that the models' public pages give for the checkpoint (recalled)
    "llama": (LLAMA, 1_235_814_400),
    "qwen3": ({
        "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "head_dim": 128,
        "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 151_936, "tie_word_embeddings": True,
        "use_sliding_window": False, "sliding_window": None, "max_window_layers": 28,
    }, 596_049_920),
    "qwen2": ({
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151_936, "tie_word_embeddings": True,
        "use_sliding_window": False, "sliding_window": 32_768, "max_window_layers": 21,
    }, 494_032_768),
    "qwen3_moe": ({
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "vocab_size": 151_936, "tie_word_embeddings": False,
    }, 30_532_122_624),
    "mixtral": ({
        "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
        "vocab_size": 32_000, "tie_word_embeddings": False, "sliding_window": None,
    }, 46_702_792_704),
    "mistral": ({
        "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32_000, "sliding_window": 4096,
    }, 7_241_732_096),
}  # fmt: skip


def write(folder: Path, data: Any, name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


@pytest.mark.parametrize("model", CONFIGS)
def test_a_config_json_gives_a_model_with_the_parameters_of_its_checkpoint(model: str, tmp_path: Path) -> None:
    data, parameters = CONFIGS[model]
    config = llama.from_hf_config(write(tmp_path, data))
    step = calls_of(llama.program(config).further, "decode")
    embedding = 0 if data.get("tie_word_embeddings") else data["vocab_size"] * data["hidden_size"]
    mine = weight_bytes(step, batch=2000) / config.stack.element_bytes + embedding
    twice = config.stack.layers * config.stack.hidden if config.stack.experts else 0  # router and experts: one norm
    assert round(mine) - twice == parameters


def test_a_path_is_a_model_too_and_takes_its_prompt(tmp_path: Path) -> None:
    path = write(tmp_path, LLAMA)
    program = load_program(str(path), prompt=7)
    assert program.name == tmp_path.name
    assert load_program(str(tmp_path), prompt=7) == program
    assert program.first == load_program("llama_3_2_1b", prompt=7).first
    assert program.assumed == ""
    assert load_program(str(write(tmp_path, LLAMA, "mine.json"))).name == "mine"
    with pytest.raises(ProgramError, match=r"config\.json takes no first_frames; it takes prompt"):
        load_program(str(path), first_frames=2)


def test_fields_that_are_left_out_take_the_defaults_of_the_format(tmp_path: Path) -> None:
    small = {key: LLAMA[key] for key in ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
                                         "num_attention_heads", "vocab_size")}  # fmt: skip
    stack = llama.from_hf_config(write(tmp_path, small)).stack
    assert (stack.kv_heads, stack.head_dim, stack.element_bytes, stack.window, stack.head_norm) == (32, 64, 2, 0, False)
    wide = llama.from_hf_config(write(tmp_path, {**small, "head_dim": 100, "dtype": "float32"})).stack
    assert (wide.head_dim, wide.element_bytes) == (100, 4)
    assert llama.from_hf_config(write(tmp_path, CONFIGS["mistral"][0])).stack.window == 4096
    assert llama.from_hf_config(write(tmp_path, CONFIGS["qwen2"][0])).stack.window == 0


BAD_CONFIGS: dict[str, tuple[Any, str]] = {
    "encoder-decoder": (
        {"model_type": "t5", "is_encoder_decoder": True},
        "model_type 't5' is an encoder-decoder; only",
    ),
    "unknown": ({**LLAMA, "model_type": "gpt9"}, "model_type 'gpt9' is not known; known are llama, mistral"),
    "code": ({**LLAMA, "model_type": "own", "auto_map": {"AutoModel": "evil.Model"}}, "model_type 'own' is not known"),
    "none": ({}, "model_type None is not known"),
    "a list": ([1], "holds list, not the entries of a config.json"),
    "not JSON": ("{", "not JSON"),
    "deep": ("[" * 200_000, "not JSON"),
    "missing": ({k: v for k, v in LLAMA.items() if k != "vocab_size"}, "vocab_size is missing"),
    "text": ({**LLAMA, "hidden_size": "2048"}, "hidden_size is '2048'; a whole number from 1"),
    "zero": ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers is 0; a whole number from 1 to 1,000"),
    "huge": ({**LLAMA, "num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000; a whole number"),
    "true": ({**LLAMA, "vocab_size": True}, "vocab_size is True"),
    "fraction": ({**LLAMA, "vocab_size": 1.5}, "vocab_size is 1.5"),
    "heads": ({**LLAMA, "num_key_value_heads": 5}, "32 query heads cannot share 5 key and value heads"),
    "head width": (
        {**LLAMA, "num_attention_heads": 30},
        "hidden_size 2048 is not a multiple of num_attention_heads 30",
    ),
    "dtype": ({**LLAMA, "torch_dtype": "int4"}, "torch_dtype is 'int4'; it is one of bfloat16"),
    "quantised": ({**LLAMA, "quantization_config": {"bits": 4}}, "quantised weights are of other widths"),
    "no experts": ({**LLAMA, "model_type": "mixtral"}, r"num_experts \(mixtral: num_local_experts\) is missing"),
    "too many": ({**CONFIGS["mixtral"][0], "num_experts_per_tok": 9}, "9 of 8 experts a token"),
    "sparse": ({**CONFIGS["qwen3_moe"][0], "mlp_only_layers": [0]}, "make layers differ; only stacks of equal layers"),
    "mixed": ({**LLAMA, "layer_types": ["full_attention", "sliding_attention"]}, "make layers differ"),
}


@pytest.mark.parametrize(("data", "reason"), BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_a_config_that_cannot_be_used_is_refused_in_one_line_with_its_path(
    data: Any, reason: str, tmp_path: Path
) -> None:
    path = write(tmp_path, data)
    with pytest.raises(ProgramError, match=reason) as caught:
        load_program(str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_refused_too(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(20_000_000)
    for name, reason in (
        ("none.json", "cannot be read"), ("pipe.json", "not a file"), ("large.json", "not a file of at most"),
        ("bytes.json", "not JSON"),
    ):  # fmt: skip
        with pytest.raises(ProgramError, match=reason):
            load_program(str(tmp_path / name))
    for name in ("nope", "", "x" * 5000, "a\0b", str(tmp_path)):
        with pytest.raises(ProgramError, match=r"no model is called .*; there are: demo_tts, llama_3_2_1b, nh_tts"):
            load_program(name)


REFUSED = {
    "demo_tts": ({"prompt": 3}, "demo_tts takes no prompt; it takes first_frames, chunk_frames"),
    "llama_3_2_1b": ({"codec": "stateful"}, "llama_3_2_1b takes no codec; it takes prompt"),
    "nh_tts_standin": (
        {"frames": 2}, "nh_tts_standin takes no frames; it takes first_frames, chunk_frames, prompt, codec, context"
    ),
    "qwen3_tts_0_6b": ({"config": 2}, "qwen3_tts_0_6b takes no config; it takes first_frames"),
}  # fmt: skip


@pytest.mark.parametrize("model", REFUSED)
def test_an_argument_that_a_model_does_not_take_is_refused_with_those_it_takes(model: str) -> None:
    arguments, reason = REFUSED[model]
    with pytest.raises(ProgramError, match=reason):
        load_program(model, **arguments)


BAD_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"first_frames": 0}, "first_frames=0: a whole number from 1 to 100000 is needed"),
    ({"chunk_frames": -1}, "chunk_frames=-1: a whole number"),
    ({"prompt": 10**9}, "prompt=1000000000: a whole number"),
    ({"first_frames": True}, "first_frames=True: a whole number"),
    ({"first_frames": 1.5}, "first_frames=1.5: a whole number"),
    ({"prompt": "ten"}, "prompt='ten': a whole number"),
    ({"codec": "fast"}, "codec='fast': it is 'stateful' or 'windowed'"),
    ({"context": -1}, "context=-1: a whole number from 0"),
    ({"context": 25, "codec": "stateful"}, "context=25: a stateful codec computes none again"),
]


@pytest.mark.parametrize(("arguments", "reason"), BAD_ARGUMENTS)
@pytest.mark.parametrize("model", ["qwen3_tts_1_7b", "nh_tts_standin"])
def test_a_streaming_parameter_that_makes_no_sense_is_refused(model: str, arguments: Any, reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        load_program(model, **arguments)


@pytest.mark.parametrize(
    ("change", "reason"), [({"hidden": 0}, "sizes must be positive"), ({"kv_heads": 3}, "cannot share 3")]
)
def test_a_stack_that_cannot_be_is_refused(change: dict[str, int], reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        replace(TINY, **change)
