"""Profiles: real traces against facts computed by others, invented ones against brute force, damage against a bound.

The real files lie outside the repository, in $WORKBENCH_PROFILES or ../shared/profiles; without them their tests are
skipped by name. No real sample exists of two eras, `legacy` and `2026`: those are covered by invented traces only.
"""

import csv
import gzip
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tarfile
from collections import Counter
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from workbench import profiles
from workbench.errors import ProfileError
from workbench.profiles import attribute_kernels, check_kernels, load, operator_summary, stream_gaps
from workbench.profiles.kernels import build_kernels, length_of_union, union_ns
from workbench.profiles.kineto_events import to_ns
from workbench.profiles.nesting import names_around, outermost

SAMPLES = Path(os.environ.get("WORKBENCH_PROFILES", Path(__file__).parents[2] / "shared" / "profiles"))
quick = settings(
    max_examples=60, deadline=timedelta(seconds=10), suppress_health_check=[HealthCheck.function_scoped_fixture]
)

# One row a Kineto sample with kernels: its era, and what index.tsv says of it is checked below.
ERAS = {
    "pytorch+kineto__gpu_metrics_expected.json": "2021",
    "pytorch+kineto__worker0.1623143566756.pt.trace.json.gz": "2021",
    "pytorch+kineto__worker0.1623212756351.pt.trace.json.gz": "2021",
    "facebookresearch+HolisticTraceAnalysis__backward_thread.json": "2022",
    "facebookresearch+HolisticTraceAnalysis__benchmark_simple_add_trace.json.gz": "2022",
    "facebookresearch+HolisticTraceAnalysis__trace.json.gz": "2022",
    "facebookresearch+HolisticTraceAnalysis__rank0.json.gz": "2022",
    "facebookresearch+HolisticTraceAnalysis__sampled_rank-0.json.gz": "2022",
    "facebookresearch+HolisticTraceAnalysis__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": "2024-absolute",
    "facebookresearch+HolisticTraceAnalysis__nccl_data.json.gz": "2024-relative",
    "AMD-AGI+TraceLens__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": "2024-relative",
    "AMD-AGI+TraceLens__eager_trace.json.gz": "2024-relative",
    "AMD-AGI+TraceLens__bs_32_rank0.json.gz": "2024-relative",
    "AMD-AGI+TraceLens__graph_capture_rank_0.1773709742341309550.pt.trace.json.gz": "2024-relative",
    "AMD-AGI+TraceLens__graph_execution.json.gz": "2024-relative",
    "AMD-AGI+TraceLens__sglang_Qwen3-8B_decode.json.gz": "2024-relative",
    "AMD-AGI+TraceLens__sglang_Qwen3-8B_prefilldecode.json.gz": "2024-relative",
}
CPU_RUNS = [
    "facebookresearch+HolisticTraceAnalysis__2_rank_non_gpu.json.gz",
    "facebookresearch+HolisticTraceAnalysis__rank_non_gpu.json.gz",
    "facebookresearch+HolisticTraceAnalysis__distributed_info_not_found.json.gz",
]


def sample(name: str) -> Path:
    path = SAMPLES / name
    if not path.exists():
        pytest.skip(f"sample {name} is not in {SAMPLES}")
    return path


def facts() -> dict[str, dict[str, str]]:
    index = SAMPLES / "index.tsv"
    if not index.exists():
        return {}
    with index.open(newline="") as file:
        return {row["file"]: row for row in csv.DictReader(file, delimiter="\t")}


def number_after(text: str, label: str) -> Decimal | None:
    match = re.search(rf"{re.escape(label)}([\d.]+)", text)
    return Decimal(match[1]) if match else None


@cache
def loaded(path: Path) -> profiles.Profile:
    return load(path)


@cache
def raw_events(path: Path) -> list[dict]:
    """The oracle's reading: whole file, Decimal numbers; kernels and operators alone."""
    data = path.read_bytes()
    data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    events = json.loads(data, strict=False, parse_float=Decimal)["traceEvents"]
    return [e for e in events if e.get("ph") == "X" and e.get("cat") in ("kernel", "Kernel", "cpu_op", "Operator")]


def raw_kernels(events: list[dict]) -> list[dict]:
    return [e for e in events if e["cat"] in ("kernel", "Kernel")]


def covered_ns(spans: list[tuple[int, int]]) -> int:
    """Union by counting how many spans are open at each edge; not how the package does it."""
    edges = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    total, open_count, since = 0, 0, 0
    for at, step in edges:
        if open_count:
            total += at - since
        open_count, since = open_count + step, at
    return total


# ---------------------------------------------------------------- real files


