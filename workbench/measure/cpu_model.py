"""demo_tts laid out for the CPU runtime: one float and one integer arena, and the descriptor of every tile.

Torch sees the same activations, caches and codes through views, so that an eager region hands over to a megakernel
without translation. Weights are packed once: norm gains are folded into the product behind them, transposed
convolutions are split into their two taps. Descriptor columns are those that ``cpu_kernels`` documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from workbench.models.demo_tts import DemoConfig
from workbench.models.demo_tts_torch import Block, Convolution, DemoTTS, State
from workbench.program import Call, Operator, Program
from workbench.shapes import Attention, Conv, Matmul
from workbench.tiles import Box

COLUMNS = 28
LINE = 16  # floats of one 64-byte cache line; every tensor starts on one
NOP, MATMUL, ATTENTION, GATHER, ARGMAX, CONV, UPCONV, TOUCH = range(8)
STORE, ADD, GATED, ROPE = range(4)
CONV_STORE, CONV_ADD, CONV_TANH = range(3)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor lies in its arena: ``shape`` without padding; ``pad`` zeros lie before each last-axis row."""

    offset: int
    shape: tuple[int, ...]
    pad: int = 0

    @property
    def stride(self) -> int:
        """Elements from one last-axis row to the next."""
        return self.shape[-1] + self.pad

    @property
    def size(self) -> int:
        """Elements, padding included."""
        return prod(self.shape[:-1]) * self.stride


