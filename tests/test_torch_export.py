"""Programs read from torch modules: against the decoder text, torch's own FLOP count, parameters and data flow."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.flop_counter import FlopCounterMode

from workbench.errors import ProgramError
from workbench.models import demo_tts, llama
from workbench.models.decoder import Decoder
from workbench.models.demo_tts_torch import DemoTTS
from workbench.models.torch_export import from_module
from workbench.program import Loop, Node, Operator, Program, Seq, calls, items
from workbench.shapes import Argmax, Attention, Conv, Depthwise, Gather, Matmul


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# -- a Llama as people write it ----------------------------------------------------------------------------------------


class WrittenNorm(nn.Module):
    """As Hugging Face's LlamaRMSNorm: in fp32, by pow, mean and rsqrt."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        h = x.to(torch.float32)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * h.to(x.dtype)


NORMS: dict[str, Callable[[int], nn.Module]] = {"rms_norm": nn.RMSNorm, "written": WrittenNorm}


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


class SelfAttention(nn.Module):
    def __init__(self, sizes: Decoder, norm: str, groups: str) -> None:
        super().__init__()
        self.sizes, self.groups = sizes, groups
        d, width, keys = sizes.hidden, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        self.q_proj = nn.Linear(d, width, bias=sizes.qkv_bias)
        self.k_proj = nn.Linear(d, keys, bias=sizes.qkv_bias)
        self.v_proj = nn.Linear(d, keys, bias=sizes.qkv_bias)
        self.o_proj = nn.Linear(width, d, bias=False)
        normed = NORMS[norm] if sizes.head_norm else lambda _: nn.Identity()
        self.q_norm, self.k_norm = normed(sizes.head_dim), normed(sizes.head_dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: tuple[Tensor, Tensor] | None) -> Tensor:
        batch, rows, _ = x.shape
        q, k, v = (
            project(x).view(batch, rows, -1, self.sizes.head_dim) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k, v = rotate(self.q_norm(q).transpose(1, 2), cos, sin), self.k_norm(k).transpose(1, 2), v.transpose(1, 2)
        k = rotate(k, cos, sin)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        out = self.attend(q, k, v)
        return self.o_proj(out.transpose(1, 2).reshape(batch, rows, -1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        copies, causal = self.sizes.heads // self.sizes.kv_heads, q.shape[2] == k.shape[2]
        if self.groups == "enable_gqa":
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        if self.groups == "expand":
            batch, heads, seen, width = k.shape
            k, v = (
                t[:, :, None].expand(batch, heads, copies, seen, width).reshape(batch, heads * copies, seen, width)
                for t in (k, v)
            )
        else:
            k, v = k.repeat_interleave(copies, 1), v.repeat_interleave(copies, 1)
        if self.groups != "written":
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(k.shape[2] - q.shape[2] + 1)
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(hidden, float("-inf"))
        return F.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v


class FeedForward(nn.Module):
    def __init__(self, sizes: Decoder) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.hidden, sizes.ff, bias=False)
        self.up_proj = nn.Linear(sizes.hidden, sizes.ff, bias=False)
        self.down_proj = nn.Linear(sizes.ff, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, sizes: Decoder, norm: str, groups: str) -> None:
        super().__init__()
        self.input_layernorm = NORMS[norm](sizes.hidden)
        self.self_attn = SelfAttention(sizes, norm, groups)
        self.post_attention_layernorm = NORMS[norm](sizes.hidden)
        self.mlp = FeedForward(sizes)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: tuple[Tensor, Tensor] | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, past)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """One forward pass to the next token; ``past`` holds keys and values of each layer."""

    def __init__(self, sizes: Decoder, vocab: int, norm: str = "rms_norm", groups: str = "enable_gqa") -> None:
        super().__init__()
        self.sizes = sizes
        self.embed_tokens = nn.Embedding(vocab, sizes.hidden)
        self.layers = nn.ModuleList(Layer(sizes, norm, groups) for _ in range(sizes.layers))
        self.norm = NORMS[norm](sizes.hidden)
        self.lm_head = nn.Linear(sizes.hidden, vocab, bias=False)

    def hidden(self, ids: Tensor, past: list[tuple[Tensor, Tensor]] | None) -> Tensor:
        x, start = self.embed_tokens(ids), past[0][0].shape[2] if past else 0
        inverse = 1e4 ** (-torch.arange(0, self.sizes.head_dim, 2, device=ids.device).float() / self.sizes.head_dim)
        angle = torch.arange(start, start + ids.shape[1], device=ids.device).float()[:, None] * inverse
        angle = torch.cat([angle, angle], -1)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin, past[i] if past else None)
        return self.norm(x)

    def forward(self, ids: Tensor, past: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        return self.lm_head(self.hidden(ids, past)[:, -1:]).argmax(-1)


def past_of(sizes: Decoder, batch: int, positions: int) -> list[tuple[Tensor, Tensor]]:
    shape = (batch, sizes.kv_heads, positions, sizes.head_dim)
    return [(torch.zeros(shape), torch.zeros(shape)) for _ in range(sizes.layers)]


def ids_of(batch: int, rows: int) -> Tensor:
    return torch.zeros(batch, rows, dtype=torch.long)


SIZES = Decoder(hidden=16, layers=2, heads=4, kv_heads=2, head_dim=8, ff=24, element_bytes=4)
VOCAB = 40


def text_of(nodes: tuple[Node, ...]) -> list[object]:
    """Shapes, element sizes and loops in order, without names."""
    found: list[object] = []
    for item in items(nodes):
        if isinstance(item, Loop):
            found.append((item.count, text_of(item.body)))
        else:
            found.append((item.shape, item.position, item.element_bytes))
    return found


def same_flow(one: tuple[Node, ...], other: tuple[Node, ...]) -> bool:
    """Whether tensors are read and written alike, up to their names; but for the token that comes out in the end."""
    pairs = set()
    for a, b in zip(calls(one), calls(other), strict=True):
        pairs |= set(zip(a.operator.reads, b.operator.reads, strict=True))
        if not isinstance(a.operator.shape, Argmax):
            pairs |= set(zip(a.operator.writes, b.operator.writes, strict=True))
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def check_as_decoder(module: Llama, batch: int, prompt: int, *, decode: bool = False) -> Program:
    """The module's program is the one that the zoo has for its sizes: prefill, and one decode step if asked for."""
    zoo = llama.program(llama.DecoderConfig(name="zoo", stack=module.sizes, vocab=VOCAB), prompt=prompt)
    step = (ids_of(batch, 1), past_of(module.sizes, batch, prompt)) if decode else None
    program = from_module(module.eval(), (ids_of(batch, prompt),), batch=batch, further=step)
    for ours, theirs in ((program.first, zoo.first), (program.further, zoo.further))[: 1 + decode]:
        assert text_of(ours) == text_of(theirs)
        assert same_flow(ours, theirs)
    assert program.assumed == ""
    return program


@pytest.mark.parametrize(
    ("norm", "groups"),
    [("rms_norm", "enable_gqa"), ("written", "repeat_interleave"), ("rms_norm", "expand"), ("written", "written")],
)
def test_a_llama_is_the_decoders_text_operator_for_operator(norm: str, groups: str) -> None:
    program = check_as_decoder(Llama(SIZES, VOCAB, norm, groups), 2, 5, decode=groups == "repeat_interleave")
    assert list(program.operators()) == [
        "embed_tokens", "layers.qkv", "layers.attention", "layers.o_proj", "layers.gate_up", "layers.down_proj",
        "lm_head", "argmax",
    ]  # fmt: skip
    assert list(program.loops()) == ["layers"]
    assert set(program.stages().values()) == {"Llama"}


def test_tensors_have_names_that_readers_expect() -> None:
    _, program = imported("llama")
    flow = [(op.reads, op.writes) for op in program.operators().values()]
    assert flow == [
        (("ids",), ("x",)),
        (("x",), ("layers.q", "layers.kv")),
        (("layers.q", "layers.kv"), ("layers.a",)),
        (("layers.a", "x"), ("x",)),
        (("x",), ("layers.f",)),
        (("layers.f", "x"), ("x",)),
        (("x",), ("lm_head.out",)),
        (("lm_head.out",), ("token",)),
    ]


@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_any_small_decoder_is_the_decoders_text(data: st.DataObject) -> None:
    number = st.integers(1, 4)
    kv_heads, width = data.draw(st.integers(1, 2)), 2 * data.draw(number)
    sizes = Decoder(
        hidden=4 * data.draw(number), layers=data.draw(st.integers(2, 3)), kv_heads=kv_heads, head_dim=width,
        heads=kv_heads * data.draw(st.integers(1, 3)), ff=4 * data.draw(number), head_norm=data.draw(st.booleans()),
        qkv_bias=data.draw(st.booleans()), element_bytes=4,
    )  # fmt: skip
    norm, groups = data.draw(st.sampled_from(list(NORMS))), data.draw(st.sampled_from(["enable_gqa", "expand"]))
    check_as_decoder(Llama(sizes, VOCAB, norm, groups), data.draw(st.integers(1, 3)), data.draw(number))


def test_tiles_of_an_imported_llama_wait_for_all_that_they_touch() -> None:
    from oracles.happens_before import Memory, missing

    from workbench.compose import Configuration
    from workbench.lower import lower

    class Logits(Llama):
        def forward(self, ids: Tensor, past: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
            return self.lm_head(self.hidden(ids, past))

    program = from_module(Logits(SIZES, VOCAB).eval(), (ids_of(2, 5),), batch=2)
    lowered = lower(items(program.first), {}, 2, Configuration(workers=3))
    memory = Memory(2, heads=SIZES.heads, kv_heads=SIZES.kv_heads)
    assert missing(lowered.tiles, lowered.events, memory) == []


# -- a large one -------------------------------------------------------------------------------------------------------


def test_eight_billion_parameters_on_meta_take_seconds_and_no_memory() -> None:
    d, layers, ff, vocab, keys, prompt = 4096, 32, 14336, 128_256, 8 * 128, 32
    sizes = Decoder(hidden=d, layers=layers, heads=32, kv_heads=8, head_dim=128, ff=ff)
    with torch.device("meta"):
        module = Llama(sizes, vocab).to(torch.bfloat16).eval()
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    program = from_module(module, (ids_of(1, prompt).to("meta"),))
    print(f"8B imported in {time.perf_counter() - started:.1f} s")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000  # kB; the weights are 16 GB
    assert program.loops()["layers"].count == layers
    assert len(program.loops()["layers"].body) == 5
    assert len(program.operators()) == 8
    matrices = layers * (d * (d + 2 * keys) + d * d + 3 * d * ff) + d * vocab
    gains, rows = (2 * layers + 1) * d, prompt * d
    assert program.work(1).weight_bytes == 2 * (matrices + gains + rows)
    assert matrices + gains + d * vocab == sum(parameter.numel() for parameter in module.parameters())
    attention = layers * 4 * prompt * prompt * d
    assert program.work(1).flops == 2 * (prompt * (matrices - d * vocab) + d * vocab) + attention
    assert program.assumed == ""


# -- FLOPs, parameters -------------------------------------------------------------------------------------------------


class Calls(nn.Module):
    """Modules, parameters and buffers by name, and a function of them."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, *args: Tensor) -> Any:
        return self.function(self, *args)


class Chain(nn.Module):
    """Layers, each given the tensor that the one before gave, and what else there is."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, *more)
        return x


def gpt_block(self: Any, x: Tensor) -> Tensor:
    batch, rows, width = x.shape
    q, k, v = (t.view(batch, rows, 2, -1).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).split(width, 2))
    scores = (q @ k.transpose(-2, -1)) * 0.5 + torch.full((rows, rows), float("-inf")).triu(1)
    x = x + self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, rows, width))
    return x + self.fc_out(F.gelu(self.fc_in(self.ln_2(x))))