@pytest.mark.parametrize("name", sorted(ERAS))
def test_a_real_trace_has_the_facts_that_others_computed_from_it(name):
    path = sample(name)
    row = facts()[name]
    said, quirks = row["verifiable_facts"], row["quirks"]
    profile = loaded(path)
    report, kernels = profile.report, profiles.only_kernels(profile.kernels)

    assert report.era == ERAS[name]
    assert report.kernels == len(kernels) == number_after(said, "kernels=")
    assert report.sum_ns == kernels["duration_ns"].sum() == number_after(said, "sum dur=") * 1000
    assert report.streams == number_after(said, "streams=")
    assert report.events == number_after(said, "events=")
    assert not report.truncated
    assert not report.dropped
    assert not report.repaired
    by_name = kernels.groupby("name")["duration_ns"].sum()
    top, top_us = re.search(r"top=(.*) ([\d.]+) us; streams", said).groups()
    assert by_name.idxmax().startswith(top)
    assert by_name.max() == Decimal(top_us) * 1000
    zero = re.search(r"(\d+) kernels with dur 0", quirks)
    assert report.zero_durations == (int(zero[1]) if zero else 0)
    if overlapping := re.search(r"(\d+) same-stream overlapping", quirks):
        assert report.overlaps == int(overlapping[1])
    if replays := re.search(r"(\d+) graph launches", quirks):
        assert any(f"{replays[1]} graph launches" in warning for warning in report.warnings)


@pytest.mark.parametrize("name", sorted(ERAS))
def test_the_union_is_exact_where_the_index_rounded_through_floats(name):
    path = sample(name)
    said = number_after(facts()[name]["verifiable_facts"], "union=") * 1000
    spans = [(int(e["ts"] * 1000), int((e["ts"] + e["dur"]) * 1000)) for e in raw_kernels(raw_events(path))]
    report = loaded(path).report
    assert report.union_ns == covered_ns(spans) <= report.sum_ns
    if ERAS[name] in ("2021", "2022"):
        assert report.union_ns == said  # whole microseconds: floats are exact too
    elif ERAS[name] == "2024-relative":
        assert abs(report.union_ns - said) <= 20  # the index's union went through floats of 1e12 us
    else:
        assert said > report.sum_ns  # floats of 1.7e15 us: the index itself calls its union impossible


@pytest.mark.parametrize("name", sorted(ERAS))
def test_operators_found_around_the_launch_are_those_that_the_external_ids_name(name):
    path = sample(name)
    events = raw_events(path)
    host = {}
    for event in events:
        if event["cat"] in ("cpu_op", "Operator"):
            host.setdefault(event["args"].get("External id"), event["name"])
    table = loaded(path).kernels
    if ERAS[name] == "2022":  # a kernel's id was its correlation then: it names no operator
        assert table["external_id"].isna().all()
        return
    expected = [host.get(None if pd.isna(i) else i) for i in table["external_id"]]
    got = [None if pd.isna(op) else op for op in table["op"]]
    assert got == expected
    assert any(got)


def test_one_graph_launch_has_many_kernels():
    report = loaded(sample("AMD-AGI+TraceLens__sglang_Qwen3-8B_decode.json.gz")).report
    kernels = loaded(report.path).kernels
    assert (kernels["correlation"] == 92178).sum() == 544
    assert kernels.loc[kernels["correlation"] == 92178, "annotation"].notna().all()
    assert (kernels["external_id"].isna() & (kernels["kind"] == "kernel")).sum() == 547
    assert report.opaque_graph_share == 0.0
    assert report.launches_without_kernels == 0


def test_a_capture_trace_says_that_its_launches_made_no_kernels():
    report = loaded(sample("AMD-AGI+TraceLens__bs_32_rank0.json.gz")).report
    assert (report.kernels, report.launches, report.launches_without_kernels) == (2, 546, 544)
    assert any("544 of 546 launches have no kernel" in warning for warning in report.warnings)


@pytest.mark.parametrize("name", CPU_RUNS)
def test_a_real_cpu_trace_gives_its_outermost_operators(name):
    path = sample(name)
    operators = [e for e in raw_events(path) if e["cat"] == "cpu_op"]
    spans = [(e["tid"], e["ts"], e["ts"] + e["dur"], i) for i, e in enumerate(operators)]
    inside = {
        i
        for tid, start, end, i in spans
        for other, since, until, j in spans
        if i != j and tid == other and since <= start < until and (since, -until, j) < (start, -end, i)
    }
    report = loaded(path).report
    assert (report.platform, report.era) == ("cpu", "2022")
    assert report.kernels == len(spans) - len(inside)
    assert report.sum_ns == 1000 * sum(end - start for _, start, end, i in spans if i not in inside)


@pytest.mark.parametrize("name", sorted(p.name for p in SAMPLES.glob("*")) or ["(no samples)"])
def test_every_sample_is_read_or_refused_in_one_line(name):
    path = sample(name)
    if name in ERAS or name in CPU_RUNS:
        assert loaded(path).report.kernels > 0
        return
    with pytest.raises(ProfileError) as refused:
        load(path)
    message = str(refused.value)
    assert name in message
    assert "\n" not in message
    assert 40 < len(message) - len(str(path)) < 320
    kind = {
        "nsys sqlite": "Nsight Systems SQLite",
        "rocprofv3 json": "rocprofv3",
        "rocprofv3 csv": "rocprofv3",
        "TensorRT --exportProfile json": "--exportProfile",
        "TensorRT --exportLayerInfo json": "--exportLayerInfo",
        "TensorRT --exportTimes json": "--exportTimes",
        "TREx metadata json": "TREx",
        "Triton Proton .hatchet json": "Proton",
        "nvbench json": "nvbench",
        "tar.gz of Chakra/ET json": "tar archive",
        "PyTorch execution trace (ET)": "execution trace",
        "torch memory timeline raw": "memory timeline",
        "nsys stats csv (cuda_gpu_kern_sum)": "nsys stats",
        "PyTorch TunableOp csv": "TunableOp",
    }.get(facts().get(name, {}).get("format", ""), "")
    assert kind in message


