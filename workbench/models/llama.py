"""Decoder-only language models: Llama-3.2-1B, and those whose Hugging Face ``config.json`` is of a kind known here.

First output: prefill, head, one token; a further output is one decode step at the position after the prompt. Norms are
counted where they are fused, embeddings by the rows looked up, so a tied head is read once a step as any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import ProgramError
from workbench.models import decoder
from workbench.models.decoder import Decoder, Step
from workbench.models.streaming import check_count
from workbench.program import Operator, Program, Seq
from workbench.shapes import Gather

PROMPT = 32  # of the published comparison of this megakernel with a graph (msaroufim/megakernels-vs-cuda-graphs)
LARGEST = 1 << 24  # of any size in a config.json
LARGEST_FILE = 10_000_000  # bytes
MODEL_TYPES = ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
WIDTHS = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A language model: its stack and its vocabulary. ``assumed`` as in ``Program``."""

    name: str
    stack: Decoder
    vocab: int
    assumed: str = ""


LLAMA_3_2_1B = DecoderConfig(
    name="llama_3_2_1b",
    stack=Decoder(hidden=2048, layers=16, heads=32, kv_heads=8, head_dim=64, ff=8192),
    vocab=128_256,
    assumed="sizes of Llama-3.2-1B are recalled, not read from its config.json",
)


def program(config: DecoderConfig, *, prompt: int = PROMPT) -> Program:
    """A decoder-only model to its first token after ``prompt`` positions, and per further token."""
    check_count("prompt", prompt)
    stack = config.stack

    def forward(step: Step, reads: str) -> Seq:
        embed = Operator(
            name=f"{step.stage}.embed",
            shape=Gather(rows=step.rows, tables=1, entries=config.vocab, width=stack.hidden),
            reads=(reads,), writes=(f"{step.stage}.x",), element_bytes=stack.element_bytes,
        )  # fmt: skip
        head = decoder.sampler(step.stage, stack.hidden, config.vocab, stack.element_bytes, writes="token")
        return Seq(step.stage, (embed, decoder.layers(stack, step), *head))

    return Program(
        name=config.name,
        first=(forward(Step("prefill", prompt), "text"),),
        further=(forward(Step("decode", 1, prompt), "token"),),
        parameters={"prompt": prompt},
        assumed=config.assumed,
    )


def llama_3_2_1b(*, prompt: int = PROMPT) -> Program:
    """Llama-3.2-1B."""
    return program(LLAMA_3_2_1B, prompt=prompt)


def from_hf_config(path: Path | str) -> DecoderConfig:
    """The configuration in a Hugging Face ``config.json``, or in the folder that holds one. Nothing in it is executed.

    Raises ProgramError in one line where the file cannot be read, or is of a model that is not known here.
    """
    path = Path(path)
    try:
        path = path / "config.json" if path.is_dir() else path
        if path.stat().st_size > LARGEST_FILE or not path.is_file():
            raise ProgramError(f"{path}: not a file of at most {LARGEST_FILE:,} bytes, as a config.json is")
        data = json.loads(path.read_text(encoding="utf-8"))
    except ProgramError:
        raise
    except OSError as error:
        raise ProgramError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"{path}: not JSON ({error})") from error
    if not isinstance(data, dict):
        raise ProgramError(f"{path}: holds {type(data).__name__}, not the entries of a config.json")
    try:
        return _config(path, data)
    except ProgramError as error:
        raise ProgramError(f"{path}: {error}") from None


def _config(path: Path, data: Mapping[str, Any]) -> DecoderConfig:
    _refuse_others(data)
    kind = data["model_type"]
    hidden, heads = _size(data, "hidden_size"), _size(data, "num_attention_heads")
    if data.get("head_dim") is None and hidden % heads:
        raise ProgramError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}; give head_dim")
    experts = next((key for key in ("num_local_experts", "num_experts") if data.get(key) is not None), None)
    mixture = kind == "mixtral" or kind.endswith("_moe")
    if mixture and experts is None:
        raise ProgramError("num_experts (mixtral: num_local_experts) is missing")
    ff = "moe_intermediate_size" if mixture and data.get("moe_intermediate_size") is not None else "intermediate_size"
    dtype = data.get("dtype", data.get("torch_dtype")) or "bfloat16"
    if not isinstance(dtype, str) or dtype not in WIDTHS:
        raise ProgramError(f"torch_dtype is {dtype!r:.40}; it is one of {', '.join(WIDTHS)}")
    window = data.get("sliding_window") is not None and data.get("use_sliding_window", kind in ("mistral", "mixtral"))
    stack = Decoder(
        hidden=hidden,
        layers=_size(data, "num_hidden_layers", most=1_000),
        heads=heads,
        kv_heads=_size(data, "num_key_value_heads", default=heads),
        head_dim=_size(data, "head_dim", default=hidden // heads),
        ff=_size(data, ff),
        head_norm=kind.startswith("qwen3"),
        qkv_bias=kind.startswith("qwen2") or data.get("attention_bias") is True,
        window=_size(data, "sliding_window") if window else 0,
        experts=_size(data, str(experts)) if mixture else 0,
        chosen=_size(data, "num_experts_per_tok") if mixture else 0,
        shared_ff=_size(data, "shared_expert_intermediate_size") if kind == "qwen2_moe" else 0,
        element_bytes=WIDTHS[dtype],
    )
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return DecoderConfig(name=name or kind, stack=stack, vocab=_size(data, "vocab_size"))


def _refuse_others(data: Mapping[str, Any]) -> None:
    """Raise ProgramError for what is no decoder-only stack of equal layers that this module knows."""
    kind = data.get("model_type")
    if data.get("is_encoder_decoder") is True:
        raise ProgramError(f"model_type {kind!r:.40} is an encoder-decoder; only decoder-only models are known here")
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        raise ProgramError(f"model_type {kind!r:.40} is not known; known are {', '.join(MODEL_TYPES)}")
    if data.get("quantization_config"):
        raise ProgramError("quantization_config: quantised weights are of other widths than torch_dtype; not supported")
    kinds = data.get("layer_types") or ["full_attention"]
    unlike = kinds[1:] != kinds[:-1] if isinstance(kinds, list) else True
    if data.get("use_sliding_window") is True and data.get("max_window_layers"):
        unlike = True
    if unlike or data.get("mlp_only_layers") or data.get("decoder_sparse_step", 1) != 1:
        names = "layer_types, max_window_layers, mlp_only_layers or decoder_sparse_step"
        raise ProgramError(f"{names} make layers differ; only stacks of equal layers are known here")


def _size(data: Mapping[str, Any], name: str, default: int | None = None, most: int = LARGEST) -> int:
    value = data.get(name)
    if value is None:
        if default is not None:
            return default
        raise ProgramError(f"{name} is missing")
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ProgramError(f"{name} is {value!r:.40}; a whole number from 1 to {most:,} is needed")
    return value
