"""The programs that published rows are of: models by name, and stretches of a model's program.

Sizes of Qwen3-TTS and of Llama-3.2-1B are those of ``models``. Those of the other language models are recalled from
their ``config.json`` unless the table below says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from workbench.errors import ProgramError
from workbench.models import MODELS, llama
from workbench.models.decoder import Decoder
from workbench.models.llama import LLAMA_3_2_1B, DecoderConfig
from workbench.program import Loop, Node, Operator, Program, Seq


def _model(
    name: str, layers: int, hidden: int, ff: int, heads: int, kv_heads: int, vocab: int, **more: int
) -> DecoderConfig:
    """A language model; ``head_dim`` is ``hidden / heads`` unless given."""
    source = f"sizes of {name} are recalled, not read from its config.json"
    head_dim = more.get("head_dim", hidden // heads)
    stack = Decoder(
        hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, head_dim=head_dim, ff=ff,
        head_norm=name.startswith("qwen3"),
    )  # fmt: skip
    return DecoderConfig(name=name, stack=stack, vocab=vocab, assumed=source)


def _shaped(layers: int) -> DecoderConfig:
    """AutoMegaKernel's "small": hidden, ff and vocabulary as its fat_tile_gemv.json names them, ``h2048_i5632_v32000``.

    Its full_h100.json gives 622.9, 983.6 and 1,705.1 MB for 4, 8 and 16 layers, so 90.2 MB a layer: key and value are
    512 wide together each, which leaves heads of 64 as the assumption.
    """
    made = _model(f"llama_2048h_{layers}l", layers, 2048, 5632, 32, 8, 32_000)
    return replace(made, assumed="heads of 64 are assumed; the other sizes are those of AutoMegaKernel's results")


LANGUAGE_MODELS: Mapping[str, DecoderConfig] = {
    config.name: config
    for config in (
        LLAMA_3_2_1B,
        _model("llama_3_1_8b", 32, 4096, 14_336, 32, 8, 128_256),
        _model("qwen3_0_6b", 28, 1024, 3072, 16, 8, 151_936, head_dim=128),
        _model("qwen3_8b", 36, 4096, 12_288, 32, 8, 151_936),
        _model("qwen3_32b", 64, 5120, 25_600, 64, 8, 151_936, head_dim=128),
        _model("smollm2_135m", 30, 576, 1536, 9, 3, 49_152),
        *map(_shaped, (4, 8, 16)),
    )
}
FAMILIES = {"llama": "Llama", "qwen3_tts": "Qwen3-TTS", "qwen3": "Qwen3", "smollm2": "SmolLM2"}


def family_of(model: str) -> str:
    """The model family that rows are summed up by."""
    return next(family for prefix, family in FAMILIES.items() if model.startswith(prefix))


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a model's program: its first output or (``further``) the next one, or some of its stages alone.

    ``parameters`` are the model's own, sorted by name. A language model's decode step is a further output.
    """

    model: str
    parameters: tuple[tuple[str, int | str], ...] = ()
    further: bool = False
    stages: tuple[str, ...] = ()

    def program(self) -> Program:
        """It as a program of its own; ProgramError where a stage is not there."""
        return _program(self)


def part(model: str, *stages: str, further: bool = False, **parameters: int | str) -> Part:
    """A part by keyword."""
    return Part(model, tuple(sorted(parameters.items())), further, stages)


def step(model: str, position: int) -> Part:
    """A decode step of a language model after ``position`` tokens, at least one."""
    return part(model, further=True, prompt=max(1, position))


@lru_cache(256)
def _program(wanted: Part) -> Program:
    language = LANGUAGE_MODELS.get(wanted.model)
    build: Callable[..., Program] = partial(llama.program, language) if language else MODELS[wanted.model]
    whole = build(**dict(wanted.parameters))
    nodes = whole.further if wanted.further else whole.first
    if wanted.stages:
        nodes = only(nodes, frozenset(wanted.stages))
        found = set(Program(whole.name, nodes, ()).stages().values()) if nodes else set()
        if missing := sorted(set(wanted.stages) - found):
            raise ProgramError(f"{whole.name} has no stage {missing[0]!r} there; it has {', '.join(_stages(whole))}")
    return Program(whole.name, nodes, (), whole.parameters, whole.output_ns, whole.assumed)


def _stages(program: Program) -> list[str]:
    return list(dict.fromkeys(program.stages().values()))


def only(nodes: tuple[Node, ...], stages: frozenset[str]) -> tuple[Node, ...]:
    """These stages' nodes alone, in the loops that they stand in; loops and stages left empty go."""
    found: list[Node] = []
    for node in nodes:
        if isinstance(node, Operator):
            continue
        if isinstance(node, Seq) and node.name in stages:
            found.append(node)
        elif inner := only(node.body, stages):
            found.append(Loop(node.name, node.count, inner) if isinstance(node, Loop) else Seq(node.name, inner))
    return tuple(found)
