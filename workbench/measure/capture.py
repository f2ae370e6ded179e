"""Capture of the conventional run: torch's own profiler over the eager model, operators annotated by name."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from workbench.models.demo_tts_torch import DemoTTS
from workbench.program import Program, calls

WARM_UP = 2


def capture(module: DemoTTS, program: Program, batch: int, path: Path, *, seed: int = 0) -> None:
    """Profile one conventional run to its first output and write torch's Kineto JSON to ``path``.

    Each operator call is annotated with the operator's name, so that kernels can be attributed to operators.
    """
    frames = program.parameters["first_frames"]
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(0, module.config.text_vocab, (batch, module.config.prompt), generator=generator)
    text = text.to(torch.int32)
    with torch.inference_mode():
        for _ in range(WARM_UP):
            module(text, frames=frames)
        state = module.start(text)
        state.chunk = frames
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            for call in calls(program.first):
                with record_function(call.operator.name):
                    module.run(call.operator.name, state, call.index)
    profiled.export_chrome_trace(str(path))
