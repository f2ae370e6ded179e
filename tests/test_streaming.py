"""Predictions as a stream: host time, first outputs of a batch, pace of what follows, static engines, Pareto front."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.walk import Walk

from workbench.cli import main
from workbench.compose import Composition, Configuration, Kind, conventional, from_json, monolith, per_stage, to_json
from workbench.cost import CostTable, Roofline
from workbench.errors import CompositionError, WorkbenchError
from workbench.gpu import gpu_files, read_gpu
from workbench.hardware import Provenance
from workbench.lower.lowering import lower_calls
from workbench.models import demo_tts, load_program
from workbench.pareto import Both, Point, corners_of, non_dominated, pareto, supported_compositions
from workbench.predict import HostTime, Pricer, nearest_rank_p95
from workbench.program import Call, Loop, Node, Operator, Program, Seq, calls, items
from workbench.search import count_compositions, enumerate_compositions, k_best, named_compositions
from workbench.shapes import Argmax, Conv, Matmul
from workbench.simulate import Mechanism, TileQueue, reference
from workbench.static_shape import StaticEngine, StaticEngines, select
from workbench.uncertainty import normals

TWO = Configuration(2)
DEMO = demo_tts.program()
H100 = read_gpu(gpu_files()["h100_sxm"])


@cache
def made(seed: int, batch: int) -> tuple[Program, CostTable]:
    program = synthetic.program(seed)
    return program, synthetic.table(program, seed, (batch,))


def case(seed: int, number: int, batch: int, host: HostTime | None = None) -> tuple[Pricer, Composition]:
    """A random program on a random CPU, and a random composition of it."""
    program, table = made(seed, batch)
    pricer = Pricer(program, synthetic.device(seed), table, batch, host=host or HostTime())
    return pricer, synthetic.composition(program, random.Random(number))


seeds, numbers, batch_sizes = st.integers(0, 40), st.integers(0, 10**6), st.integers(1, 5)

# -- host time ---------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(seeds, numbers, st.integers(1, 10**7), st.integers(1, 10**7))
def test_host_time_is_the_hosts_cause_once_and_a_further_outputs_own(
    seed: int, number: int, first: int, further: int
) -> None:
    bare, composition = case(seed, number, 2)
    pricer, _ = case(seed, number, 2, HostTime(first, further))
    without, given_ = bare.predict(composition), pricer.predict(composition)
    assert given_.ttfo_ns == without.ttfo_ns + first
    assert given_.causes_ns == {**without.causes_ns, "host": without.causes_ns["host"] + first}
    assert without.further_ns is not None
    assert given_.further_ns == without.further_ns + further
    assert given_.throughput_per_s == pytest.approx(2e9 / (without.further_ns + further), rel=1e-12)
    assert [ns - first for ns in given_.first_outputs_ns] == list(without.first_outputs_ns)
    assert (without.provenance, given_.provenance) == (Provenance.MEASURED, Provenance.ASSUMED)
    assert k_best(pricer, 3) == [(ns + first, c) for ns, c in k_best(bare, 3)]


@pytest.mark.parametrize("bad", [-1, 1.5, True, 10**14])
def test_host_time_that_is_none_is_refused(bad: int) -> None:
    with pytest.raises(WorkbenchError, match=r"host time first_ns=.*from 0 to an hour"):
        HostTime(bad)


# -- first outputs of a batch ------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=70))
def test_the_nearest_rank_is_numpys_inverted_distribution(values: list[int]) -> None:
    assert nearest_rank_p95(values) == np.quantile(values, 0.95, method="inverted_cdf")
    assert len(values) > 19 or nearest_rank_p95(values) == max(values)


def last_iteration(nodes: tuple[Node, ...], index: dict[str, int]) -> list[Call]:
    return list(calls(nodes, index))


def by_hand(pricer: Pricer, composition: Composition) -> list[int]:
    """When each request is done after the program's last launch begins: its calls lowered alone, in plain Python."""
    region = composition.regions[-1]
    level = next(level for level in pricer.levels if region.items[-1] in [item.name for item in level.items])
    index = {loop.name: loop.count - 1 for loop in level.around}
    chosen = tuple(item for item in level.items if item.name in region.items)
    sequence = tuple(last_iteration(chosen, index))
    assert region.configuration is not None
    lowered = lower_calls(sequence, (len(sequence),), pricer.batch, region.configuration)
    tiles, events = lowered.tiles, lowered.events
    ns = [pricer.table.call_tiles(c, pricer.batch, region.configuration).ns for c in tiles.calls]
    nothing = np.zeros(len(tiles), np.int64)
    queue = TileQueue(
        lane=tiles.lane, op=tiles.call, signal=events.signal, wait_ptr=events.wait_ptr, wait_event=events.wait_event,
        threshold=events.threshold, weight_ns=nothing, input_ns=nothing, compute_ns=np.concatenate(ns),
        lanes=region.configuration.workers, ops=len(tiles.calls),
    )  # fmt: skip
    o = pricer.device.overheads["megakernel"][region.configuration.workers]
    names = ("launch_ns", "gap_ns", "dispatch_ns", "event_ns", "signal_ns", "drain_ns")
    run = reference.simulate(queue, Mechanism(**{name: getattr(o, name) for name in names}))
    done = [0] * pricer.batch
    for box, end in zip(tiles.boxes, run.end_ns.tolist(), strict=True):
        for request in range(box.request_start, box.request_stop):
            done[request] = max(done[request], end + o.signal_ns + o.drain_ns)
    assert max(done) == run.makespan_ns
    return [at - run.makespan_ns for at in done]