@settings(quick, max_examples=15)
@given(cut=st.integers(2, 24_180))
def test_a_real_gzip_cut_anywhere_gives_a_part_of_the_whole(cut, tmp_path):
    path = sample("facebookresearch+HolisticTraceAnalysis__trace.json.gz")
    part = tmp_path / "cut.json.gz"
    part.write_bytes(path.read_bytes()[:cut])
    try:
        profile = load(part)
    except ProfileError:
        return
    assert profile.report.truncated
    assert profile.report.kernels <= 79
    assert profile.report.sum_ns <= 10_728_000


# ---------------------------------------------------------------- invented traces


def kernel(start_us, duration_us, *, name="k", correlation=None, stream=7, **args):
    args = {"device": 0, "stream": stream, **args}
    if correlation is not None:
        args["correlation"] = correlation
    return {
        "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start_us, "dur": duration_us,
        "args": args,
    }  # fmt: skip


def host(cat, name, start_us, duration_us, *, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": start_us, "dur": duration_us, "args": args}


def launch(start_us, correlation, name="cudaLaunchKernel"):
    return host("cuda_runtime", name, start_us, 1, correlation=correlation)


def write(folder, events, *, name="t.json", pack=lambda b: b, **metadata):
    path = folder / name
    path.write_bytes(pack(json.dumps({**metadata, "traceEvents": events}).encode()))
    return path


def write_text(folder, text, name="t.json"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


@quick
@given(
    times=st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, 10**6)), min_size=1, max_size=12),
    base_ns=st.sampled_from([0, 1_712_195_495_505_543_140, 5_237_153_003_001_430]),
    relative=st.booleans(),
)
def test_nanoseconds_survive_at_any_epoch(times, base_ns, relative, tmp_path):
    events = ", ".join(
        f'{{"ph": "X", "cat": "kernel", "name": "k{i}", "ts": {us(base_ns + start)}, "dur": {us(duration)}, '
        f'"args": {{"device": 0, "stream": {i % 2}}}}}'
        for i, (start, duration) in enumerate(times)
    )
    tail = ', "baseTimeNanoseconds": 1712195494000000000' if relative else ""
    profile = load(write_text(tmp_path, f'{{"traceEvents": [{events}]{tail}}}'))
    first = min(start for start, _ in times)
    table = profile.kernels
    assert sorted(zip(table["start_ns"], table["duration_ns"], strict=True)) == sorted(
        (start - first, duration) for start, duration in times
    )
    assert profile.report.sum_ns == sum(duration for _, duration in times)
    assert profile.report.union_ns == covered_ns([(start, start + duration) for start, duration in times])
    absolute = base_ns + first + (1_712_195_494_000_000_000 if relative else 0)
    assert profile.report.clock_base_ns == (absolute if absolute > 10**18 else None)
    assert profile.report.era == ("2024-relative" if relative else "2024-absolute")


@given(
    st.sampled_from(["", "-"]), st.integers(0, 10**16), st.sampled_from(["", "0", "14", "140", "1405", "0005", "00150"])
)
@example("", 1712195495505543, "140")
def test_decimal_text_becomes_the_nearest_nanosecond(sign, whole, decimals):
    text = f"{sign}{whole}.{decimals}"
    exact = round(Fraction(text.removesuffix(".")) * 1000)  # half to even
    assert to_ns(text) == (exact if abs(exact) < 2**62 else None)


@pytest.mark.parametrize("bad", ["", "x", ".", "1e400", "1e-400", "nan", "inf", "²", "1" * 90, None, True, [], 10**30])
def test_what_is_no_time_is_missing(bad):
    assert to_ns(bad) in ((0,) if bad == "1e-400" else (None,))


