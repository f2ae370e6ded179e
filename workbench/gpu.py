"""GPUs: limits and constants from ``data/devices/*.toml``, every number with its source.

A file has ``name``, ``compute_capability``, the QUANTITIES below as ``{ value = …, source = "…" }`` and the tables
``[overheads]`` and ``[memory]``. ``recalled = true`` marks a value from memory, ``assumed = true`` one that was chosen;
both are shown as ``assumed``. A user adds a device with a file of the same form.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import MappingProxyType

from workbench.effects import ALL, Effects
from workbench.errors import MeasureError
from workbench.hardware import Device, Multiprocessor, Overheads, Provenance, worst

FOLDER = Path(__file__).resolve().parents[1] / "data" / "devices"
LIMITS = (
    "sm_count",
    "clock_hz",
    "dram_bytes_per_s",
    "l2_bytes",
    "shared_bytes_per_sm",
    "shared_bytes_per_block",
    "registers_per_sm",
    "threads_per_sm",
    "bf16_flops_per_s",
)
OPTIONAL = ("measured_dram_bytes_per_s",)
OVERHEADS = (
    "eager_gap_ns",
    "graph_gap_ns",
    "kernel_ramp_ns",
    "launch_ns",
    "dispatch_ns",
    "event_ns",
    "signal_ns",
    "drain_ns",
)
MEMORY = ("latency_ns", "bytes_in_flight_per_warp", "achieved_frac", "l2_over_dram", "compute_frac", "error_frac")
MMA_ROWS = 16  # rows of the smallest tensor-core tile
LANES_PER_SM = 128  # fp32 multiply-adds a clock on the architectures that ship here
PORT_BYTES = 64  # a clock, that an SM reads through its port to L2 at most; recalled, of the A100 and the H100
PREFETCH_DEPTH = 3  # at most: the tile at work and the next two, as Hazy's loader holds on an H100


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a device and where it comes from."""

    value: float
    source: str
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's quantities by name (LIMITS, OPTIONAL, OVERHEADS and MEMORY), and the effects that are priced on it."""

    key: str
    name: str
    compute_capability: str
    quantities: Mapping[str, Quantity]
    effects: Effects = ALL

    def __getitem__(self, name: str) -> float:
        return self.quantities[name].value

    def provenance(self, *names: str) -> Provenance:
        """Provenance of a number derived from these quantities."""
        return worst({self.quantities[name].provenance for name in names})

    @property
    def sm_count(self) -> int:
        """Streaming multiprocessors."""
        return int(self["sm_count"])

    @property
    def workers(self) -> int:
        """SMs that run a megakernel's tiles: all but its schedulers."""
        workers = self.sm_count - self.effects.scheduler_sms
        if workers < 1:
            raise MeasureError(f"{self.key}: {self.effects.scheduler_sms} scheduler SMs leave none of {self.sm_count}")
        return workers

    @property
    def multiprocessor(self) -> Multiprocessor:
        """One SM."""
        return Multiprocessor(
            capability=self.compute_capability,
            registers=int(self["registers_per_sm"]),
            shared_bytes=int(self["shared_bytes_per_sm"]),
            block_shared_bytes=int(self["shared_bytes_per_block"]),
            threads=int(self["threads_per_sm"]),
            clock_hz=self["clock_hz"],
        )

    @property
    def achieved_bytes_per_s(self) -> float:
        """DRAM bandwidth that a kernel reaches: measured where known, else a share of the peak."""
        if "measured_dram_bytes_per_s" in self.quantities:
            return self["measured_dram_bytes_per_s"]
        return self["dram_bytes_per_s"] * self["achieved_frac"]

    @property
    def port_bytes_per_s(self) -> float:
        """That one SM can read."""
        return PORT_BYTES * self["clock_hz"]

    @property
    def cuda_flops_per_s(self) -> float:
        """Of fp32 multiply-adds on all CUDA cores."""
        return 2 * LANES_PER_SM * self["clock_hz"] * self.sm_count

    @property
    def mma_flops_per_s(self) -> float:
        """Of tensor cores, full tiles, as bodies reach it."""
        return self["bf16_flops_per_s"] * (self["compute_frac"] if self.effects.body_quality else 1.0)

    def flops_per_s(self, rows: int, element_bytes: int) -> float:
        """Of all SMs, of FLOPs that count, for tiles of so many rows: rows that only fill a tile up do not.

        On CUDA cores a multiply-add takes one instruction itself, one to widen a weight of 2 bytes, and 16 bytes a load
        of weight and of input (`compute_frac` of such instructions are issued).
        """
        if rows >= self.mma_rows:
            return self.mma_flops_per_s * rows / (-(-rows // MMA_ROWS) * MMA_ROWS)
        if not self.effects.body_quality:
            return self.cuda_flops_per_s
        instructions = 1 + (element_bytes == 2) + 2 * element_bytes / 16
        return self.cuda_flops_per_s * self["compute_frac"] / instructions

    @property
    def mma_rows(self) -> int:
        """Rows of a product from which tensor cores, their tiles filled up with nothing, beat CUDA cores at their peak.

        At least 2: of one row, the loads take longer than either, and its body needs the fewest resources.
        """
        mma = self["bf16_flops_per_s"] * self["compute_frac"]
        return max(2, min(MMA_ROWS, ceil(MMA_ROWS * self.cuda_flops_per_s / mma)))

    def device(self) -> Device:
        """The device as the predictor sees it: SMs are workers; overheads of a megakernel and of each arm.

        A megakernel is a node of a captured graph, so its launch is a node's gap and ramp, and the gap of the node that
        zeroes its event counters. In ``graph_pdl`` a node's
        gap runs from when the kernel before has begun its last tile; its ramp (seeing that the other has ended, the
        first activations) comes after that end all the same.
        """
        on = self.effects
        graph_ns, eager_ns = (int(self[f"{arm}_gap_ns"]) if on.launch_gaps else 0 for arm in ("graph", "eager"))
        ramp_ns = int(self["kernel_ramp_ns"]) if on.ramp else 0
        reset_ns = int(self["graph_gap_ns"]) if on.counter_reset else 0
        gaps = {"eager": eager_ns, "graph": graph_ns, "graph_pdl": graph_ns}
        mega = self._overheads(launch_ns=reset_ns + graph_ns + ramp_ns, gap_ns=0, conventional=False)
        arms = {
            arm: {self.sm_count: self._overheads(launch_ns=0, gap_ns=gap_ns + ramp_ns, conventional=True)}
            for arm, gap_ns in gaps.items()
        }
        return Device(
            name=self.key,
            workers=self.sm_count,
            overheads={"megakernel": {self.workers: mega}, **arms},
            machine={"gpu": self.name, "compute_capability": self.compute_capability},
            taken="from its file",
            run_spread_frac=0.0,
            prefetch_depth=PREFETCH_DEPTH if on.prefetch else 0,
            whole_arms=(),
            sm=self.multiprocessor,
            effects=on,
            mma_rows=self.mma_rows,
            host_ns=int(self["launch_ns"]),
            waits_ns={"graph_pdl": ramp_ns},
        )

    def _overheads(self, *, launch_ns: int, gap_ns: int, conventional: bool) -> Overheads:
        return Overheads(
            launch_ns=launch_ns,
            gap_ns=gap_ns,
            dispatch_ns=0 if conventional else int(self["dispatch_ns"]),
            event_ns=int(self["event_ns"]) if self.effects.stage_latency else 0,
            signal_ns=int(self["signal_ns"]) if self.effects.stage_latency and not conventional else 0,
            drain_ns=int(self["drain_ns"]),
            spread_frac=self["error_frac"],
            source=self.quantities["launch_ns"].source,
            provenance=self.provenance(*OVERHEADS),
        )


def gpu_files() -> dict[str, Path]:
    """The GPUs that ship, by the name of their file."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def read_gpu(path: Path) -> Gpu:
    """A GPU from its file; MeasureError in one line names the file, the entry and the rule."""
    try:
        data = tomllib.loads(path.read_text())
    except OSError as error:
        raise MeasureError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise MeasureError(f"{path}: not TOML ({error})") from error
    texts = {key: data.get(key) for key in ("name", "compute_capability")}
    for key, text in texts.items():
        if not isinstance(text, str) or not text.strip():
            raise MeasureError(f"{path}: {key} must be text, not {text!r}")
    found = _quantities(path, "", data, LIMITS, OPTIONAL, other={*texts, "overheads", "memory"})
    for table, names in (("overheads", OVERHEADS), ("memory", MEMORY)):
        if not isinstance(data.get(table), dict):
            raise MeasureError(f"{path}: table [{table}] is missing; it holds {', '.join(names)}")
        found |= _quantities(path, f"{table}.", data[table], names, (), other=set())
    for name in ("achieved_frac", "compute_frac", "error_frac"):
        if found[name].value > 1:
            raise MeasureError(f"{path}: memory.{name} is {found[name].value}; a fraction is at most 1")
    return Gpu(path.stem, data["name"], data["compute_capability"], MappingProxyType(found))


def _quantities(
    path: Path,
    prefix: str,
    data: Mapping[str, object],
    needed: tuple[str, ...],
    optional: tuple[str, ...],
    other: set[str],
) -> dict[str, Quantity]:
    if unknown := sorted(set(data) - {*needed, *optional, *other}):
        raise MeasureError(f"{path}: {prefix}{unknown[0]} is not known; there are {', '.join([*needed, *optional])}")
    if missing := [name for name in needed if name not in data]:
        raise MeasureError(f'{path}: {prefix}{missing[0]} is missing; write {{ value = …, source = "…" }}')
    return {name: _quantity(path, prefix + name, data[name]) for name in (*needed, *optional) if name in data}


def _quantity(path: Path, name: str, entry: object) -> Quantity:
    keys = {"value", "source", "recalled", "assumed"}
    if not isinstance(entry, dict) or not {"value", "source"} <= set(entry) <= keys:
        raise MeasureError(f'{path}: {name} must be {{ value = …, source = "…" }}, with recalled or assumed = true')
    value, source = entry["value"], entry["source"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise MeasureError(f"{path}: {name} is {value!r}; a number from 0 is needed")
    if value == 0 and not name.startswith("overheads."):
        raise MeasureError(f"{path}: {name} is 0; it must be positive")
    if not isinstance(source, str) or not source.strip():
        raise MeasureError(f"{path}: {name} has no source")
    unsure = bool(entry.get("recalled", False)) or bool(entry.get("assumed", False))
    return Quantity(float(value), source, Provenance.ASSUMED if unsure else Provenance.PUBLISHED)