@settings(max_examples=60, deadline=None)
@given(seeds, numbers, batch_sizes)
def test_a_request_is_done_with_the_last_tile_that_carries_it(seed: int, number: int, batch: int) -> None:
    pricer, composition = case(seed, number, batch)
    got = pricer.predict(composition, throughput=False)
    assert len(got.first_outputs_ns) == batch
    assert max(got.first_outputs_ns) == got.ttfo_ns
    assert got.batch_p95_ns == got.ttfo_ns  # fewer than 20 requests
    if composition.regions[-1].kind is Kind.CONVENTIONAL:
        assert set(got.first_outputs_ns) == {got.ttfo_ns}
    else:
        assert [at - got.ttfo_ns for at in got.first_outputs_ns] == by_hand(pricer, composition)


def test_requests_of_a_batch_are_apart_by_their_own_tiles_in_closed_form() -> None:
    program = Program("p", (Operator(name="top", shape=Argmax(width=64), reads=("x",), writes=("y",)),), ())
    pricer = Pricer(program, synthetic.device(3), synthetic.table(program, 3, (40,)), 40)
    tiles = pricer.table.tiles(program.operators()["top"], 40, 0, TWO).ns.tolist()  # one a worker, 20 requests each
    o = pricer.device.overheads["megakernel"][2]
    more = o.launch_ns + o.dispatch_ns + o.signal_ns + o.drain_ns
    got = pricer.predict(monolith(program, TWO))
    assert got.first_outputs_ns == (tiles[0] + more,) * 20 + (tiles[1] + more,) * 20
    assert tiles[0] != tiles[1]
    assert got.batch_p95_ns == got.ttfo_ns == max(tiles) + more
    assert got.further_ns is got.continuity_slack_ns is got.real_time_factor is got.playback_per_s is None
    four = Configuration(2, 2)  # two tiles a worker: the first of each is done before the second begins
    a, b, c, d = pricer.table.tiles(program.operators()["top"], 40, 0, four).ns.tolist()
    each = o.dispatch_ns + o.signal_ns
    done = [a, b, a + c + each, b + d + each]
    split = pricer.predict(monolith(program, four))
    assert split.first_outputs_ns == tuple(ns + more for ns in done for _ in range(10))
    assert (
        pricer.predict(conventional(program, "replay")).first_outputs_ns
        == (pricer.predict(conventional(program, "replay")).ttfo_ns,) * 40
    )