@pytest.mark.parametrize("pack", [lambda b: b, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.txt", "a.sqlite"])
def test_the_content_decides_and_not_the_name(pack, name, tmp_path):
    assert load(write(tmp_path, [kernel(1, 2)], name=name, pack=pack)).report.sum_ns == 2000


def test_two_gzip_members_and_a_byte_order_mark_are_read(tmp_path):
    text = b"\xef\xbb\xbf" + json.dumps({"traceEvents": [kernel(1, 2)]}).encode()
    path = write_text(tmp_path, gzip.compress(text[:40]) + gzip.compress(text[40:]) + b"\0" * 9)
    report = load(path).report
    assert (report.kernels, report.truncated, report.repaired) == (1, False, {})


def test_list_shape_and_late_metadata_and_a_bracket_in_a_name(tmp_path):
    as_list = write_text(tmp_path, json.dumps([{}, kernel(1, 2, name="a]b")]))
    assert load(as_list).kernels["name"].tolist() == ["a]b"]
    late = write_text(
        tmp_path,
        json.dumps({"traceName": "x]}[", "traceEvents": [kernel(1, 2)], "deviceProperties": [{"name": "H100"}]}),
    )
    assert load(late).report.devices == ("H100",)


def test_missing_is_na_and_zero_means_none_only_where_the_writer_says_so(tmp_path):
    path = write(
        tmp_path,
        [
            kernel(1, 2, **{"External id": 0, "graph id": 0, "graph node id": 0, "registers per thread": 16}),
            kernel(5, 2, **{"graph id": 3, "graph node id": 8589934592, "grid": [2, 1, 1], "shared memory": 0}),
        ],
        baseTimeNanoseconds=10**18,
    )
    profile = load(path)
    first, second = profile.kernels.to_dict("records")
    for column in ("external_id", "graph_id", "graph_node_id", "correlation", "shared_memory_bytes", "grid", "op"):
        assert pd.isna(first[column])
    assert first["registers_per_thread"] == 16
    assert (second["graph_id"], second["graph_node_id"], second["grid"]) == (3, 2 << 32, (2, 1, 1))
    assert second["shared_memory_bytes"] == 0
    assert profile.report.era == "2026"


def test_annotations_come_from_the_launching_thread(tmp_path):
    #  host 1   |--step------------------|        host 2   |--other----|
    #             |-q_proj-|  |-k_proj-|
    #  launch        1          2     3                        4
    path = write(
        tmp_path,
        [
            host("user_annotation", "step", 0, 100),
            host("user_annotation", "q_proj", 10, 20),
            host("user_annotation", "k_proj", 40, 20),
            host("user_annotation", "other", 0, 300, tid=2),
            host("cpu_op", "aten::linear", 11, 5),
            host("cpu_op", "aten::mm", 12, 3),
            launch(13, 1),
            launch(50, 2),
            launch(60, 3),  # the moment k_proj ends: outside it
            host("cuda_runtime", "cuLaunchKernel", 200, 1, tid=2, correlation=4),
            *(kernel(1000 + 10 * i, 5, correlation=i) for i in (1, 2, 3, 4, 5)),
            host("gpu_user_annotation", "projected", 1049, 7, tid=7) | {"pid": 0},
        ],
    )
    table = load(path).kernels
    assert table["annotation"].tolist() == ["step > q_proj", "step > k_proj", "step", "other", "projected"]
    assert table["op"].tolist() == ["aten::mm", pd.NA, pd.NA, pd.NA, pd.NA]


def test_a_graph_launch_gives_its_annotation_to_all_its_kernels_in_node_order(tmp_path):
    path = write(
        tmp_path,
        [
            host("user_annotation", "decode", 0, 50),
            launch(10, 9, "cudaGraphLaunch"),
            kernel(100, 5, correlation=9, name="b", **{"graph node id": 2}),
            kernel(100, 5, correlation=9, name="a", **{"graph node id": 1}),
            launch(20, 10, "cudaGraphLaunch"),
        ],
    )
    profile = load(path)
    assert profile.kernels["name"].tolist() == ["a", "b"]
    assert profile.kernels["annotation"].tolist() == ["decode"] * 2
    assert profile.report.opaque_graph_share is None  # the second launch's kernels are nowhere
    assert any("1 graph launches have no kernel" in warning for warning in profile.report.warnings)


def test_syncs_and_overheads_are_no_kernels(tmp_path):
    events = [kernel(0, 10), kernel(0, 90) | {"cat": "cuda_sync"}, kernel(0, 90) | {"cat": "overhead"}]
    events += [kernel(20, 5) | {"cat": "gpu_memcpy"}, kernel(30, 5) | {"cat": "gpu_memset"}]
    report = load(write(tmp_path, events)).report
    assert (report.kernels, report.memcpys, report.memsets, report.sum_ns) == (1, 1, 1, 10_000)
    assert report.launches is None
    assert report.opaque_graph_share is None


def test_rocm_stamps_that_run_over_are_clipped_and_counted(tmp_path):
    #  A |==================================== 1.6 s      real end unknown: clipped to B's start
    #  B    |--|           contained in A
    #  C         |--| D overlaps C by 2 us: left
    events = [
        kernel(0, 1_600_000, name="A"), kernel(3000, 10, name="B"), kernel(5000, 10, name="C"),
        kernel(5008, 10, name="D"),
        kernel(0, 1_600_000, name="E", stream=8),  # alone on its stream: nothing contradicts it
    ]  # fmt: skip
    rocm = load(write(tmp_path, events, roctracer_version=4.1))
    assert dict(zip(rocm.kernels["name"], rocm.kernels["duration_ns"], strict=True)) == {
        "A": 3_000_000, "B": 10_000, "C": 10_000, "D": 10_000, "E": 1_600_000_000,
    }  # fmt: skip
    assert sum(rocm.report.repaired.values()) == 1
    assert rocm.report.overlaps == 1
    cuda = load(write(tmp_path, events, cupti_version=28)).report
    assert not cuda.repaired
    assert any("too long for programmatic" in warning for warning in cuda.warnings)


def test_launches_without_any_kernel_are_lost_records_and_no_cpu_run(tmp_path):
    events = [host("cpu_op", "aten::mm", 0, 9), launch(1, 1), launch(3, 2)]
    with pytest.raises(ProfileError, match=r"2 launches but no kernel: the GPU's records are lost; profile again"):
        load(write(tmp_path, events))


def test_a_cut_before_the_kernels_is_no_cpu_run(tmp_path):
    whole = json.dumps({"deviceProperties": [{"name": "A100"}], "traceEvents": [host("cpu_op", "mm", 0, 9)] * 3})
    with pytest.raises(ProfileError, match=r"no kernel before the cut, though it names 'A100'; the file is cut off"):
        load(write_text(tmp_path, whole[:-40]))


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "its list of events is empty"),
        ([{"ph": "X", "cat": "mtia_ccp_events", "ts": 1, "dur": 1}], "kind not supported: mtia_ccp_events"),
        ([host("cpu_op", "a", 0, 1), {"ph": "X", "cat": "mtia_ccp_events"}], "kind not supported: mtia_ccp_events"),
        ([kernel(0, 1) | {"cat": "gpu_memcpy"}], "1 device copies and fills but no kernel"),
        ([{"ph": "X", "name": "a", "ts": 1, "dur": 1}], r"no kernel and no operator .*categories: \(none\)"),
        ([host("cuda_runtime", "cudaMalloc", 0, 1)], "no kernel and no operator .*categories: cuda_runtime"),
        ([{"cat": "Session", "ph": "X"}, kernel(0, 1) | {"cat": "Kernel"}], "ONNX Runtime"),
    ],
)
def test_a_trace_without_kernels_says_why(events, message, tmp_path):
    with pytest.raises(ProfileError, match=message):
        load(write(tmp_path, events))


