"""GPUs from files, and tile times from a roofline: closed forms, and bad files refused in one line."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from workbench import compose, search
from workbench.cost import Roofline
from workbench.errors import MeasureError
from workbench.gpu import FOLDER, Gpu, gpu_files, read_gpu
from workbench.hardware import Provenance
from workbench.models import load_program
from workbench.predict import Pricer
from workbench.program import Operator
from workbench.shapes import Attention, Matmul

PROGRAM = load_program("demo_tts")
H100 = read_gpu(gpu_files()["h100_sxm"])


def matmul(**shape: int) -> Operator:
    return Operator(name="m", shape=Matmul(**shape), reads=("x",), writes=("y",), element_bytes=2)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(gpu_files()))
def test_every_shipped_gpu_is_read_and_priced(name: str) -> None:
    gpu = read_gpu(gpu_files()[name])
    assert gpu.device().workers == gpu.sm_count
    assert gpu.achieved_bytes_per_s <= gpu["dram_bytes_per_s"]
    assert gpu["shared_bytes_per_block"] <= gpu["shared_bytes_per_sm"]
    pricer = Pricer(PROGRAM, gpu.device(), Roofline(gpu), 1)
    for composition in search.named_compositions(pricer):
        prediction = pricer.predict(composition)
        assert sum(prediction.causes_ns.values()) == prediction.ttfo_ns
        assert prediction.provenance is Provenance.ASSUMED, "assumed constants must show"
        assert prediction.interval_ns[0] < prediction.ttfo_ns < prediction.interval_ns[1]


def test_the_gpus_of_the_design_ship() -> None:
    wanted = "h100_sxm h100_nvl h100_pcie h200 a100_40 a100_80 b200 rtx_4090 rtx_5090 l4 l40s a10g rtx_3090 h20 gb10"
    assert set(gpu_files()) == set(wanted.split())


def test_recalled_and_assumed_values_are_told_from_published_ones() -> None:
    for path in FOLDER.glob("*.toml"):
        raw, gpu = tomllib.loads(path.read_text()), read_gpu(path)
        for name, entry in {**raw, **raw["overheads"], **raw["memory"]}.items():
            if isinstance(entry, dict) and "value" in entry:
                unsure = entry.get("recalled", False) or entry.get("assumed", False)
                assert (gpu.quantities[name].provenance is Provenance.ASSUMED) == unsure, (path.name, name)


def test_a_wide_operator_streams_its_weights_at_the_achieved_bandwidth() -> None:
    """132 tiles of 64 columns: a matrix of 2048 × 8448 bf16 takes bytes / 3.089 TB/s on every SM alike.

    Of each tile's 256 KiB a page of 64 KiB is loaded before the body, the rest while it works.
    """
    costs = Roofline(H100).tiles(matmul(rows=1, inner=2048, outer=8448), 1, 0, compose.Configuration(132))
    assert costs.weight_ns is not None
    assert costs.streams is not None
    assert len(costs.ns) == 132
    expected = 2048 * 8448 * 2 / 3.089e12 * 1e9
    assert np.abs(costs.weight_ns - expected / 4).max() <= 1
    assert np.abs(costs.ns - expected * 3 / 4).max() <= 1
    assert costs.streams.all(), "the body takes as long as its loads"


def test_few_tiles_cannot_take_the_whole_bandwidth() -> None:
    """8 tiles: each SM takes at most what its port does, 64 bytes a clock of 1.98 GHz."""
    operator = Operator(
        name="a",
        shape=Attention(rows=1, heads=8, kv_heads=8, head_dim=64),
        reads=("q", "kv"),
        writes=("a",),
        position=9_999,
        element_bytes=2,
    )
    costs = Roofline(H100).tiles(operator, 1, 9_999, compose.Configuration(132))
    assert costs.input_ns is not None
    assert len(costs.ns) == 8
    work = operator.work(1, 9_999)
    expected = work.read_bytes / 8 / (64 * 1.98)
    assert np.abs(costs.input_ns - expected).max() <= 1
    assert expected > work.read_bytes / 3.089e12 * 1e9 * 3, "far slower than with all SMs"


def test_arithmetic_runs_on_the_faster_unit_with_rows_filled_up() -> None:
    """A narrow inner dimension, so that the page holds all weights and the body is arithmetic alone."""
    wide, configuration = matmul(rows=1, inner=512, outer=8448), compose.Configuration(132)
    roofline, flops = Roofline(H100), 2 * 512 * 64  # a row of one tile
    # FLOPs a ns and SM; 2.25 instructions a multiply-add: itself, widening, two loads of 16 bytes for eight
    on_cuda, on_tensor = 2 * 128 * 1.98 * 0.7 / 2.25, 989.4e3 * 0.7 / 132
    assert H100.mma_rows == 2, "16 rows on tensor cores take as long as 1.5 on CUDA cores at their peak"
    for rows in (1, 2, 15, 16, 17, 40):
        filled = -(-rows // 16) * 16
        expected = rows * flops / on_cuda if rows == 1 else filled * flops / on_tensor
        assert roofline.tiles(wide, rows, 0, configuration).ns[0] == np.ceil(round(expected, 6))


def test_exact_selection_works_on_a_gpu() -> None:
    selection = search.select(Pricer(PROGRAM, H100.device(), Roofline(H100), 1))
    assert selection.best.ttfo_ns <= min(p.ttfo_ns for p in selection.shortlist)


GOOD = gpu_files()["h100_sxm"].read_text()


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("sm_count = { value = 132", 'sm_count = { value = "many"', "sm_count is 'many'; a number from 0 is needed"),
        ("sm_count = { value = 132", "sm_count = { value = 0", "sm_count is 0; it must be positive"),
        ("sm_count = { value = 132", "sm_count = { value = -1", "sm_count is -1; a number from 0"),
        ("sm_count = { value = 132", "sm_count = { value = nan", "sm_count is nan"),
        ("sm_count = { value = 132", "sm_count = { value = inf", "sm_count is inf"),
        ("sm_count = { value = 132", "sm_count = { value = true", "sm_count is True"),
        ("sm_count = ", "sm_cuont = ", "sm_cuont is not known"),
        ('name = "H100 SXM5 80GB"', "name = 7", "name must be text, not 7"),
        ("clock_hz = { value = 1_980_000_000, source", "clock_hz = { value = 1_980_000_000, sauce", "clock_hz must be"),
        ('source = "AutoMegaKernel full_h100.json" }\ndram', 'source = "" }\ndram', "clock_hz has no source"),
        ("[memory]", "[memorial]", "memorial is not known"),
        ("[overheads]", "[overheads", "not TOML"),
        ("event_ns = ", "#", "overheads.event_ns is missing"),
        ("achieved_frac = { value = 0.92", "achieved_frac = { value = 1.2", "a fraction is at most 1"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, old: str, new: str, text: str) -> None:
    assert old in GOOD
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(MeasureError) as caught:
        read_gpu(path)
    assert text in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_users_own_file_is_a_device(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace("value = 132", "value = 66", 1))
    gpu: Gpu = read_gpu(path)
    assert (gpu.key, gpu.sm_count) == ("mine", 66)
    for bad in (tmp_path, tmp_path / "none.toml"):
        with pytest.raises(MeasureError, match="cannot be read"):
            read_gpu(bad)
    (tmp_path / "bin.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MeasureError, match="not TOML"):
        read_gpu(tmp_path / "bin.toml")