def test_the_p95_of_one_slow_request_in_twenty_is_not_that_request() -> None:
    """At 20 requests the nearest rank is the 19th, so one late request alone is beyond it."""
    program = Program("p", (Operator(name="top", shape=Argmax(width=64), reads=("x",), writes=("y",)),), ())
    table = synthetic.table(program, 1, (20,))
    rows = table.rows[table.rows["how"] == "2x2"].copy()
    late = rows["tile"] == 3
    rows.loc[late, ["median_ns", "q25_ns", "q75_ns"]] += 10**6
    slow = CostTable(rows)
    got = Pricer(program, synthetic.device(1), slow, 20, arms=()).predict(monolith(program, Configuration(2, 2)))
    ordered = sorted(got.first_outputs_ns)
    assert got.batch_p95_ns == ordered[18]
    assert ordered[14] < ordered[15] == ordered[18] == ordered[19] == got.ttfo_ns  # five requests are in the slow tile


@pytest.mark.parametrize("batch", [3, 24])
def test_mean_batch_p95_is_that_of_the_batches_drawn_one_by_one(batch: int) -> None:
    program = Program("p", (Operator(name="top", shape=Argmax(width=64), reads=("x",), writes=("y",)),), ())
    pricer = Pricer(program, synthetic.device(3), synthetic.table(program, 3, (batch,), spread=0.4), batch)
    got = pricer.predict(monolith(program, TWO))
    assert len(set(got.first_outputs_ns)) > 1
    sigma = pricer.sigma_ns(got.regions)
    noise = sum(s * normals(source) for source, s in sigma.items())  # the only region is the last one too
    rank = -(-95 * batch // 100)
    drawn = []
    for error in np.asarray(noise).tolist():
        ahead = [max(0.0, (got.ttfo_ns - at) * (1 + error / got.regions[-1].ns)) for at in got.first_outputs_ns]
        drawn.append(sorted(got.ttfo_ns + error - late for late in ahead)[rank - 1])
    assert got.mean_batch_p95_ns == pytest.approx(np.mean(drawn) - np.mean(noise), abs=1)
    assert got.p95_interval_ns is not None
    low, high = np.quantile(np.array(drawn) - np.mean(drawn) + got.mean_batch_p95_ns, [0.025, 0.975])
    assert got.p95_interval_ns == (max(0, np.floor(low)), np.ceil(high))


@settings(max_examples=25, deadline=None)
@given(seeds, numbers, batch_sizes)
def test_a_mean_of_batch_p95s_is_the_prediction_where_the_p95_is_the_last(seed: int, number: int, batch: int) -> None:
    pricer, composition = case(seed, number, batch)
    got = pricer.predict(composition, throughput=False)
    assert got.mean_batch_p95_ns is not None
    assert got.p95_interval_ns is not None
    assert abs(got.mean_batch_p95_ns - got.ttfo_ns) <= 1
    assert np.subtract(got.p95_interval_ns, got.interval_ns) == pytest.approx(0, abs=2)


# -- the pace of what follows ------------------------------------------------------------------------------------------


def test_continuity_slack_is_what_a_chunk_plays_for_less_the_walk_through_it() -> None:
    pricer = Pricer(DEMO, synthetic.device(5), synthetic.table(DEMO, 5, (2,)), 2)
    for composition in named_compositions(pricer):
        got = pricer.predict(composition)
        walked = Walk(pricer.device, pricer.table, 2).run(DEMO.further, composition)
        assert DEMO.output_ns is not None
        assert got.continuity_slack_ns == DEMO.output_ns - walked
        assert got.real_time_factor == pytest.approx(walked / DEMO.output_ns)
        assert got.playback_per_s == pytest.approx(2 * DEMO.output_ns / walked)
        assert got.throughput_per_s == pytest.approx(2e9 / walked)
        assert "below 1 keeps up" in got.stream
        assert "stutters" not in got.stream
    assert DEMO.output_ns is not None
    stalled = Pricer(DEMO, pricer.device, pricer.table, 2, host=HostTime(0, DEMO.output_ns))
    late = stalled.predict(monolith(DEMO, TWO))
    assert late.continuity_slack_ns is not None
    assert late.real_time_factor is not None
    assert late.continuity_slack_ns < 0
    assert late.real_time_factor > 1
    assert "the stream stutters" in late.stream


def test_tokens_play_for_nothing_so_they_have_throughput_and_no_slack() -> None:
    original = synthetic.program(2)
    pricer = Pricer(original, synthetic.device(2), synthetic.table(original, 2), 1)
    got = pricer.predict(monolith(original, TWO))
    assert got.further_ns is not None
    assert got.continuity_slack_ns is got.real_time_factor is got.playback_per_s is None
    assert "slack" not in got.stream


def test_throughput_left_out_leaves_out_all_that_follows() -> None:
    pricer, composition = case(3, 0, 1)
    got = pricer.predict(composition, throughput=False)
    assert got.further_ns is got.throughput_per_s is got.continuity_slack_ns is None
    whole = pricer.predict(composition)
    assert dataclasses.replace(whole, further_ns=None, throughput_per_s=None) == got


# -- streaming parameters ----------------------------------------------------------------------------------------------


def rows_of(nodes: tuple[Node, ...], stage: str = "codec") -> dict[str, int]:
    inside = [node for node in nodes if isinstance(node, Seq) and node.name == stage]
    return {call.operator.name: call.operator.shape.rows for node in inside for call in calls(node.body)}


@pytest.mark.parametrize("model", ["qwen3_tts_0_6b", "nh_tts_standin"])
def test_a_windowed_codec_computes_its_context_again_in_each_chunk_and_by_each_operator(model: str) -> None:
    asked = {"first_frames": 3, "chunk_frames": 8}
    plain, windowed = load_program(model, **asked), load_program(model, **asked, codec="windowed", context=5)
    for part, frames in (("first", 3), ("further", 8)):
        without, within = rows_of(getattr(plain, part)), rows_of(getattr(windowed, part))
        assert without.keys() == within.keys()
        assert all(within[name] * frames == rows * (frames + 5) for name, rows in without.items())
    assert windowed.parameters == {**plain.parameters, "context": 5}


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:  # type: ignore[type-arg]
    status = main([*arguments, "--json"])
    out, error = capsys.readouterr()
    assert (status, error) == (0, "")
    return json.loads(out)  # type: ignore[no-any-return]


def test_every_streaming_parameter_reaches_the_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    base = ("predict", "nh_tts_standin", "--device", "h100_sxm", "--composition", "graph", "--first-frames", "2")
    plain = run_json(capsys, *base)
    assert plain["parameters"] == {"first_frames": 2, "chunk_frames": 4, "prompt": 4}
    changes = {
        "prompt": ("--prompt", "40"), "chunk_frames": ("--chunk-frames", "9"), "context": ("--context", "7"),
        "first_frames": ("--first-frames", "5"),
    }  # fmt: skip
    for name, change in changes.items():
        got = run_json(capsys, *base, *change)
        assert got["parameters"] == {**plain["parameters"], name: int(change[1])}
        moved = got["ttfo_ns"] - plain["ttfo_ns"]
        assert moved == 0 if name == "chunk_frames" else moved > 0
        if name in ("chunk_frames", "context"):
            assert got["further_ns"] > plain["further_ns"]
    assert run_json(capsys, *base, "--chunk-frames", "9")["output_ns"] == plain["output_ns"] * 9 // 4
    hosted = run_json(capsys, *base, "--host-us", "12.5", "--chunk-host-us", "3")
    assert hosted["ttfo_ns"] == plain["ttfo_ns"] + 12_500
    assert hosted["causes_ns"]["host"] == plain["causes_ns"]["host"] + 12_500
    assert hosted["continuity_slack_ns"] == plain["continuity_slack_ns"] - 3_000
    assert hosted["first_outputs_ns"] == [hosted["ttfo_ns"]]
    assert (hosted["batch_p95_ns"], hosted["p95_rule"]) == (hosted["ttfo_ns"], "nearest rank")
    assert sum(hosted["causes_ns"].values()) == hosted["ttfo_ns"]


def test_a_time_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("-1", "nan", "soon", "1e12"):
        with pytest.raises(SystemExit) as stopped:
            main(["predict", "demo_tts", f"--host-us={wrong}"])
        assert stopped.value.code == 2
        assert "is not a time from 0" in capsys.readouterr().err


# -- engines of static shape -------------------------------------------------------------------------------------------


def speaking(frames: int) -> Program:
    """Two stages: a loop over frames, then a codec whose rows are frames."""
    step = Operator(name="step", shape=Matmul(rows=1, inner=32, outer=64), reads=("x",), writes=("x",))
    embed = Operator(name="embed", shape=Argmax(width=64), reads=("text",), writes=("x",))
    decode = Operator(name="decode", shape=Matmul(rows=frames, inner=64, outer=32), reads=("x",), writes=("z",))
    out = Operator(name="out", shape=Conv(rows=frames, channels_in=32, channels_out=1), reads=("z",), writes=("pcm",))
    loop = Loop("frames", frames, (Seq("talk", (step,)),))
    parts: tuple[Node, ...] = (loop, Seq("codec", (decode, out)))
    parameters = {"first_frames": frames, "chunk_frames": frames}
    return Program("speaking", (Seq("text", (embed,)), *parts), parts, parameters, frames * 80_000_000)


def speaking_engines(seed: int, *engines: StaticEngine, host: HostTime | None = None) -> StaticEngines:
    device, table = synthetic.gpu(seed)
    rng = random.Random(seed)
    configurations = tuple(rng.sample(synthetic.GPU_CONFIGURATIONS, rng.choice((1, 2))))

    def pricer_of(frames: int) -> Pricer:
        arms = ("graph", "graph_pdl")
        return Pricer(
            speaking(max(2, frames)), device, table, 1 + seed % 3, configurations, arms, host=host or HostTime()
        )

    return StaticEngines(engines, pricer_of)


ENGINES = (
    (StaticEngine("codec", "graph", 5),),
    (StaticEngine("codec", "graph", 5), StaticEngine("codec", "graph_pdl", 9)),
    (StaticEngine("talk", "graph", 3), StaticEngine("codec", "graph_pdl", 3)),
)


@pytest.mark.parametrize("engines", ENGINES, ids=lambda engines: "+".join(map(str, engines)))
def test_selection_with_static_engines_is_brute_force_over_all_programs(engines: tuple[StaticEngine, ...]) -> None:
    on_engines = 0
    for seed in range(12):
        static = speaking_engines(seed, *engines, host=HostTime(70))
        price: dict[str, int] = {}
        for frames in static.frames:
            pricer = static.pricer(frames)
            for composition in enumerate_compositions(pricer):
                largest = 0
                for region in composition.regions:
                    for engine in engines:
                        stage = {"talk": {"step", "frames"}, "codec": {"decode", "out"}}[engine.stage]
                        if region.arm == engine.arm and stage & set(region.items):
                            largest = max(largest, engine.frames)
                assert static.frames_of(composition) == largest
                if largest == frames:
                    price[composition.digest] = pricer.total_ns(composition)
        got = select(static)
        assert got.best.ttfo_ns == min(price.values()) == price[got.best.composition.digest]
        assert got.candidates == len(price)
        assert all(p.ttfo_ns == price[p.composition.digest] for p in got.shortlist)
        assert {p.composition.digest for p in got.tie_set} <= {p.composition.digest for p in got.shortlist}
        on_engines += any(static.frames_of(p.composition) for p in got.shortlist)
    assert on_engines >= 10


def test_a_static_engine_speaks_when_full_and_a_region_that_streams_does_not_wait() -> None:
    static = speaking_engines(4, StaticEngine("codec", "graph", 15))
    on_engine = static.predict(conventional(speaking(2), "graph"))
    asked = static.pricer(0).predict(conventional(speaking(2), "graph"))
    assert on_engine.ttfo_ns == static.pricer(15).predict(conventional(speaking(15), "graph")).ttfo_ns
    assert on_engine.ttfo_ns > asked.ttfo_ns
    assert on_engine.parameters == {"first_frames": 15, "chunk_frames": 15}
    assert (on_engine.output_ns, asked.output_ns) == (15 * 80_000_000, 2 * 80_000_000)
    assert any("codec:graph:15" in note for note in on_engine.notes)
    other = static.predict(conventional(speaking(2), "graph_pdl"))
    assert other == static.pricer(0).predict(conventional(speaking(2), "graph_pdl"))


def test_no_static_engine_is_the_plain_selection() -> None:
    static = speaking_engines(2)
    got = select(static)
    assert got.best.ttfo_ns == k_best(static.pricer(0))[0][0]
    assert got.candidates == count_compositions(static.pricer(0))


@pytest.mark.parametrize("text", ["codec", "codec:graph", "codec:graph:0", ":graph:3", "codec::3", "codec:graph:x"])
def test_a_static_engine_is_a_stage_an_arm_and_frames(text: str) -> None:
    with pytest.raises(WorkbenchError, match=r"expected STAGE:ARM:FRAMES"):
        StaticEngine.parse(text)


def test_stages_and_arms_that_are_not_there_are_named_with_those_that_are() -> None:
    with pytest.raises(WorkbenchError, match=r"no stage 'sing'; its stages are text, talk, codec"):
        speaking_engines(1, StaticEngine("sing", "graph", 3))
    with pytest.raises(WorkbenchError, match=r"no arm 'trt'; its arms are graph, graph_pdl"):
        speaking_engines(1, StaticEngine("codec", "trt", 3))
    static = speaking_engines(1, StaticEngine("codec", "graph", 3))
    region = conventional(speaking(2), "graph").regions[0]
    with pytest.raises(CompositionError, match="frames are more than a chunk has"):
        static.without(0).check_resources(region)


def test_the_command_predicts_and_selects_with_static_engines(capsys: pytest.CaptureFixture[str]) -> None:
    device = ("demo_tts", "--device", "h100_sxm")
    engine = ("--static-engine", "codec:graph:6")
    plain = run_json(capsys, "predict", *device, "--composition", "graph", "--first-frames", "6")
    forced = run_json(capsys, "predict", *device, "--composition", "graph", *engine)
    assert forced["ttfo_ns"] == plain["ttfo_ns"]
    assert forced["parameters"]["first_frames"] == 6
    free = run_json(capsys, "predict", *device, "--composition", "graph_pdl", *engine)
    assert free["parameters"]["first_frames"] == 2
    chosen = run_json(capsys, "select", *device, *engine)
    assert chosen["best"]["ttfo_ns"] == min(round(row["ttfo_us"] * 1e3) for row in chosen["shortlist"])
    assert chosen["static_engine_rule"]
    assert chosen["best"]["further_ns"] is not None
    assert main(["select", *device, *engine, "--pareto"]) == 2
    assert main(["predict", "llama_3_2_1b", "--device", "h100_sxm", "--static-engine", "decode:graph:3"]) == 2


# -- the Pareto front --------------------------------------------------------------------------------------------------


def changed(nodes: tuple[Node, ...], rng: random.Random, *, sizes: bool) -> tuple[Node, ...]:
    """The same text with other numbers of iterations, and of rows of products."""
    made_: list[Node] = []
    for node in nodes:
        if isinstance(node, Loop):
            made_.append(Loop(node.name, rng.choice((1, 2, 5, 12)), changed(node.body, rng, sizes=sizes)))
        elif isinstance(node, Operator) and isinstance(node.shape, Matmul) and sizes:
            made_.append(dataclasses.replace(node, shape=dataclasses.replace(node.shape, rows=rng.choice((1, 4, 64)))))
        else:
            made_.append(node)
    return tuple(made_)


def streaming_program(seed: int, *, sizes: bool) -> Program:
    """A random program whose further outputs are a run of its text, changed."""
    rng = random.Random(seed)
    first = synthetic.program(seed, rng.choice((2, 3))).first
    start = rng.randrange(len(first))
    stop = rng.randrange(start + 1, len(first) + 1)
    further = changed(first[start:stop], rng, sizes=sizes)
    return Program(f"streaming{seed}", first, further, output_ns=10**6)


def loops_in_a_row(seed: int) -> Program:
    """Operators, each in a loop of its own that runs more often, or less, in a further output."""
    rng = random.Random(seed)
    shapes = [rng.choice((Matmul(rows=1, inner=32, outer=64), Argmax(width=64))) for _ in range(4)]
    each = [
        Operator(name=f"op{i}", shape=shape, reads=(f"t{i}",), writes=(f"t{i + 1}",)) for i, shape in enumerate(shapes)
    ]
    first, further = (
        tuple(Loop(f"loop{i}", rng.choice((1, 3, 10, 30)), (op,)) for i, op in enumerate(each)) for _ in range(2)
    )
    return Program(f"loops{seed}", first, further, output_ns=10**6)


MOST = 400


def pareto_pricers(programs: int) -> Iterator[Pricer]:
    """Small programs, on CPUs and on GPUs whose launches overlap."""
    found, seed = 0, 0
    while found < programs:
        seed += 1
        rng, batch = random.Random(seed), 1 + seed % 3
        program = loops_in_a_row(seed) if seed % 4 < 2 else streaming_program(seed, sizes=bool(seed % 2))
        if seed % 2:
            device, table = synthetic.gpu(seed)
            configurations = tuple(rng.sample(synthetic.GPU_CONFIGURATIONS, rng.choice((0, 1, 1, 2))))
            arms = ("graph_pdl", *rng.sample(("graph", "eager"), rng.randrange(2)))
            pricer = Pricer(program, device, table, batch, configurations, arms)
        else:
            row = program.name.startswith("loops")
            configurations = tuple(rng.sample(synthetic.CONFIGURATIONS, 2 if row else rng.choice((1, 2, 3))))
            arms = tuple(rng.sample(("eager", "replay"), rng.randrange(1 if row else 3)))
            rows = synthetic.table(program, seed, (batch,)).rows.copy()
            for _, mine in rows.groupby(["operator", "how"]):  # so that each operator has a configuration of its own
                rows.loc[mine.index, ["median_ns", "q25_ns", "q75_ns"]] *= rng.randrange(1, 9)
            device = synthetic.device(seed)
            dear = {  # and a cut is worth it in one program and not in the other
                arm: {n: dataclasses.replace(o, launch_ns=o.launch_ns * 64) for n, o in by_workers.items()}
                for arm, by_workers in device.overheads.items()
            }
            device = dataclasses.replace(device, overheads=dear)
            pricer = Pricer(program, device, CostTable(rows), batch, configurations, arms)
        if 1 < count_compositions(pricer) <= MOST:
            found += 1
            yield pricer


def hull_by_lines(points: set[Point]) -> set[Point]:
    """Corners: the only points that are least for some positive weights. Each pair's line is tried, and the ends."""
    front = [p for p in points if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)]
    weights = [(1, 0), (0, 1), (1, 1)]
    for p in front:
        for q in front:
            if q[0] > p[0]:
                a, b = p[1] - q[1], q[0] - p[0]
                weights += [(a, b), (2 * a + 1, 2 * b), (2 * a, 2 * b + 1)]
    found = set()
    for a, b in weights:
        least = min(a * x + b * y for x, y in front)
        at = sorted(p for p in front if a * p[0] + b * p[1] == least)
        found |= {at[0], at[-1]}
    return found


