"""demo_tts as a torch module: the conventional implementation, one method call an operator of its program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.models.demo_tts import CONFIG, DemoConfig, program
from workbench.program import calls

EPS = 1e-6
ROPE_THETA = 10_000.0
Index = Mapping[str, int]


@dataclass(slots=True)
class State:
    """What a running batch holds: caches and codes are written in place, ``t`` has the other tensors by name."""

    kv: Tensor  # (layers, 2, B, positions, kv_heads * head_dim)
    predictor_kv: Tensor
    codes: Tensor  # (B, 1 + frames, codebooks) int32; frame -1 is the start code
    t: dict[str, Tensor] = field(default_factory=dict)
    context: dict[str, Tensor] = field(default_factory=dict)  # codec: what each convolution remembers
    frame0: int = 0  # frames emitted before this chunk
    chunk: int = 0  # frames of this chunk


class Block(nn.Module):
    """RMSNorm, QKV, RoPE, attention, output projection, RMSNorm, gated MLP: weights only; ``DemoTTS`` runs it."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        d, heads = config.hidden, config.heads * config.head_dim
        self.norm_attention = nn.Parameter(1 + 0.1 * torch.randn(d))
        self.qkv = nn.Linear(d, heads + 2 * config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(heads, d, bias=False)
        self.norm_mlp = nn.Parameter(1 + 0.1 * torch.randn(d))
        self.gate_up = nn.Linear(d, 2 * config.ff, bias=False)
        self.down = nn.Linear(config.ff, d, bias=False)


class Convolution(nn.Module):
    """One codec convolution with the Snake in front of it, where it has one."""

    def __init__(self, module: nn.Conv1d | nn.ConvTranspose1d, snake: bool) -> None:
        super().__init__()
        self.conv = module
        self.alpha = nn.Parameter(0.5 + torch.rand(module.in_channels)) if snake else None

    def activate(self, x: Tensor) -> Tensor:
        """Snake: x + sin²(αx)/α (Ziyin et al. 2020), α a channel; the identity where there is none."""
        if self.alpha is None:
            return x
        alpha = self.alpha[:, None]
        return x + torch.sin(alpha * x).square() / alpha


def rope_tables(positions: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """cos and sin (positions, head_dim / 2) of rotary embedding (Su et al. 2021), rotate-half form."""
    inverse = ROPE_THETA ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * inverse
    return angle.cos().float(), angle.sin().float()


class DemoTTS(nn.Module):
    """Seeded random weights; ``run`` executes one operator, ``stream`` the whole model chunk by chunk.

    ``max_frames`` bounds the cache. All inference; call it under ``torch.inference_mode()``.
    """

    cos: Tensor  # rotary tables, (positions, head_dim / 2)
    sin: Tensor

    def __init__(self, config: DemoConfig = CONFIG, *, seed: int = 0, max_frames: int = 16) -> None:
        super().__init__()
        self.config, self.max_frames = config, max_frames
        self.positions = config.prompt + max_frames
        c = config.codec_channels
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.text = nn.Parameter(torch.randn(config.text_vocab, config.hidden))
            self.talker_codes = nn.Parameter(0.5 * torch.randn(config.codebooks, config.codes + 1, config.hidden))
            self.talker = nn.ModuleList(Block(config) for _ in range(config.layers))
            self.predictor_codes = nn.Parameter(torch.randn(config.codebooks - 1, config.codes, config.hidden))
            self.predictor = nn.ModuleList(Block(config) for _ in range(config.predictor_layers))
            self.talker_norm = nn.Parameter(1 + 0.1 * torch.randn(config.hidden))
            self.talker_head = nn.Linear(config.hidden, config.codes, bias=False)
            self.predictor_norm = nn.Parameter(1 + 0.1 * torch.randn(config.codebooks - 1, config.hidden))
            self.predictor_heads = nn.ModuleList(
                nn.Linear(config.hidden, config.codes, bias=False) for _ in range(config.codebooks - 1)
            )
            self.codec_codes = nn.Parameter(0.5 * torch.randn(config.codebooks, config.codes, config.latent))
            convs = {"conv_in": Convolution(nn.Conv1d(config.latent, c[0], 3), snake=False)}
            for i, rate in enumerate(config.rates):
                wide, narrow = c[i], c[i + 1]
                convs[f"up{i}"] = Convolution(nn.ConvTranspose1d(wide, narrow, 2 * rate, stride=rate), snake=True)
                dilated = nn.Conv1d(narrow, narrow, config.kernel, dilation=config.dilation)
                convs[f"conv{i}"] = Convolution(dilated, snake=True)
                convs[f"mix{i}"] = Convolution(nn.Conv1d(narrow, narrow, 1), snake=True)
            convs["conv_out"] = Convolution(nn.Conv1d(c[-1], 1, config.kernel), snake=True)
            self.codec = nn.ModuleDict(convs)
        cos, sin = rope_tables(self.positions, config.head_dim)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        self.requires_grad_(False).eval()
        self._run = self._operators()

    def start(self, text: Tensor, *, kv: Tensor | None = None, predictor_kv: Tensor | None = None,
              codes: Tensor | None = None) -> State:  # fmt: skip
        """A fresh state for ``text`` (B, prompt) int32; caches and codes may be given, to share their memory."""
        config, batch = self.config, text.shape[0]
        width = config.kv_heads * config.head_dim
        if kv is None:
            kv = torch.zeros(config.layers, 2, batch, self.positions, width)
        if predictor_kv is None:
            predictor_kv = torch.zeros(config.predictor_layers, 2, batch, config.codebooks, width)
        if codes is None:
            codes = torch.zeros(batch, 1 + self.max_frames, config.codebooks, dtype=torch.int32)
        codes[:, 0] = config.codes
        return State(kv=kv, predictor_kv=predictor_kv, codes=codes, t={"text": text})

    def run(self, name: str, state: State, index: Index) -> None:
        """Execute one operator of the program on ``state``; ``index`` holds the loops around it."""
        self._run[name](state, index)

    def stream(self, text: Tensor, *, frames: int, first_frames: int = 2, chunk_frames: int = 4) -> Iterator[Tensor]:
        """PCM (B, samples) of ``frames`` frames, chunk by chunk."""
        if not 1 <= frames <= self.max_frames:
            raise ValueError(f"frames={frames}: the cache holds 1 to {self.max_frames}; build DemoTTS(max_frames=…)")
        state = self.start(text)
        done = 0
        while done < frames:
            size = min(first_frames if done == 0 else chunk_frames, frames - done)
            part = program(first_frames=size, chunk_frames=size, config=self.config)
            state.frame0, state.chunk = done, size
            nodes = part.first if done == 0 else program(first_frames=done, chunk_frames=size,
                                                         config=self.config).further  # fmt: skip
            for call in calls(nodes):
                self._run[call.operator.name](state, call.index)
            done += size
            yield state.t["pcm"][:, 0]

    def forward(self, text: Tensor, frames: int = 2) -> Tensor:
        """PCM (B, samples) of ``frames`` frames in one chunk."""
        return torch.cat(list(self.stream(text, frames=frames, first_frames=frames)), dim=1)

    def _operators(self) -> dict[str, Callable[[State, Index], None]]:
        table: dict[str, Callable[[State, Index], None]] = {
            "prefill.embed": self._prefill_embed,
            "talker.embed": self._talker_embed,
            "talker.head": self._talker_head,
            "talker.argmax": self._talker_argmax,
            "predictor.embed": self._predictor_embed,
            "predictor.head": self._predictor_head,
            "predictor.argmax": self._predictor_argmax,
            "codec.embed": self._codec_embed,
        }
        for stage, blocks, loop in (
            ("prefill", self.talker, "prefill.layers"),
            ("talker", self.talker, "talker.layers"),
            ("predictor", self.predictor, "predictor.layers"),
        ):
            table |= self._block_operators(stage, blocks, loop)
        for op in program(config=self.config).operators().values():
            if op.name.startswith("codec.") and op.name != "codec.embed":
                table[op.name] = self._codec_operator(op.name, op.reads, op.writes[0])
        return table

    def _block_operators(
        self, stage: str, modules: nn.ModuleList, loop: str
    ) -> dict[str, Callable[[State, Index], None]]:
        config = self.config
        blocks = [block for block in modules if isinstance(block, Block)]
        x_, q_, a_, f_ = (f"{stage}.{tensor}" for tensor in "xqaf")
        q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim

        def position(state: State, index: Index) -> int:
            if stage == "prefill":
                return 0
            return index["predictor.steps"] if stage == "predictor" else config.prompt + state.frame0 + index["frames"]

        def cache(state: State, index: Index) -> Tensor:
            return (state.predictor_kv if stage == "predictor" else state.kv)[index[loop]]

        def qkv(state: State, index: Index) -> None:
            block, x = blocks[index[loop]], state.t[x_]
            q, k, v = block.qkv(F.rms_norm(x, (config.hidden,), block.norm_attention, EPS)).split(
                [q_width, kv_width, kv_width], dim=-1
            )
            start, rows = position(state, index), x.shape[1]
            kv = cache(state, index)
            state.t[q_] = self._rotate(q, start)
            kv[0, :, start : start + rows] = self._rotate(k, start)
            kv[1, :, start : start + rows] = v

        def attention(state: State, index: Index) -> None:
            q = state.t[q_]
            batch, rows, _ = q.shape
            seen = position(state, index) + rows
            group = config.heads // config.kv_heads
            kv = cache(state, index)[:, :, :seen].reshape(2, batch, seen, config.kv_heads, 1, config.head_dim)
            k, v = kv.permute(0, 1, 3, 4, 2, 5).unbind(0)  # (B, kv_heads, 1, seen, head_dim)
            queries = q.view(batch, rows, config.kv_heads, group, config.head_dim).permute(0, 2, 3, 1, 4)
            scores = torch.matmul(queries, k.transpose(-1, -2)) * config.head_dim**-0.5
            if rows > 1:
                hidden = torch.ones(rows, seen, dtype=torch.bool).triu(seen - rows + 1)
                scores = scores.masked_fill(hidden, float("-inf"))
            out = torch.matmul(scores.softmax(-1), v)
            state.t[a_] = out.permute(0, 3, 1, 2, 4).reshape(batch, rows, q_width)

        def o_proj(state: State, index: Index) -> None:
            state.t[x_] = state.t[x_] + blocks[index[loop]].o_proj(state.t[a_])

        def gate_up(state: State, index: Index) -> None:
            block = blocks[index[loop]]
            gate, up = block.gate_up(F.rms_norm(state.t[x_], (config.hidden,), block.norm_mlp, EPS)).chunk(2, dim=-1)
            state.t[f_] = F.silu(gate) * up

        def down(state: State, index: Index) -> None:
            state.t[x_] = state.t[x_] + blocks[index[loop]].down(state.t[f_])

        return {f"{stage}.{f.__name__}": f for f in (qkv, attention, o_proj, gate_up, down)}

    def _rotate(self, x: Tensor, start: int) -> Tensor:
        batch, rows, width = x.shape
        heads = x.view(batch, rows, -1, self.config.head_dim)
        cos, sin = self.cos[start : start + rows, None], self.sin[start : start + rows, None]
        low, high = heads.chunk(2, dim=-1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1).view(batch, rows, width)

    def _prefill_embed(self, state: State, index: Index) -> None:
        state.t["prefill.x"] = F.embedding(state.t["text"], self.text)

    def _talker_embed(self, state: State, index: Index) -> None:
        codes = state.codes[:, state.frame0 + index["frames"]]
        x = state.t["prefill.x"][:, -1]
        for k in range(self.config.codebooks):
            x = x + F.embedding(codes[:, k], self.talker_codes[k])
        state.t["talker.x"] = x[:, None]

    def _talker_head(self, state: State, index: Index) -> None:
        x = F.rms_norm(state.t["talker.x"], (self.config.hidden,), self.talker_norm, EPS)
        state.t["talker.logits"] = self.talker_head(x)

    def _talker_argmax(self, state: State, index: Index) -> None:
        state.codes[:, state.frame0 + index["frames"] + 1, 0] = state.t["talker.logits"][:, 0].argmax(-1)

    def _predictor_embed(self, state: State, index: Index) -> None:
        step = index["predictor.steps"]
        codes = state.codes[:, state.frame0 + index["frames"] + 1, step]
        state.t["predictor.x"] = state.t["talker.x"] + F.embedding(codes, self.predictor_codes[step])[:, None]

    def _predictor_head(self, state: State, index: Index) -> None:
        step = index["predictor.steps"]
        x = F.rms_norm(state.t["predictor.x"], (self.config.hidden,), self.predictor_norm[step], EPS)
        state.t["predictor.logits"] = self.predictor_heads[step](x)

    def _predictor_argmax(self, state: State, index: Index) -> None:
        column = index["predictor.steps"] + 1
        state.codes[:, state.frame0 + index["frames"] + 1, column] = state.t["predictor.logits"][:, 0].argmax(-1)

    def _codec_embed(self, state: State, index: Index) -> None:
        codes = state.codes[:, 1 + state.frame0 : 1 + state.frame0 + state.chunk]
        z = F.embedding(codes[..., 0], self.codec_codes[0])
        for k in range(1, self.config.codebooks):
            z = z + F.embedding(codes[..., k], self.codec_codes[k])
        state.t["codec.z"] = z.transpose(1, 2)

    def _codec_operator(self, name: str, reads: tuple[str, ...], written: str) -> Callable[[State, Index], None]:
        layer = self.codec[name.removeprefix("codec.")]
        assert isinstance(layer, Convolution)
        conv, bias = layer.conv, layer.conv.bias
        assert bias is not None

        def transposed(state: State, index: Index) -> None:
            rate = conv.stride[0]
            y = conv(layer.activate(state.t[reads[0]]))  # one kernel overlap longer than the output
            overlap = state.context.get(name)
            if overlap is not None:
                y[..., :rate] += overlap - bias[:, None]
            state.context[name] = y[..., -rate:]
            state.t[written] = y[..., :-rate]

        def causal(state: State, index: Index) -> None:
            x = layer.activate(state.t[reads[0]])
            reach = (conv.kernel_size[0] - 1) * conv.dilation[0]
            if reach:
                before = state.context.get(name)
                x = F.pad(x, (reach, 0)) if before is None else torch.cat([before, x], dim=-1)
                state.context[name] = x[..., -reach:]
            y = conv(x)
            if len(reads) > 1:
                y = y + state.t[reads[1]]
            state.t[written] = y.tanh() if written == "pcm" else y

        return transposed if isinstance(conv, nn.ConvTranspose1d) else causal