def gpt(layers: int = 2) -> nn.Module:
    blocks = [
        Calls(
            gpt_block, ln_1=nn.LayerNorm(8), ln_2=nn.LayerNorm(8), c_attn=nn.Linear(8, 24), c_proj=nn.Linear(8, 8),
            fc_in=nn.Linear(8, 32), fc_out=nn.Linear(32, 8),
        )
        for _ in range(layers)
    ]  # fmt: skip

    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        return self.head(self.ln(self.blocks(x)))

    return Calls(
        forward, wte=nn.Embedding(30, 8), wpe=nn.Embedding(9, 8), blocks=Chain(*blocks), ln=nn.LayerNorm(8),
        head=nn.Linear(8, 30),
    )  # fmt: skip


def parallel_block() -> nn.Module:
    """As GPT-J: attention and feed-forward of one normalised input, added together to the stream."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (project(y).view(*x.shape[:2], 2, 4).transpose(1, 2) for project in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        return self.o(attended) + self.fc_out(F.gelu(self.fc_in(y))) + x

    square = {name: nn.Linear(8, 8, bias=False) for name in "qkvo"}
    return Calls(forward, norm=nn.RMSNorm(8), fc_in=nn.Linear(8, 32), fc_out=nn.Linear(32, 8), **square)


def modulated_block() -> nn.Module:
    """As a DiT's: scale, shift and gate come from a condition, one row a request."""

    def forward(self: Any, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate = self.modulation(F.silu(condition))[:, None].chunk(3, -1)
        return x + gate * self.down(F.gelu(self.up(self.norm(x) * (1 + scale) + shift)))

    return Calls(
        forward, norm=nn.RMSNorm(8), modulation=nn.Linear(8, 24), up=nn.Linear(8, 16), down=nn.Linear(16, 8)
    )  # fmt: skip


def codec_of(module: DemoTTS) -> nn.Module:
    """demo_tts's codec as one module: the convolutions that ship, and their activations."""

    def forward(self: Any, x: Tensor) -> Tensor:
        up = x
        for name, layer in self.codec.items():
            conv, y = layer.conv, layer.activate(x)
            if isinstance(conv, nn.ConvTranspose1d):
                x = up = conv(y)[..., : -conv.stride[0]]
            else:
                y = conv(F.pad(y, ((conv.kernel_size[0] - 1) * conv.dilation[0], 0)))
                x = y + up if name.startswith("mix") else y
        return x.tanh()

    return Calls(forward, codec=module.codec)


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    return x + torch.sin(alpha * x).pow(2) / (alpha + 1e-9)


def vocoder() -> nn.Module:
    """Transposed convolutions of three and two taps, Snake, a residual unit, and a last convolution."""

    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.up1(F.leaky_relu(self.up0(self.pre(x)), 0.1))[..., :-2]
        x = x + self.point(snake(self.long(F.pad(snake(x, self.a), (12, 0))), self.b))
        return torch.tanh(self.post(x))

    alpha = nn.Parameter(torch.ones(1, 4, 1))
    return Calls(
        forward, pre=nn.Conv1d(6, 8, 1), up0=nn.ConvTranspose1d(8, 4, 9, stride=3, padding=3),
        up1=nn.ConvTranspose1d(4, 4, 4, stride=2), long=nn.Conv1d(4, 4, 7, dilation=2), point=nn.Conv1d(4, 4, 1),
        post=nn.Conv1d(4, 1, 1), a=alpha, b=nn.Parameter(torch.ones(1, 4, 1)),
    )  # fmt: skip


def residual_stack(channels: int, kernel: int) -> nn.Module:
    """HiFi-GAN's: weight-normalised convolutions that look ahead, pairs of them around a residual."""

    def forward(self: Any, x: Tensor) -> Tensor:
        for first, second in zip(self.first, self.second, strict=True):
            x = x + second(F.leaky_relu(first(F.leaky_relu(x, 0.1)), 0.1))
        return x

    def convs() -> nn.ModuleList:
        return nn.ModuleList(weight_norm(nn.Conv1d(channels, channels, kernel, padding=kernel // 2)) for _ in range(2))

    return Calls(forward, first=convs(), second=convs())


def convnext(channels: int = 8) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.depthwise(F.pad(x, (6, 0))).transpose(1, 2)
        return x + (self.gamma * self.narrow(F.gelu(self.wide(self.norm(h))))).transpose(1, 2)

    return Calls(
        forward, depthwise=nn.Conv1d(channels, channels, 7, groups=channels), norm=nn.RMSNorm(channels),
        wide=nn.Linear(channels, 4 * channels), narrow=nn.Linear(4 * channels, channels),
        gamma=nn.Parameter(torch.ones(channels)),
    )  # fmt: skip


def static_cache() -> nn.Module:
    """Keys and values written into a buffer, at places known when traced."""

    def forward(self: Any, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        stop = 4 + x.shape[1]
        self.cache[0, :, :, 4:stop], self.cache[1, :, :, 4:stop] = k, v
        out = F.scaled_dot_product_attention(q, self.cache[0, :, :, :stop], self.cache[1, :, :, :stop])
        return x + self.o(out.transpose(1, 2).reshape(x.shape))

    return Calls(forward, qkv=nn.Linear(8, 24), o=nn.Linear(8, 8), cache=torch.zeros(2, 2, 2, 10, 4))


def codes_summed() -> nn.Module:
    """One embedding for all codebooks, looked up with offsets and summed."""

    def forward(self: Any, codes: Tensor) -> Tensor:
        return self.out(self.table(codes + 10 * torch.arange(4)[None, :, None]).sum(1))

    return Calls(forward, table=nn.Embedding(40, 8), out=nn.Linear(8, 8))


def gated(function: Callable[[Tensor], Tensor]) -> nn.Module:
    return Calls(lambda self, x: self.out(function(self.wide(x))), wide=nn.Linear(8, 24), out=nn.Linear(12, 8))


def halves(x: Tensor) -> Tensor:
    value, gate = x.chunk(2, -1)
    return value * F.gelu(gate)


def encoder(norm_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def translator() -> nn.Module:
    layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, norm_first=True)

    def forward(self: Any, source: Tensor, target: Tensor) -> Tensor:
        return self.head(self.decoder(target, self.encoder(source))).argmax(-1)

    return Calls(forward, encoder=encoder(True), decoder=nn.TransformerDecoder(layer, 2), head=nn.Linear(8, 10))


SMALL = demo_tts.DemoConfig(
    hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, ff=48, predictor_layers=1, codebooks=3, codes=32,
    text_vocab=32, prompt=5, latent=16, codec_channels=(16, 8, 8, 4), rates=(2, 3, 2), kernel=3, dilation=2,
)  # fmt: skip
X, CHANNELS = torch.zeros(2, 5, 8), torch.zeros(2, 8, 10)

# name: module, arguments; batch 2
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)), (X,)),
    "llama": (lambda: Llama(SIZES, VOCAB), (ids_of(2, 5),)),
    "parallel": (lambda: Chain(parallel_block(), parallel_block(), parallel_block()), (X,)),
    "demo_codec": (lambda: codec_of(DemoTTS(SMALL)), (torch.zeros(2, 16, 4),)),
    "vocoder": (vocoder, (torch.zeros(2, 6, 10),)),
    "convnext": (lambda: Chain(convnext(), convnext()), (CHANNELS,)),
    "static_cache": (static_cache, (torch.zeros(2, 3, 8),)),
    "codes": (codes_summed, (torch.zeros(2, 4, 5, dtype=torch.long),)),
    "glu": (lambda: gated(F.glu), (X,)),
    "geglu": (lambda: gated(halves), (X,)),
    "patches": (lambda: nn.Sequential(nn.Conv1d(8, 6, 5, stride=5), nn.Conv1d(6, 6, 1)), (CHANNELS,)),
    "skip": (
        lambda: Calls(lambda self, x: self.b(torch.cat([self.a(x), x], -1)), a=nn.Linear(8, 8), b=nn.Linear(16, 8)),
        (X,),
    ),
    "functional": (lambda: Calls(lambda self, x: F.linear(x, self.w, self.c), w=nn.Parameter(torch.ones(4, 8)),
                                 c=nn.Parameter(torch.ones(4))), (X,)),
    "addmm": (lambda: Calls(lambda self, x: torch.addmm(self.c, x.view(-1, 8), self.w),
                            w=nn.Parameter(torch.ones(8, 4)), c=nn.Parameter(torch.ones(4))), (X,)),
}  # fmt: skip
# name: module, arguments, what is counted otherwise
NOTED: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...], str]] = {
    "gpt": (gpt, (ids_of(2, 5),), "40 elements of its parameters not counted"),  # biases of 5 LayerNorms
    "post_norm": (lambda: encoder(False), (X,), "40 elements of its parameters not counted"),
    "translator": (translator, (X, torch.zeros(2, 3, 8)), "80 elements of its parameters not counted"),
    "unbiased": (
        lambda: nn.Conv1d(8, 6, 1, bias=False), (CHANNELS,), "6 elements of weights counted that the module has not"
    ),
    "modulated": (
        lambda: Chain(modulated_block(), modulated_block()), (X, torch.zeros(2, 8)),
        "48 elements a request not counted that fused arithmetic reads",
    ),
    "hifi_gan": (
        lambda: Calls(lambda self, x: self.post((self.a(x) + self.b(x)) / 2), a=residual_stack(8, 3),
                      b=residual_stack(8, 5), post=nn.Conv1d(8, 1, 1)), (CHANNELS,),
        "64 elements of its parameters not counted; 80 elements a request not counted that fused arithmetic reads; "
        "convolutions that look ahead counted as causal",
    ),
}  # fmt: skip