@given(st.sets(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=25))
def test_corners_and_fronts_are_those_of_their_definitions(points: set[Point]) -> None:
    assert set(corners_of(points)) == hull_by_lines(points)
    front = [p for p in sorted(points) if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)]
    assert non_dominated(points) == front


def test_every_supported_composition_of_brute_force_is_found_on_100_programs() -> None:
    corners_seen, spread = [], 0
    for pricer in pareto_pricers(100):
        further = pricer.further
        assert further is not None
        points: set[Point] = set()
        for composition in enumerate_compositions(pricer):
            after = pricer.further_ns(composition)
            if after is not None:
                points.add((pricer.total_ns(composition), after))
        expected = hull_by_lines(points)
        assert set(corners_of(points)) == expected
        chosen, exact = supported_compositions(Both(pricer))
        got = {(pricer.total_ns(c), pricer.further_ns(c)) for c in chosen}
        assert exact
        assert got == expected
        corners_seen.append(len(expected))
        spread += len(expected) > 1
    assert max(corners_seen) >= 3
    assert spread >= 15, "there is something to trade"


def test_the_weighted_costs_are_those_of_the_two_predictions() -> None:
    for number, pricer in enumerate(pareto_pricers(40)):
        both = Both(pricer)
        rng = random.Random(number)
        a, b = rng.randrange(1, 50), rng.randrange(1, 50)
        for ns, composition in k_best(both.weighted(a, b), 5):
            got = pricer.predict(composition)
            assert got.further_ns is not None
            host_ns = pricer.device.host_ns  # of each program's run; the search leaves one in, with no weight
            assert ns - host_ns == a * (got.ttfo_ns - host_ns) + b * (got.further_ns - host_ns)