def test_legacy_lists_give_outermost_device_intervals_or_a_cpu_run(tmp_path):
    cpu = [{"ph": "X", "name": n, "ts": t, "dur": d, "tid": 1, "pid": "CPU functions", "args": {}}
           for n, t, d in (("linear", 0.5, 10), ("addmm", 2, 5), ("relu", 20, 1))]  # fmt: skip
    report = load(write_text(tmp_path, json.dumps(cpu))).report
    assert (report.era, report.platform, report.kernels, report.sum_ns) == ("legacy", "cpu", 2, 11_000)
    gpu = [event | {"pid": "CUDA functions", "tid": 0, "ts": event["ts"] + 100} for event in cpu]
    profile = load(write_text(tmp_path, json.dumps(cpu + gpu)))
    assert profile.kernels["device"].tolist() == ["gpu:0"] * 2
    assert profile.kernels["stream"].isna().all()
    assert sum(profile.report.dropped.values()) == 1
    assert profile.report.sum_ns == 11_000


def test_a_first_step_that_lost_kernels_is_named(tmp_path):
    events = []
    for step in range(4):
        events.append(host("user_annotation", f"ProfilerStep#{step}", 100 * step, 90))
        for i in range(2 if step == 0 else 10):
            events += [launch(100 * step + i, 1 + 20 * step + i)]
            events += [kernel(1000 + 100 * step + i, 1, correlation=1 + 20 * step + i)]
    warnings = load(write(tmp_path, events)).report.warnings
    assert "the first step has 2 kernels, the others 10: leave it out" in warnings


# ---------------------------------------------------------------- damage

GOOD = json.dumps(kernel(1, 2, name="good"))


@pytest.mark.parametrize(
    ("bad", "kernels", "dropped", "repaired"),
    [
        ('"memory bandwidth (GB/s)": inf', 3, 0, 1),
        ('"memory bandwidth (GB/s)": -nan', 3, 0, 1),
        ('"memory bandwidth (GB/s)": NaN', 3, 0, 0),
        ('"memory bandwidth (GB/s)": Infinity', 3, 0, 0),
        ('"memory bandwidth (GB/s)": 1.#INF', 3, 0, 1),
        (r'"path": "C:\Users\me"', 3, 0, 1),
        (r'"path": "\uZZ", "b": inf', 3, 0, 1),
        ('"text": "a\nb\x01c"', 3, 0, 0),
        ('"text": "a"b"', 2, 1, 0),
        ('"Comms Id": 99999999999999999999999999', 3, 0, 0),
        ('"huge": ' + "9" * 5000, 2, 1, 0),
        ('"deep": ' + "[" * 3000 + "]" * 3000, 2, 1, 0),
        ('"Concrete Inputs": [{"name": 1}, {"name": 2}]', 3, 0, 0),
    ],
)
def test_one_bad_event_costs_at_most_itself(bad, kernels, dropped, repaired, tmp_path):
    middle = (
        f'{{"ph": "X", "cat": "kernel", "name": "k", "ts": 5, "dur": 1, "args": {{"device": 0, "stream": 7, {bad}}}}}'
    )
    for order in ([GOOD, middle, GOOD], [GOOD, GOOD, middle], [middle, GOOD, GOOD]):
        text = '{{"schemaVersion": 1, "traceEvents": [\n{}\n], "traceName": "x"}}'.format(",\n".join(order))
        report = load(write_text(tmp_path, text)).report
        assert (report.kernels, sum(report.dropped.values()), sum(report.repaired.values())) == (
            kernels, dropped, repaired,
        )  # fmt: skip
        assert not report.truncated


@pytest.mark.parametrize("size", [10, 5_000, 70_000])
def test_a_long_event_that_holds_what_looks_like_events_is_one_event(size, tmp_path):
    long = kernel(5, 2, name="long", inputs=[{"name": "a", "ph": "X", "ts": 1}] * size)
    report = load(write(tmp_path, [kernel(1, 2), long, kernel(9, 2)], pack=gzip.compress)).report
    assert (report.kernels, report.events, report.dropped) == (3, 3, {})


def test_a_bomb_of_blanks_ends(tmp_path):
    path = write_text(tmp_path, gzip.compress(b'{"traceEvents": [' + b" " * 30_000_000, 1))
    with pytest.raises(ProfileError, match="cut off"):
        load(path)