@cache
def imported(case: str) -> tuple[nn.Module, Program]:
    build, args, *_ = CASES[case] if case in CASES else NOTED[case]
    module = build().eval()
    return module, from_module(module, args, batch=2)


def torch_flops(module: nn.Module, args: tuple[Any, ...]) -> int:
    """FLOPs that torch counts; its fused attention kernels on the CPU it does not, so they are not used."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        module(*args)
    torch.backends.mha.set_fastpath_enabled(fast)
    return counter.get_total_flops()


def weight_elements(program: Program) -> int:
    """Elements of weights that all calls read, of embeddings apart."""
    work = ((call.operator, call.operator.work(1, call.position)) for call in calls(program.first))
    return sum(w.weight_bytes // op.element_bytes for op, w in work if not isinstance(op.shape, Gather))


def parameters_of(module: nn.Module) -> int:
    tables = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    return sum(parameter.numel() for parameter in module.parameters() if id(parameter) not in tables)


@pytest.mark.parametrize("case", CASES)
def test_flops_are_torchs_and_weights_are_the_parameters(case: str) -> None:
    module, program = imported(case)
    assert program.work(2).flops == torch_flops(module, CASES[case][1])
    twice = 3 * 8 if case == "parallel" else 0  # two products read what one norm made, and its gain with it
    assert weight_elements(program) == parameters_of(module) + twice
    assert program.assumed == ""
    check_reads(program, len(CASES[case][1]))


@pytest.mark.parametrize("case", NOTED)
def test_what_is_counted_otherwise_is_said(case: str) -> None:
    _, args, assumed = NOTED[case]
    module, program = imported(case)
    assert program.work(2).flops == torch_flops(module, args)
    assert program.assumed == assumed
    counted = [int(part.split()[0].replace(",", "")) for part in assumed.split("; ") if "its parameters" in part]
    more = [int(part.split()[0].replace(",", "")) for part in assumed.split("; ") if "has not" in part]
    assert weight_elements(program) - sum(more) + sum(counted) == parameters_of(module)
    check_reads(program, len(args))


@pytest.fixture(scope="module")
def traced() -> Program:
    """demo_tts, a frame and the codec: caches and codes are written in place, argmax feeds embeddings."""
    return from_module(DemoTTS(SMALL), (torch.zeros(2, 5, dtype=torch.int32),), {"frames": 1}, batch=2)


def test_demo_tts_traced_whole_is_its_program_call_by_call(traced: Program) -> None:
    written = demo_tts.program(first_frames=1, config=SMALL)
    ours = [(call.operator.shape, call.position) for call in calls(traced.first)]
    assert ours == [(call.operator.shape, call.position) for call in calls(written.first)]
    assert traced.work(2) == written.work(2)
    assert traced.assumed == ""
    check_reads(traced, 1)


# -- data flow ---------------------------------------------------------------------------------------------------------


def check_reads(program: Program, inputs: int) -> None:
    """What is read was written before, but for as many tensors as the module is given."""
    written: set[str] = set()
    given: set[str] = set()
    for call in calls(program.first):
        given |= set(call.operator.reads) - written
        written |= set(call.operator.writes)
    assert len(given) <= inputs, given


def flow_of(program: Program) -> nx.DiGraph[int]:
    """Calls, and from which calls (-1: the input) each takes what it multiplies and what it adds."""
    found: nx.DiGraph[int] = nx.DiGraph()
    last: dict[str, int] = {}
    for number, call in enumerate(calls(program.first)):
        assert isinstance(call.operator.shape, Matmul)
        main, *residual = call.operator.reads
        assert len(residual) == call.operator.shape.residual
        assert main not in call.operator.writes, "tiles of one call would overwrite each other's input"
        join(found, number, last.get(main, -1), last.get(residual[0], -1) if residual else None)
        last[call.operator.writes[0]] = number
    return found


def join(graph: nx.DiGraph[int], number: int, main: int, residual: int | None) -> None:
    graph.add_edge(main, number, product=True, sum=main == residual)
    if residual not in (None, main):
        graph.add_edge(residual, number, product=False, sum=True)


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_folding_and_writing_in_place_keep_who_reads_what(data: st.DataObject) -> None:
    """Equal linears wired at random: the folded text, unrolled, is the wiring."""
    period = data.draw(st.lists(st.tuples(st.integers(1, 3), st.none() | st.integers(1, 3)), min_size=1, max_size=3))
    wiring = [
        (max(0, i - back), None if added is None else max(0, i - added))
        for i, (back, added) in enumerate(period * data.draw(st.integers(1, 4)), 1)
    ]
    read = {source for pair in wiring for source in pair}

    def forward(self: Any, x: Tensor) -> list[Tensor]:
        made = [x]
        for layer, (main, residual) in zip(self.layers, wiring, strict=True):
            y = torch.relu(layer(made[main]))
            made.append(y if residual is None else y + made[residual])
        return [tensor for i, tensor in enumerate(made) if i not in read or data.draw(st.integers(0, 4)) == 0]

    layers = nn.ModuleList(nn.Linear(4, 4) for _ in wiring)
    program = from_module(Calls(forward, layers=layers), (torch.zeros(1, 2, 4),))
    expected: nx.DiGraph[int] = nx.DiGraph()
    for i, (main, residual) in enumerate(wiring):
        join(expected, i, main - 1, None if residual is None else residual - 1)
    found = flow_of(program)
    for graph in (expected, found):
        nx.set_node_attributes(graph, {node: node == -1 for node in graph}, "input")
    same = nx.is_isomorphic(
        found, expected, node_match=lambda a, b: a == b, edge_match=lambda a, b: a == b
    )  # fmt: skip
    assert same, str(program)


def test_linears_in_a_row_fold_in_pairs_that_swap_two_tensors() -> None:
    program = from_module(nn.Sequential(*(nn.Linear(8, 8) for _ in range(9))), (torch.zeros(1, 3, 8),))
    assert [loop.count for loop in program.loops().values()] == [4]
    assert [op.reads for op in program.operators().values()] == [("input",), ("matmul.out",), ("input",)]


def test_a_parallel_block_folds_and_adds_to_one_stream() -> None:
    _, program = imported("parallel")
    assert program.loops()["layers"].count == 3
    flow = {op.name: (op.reads, op.writes) for op in program.operators().values()}
    assert flow["layers.o"] == (("layers.a", "x"), ("x",))
    assert flow["layers.fc_out"] == (("layers.fc_in.out", "x"), ("x",))
    assert list(flow).index("layers.fc_in") < list(flow).index("layers.o"), "it reads what the sum overwrites"


def test_a_tensor_that_is_returned_is_not_overwritten() -> None:
    def forward(self: Any, x: Tensor) -> list[Tensor]:
        first = self.a(x)
        return [first, first + self.b(first)]

    program = from_module(Calls(forward, a=nn.Linear(8, 8), b=nn.Linear(8, 8)), (torch.zeros(1, 3, 8),))
    assert program.operators()["b"].writes != program.operators()["a"].writes


def test_residuals_are_read_second_even_where_they_are_the_input() -> None:
    program = from_module(Calls(lambda self, x: x + self.a(x), a=nn.Linear(8, 8)), (torch.zeros(1, 3, 8),))
    (op,) = program.operators().values()
    assert op.reads == (op.reads[0], op.reads[0])
    assert op.writes[0] != op.reads[0]


def test_caches_keep_layers_apart_and_remember_earlier_writes(traced: Program) -> None:
    attention = {name: op.reads for name, op in traced.operators().items() if isinstance(op.shape, Attention)}
    assert attention["talker.1.attention"] == ("talker.1.q", "talker.1.kv")
    assert attention["talker.1.attention_2"] == ("talker.1.q_2", "talker.1.kv_2", "talker.1.kv")


def test_a_computed_mask_and_a_condition_are_waited_for() -> None:
    def forward(self: Any, x: Tensor, condition: Tensor) -> Tensor:
        q = self.a(x + condition[:, None]).view(1, 3, 2, 4).transpose(1, 2)
        bias = self.bias(torch.arange(9).view(3, 3)).permute(2, 0, 1)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=bias)

    module = Calls(forward, a=nn.Linear(8, 8), bias=nn.Embedding(9, 2))
    operators = from_module(module, (torch.zeros(1, 3, 8), torch.zeros(1, 8))).operators()
    assert operators["attention"].reads == ("a.out", "bias.out")
    assert len(operators["a"].reads) == 2


@pytest.mark.parametrize("before", [True, False])
def test_products_become_one_only_where_the_same_stands_around_them(before: bool) -> None:
    """A condition in front of all three is read once; one behind the queries alone keeps them apart."""

    def forward(self: Any, x: Tensor, condition: Tensor) -> Tensor:
        y = x * condition[:, None] if before else x
        q, k, v = self.q(y), self.k(y), self.v(y)
        q = q if before else q * self.scale(condition)[:, None]
        heads = (t.view(1, 3, 2, 4).transpose(1, 2) for t in (q, k, v))
        return x + self.o(F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(x.shape))

    module = Calls(forward, **{name: nn.Linear(8, 8) for name in ("q", "k", "v", "o", "scale")})
    program = from_module(module, (torch.zeros(1, 3, 8), torch.zeros(1, 8)))
    flow = [(op.name, op.reads) for op in program.operators().values()]
    x, condition = flow[0][1] if before else (flow[-1][1][1], flow[2][1][0])
    if before:
        assert flow[0] == ("qkv", (x, condition))
    else:
        assert sorted(flow[:4]) == [("k", (x,)), ("q", (x, "scale.out")), ("scale", (condition,)), ("v", (x,))]
        assert flow[4] == ("attention", ("q.out", "k.out", "v.out"))
    check_reads(program, 2)


# -- stages, names, further outputs ------------------------------------------------------------------------------------


def test_submodules_of_several_operators_are_stages() -> None:
    _, program = imported("translator")
    assert [stage.name for stage in program.first if isinstance(stage, Seq)] == ["encoder", "decoder"]
    assert [loop.count for loop in program.loops().values()] == [2, 2]
    assert program.stages()["head"] == "decoder"


def test_names_are_unique_and_without_the_signs_of_boundaries() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("a|b", nn.Linear(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            layer = self.get_submodule("a|b")
            return layer(layer(x[:, :1]))[:, 0].argmax(-1)

    names = list(from_module(Odd(), (torch.zeros(1, 3, 8),), name="o@|").operators())
    assert names == ["a_b", "a_b_2", "argmax"]


def test_the_name_is_as_given_and_elements_are_as_large_as_the_weights() -> None:
    half = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(torch.bfloat16)
    program = from_module(half, (X.to(torch.bfloat16),), batch=2, name="small")
    assert (program.name, program.stages()["0"]) == ("small", "small")
    assert {op.element_bytes for op in program.operators().values()} == {2}


def test_a_further_output_is_the_same_call_unless_another_is_given() -> None:
    build, args = CASES["mlp"]
    same, other = from_module(build(), args, batch=2), from_module(build(), args, batch=2, further=(X[:, :1],))
    assert same.further == same.first == other.first
    rows = [[call.operator.shape.rows for call in calls(part)] for part in (other.first, other.further)]
    assert rows == [[5, 5], [1, 1]]
    assert [op.name for op in items(other.further)] == [op.name for op in items(other.first)]


def test_convolutions_of_one_channel_each_and_of_patches() -> None:
    shapes = [op.shape for op in from_module(convnext().eval(), (CHANNELS,), batch=2).operators().values()]
    assert shapes[0] == Depthwise(rows=10, channels=8, kernel=7)
    shapes = [op.shape for op in imported("patches")[1].operators().values()]
    assert shapes == [Matmul(rows=2, inner=40, outer=6, per_column=1), Conv(rows=2, channels_in=6, channels_out=6)]


# -- refusals ----------------------------------------------------------------------------------------------------------

A = {"a": lambda: nn.Linear(8, 8), "b": lambda: nn.Linear(8, 8)}
WRITE_BY_HAND = r"export the parts before and after it, or write its operators by hand \(workbench\.program\)$"
REFUSED: dict[str, tuple[Callable[..., Any] | nn.Module, str]] = {
    "bmm": (
        lambda m, x: torch.bmm(m.a(x), x.transpose(1, 2)),
        r"^bmm in the module itself: aten\.bmm\.default multiplies two tensors, neither of them weights, and is no "
        r"attention; " + WRITE_BY_HAND,
    ),
    "sort": (lambda m, x: m.a(x).sort()[0], r"^sort in .*: aten\.sort\.default has no operator family here; export"),
    "lstm": (
        nn.Sequential(nn.Linear(8, 8), nn.LSTM(8, 8, batch_first=True)),
        r"^lstm in 1 \(LSTM\): aten\.lstm\.input has no operator family here; " + WRITE_BY_HAND,
    ),
    "batch_norm": (
        nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)),
        r"^batch_norm in 1 \(BatchNorm1d\): .*; fold it into the convolution before it \(torch.*fuse_conv_bn_eval\)$",
    ),
    "dropout": (
        lambda m, x: F.dropout(m.a(x), 0.1, True),
        r"aten\.dropout\.default drops elements at random; call eval",
    ),
    "softmax": (lambda m, x: m.a(x).softmax(-1), r"outside attention.*; end the module at its logits, or with argmax$"),
    "topk": (lambda m, x: m.a(x).topk(2)[0], r"aten\.topk\.default .*; write a mixture of experts by hand"),
    "branch": (
        lambda m, x: m.a(x) if x.sum() > 0 else x,
        r"^torch\.export cannot trace Calls: GuardOnDataDependentSymNode, Could not guard on data-dependent expression "
        r".*; the arguments must be those of one call, and neither a branch nor a size may depend on data$",
    ),
    "wrong_arguments": (
        nn.Linear(4, 4),
        r"^torch\.export cannot trace Linear: RuntimeError, .*must have same reduction",
    ),
    "strided": (
        nn.Sequential(nn.Conv1d(3, 4, 3, stride=2)),
        r"^conv1d in 0 \(Conv1d\): aten\.conv1d\.default has stride 2 and kernel 3; known are stride 1, and both ",
    ),
    "grouped": (nn.Conv1d(3, 6, 1, groups=3), r"has 3 groups of 3 channels; known are 1, and one a channel"),
    "transposed": (
        nn.ConvTranspose1d(3, 4, 5, stride=2),
        r"has kernel 5, stride 2, 1 groups and dilation 1; known are kernels that are a multiple of the stride",
    ),
    "product": (
        lambda m, x: m.a(x) * m.b(m.a(x)),
        r"aten\.mul\.Tensor combines linear and linear_2; known are sums with what an operator just made, and "
        r"act\(gate\) \* up of two linears of one input; ",
    ),
    "after_norm": (lambda m, x: x + F.rms_norm(m.a(x), (8,)), r"aten\.add\.Tensor combines .* and rms_norm; known are"),
    "pooled": (
        lambda m, x: m.a(x).mean(1),
        r"aten\.mean\.dim reduces a tensor; known are norms over the last dimension",
    ),
    "row_mean": (
        lambda m, x: m.a(x).mean(-1),
        r"aten\.mean\.dim is a sum or mean over a row that is no part of a norm",
    ),
    "argmax": (lambda m, x: m.a(x).argmax(1), r"aten\.argmax\.default is not over the last dimension"),
    "weights": (lambda m, x: F.linear(x, m.a(x)[0]), r"aten\.linear\.default has weights that are computed from its"),
    "left": (lambda m, x: m.table @ m.a(x), r"multiplies by weights that are not one matrix on the right"),
    "table": (
        lambda m, x: m.a(x) * m.table[:, :1].expand(3, 8),
        r"takes table, parameters of shape \(3, 8\) that are no",
    ),
    "experts": (lambda m, x: torch.einsum("btd,btd->bt", m.a(x), x), r"aten\.einsum\.default has no operator family"),
    "nothing": (nn.ReLU(), r"^ReLU: nothing in it is a product, a convolution, attention, an embedding or an argmax$"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_is_one_clear_line(case: str, capfd: pytest.CaptureFixture[str]) -> None:
    given, message = REFUSED[case]
    table = nn.Parameter(torch.ones(3, 3))
    module = given if isinstance(given, nn.Module) else Calls(
        given, a=A["a"](), b=A["b"](), table=table, e=nn.Embedding(9, 8)
    )  # fmt: skip
    if case != "dropout":
        module.eval()
    with pytest.raises(ProgramError, match=message) as caught:
        from_module(module, (torch.zeros(1, 3, 8),))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", ""), "torch's own words are kept back"


def test_autocast_is_to_be_left_outside() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.a(x)

    with pytest.raises(ProgramError, match=r"wrap_with_autocast has no .*; leave torch\.autocast out of the module$"):
        from_module(Calls(forward, a=nn.Linear(8, 8)), (torch.zeros(1, 3, 8),))


def test_unequal_heads_and_too_few_positions_are_refused() -> None:
    module = Calls(lambda self, q, k, v: F.scaled_dot_product_attention(self.a(q), k, v), a=nn.Linear(8, 8))
    q, k, v = torch.zeros(1, 3, 4, 8), torch.zeros(1, 1, 4, 8), torch.zeros(1, 3, 4, 8)
    with pytest.raises(ProgramError, match=r"shapes \(1, 3, 4, 8\), \(1, 1, 4, 8\), .*, which are not equal heads"):
        from_module(module, (q, k, v))
    with pytest.raises(ProgramError, match=r"has 4 new positions see 2; known is that they see themselves at least"):
        from_module(module, (q, v[:, :, :2], v[:, :, :2]))


def test_sizes_that_depend_on_data_are_refused() -> None:
    module = Calls(lambda self, ids: self.a(self.e(ids[ids > 0])), a=nn.Linear(8, 8), e=nn.Embedding(9, 8))
    with pytest.raises(ProgramError, match=r"^embedding: its shape \(u0, 8\) depends on data; sizes must follow from"):
        from_module(module, (ids_of(1, 5),))


def test_what_is_no_module_no_tuple_or_no_such_batch_is_refused() -> None:
    with pytest.raises(
        ProgramError, match=r"takes a torch\.nn\.Module and a tuple of its arguments, not str and tuple"
    ):
        from_module("llama", (X,))  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match=r"not Linear and Tensor"):
        from_module(nn.Linear(8, 8), X)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match=r"Linear: batch is 3, but the first tensor given is .*: batch comes first"):
        from_module(nn.Linear(8, 8), (X,), batch=3)


def test_without_torch_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Linear(8, 8)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ProgramError, match=r"^torch is needed to read a torch module, .*: pip install torch$"):
        from_module(module, (X,))


def test_operators_keep_the_order_that_data_needs() -> None:
    """A term that is made after the operator that it is added into: the operator waits for it."""

    def forward(self: Any, x: Tensor) -> Tensor:
        early, late = self.a(x), self.b(x)
        kept = F.scaled_dot_product_attention(*(late[:, None],) * 3)[:, 0]
        return early + kept

    program = from_module(Calls(forward, a=nn.Linear(8, 8), b=nn.Linear(8, 8)), (torch.zeros(1, 3, 8),))
    assert [op.name for op in items(program.first) if isinstance(op, Operator)] == ["b", "attention", "a"]
    check_reads(program, 1)
