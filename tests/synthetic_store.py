"""A whole store made from a seed: a device, benchmarks and measured runs of demo_tts, with no machine behind it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pandas as pd
import synthetic

from workbench.compose import to_json
from workbench.measure.store import SAMPLE_COLUMNS, SCHEMA, save_bench
from workbench.models import load_program
from workbench.predict import Pricer
from workbench.search import named_compositions

SAMPLES = 9


def store(folder: Path, seed: int = 0, batches: tuple[int, ...] = (1, 8), runs: bool = True) -> Path:
    """Write a store of invented numbers into ``folder`` and return it; measured times are predicted ones with noise."""
    program = load_program("demo_tts")
    device, table = synthetic.device(seed), synthetic.table(program, seed, batches)
    save_bench(folder, device, table)
    if not runs:
        return folder
    rng, rows, compositions = random.Random(seed), [], {}
    for batch in batches:
        pricer = Pricer(program, device, table, batch)
        for composition in named_compositions(pricer):
            compositions[composition.digest] = to_json(composition)
            ns = pricer.predict(composition).ttfo_ns * rng.uniform(0.9, 1.3)
            for sample in range(SAMPLES):
                noisy = int(ns * rng.uniform(0.97, 1.05))
                rows.append((len(rows), batch, composition.digest, composition.name, sample, noisy, 0, 0.1))
    path = folder / "runs" / "2026-01-01-000000"
    path.mkdir(parents=True)
    record = {
        "schema": SCHEMA, "model": program.name, "parameters": {"first_frames": 2, "chunk_frames": 2},
        "compositions": compositions,
    }  # fmt: skip
    (path / "run.json").write_text(json.dumps(record))
    pd.DataFrame(rows, columns=list(SAMPLE_COLUMNS)).to_csv(path / "samples.csv", index=False)
    return folder