def test_bytes_that_are_not_utf8_are_replaced_and_lone_surrogates_too(tmp_path):
    text = json.dumps({"traceEvents": [kernel(1, 2, name="BAD"), kernel(4, 2, name="\ud800x")]}).encode()
    profile = load(write_text(tmp_path, text.replace(b"BAD", b"a\xffb")))
    assert profile.kernels["name"].tolist() == ["a\ufffdb", "?x"]
    assert profile.report.repaired == {"bytes that are not UTF-8": 1}
    profile.kernels.to_csv(tmp_path / "out.csv")


def test_a_bad_tail_or_head_does_not_cost_the_events(tmp_path):
    tail = f'{{"traceEvents": [{GOOD}], "INFO": ["a "quoted" log", "b"], "traceName": "x"}}'
    assert load(write_text(tmp_path, tail)).report.kernels == 1
    head = f'{{"INFO": ["a "quoted" log", "b"], "traceEvents": [{GOOD}], "traceName": "x"}}'
    report = load(write_text(tmp_path, head)).report
    assert report.kernels == 1
    assert report.repaired == {"unreadable text before the events, ignored": 1}


def test_a_file_whose_every_event_is_broken_says_where(tmp_path):
    broken = GOOD.replace('"tid"', 'tid"')  # the 2020 export of pytorch #33961
    with pytest.raises(ProfileError, match="none of its 3 events is valid JSON, the first at character 18"):
        load(write_text(tmp_path, '{{"traceEvents": [ {}]}}'.format(", ".join([broken] * 3))))


def test_times_as_strings_or_absent_or_negative(tmp_path):
    events = [
        kernel("1712195495505543.140", "2.001"),
        kernel(None, 1),
        kernel(1, None),
        kernel(1, -3),
        kernel(10**40, 1),
        {k: v for k, v in kernel(1, 1).items() if k != "dur"},
    ]
    report = load(write(tmp_path, events)).report
    assert (report.sum_ns, report.clock_base_ns) == (2001, 1712195495505543140)
    assert report.dropped == {"kernel events without a usable start": 2, "kernel events without a usable duration": 3}


def small_trace(pack) -> tuple[bytes, list[int]]:
    """A trace as bytes, and where each kernel's text ends in the unpacked text."""
    parts, ends, at = ['{"schemaVersion": 1, "traceEvents": ['], [], 37
    for i in range(25):
        text = json.dumps(kernel(10 * i, 3, name=f"k{i}", correlation=i, grid=[1, 2, 3]))
        parts.append(text)
        at += len(text)
        ends.append(at)
        at += 2
        parts.append(", ")
    parts[-1] = '], "traceName": "x"}'
    return pack("".join(parts).encode()), ends


@quick
@given(share=st.floats(0.02, 0.999))
def test_a_cut_json_keeps_every_whole_event(share, tmp_path):
    data, ends = small_trace(lambda b: b)
    cut = int(len(data) * share)
    whole = sum(end <= cut for end in ends)
    path = write_text(tmp_path, data[:cut])
    if not whole:
        with pytest.raises(ProfileError, match="cut off"):
            load(path)
        return
    report = load(path).report
    assert report.kernels == whole
    assert report.truncated
    assert not report.dropped
    assert any("lower bounds" in warning for warning in report.warnings)


@quick
@given(cut=st.integers(0, 10_000))
def test_a_cut_gzip_keeps_what_comes_out(cut, tmp_path):
    data, ends = small_trace(gzip.compress)
    cut %= len(data)
    path = write_text(tmp_path, data[:cut])
    try:
        report = load(path).report
    except ProfileError:
        return
    assert report.truncated
    assert report.kernels <= len(ends)
    assert report.sum_ns == 3000 * report.kernels


@quick
@given(
    flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(1, 255)), min_size=1, max_size=5),
    pack=st.sampled_from([lambda b: b, lambda b: gzip.compress(b, mtime=0)]),
)
def test_flipped_bytes_never_raise_anything_else(flips, pack, tmp_path):
    data = bytearray(small_trace(pack)[0])
    for share, mask in flips:
        data[int(share * len(data))] ^= mask
    try:
        profile = load(write_text(tmp_path, bytes(data)))
    except ProfileError:
        return
    check_kernels(profile.kernels)
    json.dumps(profile.report.to_json())
    assert profile.report.union_ns <= profile.report.sum_ns
    assert str(profile.report)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@quick
@given(
    events=st.lists(
        st.fixed_dictionaries(
            {
                "ph": st.just("X") | json_values,
                "cat": st.sampled_from(["kernel", "cpu_op", "cuda_runtime"]) | json_values,
            },
            optional={
                key: st.integers(0, 99) | json_values for key in ("ts", "dur", "name", "pid", "tid", "args", "id")
            },
        )
        | json_values,
        max_size=6,
    )
)
def test_events_with_fields_of_any_type_are_read_or_refused(events, tmp_path):
    try:
        check_kernels(load(write(tmp_path, events)).kernels)
    except ProfileError:
        return


# ---------------------------------------------------------------- what a file is