class CpuModel:
    """demo_tts at one batch size, ready for the CPU runtime: ``floats``, ``ints``, ``descriptor``, ``state``."""

    def __init__(self, module: DemoTTS, program: Program, batch: int) -> None:
        self.module, self.program, self.batch = module, program, batch
        self.config: DemoConfig = module.config
        self.frames = program.parameters["first_frames"]
        self._floats: list[Floats] = []
        self._used = 0
        self.tensors: dict[str, Tensor] = {}
        self.weights: dict[str, int] = {}
        self._plan_activations()
        self._pack_weights()
        # read between benchmark samples, to push an operator's weights as far away as the rest of the model does
        self._tensor("flush", sum(p.numel() for p in module.parameters()))
        self.floats = np.concatenate(self._floats)
        config = self.config
        self._text = Tensor(0, (batch, config.prompt))
        self._codes = Tensor(self._text.size, (batch, 1 + self.frames, config.codebooks))
        self.ints = np.zeros(self._codes.offset + self._codes.size, np.int32)

    # -- memory ------------------------------------------------------------------------------------------------

    def _take(self, data: Floats) -> int:
        offset, room = self._used, -(-data.size // LINE) * LINE
        block = np.zeros(room, np.float32)
        block[: data.size] = data.ravel()
        self._floats.append(block)
        self._used += room
        return offset

    def _tensor(self, name: str, *shape: int, pad: int = 0) -> None:
        tensor = Tensor(self._used, shape, pad)
        self._take(np.zeros(tensor.size, np.float32))
        self.tensors[name] = tensor

    def _plan_activations(self) -> None:
        config, batch = self.config, self.batch
        width = config.kv_heads * config.head_dim
        for stage, rows in (("prefill", config.prompt), ("talker", 1), ("predictor", 1)):
            self._tensor(f"{stage}.x", batch, rows, config.hidden)
            self._tensor(f"{stage}.q", batch, rows, config.heads * config.head_dim)
            self._tensor(f"{stage}.a", batch, rows, config.heads * config.head_dim)
            self._tensor(f"{stage}.f", batch, rows, config.ff)
        self._tensor("talker.logits", batch, 1, config.codes)
        self._tensor("predictor.logits", batch, 1, config.codes)
        self._tensor("kv", config.layers, 2, batch, self.module.positions, width)
        self._tensor("predictor.kv", config.predictor_layers, 2, batch, config.codebooks, width)
        operators = [op for op in self.program.operators().values() if op.name.startswith("codec.")]
        convs = [op.shape for op in operators if isinstance(op.shape, Conv)]
        reach = max(max(1, (conv.kernel - 1) * conv.dilation) for conv in convs)
        for op in operators:
            if isinstance(op.shape, Conv):
                shape = (batch, op.shape.channels_out, op.shape.rows * op.shape.stride)
            else:
                shape = (batch, self.config.latent, self.frames)
            self._tensor(op.writes[0], *shape, pad=reach)  # one pad for all, so that equal shapes have equal strides

    def _pack_weights(self) -> None:
        module = self.module

        def pack(name: str, *parts: torch.Tensor) -> None:
            self.weights[name] = self._take(np.concatenate([p.detach().numpy().ravel() for p in parts]))

        pack("rope", module.cos, module.sin)
        pack("text", module.text)
        pack("talker.codes", module.talker_codes)
        pack("predictor.codes", module.predictor_codes)
        pack("codec.codes", module.codec_codes)
        for stage, blocks in (("talker", module.talker), ("predictor", module.predictor)):
            for i, block in enumerate(cast(Iterable[Block], blocks)):
                pack(f"{stage}.qkv.{i}", block.qkv.weight * block.norm_attention)
                pack(f"{stage}.o_proj.{i}", block.o_proj.weight)
                pack(f"{stage}.gate_up.{i}", block.gate_up.weight * block.norm_mlp)
                pack(f"{stage}.down.{i}", block.down.weight)
        pack("talker.head", module.talker_head.weight * module.talker_norm)
        for i, head in enumerate(cast(Iterable[torch.nn.Linear], module.predictor_heads)):
            pack(f"predictor.head.{i}", head.weight * module.predictor_norm[i])
        for name, layer in cast(Iterable[tuple[str, Convolution]], module.codec.items()):
            weight = layer.conv.weight
            if isinstance(layer.conv, torch.nn.ConvTranspose1d):  # (in, out, 2r) → two of (in, out, r)
                rate = layer.conv.stride[0]
                pack(f"codec.{name}", weight[..., :rate], weight[..., rate:])
            else:
                pack(f"codec.{name}", weight)
            assert layer.conv.bias is not None
            pack(f"codec.{name}.bias", layer.conv.bias)
            if layer.alpha is not None:
                pack(f"codec.{name}.alpha", layer.alpha)

    def view(self, name: str) -> torch.Tensor:
        """A tensor of the arena as torch sees it, padding left out; writing to it writes to the arena."""
        tensor = self.tensors[name]
        flat = torch.from_numpy(self.floats[tensor.offset : tensor.offset + tensor.size])
        return flat.view(*tensor.shape[:-1], tensor.stride)[..., tensor.pad :]

    def codes(self) -> torch.Tensor:
        """Codes (B, 1 + frames, codebooks) int32; frame 0 is the start code."""
        start = self._codes.offset
        return torch.from_numpy(self.ints[start : start + self._codes.size]).view(*self._codes.shape)

    def pcm(self) -> Floats:
        """PCM of the first chunk (B, samples), a view."""
        return self.view("pcm")[:, 0].numpy()

    def start(self, text: npt.NDArray[np.int32]) -> State:
        """Put a prompt (B, prompt) in place; the state shares caches, codes and text with the arenas."""
        self.ints[: self._text.size] = text.ravel()
        mine = torch.from_numpy(self.ints[: self._text.size]).view(*self._text.shape)
        state = self.module.start(mine, kv=self.view("kv"), predictor_kv=self.view("predictor.kv"), codes=self.codes())
        state.chunk = self.frames
        return state

    def scratch_floats(self) -> int:
        """Floats of scratch that a worker needs for the largest tile: staged inputs and accumulators."""
        convs = [op.shape for op in self.program.operators().values() if isinstance(op.shape, Conv)]
        staged = max(c.channels_in * (c.rows + max(1, (c.kernel - 1) * c.dilation)) for c in convs)
        summed = max(c.channels_out * c.stride * (c.rows + 1) for c in convs)
        return staged + summed + self.module.positions + 1024

    # -- descriptors -------------------------------------------------------------------------------------------

    def descriptor(self, call: Call, box: Box) -> npt.NDArray[np.int64]:
        """The runtime's descriptor of one tile of one call, (COLUMNS,)."""
        op = call.operator
        stage, _, part = op.name.partition(".")
        if isinstance(op.shape, Matmul):
            fields = self._matmul(op, op.shape, call, box, stage, part)
        elif isinstance(op.shape, Attention):
            fields = self._attention(op.shape, call, box, stage)
        elif isinstance(op.shape, Conv):
            fields = self._conv(op, op.shape, box)
        elif part == "argmax":
            fields = self._argmax(call, box, stage)
        else:
            fields = self._gather(call, box, stage)
        row = np.zeros(COLUMNS, np.int64)
        row[: len(fields)] = fields
        return row

    def _place(self, name: str) -> list[int]:
        """Offset and strides of requests and rows of a (B, rows, columns) tensor."""
        tensor = self.tensors[name]
        return [tensor.offset, tensor.shape[1] * tensor.shape[2], tensor.shape[2]]

    def _matmul(self, op: Operator, shape: Matmul, call: Call, box: Box, stage: str, part: str) -> list[int]:
        weights = "talker" if stage == "prefill" else stage
        if part == "head":
            key = "talker.head" if stage == "talker" else f"predictor.head.{call.index['predictor.steps']}"
        else:
            key = f"{weights}.{part}.{call.index[f'{stage}.layers']}"
        epilogue = ROPE if shape.heads else GATED if shape.gated else ADD if shape.residual else STORE
        extra: list[int] = []
        if shape.gated:
            extra = [shape.outer]
        if shape.heads:
            extra = self._rope(call, stage)
        return [
            MATMUL, *box[:6], *self._place(op.reads[0]), shape.inner, self.weights[key], *self._place(op.writes[0]),
            int(shape.norm), epilogue, *extra,
        ]  # fmt: skip

    def _cache(self, call: Call, stage: str) -> tuple[int, int, int]:
        """Offsets of a layer's keys and values, and the stride of a request."""
        tensor = self.tensors["predictor.kv" if stage == "predictor" else "kv"]
        _, _, batch, positions, width = tensor.shape
        request = positions * width
        keys = tensor.offset + call.index[f"{stage}.layers"] * 2 * batch * request
        return keys, keys + batch * request, request

    def _rope(self, call: Call, stage: str) -> list[int]:
        config = self.config
        keys, values, request = self._cache(call, stage)
        cos = self.weights["rope"]
        sin = cos + self.module.positions * (config.head_dim // 2)
        queries, cached = config.heads * config.head_dim, config.kv_heads * config.head_dim
        return [config.head_dim, queries, cached, keys, values, call.position, request, cos, sin]

    def _attention(self, shape: Attention, call: Call, box: Box, stage: str) -> list[int]:
        keys, values, request = self._cache(call, stage)
        heads = (box.column_start // shape.head_dim, box.column_stop // shape.head_dim)
        return [
            ATTENTION, *box[:4], *heads, *self._place(f"{stage}.q"), keys, values, request,
            shape.kv_heads * shape.head_dim, shape.head_dim, shape.heads // shape.kv_heads, call.position,
            *self._place(f"{stage}.a"),
        ]  # fmt: skip

    def _gather(self, call: Call, box: Box, stage: str) -> list[int]:
        config, index = self.config, call.index
        codes, per_request = self._codes.offset, (1 + self.frames) * config.codebooks
        hidden, table = config.hidden, config.codes * config.hidden
        if stage == "prefill":
            return [
                GATHER, *box[:6], 0, config.prompt, 1, 0, 1, self.weights["text"], 0, hidden,
                *self._place("prefill.x"), 1, -1, 0,
            ]  # fmt: skip
        if stage == "codec":
            z = self.tensors["codec.z"]
            return [
                GATHER, *box[:6], codes + config.codebooks, per_request, config.codebooks, 1, config.codebooks,
                self.weights["codec.codes"], config.codes * config.latent, config.latent,
                z.offset + z.pad, z.shape[1] * z.stride, 1, z.stride, -1, 0,
            ]  # fmt: skip
        frame = index["frames"]
        if stage == "talker":
            x = self.tensors["prefill.x"]
            last = x.offset + (config.prompt - 1) * hidden
            return [
                GATHER, *box[:6], codes + frame * config.codebooks, per_request, 0, 1, config.codebooks,
                self.weights["talker.codes"], (config.codes + 1) * hidden, hidden,
                *self._place("talker.x"), 1, last, config.prompt * hidden,
            ]  # fmt: skip
        step = index["predictor.steps"]
        return [
            GATHER, *box[:6], codes + (frame + 1) * config.codebooks + step, per_request, 0, 1, 1,
            self.weights["predictor.codes"] + step * table, 0, hidden,
            *self._place("predictor.x"), 1, self.tensors["talker.x"].offset, hidden,
        ]  # fmt: skip

    def _argmax(self, call: Call, box: Box, stage: str) -> list[int]:
        config, index = self.config, call.index
        column = 0 if stage == "talker" else index["predictor.steps"] + 1
        out = self._codes.offset + (index["frames"] + 1) * config.codebooks + column
        logits = self.tensors[f"{stage}.logits"].offset
        return [
            ARGMAX, box.request_start, box.request_stop, logits, config.codes, config.codes,
            out, (1 + self.frames) * config.codebooks,
        ]  # fmt: skip

    def _conv(self, op: Operator, shape: Conv, box: Box) -> list[int]:
        def place(name: str) -> list[int]:
            tensor = self.tensors[name]
            return [tensor.offset + tensor.pad, tensor.shape[1] * tensor.stride, tensor.stride]

        x, y = place(op.reads[0]), place(op.writes[0])
        weight, bias = self.weights[op.name], self.weights[f"{op.name}.bias"]
        snake = self.weights.get(f"{op.name}.alpha", -1)
        if shape.stride > 1:
            times = [box.row_start // shape.stride, box.row_stop // shape.stride]
            return [
                UPCONV, box.request_start, box.request_stop, *times, box.column_start, box.column_stop, *x,
                shape.channels_in, shape.stride, weight, shape.channels_out, bias, snake, *y,
            ]  # fmt: skip
        epilogue = CONV_ADD if shape.residual else CONV_TANH if op.writes[0] == "pcm" else CONV_STORE
        residual = 0
        if shape.residual:
            residual, *strides = place(op.reads[1])
            if strides != y[1:]:
                raise AssertionError(f"{op.name}: residual and output must be laid out alike")
        return [
            CONV, *box[:6], *x, shape.channels_in, shape.kernel, shape.dilation, weight, bias, snake, *y,
            epilogue, residual,
        ]  # fmt: skip

    def tensors_of(self, operator: Operator) -> Mapping[str, Tensor]:
        """The arena tensors that an operator touches (codes and text lie in the integer arena and are left out)."""
        return {name: self.tensors[name] for name in (*operator.reads, *operator.writes) if name in self.tensors}
