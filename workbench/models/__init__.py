"""The models that the workbench ships: each module gives a ``Program``; torch only where a model really runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path

from workbench.errors import ProgramError
from workbench.models import demo_tts, llama, nemotron_h_tts, qwen3_tts
from workbench.program import Program

MODELS: dict[str, Callable[..., Program]] = {
    "demo_tts": demo_tts.program,
    "llama_3_2_1b": llama.llama_3_2_1b,
    "qwen3_tts_0_6b": partial(qwen3_tts.program, qwen3_tts.SMALL),
    "qwen3_tts_1_7b": partial(qwen3_tts.program, qwen3_tts.LARGE),
    "nh_tts_standin": nemotron_h_tts.program,
}


def load_program(name: str, **parameters: int | str | None) -> Program:
    """The program of a shipped model, or of the decoder-only model that a Hugging Face ``config.json`` describes.

    ``parameters`` are the model's own keyword arguments (first-chunk frames, say); one that it does not take is refused
    with the names of those it takes.
    """
    build = MODELS.get(name)
    if build is None:
        if not _is_config(name):
            known = ", ".join(sorted(MODELS))
            raise ProgramError(f"no model is called {name!r:.80}; there are: {known}, or a path to a config.json")
        build = partial(llama.program, llama.from_hf_config(name))
    taken = [parameter for parameter in signature(build).parameters if parameter != "config"]
    if unknown := [parameter for parameter in parameters if parameter not in taken]:
        raise ProgramError(f"{name} takes no {unknown[0]}; it takes {', '.join(taken)}")
    return build(**parameters)


def _is_config(name: str) -> bool:
    try:
        return name.endswith(".json") or (Path(name) / "config.json").exists()
    except OSError:  # a name too long for a path
        return False