def tar_gz() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("trace.json"), io.BytesIO())
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.json", b"", r"empty \(0 bytes\)"),
        ("a.nsys-rep", b"NVIDIA Tegra Profiler\x00\x01\x02", "nsys export --type sqlite .*--cuda-graph-trace=node"),
        ("a.ncu-rep", b"NVR\x00\x01", "ncu --import"),
        ("a.sqlite", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        ("a.sqlite", b"SQLite format 3\x00" + b"\xff" * 200, "damaged SQLite"),
        ("a.csv", b"==ERROR== no kernels were profiled\n", "messages of ncu"),
        ("a.csv", b'==PROF== Connected\n"ID","Process ID","Kernel Name"\n', "Nsight Compute CSV"),
        ("a.csv", b"Start (ns),Duration (ns),CorrId\n1,2,3\n", "nsys stats trace CSV"),
        ("a.csv", b"N,Triton,Torch\n1024,3.1,2.2\n", "begins with 'N,Triton,Torch'"),
        ("a.tar.gz", tar_gz(), "tar archive"),
        ("a.gz", gzip.compress(gzip.compress(b"{}")), "gzip inside gzip"),
        ("a.gz", gzip.compress(b""), "nothing comes out"),
        ("a.gz", b"\x1f\x8b\x08\x00garbage", "nothing comes out"),
        ("a.zip", b"PK\x03\x04....", "zip archive"),
        ("a.json", b"\xff\xfe{\x00", "UTF-16"),
        ("a.json", b"<!DOCTYPE html><p>404", "web page"),
        ("a.json", b"   \n", "white space"),
        ("a.bin", bytes(range(256)) * 9, "binary of a kind"),
        ("a.json", b"[" * 100_000, "JSON list that holds no trace events"),
        ("a.json", b'{"a":' * 100_000, "cut off"),
        ("a.json", b'{"traceEvents":' + b"[" * 100_000, "no kernel|not valid|empty|events"),
        ("a.json", b"{}", r"keys \(none\) and no traceEvents"),
        ("a.json", b'{"x": 1, "y": [2]}', "keys 'x', 'y' and no traceEvents"),
        ("a.json", b'{"traceEvents": {"a": 1}}', "no traceEvents"),
        ("a.json", b'{"meta": {"processType": 0}, "threads": []}', "Firefox"),
        ("a.json", b'{"$schema": "https://www.speedscope.app/x"}', "speedscope"),
        ("a.json", b'[{"cat": "Session", "pid": 1, "ph": "X"}]', "ONNX Runtime"),
        ("a.json", b"[1, 2, 3]", "no trace events"),
    ],
)
def test_what_is_no_profile_is_named_with_a_way_out(name, data, message, tmp_path):
    path = write_text(tmp_path, data, name)
    with pytest.raises(ProfileError, match=message) as refused:
        load(path)
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    for path, message in (
        (tmp_path, "a folder"),
        (tmp_path / "none.json", "No such file"),
        (tmp_path / "pipe", "not a regular file"),
        (tmp_path / ("x" * 5000), "too long"),
        ("a\0b", "cannot be read"),
        ("", "a folder"),
    ):
        with pytest.raises(ProfileError, match=message):
            load(path)


# ---------------------------------------------------------------- table, nesting, attribution, report

span_lists = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)).map(lambda t: (t[0], t[0] + t[1])), max_size=8)


@given(span_lists)
def test_the_union_of_spans_is_the_count_of_moments_inside_any(spans):
    assert length_of_union(spans) == len({moment for start, end in spans for moment in range(start, end)})


@given(span_lists)
def test_outermost_spans_cover_all_and_never_overlap(spans):
    kept = [spans[i] for i in outermost(spans)]
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(kept))
    starts = {start for start, _ in spans}
    assert all(any(a <= start < b or a == start for a, b in kept) for start in starts)


@given(span_lists, st.lists(st.integers(0, 18), max_size=8))
def test_names_around_a_moment_are_those_of_all_spans_that_hold_it(spans, moments):
    named = [(start, end, f"s{i}") for i, (start, end) in enumerate(spans)]
    for moment, names in zip(moments, names_around(named, moments), strict=True):
        assert Counter(names) == Counter(name for start, end, name in named if start <= moment < end)
        starts = [named[int(name[1:])][0] for name in names]
        assert starts == sorted(starts)


def rows(*spans, **common):
    return [
        {
            "device": "gpu:0",
            "stream": 7,
            "kind": "kernel",
            "name": f"k{i}",
            "start_ns": a,
            "duration_ns": b - a,
            **common,
        }
        for i, (a, b) in enumerate(spans)
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(columns="stream"), r"lacks column 'stream' \(the device's stream"),
        (lambda t: t.astype({"start_ns": "float64"}), "column 'start_ns' has dtype float64; expected int64"),
        (lambda t: t.assign(device=pd.array([None] * 2, dtype="string")), "'device' has missing values"),
        (lambda t: t.assign(duration_ns=[1, -1]), r"rows \[1\] of 1 break the rule: duration_ns must lie"),
        (lambda t: t.iloc[::-1], "in order of start_ns"),
        (lambda t: t.assign(kind=pd.array(["kernel", "tile"], dtype="string")), "kind must be one of kernel, memcpy"),
        (lambda t: t.assign(kind=pd.array(["kernel", "cpu_op"], dtype="string")), "device is 'cpu' exactly"),
    ],
)
def test_a_table_that_breaks_a_rule_is_refused_with_the_rule(change, message):
    table = build_kernels(rows((0, 5), (6, 9)))
    with pytest.raises(ProfileError, match=message):
        check_kernels(change(table))


