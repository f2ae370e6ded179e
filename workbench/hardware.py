"""Devices: what the predictor may know of the machine, every number with where it comes from.

A device is a JSON file that ``workbench bench`` writes for the machine at hand. Its ``mechanisms`` say what running a
region costs beside the tiles themselves; the tiles' own times are a table beside it (``cost``).
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from workbench.effects import ALL, Effects
from workbench.errors import MeasureError


class Provenance(StrEnum):
    """Where a number comes from; the worse of two wins (later in this list is worse)."""

    MEASURED = "measured here"
    PUBLISHED = "published"
    INTERPOLATED = "interpolated"
    EXTRAPOLATED = "extrapolated"
    ANALYTICAL = "analytical"
    ASSUMED = "assumed"


def worst(provenances: set[Provenance]) -> Provenance:
    """The provenance of a number derived from several."""
    order = list(Provenance)
    return max(provenances, key=order.index)


MECHANISM_FIELDS = ("launch_ns", "gap_ns", "dispatch_ns", "event_ns", "signal_ns", "drain_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What one way of running a region costs, ns: a launch, a kernel boundary, a tile, an event, the end.

    ``spread_frac`` is half the interquartile range of the launch measurements over their median.
    """

    launch_ns: int
    gap_ns: int
    dispatch_ns: int
    event_ns: int
    signal_ns: int
    drain_ns: int
    spread_frac: float
    source: str
    provenance: Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiprocessor:
    """What the blocks on one SM of a GPU share: registers, shared memory (a block's share is bounded), threads."""

    capability: str
    registers: int
    shared_bytes: int
    block_shared_bytes: int
    threads: int
    clock_hz: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A machine: ``overheads[arm][workers]``, where arm is ``megakernel`` or a conventional arm."""

    name: str
    workers: int
    overheads: Mapping[str, Mapping[int, Overheads]]
    machine: Mapping[str, str]
    taken: str
    run_spread_frac: float  # relative standard deviation between passes over the same benchmarks
    prefetch_depth: int = 0  # tiles whose weights a worker of a megakernel can hold at most, see ``simulate.Mechanism``
    whole_arms: tuple[str, ...] = ("eager",)  # conventional arms whose operators were timed whole, not tile by tile
    sm: Multiprocessor | None = None  # of a GPU; None: a worker runs any tile
    effects: Effects = ALL
    mma_rows: int = 16  # rows of a product from which its body uses tensor cores
    host_ns: int = 0  # once a run, before its first launch
    waits_ns: Mapping[str, int] = field(default_factory=dict)  # arms whose launches overlap: ``Mechanism.wait_ns``

    @property
    def arms(self) -> tuple[str, ...]:
        """The conventional arms that this device has figures for."""
        return tuple(arm for arm in self.overheads if arm != "megakernel")

    @property
    def kernel_depth(self) -> int:
        """Prefetch depth of conventional kernels: a GPU's tile loads its weights while it loads its inputs."""
        return 0 if self.sm is None else 1

    def overhead(self, arm: str, workers: int) -> Overheads:
        """Overheads of an arm on some of the device's workers; MeasureError if they were not measured."""
        by_workers = self.overheads.get(arm)
        if by_workers is None:
            raise MeasureError(
                f"device {self.name!r} has no figures for arm {arm!r}; it has {', '.join(self.overheads)}"
            )
        if workers not in by_workers:
            raise MeasureError(
                f"device {self.name!r} has figures for {arm} on {', '.join(map(str, by_workers))} workers, "
                f"not on {workers}; `workbench bench` measures up to the machine's cores"
            )
        return by_workers[workers]


def this_machine() -> dict[str, str]:
    """What identifies the machine at hand; two tables are comparable only where all of it agrees."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return {
        "cpu": model,
        "cores": str(len(os.sched_getaffinity(0))),
        "system": f"{platform.system()} {platform.machine()}",
    }


def to_json(device: Device) -> dict[str, object]:
    """A device as plain data."""
    return {
        "name": device.name,
        "workers": device.workers,
        "machine": dict(device.machine),
        "taken": device.taken,
        "run_spread_frac": device.run_spread_frac,
        "overheads": {
            arm: {
                str(workers): {
                    **{name: getattr(o, name) for name in MECHANISM_FIELDS},
                    "spread_frac": o.spread_frac,
                    "source": o.source,
                    "provenance": o.provenance.value,
                }
                for workers, o in by_workers.items()
            }
            for arm, by_workers in device.overheads.items()
        },
    }


def read_device(path: Path) -> Device:
    """A device from its JSON file; MeasureError names the file and the field that is wrong."""
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise MeasureError(f"{path}: cannot be read ({error.strerror}); `workbench bench` writes one") from error
    except (ValueError, RecursionError) as error:
        raise MeasureError(f"{path}: not JSON ({error}); `workbench bench` writes one") from error
    try:
        overheads = {
            str(arm): {_workers(int(workers)): _overheads(entry) for workers, entry in by_workers.items()}
            for arm, by_workers in data["overheads"].items()
        }
        return Device(
            name=_text("name", data["name"]),
            workers=_workers(data["workers"]),
            overheads=overheads,
            machine={str(k): str(v) for k, v in data["machine"].items()},
            taken=_text("taken", data["taken"]),
            run_spread_frac=_fraction("run_spread_frac", data["run_spread_frac"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        reason = f"{type(error).__name__} {error!s:.120}"
        raise MeasureError(f"{path}: not a device file, {reason}; `workbench bench` writes one") from error


def _overheads(entry: Mapping[str, object]) -> Overheads:
    values: dict[str, int] = {}
    for name in MECHANISM_FIELDS:
        value = entry[name]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            raise ValueError(f"{name}={value!r:.40} is not a count of nanoseconds below 2^31")
        values[name] = value
    return Overheads(
        **values,
        spread_frac=_fraction("spread_frac", entry["spread_frac"]),
        source=_text("source", entry["source"]),
        provenance=Provenance(str(entry["provenance"])),
    )


def _fraction(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**31:
        raise ValueError(f"{name}={value!r:.40} is not a fraction")
    return float(value)


def _workers(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise ValueError(f"workers={value!r:.40} is not a number of workers")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}={value!r:.40} is not text")
    return value
