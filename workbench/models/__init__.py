"""The models that the workbench ships: each module gives a ``Program``; torch only where a model really runs."""

from __future__ import annotations

from collections.abc import Callable

from workbench.errors import ProgramError
from workbench.models import demo_tts
from workbench.program import Program

MODELS: dict[str, Callable[..., Program]] = {"demo_tts": demo_tts.program}


def load_program(name: str, **parameters: int) -> Program:
    """The program of a shipped model; ``parameters`` are its own keyword arguments (first-chunk frames, say)."""
    if name not in MODELS:
        raise ProgramError(f"no model is called {name!r}; there are: {', '.join(sorted(MODELS))}")
    return MODELS[name](**parameters)