def test_devices_add_up_and_streams_of_one_device_do_not():
    table = build_kernels(rows((0, 10)) + rows((5, 12), stream=8) + rows((0, 10), device="gpu:1"))
    assert union_ns(table) == 12 + 10


def test_kernels_go_to_the_innermost_named_operator_and_the_rest_stays_visible():
    table = build_kernels(rows((0, 5), (6, 9), (10, 30), (30, 31)))
    paths = ["step > q_proj > aten_q_projx", "q_proj > silu", "step", pd.NA]
    table = table.assign(annotation=pd.array(paths, dtype="string"))
    got = attribute_kernels(table, ["q_proj", "silu", "never"])
    assert got["operator"].tolist() == ["q_proj", "silu", pd.NA, pd.NA]
    summary = operator_summary(got, ["q_proj", "silu", "never"])
    assert summary["operator"].tolist() == ["q_proj", "silu", "never", pd.NA]
    assert summary["count"].tolist() == [1, 1, 0, 2]
    assert summary["sum_ns"].tolist() == [5, 3, 0, 21]
    assert summary["share"].sum() == pytest.approx(1)
    with pytest.raises(ProfileError, match="attributed to operators that are not among those given"):
        operator_summary(got, ["q_proj"])
    with pytest.raises(ProfileError, match=r"given twice: \['a'\]"):
        attribute_kernels(table, ["a", "b", "a"])


def test_an_operator_name_may_hold_the_separator():
    table = build_kernels(rows((0, 5), (5, 6)))
    table = table.assign(annotation=pd.array(["step > a > b", "step > a > bc"], dtype="string"))
    assert attribute_kernels(table, ["a > b", "step"])["operator"].tolist() == ["a > b", "step"]


def test_gaps_are_idle_time_per_stream_and_never_negative():
    #  stream 7  |-0-|..|---1---|         stream 8  |----|
    #                     |2|  inside 1      ..|-3-|
    table = build_kernels(rows((0, 5), (7, 20), (10, 12), (22, 24)) + rows((1, 9), stream=8))
    gaps = stream_gaps(table)
    assert gaps["gap_ns"].tolist() == [2, 0, 2]
    assert gaps["stream"].tolist() == [7, 7, 7]
    assert gaps["start_ns"].tolist() == [5, 20, 20]
    assert stream_gaps(build_kernels(rows((0, 5)))).empty


def test_a_report_is_plain_json_and_escapes_what_the_file_says(tmp_path):
    events = [kernel(1, 2)]
    path = write(tmp_path, events, name="<b>.json", deviceProperties=[{"name": "<script>\x1b[31m"}])
    report = load(path).report
    plain = json.loads(json.dumps(report.to_json()))
    wanted = {"kind", "kernels", "sum_ns", "union_ns", "streams", "opaque_graph_share", "warnings"}
    assert wanted <= plain.keys()
    assert plain["kind"] == "kineto"
    assert plain["sum_ns"] == 2000
    assert "<script>" not in report._repr_html_()
    assert "&lt;script&gt;" in report._repr_html_()
    assert "\x1b" not in str(report)
    assert "2,000 ns" in str(report)
    sha = subprocess.run(["sha256sum", str(path)], capture_output=True, text=True, check=True).stdout.split()[0]
    assert report.sha256 == sha


def test_all_names_are_public_and_sorted_and_torch_is_not_imported():
    assert profiles.__all__ == sorted(profiles.__all__, key=lambda n: (not n.isupper(), n[0].islower(), n))
    assert all(hasattr(profiles, name) for name in profiles.__all__)
    code = "import sys, workbench.profiles; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---------------------------------------------------------------- torch itself as the oracle


def test_a_cpu_run_recorded_now_has_the_operators_that_torch_counts(tmp_path):
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, record_function

    a, b = torch.randn(32, 32), torch.randn(32, 32)
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        for _ in range(3):
            with record_function("layer"):
                with record_function("q_proj"):
                    c = torch.nn.functional.linear(a, b)
                with record_function("silu"):
                    d = torch.nn.functional.silu(c) * c
                d = d + a
    path = tmp_path / "cpu.json.gz"
    prof.export_chrome_trace(str(path))

    def has_operator_above(event):
        above = event.cpu_parent
        return above is not None and (not above.is_user_annotation or has_operator_above(above))

    top = [e for e in prof.events() if not e.is_user_annotation and not has_operator_above(e)]
    loaded = load(path)
    table = loaded.kernels
    assert (loaded.report.platform, loaded.report.era) == ("cpu", "2024-relative")
    assert Counter(table["name"]) == Counter(e.name for e in top)
    assert Counter(table["name"])["aten::linear"] == 3
    assert loaded.report.sum_ns == pytest.approx(1000 * sum(e.time_range.elapsed_us() for e in top), abs=len(top))

    operators = ["q_proj", "silu"]
    summary = operator_summary(attribute_kernels(table, operators), operators)
    assert summary["count"].tolist() == [3, 6, 3]  # the bare addition is unmatched
    assert summary["sum_ns"].sum() == loaded.report.sum_ns
    assert len(stream_gaps(table)) == len(table) - 1
