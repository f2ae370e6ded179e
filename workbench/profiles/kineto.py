"""torch.profiler's Chrome trace (Kineto), all eras, from CUDA, ROCm and the CPU, to the kernel table.

Eras are told by content, because ``schemaVersion`` has always been 1:

| era | signs |
|---|---|
| `legacy` | no categories, pid "CPU functions" (torch <= 1.7, or autograd's own export) |
| `2021` | categories Kernel, Operator, Runtime; whole microseconds |
| `2022` | categories kernel, cpu_op, cuda_runtime; whole microseconds since 1970 |
| `2024-absolute` | microseconds with three decimals since 1970 |
| `2024-relative` | the same, from ``baseTimeNanoseconds`` |
| `2026` | kernels carry graph ids |

A trace without kernels and without launches is a conventional CPU run: its outermost operators are the kernels of
device "cpu", one stream a thread. With launches but no kernels the GPU's records were lost, which is refused.
"""

import hashlib
import statistics

import pandas as pd

from workbench.errors import ProfileError
from workbench.profiles.json_events import TraceNotes, read_events
from workbench.profiles.kernels import build_kernels, only_kernels
from workbench.profiles.kineto_events import Collected, collect, to_int
from workbench.profiles.kineto_link import clip_overruns, cpu_rows, keep_outermost_rows, link_to_host
from workbench.profiles.report import KernelFacts, LoadReport, Profile, kernel_facts, kernel_warnings
from workbench.profiles.sniff import CAPTURE, FileKind

EPOCH_FROM_NS = 10**18  # a time beyond September 2001 counts from 1970; a smaller one, from the machine's start
SHORT_STEP = 0.9  # a first step with fewer kernels than this share of the others' median lost some
OTHER_ACCELERATORS = ("mtia_", "hpu_", "privateuse1_", "cuda_profiler_range")
WHOLE_US = ("2021", "2022")
STEP = r"ProfilerStep#(\d{1,18})"


def read(file: FileKind) -> Profile:
    """Read a Kineto trace that `sniff` has found.

    Raises
    ------
    ProfileError
        Where there is no list of events, or there are no kernels in it, with the reason.
    """
    notes = TraceNotes()
    found = collect(read_events(file.path, gzipped=file.gzipped, notes=notes), notes)
    if found.categories.keys() & {"Session", "Node"}:
        raise ProfileError(f"{file.path}: an ONNX Runtime profile; {CAPTURE}")
    cpu_run = not any(row["kind"] == "kernel" for row in found.rows)
    platform = "cpu" if cpu_run else _platform(found, notes)
    if cpu_run:
        reason = _why_no_cpu_run(found, notes)
        if reason:
            raise ProfileError(f"{file.path}: {reason}")
        found.rows = cpu_rows(found)
    else:
        if found.legacy and (nested := keep_outermost_rows(found)):
            notes.dropped["legacy device intervals inside others"] += nested
        link_to_host(found)
    if platform == "rocm" and (clipped := clip_overruns(found.rows)):
        notes.repaired["rows that ran over the next on their stream by more than 1 ms, clipped"] += clipped
    for row in found.rows:
        row["start_ns"] -= found.first_ns
    kernels = build_kernels(found.rows)
    facts = kernel_facts(kernels)
    era = _era(found, notes)
    warnings = [
        *_file_warnings(notes, era),
        *kernel_warnings(facts, whole_us=era in WHOLE_US),
        *(_cpu_warnings(found, notes) if cpu_run else _launch_warnings(found, kernels)),
        *_step_warnings(kernels),
    ]
    return Profile(kernels, _report(file, notes, found, facts, era=era, platform=platform, warnings=warnings))


def _report(
    file: FileKind,
    notes: TraceNotes,
    found: Collected,
    facts: KernelFacts,
    *,
    era: str,
    platform: str | None,
    warnings: list[str],
) -> LoadReport:
    with file.path.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    traced = platform == "cpu" or _runtime_traced(found)
    lost, lost_graphs = _without_rows(found, found.launches), _without_rows(found, found.graph_launches)
    return LoadReport(
        path=file.path,
        kind="kineto",
        era=era,
        sha256=sha256,
        timing_regime="timeline",
        units="file in us, table in ns",
        platform=platform,
        devices=_device_names(notes),
        kernels=facts.kernels,
        memcpys=facts.memcpys,
        memsets=facts.memsets,
        sum_ns=facts.sum_ns,
        union_ns=facts.union_ns,
        streams=facts.streams,
        overlaps=facts.overlaps,
        zero_durations=facts.zero_durations,
        launches=len(found.launches) if traced else None,
        launches_without_kernels=lost if traced else None,
        opaque_graph_share=0.0 if traced and not lost_graphs else None,
        clock_base_ns=_clock_base_ns(found, notes, era),
        truncated=notes.truncated,
        events=notes.events,
        dropped=dict(notes.dropped),
        repaired=dict(notes.repaired),
        warnings=tuple(warnings),
    )


