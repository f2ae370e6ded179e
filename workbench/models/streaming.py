"""Streaming parameters of the text-to-speech models: how much is said at first, how much then, after which prompt."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.errors import ProgramError

LIMIT = 100_000  # largest count taken: two hours of audio at 80 ms a frame
UPSTREAM_CONTEXT = 25  # frames of left context of Qwen3-TTS's own windowed decoder


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise ProgramError unless ``value`` is a whole number from ``least`` to LIMIT."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LIMIT:
        raise ProgramError(f"{name}={value!r:.40}: a whole number from {least} to {LIMIT} is needed")


@dataclass(frozen=True, slots=True)
class Stream:
    """Frames of the first chunk and of each further one, positions of the prompt, and the codec's left context.

    ``context`` is the number of frames before a chunk that a windowed codec computes again; None for a stateful codec,
    which remembers them.
    """

    first_frames: int
    chunk_frames: int
    prompt: int
    context: int | None

    @property
    def parameters(self) -> dict[str, int]:
        """As a program keeps them: keyword arguments that give this stream again."""
        given = {"first_frames": self.first_frames, "chunk_frames": self.chunk_frames, "prompt": self.prompt}
        return given if self.context is None else {**given, "context": self.context}

    def codec_rows(self, frames: int) -> int:
        """Frames that the codec computes for a chunk of ``frames``."""
        return frames + (self.context or 0)

    def codec_position(self, before: int) -> int:
        """Frames in the codec's own cache when ``before`` frames were said."""
        return before if self.context is None else 0


def stream(first_frames: int, chunk_frames: int, prompt: int, codec: str | None, context: int | None) -> Stream:
    """The stream of a model's arguments; ``codec`` is "stateful" (the default without ``context``) or "windowed".

    >>> stream(1, 4, 10, "windowed", None).codec_rows(1)
    26
    """
    counts = {"first_frames": first_frames, "chunk_frames": chunk_frames, "prompt": prompt}
    for name, value in counts.items():
        check_count(name, value)
    if codec not in (None, "stateful", "windowed"):
        raise ProgramError(f"codec={codec!r:.40}: it is 'stateful' or 'windowed'")
    if context is not None:
        check_count("context", context, least=0)
        if codec == "stateful":
            raise ProgramError(
                f"context={context}: a stateful codec computes none again; leave it out, or codec='windowed'"
            )
    elif codec == "windowed":
        context = UPSTREAM_CONTEXT
    return Stream(first_frames, chunk_frames, prompt, context)