def test_none_of_the_front_is_dominated_and_its_supported_are_the_hulls() -> None:
    several = 0
    for pricer in pareto_pricers(40):
        front = pareto(pricer, shortlist=MOST)  # all of them are evaluated then
        points = {
            (pricer.total_ns(c), ns) for c in enumerate_compositions(pricer) if (ns := pricer.further_ns(c)) is not None
        }
        got = [(p.ttfo_ns, p.further_ns) for p in front.predictions]
        assert got == sorted(got)
        assert got == [p for p in sorted(points) if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)]
        corners = hull_by_lines(points)
        for point, supported in zip(got, front.supported, strict=True):
            assert point[1] is not None
            on_an_edge = any(
                (q[0] - p[0]) * (point[1] - p[1]) == (q[1] - p[1]) * (point[0] - p[0]) and p[0] <= point[0] <= q[0]
                for p, q in pairwise(sorted(corners))
            )
            assert supported == (point in corners or on_an_edge)
        several += len(got) > 1
        table = front.table()
        assert table["ttfo_us"].tolist() == [p.ttfo_ns / 1e3 for p in front.predictions]
        assert table["playback_per_s"].tolist() == pytest.approx(
            [pricer.batch * 10**6 / ns for _, ns in got if ns is not None]
        )
        assert set(table["provenance"]) <= {p.value for p in Provenance}
    assert several >= 5