def _why_no_cpu_run(found: Collected, notes: TraceNotes) -> str | None:
    """Why a trace without kernels is no CPU run either; None where it is one."""
    cut = "; the file is cut off: copy it again" if notes.truncated else ""
    others = [name for name in found.categories if name.startswith(OTHER_ACCELERATORS)]
    if not notes.found_events:
        keys = ", ".join(repr(key[:30]) for key in notes.keys[:5])
        return f"JSON with keys {keys or '(none)'} and no traceEvents, no profile{cut or f'; {CAPTURE}'}"
    if not notes.events and notes.dropped:
        at = notes.first_bad_char
        return f"none of its {notes.dropped.total():,} events is valid JSON, the first at character {at}; export again"
    if not notes.events:
        return f"its list of events is empty{cut or f'; {CAPTURE}'}"
    if found.launches:
        again = "" if cut else "; profile again with a warm-up step (torch.profiler.schedule) and fewer active steps"
        return f"{len(found.launches):,} launches but no kernel: the GPU's records are lost{cut}{again}"
    if others:
        return f"accelerator events of a kind not supported: {', '.join(sorted(others)[:3])}"
    if found.rows:
        return f"{len(found.rows):,} device copies and fills but no kernel{cut}"
    if notes.truncated and _device_names(notes):
        return f"no kernel before the cut, though it names {_device_names(notes)[0]!r}{cut}"
    if not found.operators:
        kinds = ", ".join(name[:30] for name, _ in found.categories.most_common(4)) or "none"
        return f"no kernel and no operator in its {notes.events:,} events (categories: {kinds}){cut or f'; {CAPTURE}'}"
    return None


def _era(found: Collected, notes: TraceNotes) -> str:
    if found.legacy:
        return "legacy"
    if found.categories.keys() & {"Kernel", "Operator", "Runtime"}:
        return "2021"
    if found.graph_ids:
        return "2026"
    if notes.metadata.get("baseTimeNanoseconds"):
        return "2024-relative"
    return "2024-absolute" if found.fractional else "2022"


def _platform(found: Collected, notes: TraceNotes) -> str | None:
    if found.hip or notes.metadata.keys() & {"roctracer_version", "hip_runtime_version", "hip_driver_version"}:
        return "rocm"
    if found.categories.keys() & {"xpu_runtime", "xpu_driver"}:
        return "xpu"
    cuda_keys = {"cupti_version", "cuda_runtime_version", "cuda_driver_version"}
    if found.categories.keys() & {"cuda_runtime", "cuda_driver", "Runtime"} or notes.metadata.keys() & cuda_keys:
        return "cuda"
    return None


def _runtime_traced(found: Collected) -> bool:
    return any(name.endswith(("_runtime", "_driver")) or name == "Runtime" for name in found.categories)


def _device_names(notes: TraceNotes) -> tuple[str, ...]:
    listed = notes.metadata.get("deviceProperties") or notes.metadata.get("computeProperties")
    entries = listed if isinstance(listed, list) else []
    return tuple(str(entry.get("name", "")) for entry in entries if isinstance(entry, dict))


def _clock_base_ns(found: Collected, notes: TraceNotes, era: str) -> int | None:
    """The Unix epoch at ``start_ns == 0``; None where the file does not tie its clock to one."""
    base, first = to_int(notes.metadata.get("baseTimeNanoseconds")), found.first_ns
    if first is None:
        return None
    if base:
        return base + first
    return first if first > EPOCH_FROM_NS else None


def _without_rows(found: Collected, launches: list[int | None]) -> int:
    present = {row.get("correlation") for row in found.rows} - {None}
    return sum(correlation not in present for correlation in launches)


def _file_warnings(notes: TraceNotes, era: str) -> list[str]:
    warnings = []
    if notes.truncated:
        warnings.append("the file is cut off: counts and sums are lower bounds")
    if notes.dropped:
        warnings.append(f"{notes.dropped.total():,} events were dropped, see `dropped`")
    if era == "2021":
        warnings.append("traces of 2021 do not tell annotations from operators: only steps are annotations here")
    if era == "legacy":
        warnings.append("legacy export: device rows are CUDA-event intervals around operators, not kernels")
    return warnings


def _cpu_warnings(found: Collected, notes: TraceNotes) -> list[str]:
    warnings = []
    if names := _device_names(notes):
        warnings.append(f"the file names {names[0]!r} but holds no launch and no kernel: read as a CPU run")
    if _runtime_traced(found):
        warnings.append("the file holds GPU runtime calls but no launch: read as a CPU run")
    return warnings


def _launch_warnings(found: Collected, kernels: pd.DataFrame) -> list[str]:
    if not _runtime_traced(found):
        return ["the file holds no host calls: launches, operators and lost graphs cannot be told"]
    warnings = []
    lost = _without_rows(found, found.launches)
    if lost:
        warnings.append(
            f"{lost:,} of {len(found.launches):,} launches have no kernel: captured into a graph, or their records "
            "are lost; idle time and coverage cannot be relied on"
        )
    if lost_graphs := _without_rows(found, found.graph_launches):
        warnings.append(f"{lost_graphs:,} graph launches have no kernel: the share of opaque graphs is unknown")
    replayed = int(kernels["correlation"].isin(set(found.graph_launches) - {None}).sum())
    if replayed:
        warnings.append(
            f"{replayed:,} kernels were replayed by {len(found.graph_launches):,} graph launches: they carry the "
            "launch's annotation and no operator of their own; record the capture, or an eager run, to attribute them"
        )
    return warnings


def _step_warnings(kernels: pd.DataFrame) -> list[str]:
    """A first step with fewer kernels than the others lost some to the clock's drift (pytorch #192021)."""
    steps = only_kernels(kernels)["annotation"].str.extract(STEP, expand=False).dropna().astype("int64")
    counts = steps.value_counts().sort_index().tolist()
    if len(counts) < 3 or counts[0] >= SHORT_STEP * statistics.median(counts[1:]):
        return []
    return [f"the first step has {counts[0]:,} kernels, the others {statistics.median(counts[1:]):,.0f}: leave it out"]