def test_a_program_whose_cuts_say_nothing_of_what_follows_has_no_front() -> None:
    one_frame = Pricer(load_program("nh_tts_standin", first_frames=1), H100.device(), Roofline(H100), 1)
    with pytest.raises(WorkbenchError, match="not a run of its way to the first output"):
        pareto(one_frame)
    original = synthetic.program(4)
    once = Program("once", original.first, ())
    with pytest.raises(WorkbenchError, match="no further outputs with a price"):
        pareto(Pricer(once, synthetic.device(1), synthetic.table(once, 1), 1))


def test_the_command_shows_the_front(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "select", "demo_tts", "--device", "h100_sxm", "--chunk-frames", "8", "--pareto")
    rows = data["pareto"]["rows"]
    assert rows[0]["ttfo_us"] == pytest.approx(data["best"]["ttfo_ns"] / 1e3)
    assert [row["ttfo_us"] for row in rows] == sorted(row["ttfo_us"] for row in rows)
    assert [row["further_us"] for row in rows] == sorted((row["further_us"] for row in rows), reverse=True)
    assert all(row["provenance"] for row in rows)
    assert data["pareto"]["evaluated"] >= len(rows)


def test_a_composition_on_engines_is_read_from_a_file_for_its_own_program() -> None:
    static = speaking_engines(3, StaticEngine("codec", "graph", 7))
    made_ = per_stage(static.pricer(7).program, synthetic.GPU_CONFIGURATIONS[0])
    again = from_json(static.pricer(0).program, to_json(made_))
    assert static.frames_of(again) == 0
    assert items(static.pricer(7).program.first)[1].name == "frames"
