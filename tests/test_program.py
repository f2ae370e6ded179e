"""Programs: demo_tts's counted work against what torch counts and moves, its streaming, and what is refused."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from workbench.errors import ProgramError
from workbench.models import load_program
from workbench.models.demo_tts import CONFIG, DemoConfig, program
from workbench.models.demo_tts_torch import DemoTTS, State
from workbench.program import Call, Loop, Node, Operator, Program, Seq, calls, items
from workbench.shapes import Argmax, Attention, Gather, Matmul

SMALL = DemoConfig(
    hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, ff=48, predictor_layers=1, codebooks=3, codes=32,
    text_vocab=32, prompt=5, latent=16, codec_channels=(16, 8, 8, 4), rates=(2, 3, 2), kernel=3, dilation=2,
)  # fmt: skip
CONFIGS = {"shipped": CONFIG, "small": SMALL}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def text_of(config: DemoConfig, batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(batch)
    return torch.randint(0, config.text_vocab, (batch, config.prompt), generator=generator, dtype=torch.int32)


def run_first_chunk(config: DemoConfig, batch: int, frames: int, around: Callable[[Call, State], Any]) -> None:
    """Every call of the way to the first output, run by torch inside the context that ``around`` makes."""
    module = DemoTTS(config)
    with torch.no_grad():
        state = module.start(text_of(config, batch))
        state.chunk = frames
        for call in calls(program(first_frames=frames, config=config).first):
            with around(call, state):
                module.run(call.operator.name, state, call.index)


# -- counted work ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_counted_flops_equal_torchs_for_every_call_and_in_total(config: DemoConfig, batch: int) -> None:
    counted: dict[str, int] = defaultdict(int)
    counters: list[tuple[Call, FlopCounterMode]] = []

    def counter(call: Call, state: State) -> FlopCounterMode:
        counters.append((call, FlopCounterMode(display=False)))
        return counters[-1][1]

    run_first_chunk(config, batch, 2, counter)
    for call, mode in counters:
        ours = call.operator.work(batch, call.position).flops
        assert ours == mode.get_total_flops(), f"{call.operator.name} at {dict(call.index)}"
        counted[call.operator.name] += mode.get_total_flops()
    whole = FlopCounterMode(display=False)
    with whole, torch.no_grad():
        DemoTTS(config)(text_of(config, batch), frames=2)
    assert sum(counted.values()) == whole.get_total_flops() == program(config=config).work(batch).flops


class ParameterBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Bytes of the parameters that the dispatched operations take: whole ones, and of embeddings the rows looked up.

    The rotary tables are buffers, not parameters: no operator counts them as weights.
    """

    def __init__(self, module: DemoTTS) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
        self.whole: dict[tuple[int, int], int] = {}
        self.rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            for arg in args:
                if isinstance(arg, Tensor) and arg.untyped_storage().data_ptr() in self.storages:
                    if func is torch.ops.aten.embedding.default:
                        self.rows += args[1].numel() * arg.shape[1] * arg.element_size()
                    else:
                        place = arg.untyped_storage().data_ptr(), int(arg.storage_offset())
                        self.whole[place] = max(self.whole.get(place, 0), arg.numel() * arg.element_size())
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        return self.rows + sum(self.whole.values())


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_weight_bytes_are_those_of_the_parameters_that_torch_touches(config: DemoConfig, batch: int) -> None:
    module = DemoTTS(config)
    with torch.no_grad():
        state = module.start(text_of(config, batch))
        state.chunk = 2
        for call in calls(program(config=config).first):
            with ParameterBytes(module) as touched:
                module.run(call.operator.name, state, call.index)
            assert call.operator.work(batch, call.position).weight_bytes == touched.total, call.operator.name


def moved_by_torch(module: DemoTTS, state: State, call: Call) -> tuple[int, int]:
    """Bytes of the tensors that a call reads and writes, after it ran.

    Not counted, as in ``Work``: integer inputs of gathers (codes, text), and what a convolution remembers of the chunk
    before (nothing in a first chunk). Of a cache the rows in use count, of ``prefill.x`` the last row alone is read.
    """
    op, batch, t = call.operator, state.codes.shape[0], state.t

    def cache(name: str, rows: slice) -> int:
        stage = op.name.split(".")[0]
        whole = state.predictor_kv if name == "predictor.kv" else state.kv
        return int(whole[call.index[f"{stage}.layers"]][:, :, rows].nbytes)

    rows = getattr(op.shape, "rows", 1)
    old, new = slice(0, call.position + rows), slice(call.position, call.position + rows)
    read = written = 0
    for name in op.reads:
        if name in ("codes", "text"):
            continue
        if name.endswith("kv"):
            read += cache(name, old)
        elif op.name == "talker.embed":
            read += t[name][:, -1].nbytes
        else:
            read += t[name].nbytes
    for name in op.writes:
        if name == "codes":
            written += state.codes[:, 0, 0].numel() * state.codes.element_size()
        else:
            written += cache(name, new) if name.endswith("kv") else t[name].nbytes
    assert batch == t["text"].shape[0]
    return read, written


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_read_and_written_bytes_are_those_of_the_tensors(config: DemoConfig, batch: int) -> None:
    module = DemoTTS(config)
    with torch.no_grad():
        state = module.start(text_of(config, batch))
        state.chunk = 2
        for call in calls(program(config=config).first):
            module.run(call.operator.name, state, call.index)
            work = call.operator.work(batch, call.position)
            assert (work.read_bytes, work.write_bytes) == moved_by_torch(module, state, call), call.operator.name


def test_work_to_first_output_is_the_sum_over_unrolled_calls() -> None:
    made = program(config=SMALL)
    by_hand = [0, 0, 0, 0]
    for call in calls(made.first):
        for i, part in enumerate(call.operator.work(3, call.position)):
            by_hand[i] += part
    assert tuple(made.work(3)) == tuple(by_hand)


# -- execution order, positions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", [1, 2, 5])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_loops_unroll_to_the_closed_number_of_calls(config: DemoConfig, frames: int) -> None:
    block, sampler = 5, 2
    predictor_step = 1 + block * config.predictor_layers + sampler
    talker_step = 1 + block * config.layers + sampler
    codec = 2 + 3 * len(config.rates) + 1
    prefill = 1 + block * config.layers
    expected = prefill + frames * (talker_step + (config.codebooks - 1) * predictor_step) + codec
    made = program(first_frames=frames, chunk_frames=frames, config=config)
    assert sum(1 for _ in calls(made.first)) == expected
    assert sum(1 for _ in calls(made.further)) == expected - prefill
    assert Counter(call.operator.name for call in calls(made.first))["predictor.qkv"] == (
        frames * (config.codebooks - 1) * config.predictor_layers
    )


def test_a_calls_position_is_where_torch_writes_the_cache() -> None:
    seen = 0
    module = DemoTTS(SMALL)
    with torch.no_grad():
        state = module.start(text_of(SMALL, 1))
        state.chunk = 3
        for call in calls(program(first_frames=3, config=SMALL).first):
            stage, _, kind = call.operator.name.partition(".")
            cache = state.predictor_kv if stage == "predictor" else state.kv
            if kind == "qkv":
                layer = cache[call.index[f"{stage}.layers"]]
                layer.fill_(float("nan"))
                module.run(call.operator.name, state, call.index)
                rows = (~layer[0, 0, :, 0].isnan()).nonzero()[:, 0].tolist()
                shape = call.operator.shape
                assert isinstance(shape, Matmul)
                assert rows == list(range(call.position, call.position + shape.rows))
                layer.nan_to_num_(0.0)
                seen += 1
            else:
                module.run(call.operator.name, state, call.index)
    assert seen == SMALL.layers + 3 * (SMALL.layers + (SMALL.codebooks - 1) * SMALL.predictor_layers)


def test_a_further_chunk_continues_at_the_position_after_the_first() -> None:
    positions = [
        call.position
        for call in calls(program(first_frames=3, chunk_frames=2).further)
        if call.operator.name == "talker.qkv" and call.index["talker.layers"] == 0
    ]
    assert positions == [CONFIG.prompt + 3, CONFIG.prompt + 4]


def test_stages_are_labels_and_loops_stay_items() -> None:
    made = program()
    assert [item.name for item in items(made.first)][:4] == ["prefill.embed", "prefill.layers", "frames", "codec.embed"]
    assert set(made.stages().values()) == {"prefill", "talker", "predictor", "codec"}
    assert list(made.loops()) == [
        "prefill.layers", "frames", "talker.layers", "predictor.steps", "predictor.layers",
    ]  # fmt: skip
    assert "loop frames × 2" in str(made)
    assert "demo_tts: 34 operators, 157 calls to first output" in str(made)


# -- the module --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "chunk"), [(1, 1), (1, 3), (2, 4), (2, 1), (4, 2), (3, 5), (6, 1)])
def test_a_chunked_stream_is_the_whole_decode(first: int, chunk: int) -> None:
    module, text = DemoTTS(), text_of(CONFIG, 2)
    with torch.inference_mode():
        parts = list(module.stream(text, frames=6, first_frames=first, chunk_frames=chunk))
        whole = module(text, frames=6)
    sizes = [first] + [chunk] * math.ceil((6 - first) / chunk)
    sizes[-1] -= sum(sizes) - 6
    assert [part.shape[1] for part in parts] == [size * CONFIG.samples_per_frame for size in sizes]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-5)
    assert whole.std() > 0.01


@pytest.mark.parametrize("batch", [1, 2, 5, 9])
def test_a_request_sounds_the_same_in_any_batch(batch: int) -> None:
    module, text = DemoTTS(), text_of(CONFIG, batch)
    with torch.inference_mode():
        together = module(text, frames=3)
        for i in range(batch):
            torch.testing.assert_close(together[i : i + 1], module(text[i : i + 1], frames=3), rtol=0, atol=1e-4)


def test_more_frames_than_the_cache_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="frames=17: the cache holds 1 to 16"):
        list(DemoTTS(SMALL).stream(text_of(SMALL, 1), frames=17))


# -- refusals ----------------------------------------------------------------------------------------------------------


def op(name: str, loop: str = "", writes: tuple[str, ...] = ("t",)) -> Operator:
    return Operator(name=name, shape=Argmax(width=4), reads=("t",), writes=writes, position_loop=loop)


REFUSED: dict[str, tuple[tuple[Node, ...], str]] = {
    "nothing": ((), "program 'p' has no operators on the way to its first output"),
    "operator twice": ((op("a"), op("a")), "first: the name 'a' stands twice"),
    "loop named as operator": ((op("a"), Loop("a", 2, (op("b"),))), "the name 'a' stands twice"),
    "a name like a boundary's": ((op("a|b"), op("c")), r"first: the name 'a\|b' holds \| or @"),
    "a name like a back edge's": ((Loop("l@", 1, (op("a"),)),), "the name 'l@' holds"),
    "loop twice": ((Loop("l", 1, (op("a"),)), Loop("l", 1, (op("b"),))), "the name 'l' stands twice"),
    "unknown position loop": ((op("a", "l"),), "takes its position from loop 'l', which is not around it .* none"),
    "position loop elsewhere": (
        (Loop("l", 2, (op("a"),)), Loop("m", 2, (op("b", "l"),))),
        "operator 'b' takes its position from loop 'l', which is not around it .around it: m.",
    ),
    "writes nothing": ((op("a", writes=()),), "operator 'a' writes no tensor"),
    "empty loop": ((Loop("l", 2, ()),), "loop 'l' is empty"),
    "empty stage": ((Seq("s", ()),), "seq 's' is empty"),
    "loop of zero": ((Loop("l", 0, (op("a"),)),), "loop 'l' runs 0 times; at least 1 is needed"),
    "negative loop": ((Loop("l", -3, (op("a"),)),), "loop 'l' runs -3 times"),
}


@pytest.mark.parametrize(("nodes", "text"), REFUSED.values(), ids=REFUSED)
def test_a_broken_program_is_refused_with_the_reason(nodes: tuple[Node, ...], text: str) -> None:
    with pytest.raises(ProgramError, match=text):
        Program("p", nodes, ())


def test_the_further_part_is_checked_too() -> None:
    with pytest.raises(ProgramError, match="further: the name 'a' stands twice"):
        Program("p", (op("a"),), (op("a"), op("a")))


def test_an_unknown_model_is_refused_with_the_names_of_those_there_are() -> None:
    with pytest.raises(ProgramError, match=r"no model is called 'tts'; there are: .*demo_tts"):
        load_program("tts")
    assert load_program("demo_tts", first_frames=1).parameters["first_frames"] == 1


def test_bytes_scale_with_the_element_and_gathers_read_rows_not_tables() -> None:
    shape = Gather(rows=2, tables=3, entries=1000, width=8, extra=True)
    half = Operator(name="g", shape=shape, reads=("c", "x"), writes=("y",), element_bytes=2)
    assert tuple(half.work(5, 0)) == (5 * 2 * 3 * 8 * 2, 5 * 2 * 8 * 2, 5 * 2 * 8 * 2, 0)
    attention = Attention(rows=2, heads=4, kv_heads=2, head_dim=8)
    #                      heads × (q·k + p·v), 2 FLOPs each, over 2 new rows that see 7 + 2 positions
    assert attention.elements(3, 7)[3] == 3 * 4 * (2 * 2 * 9 * 8 + 2 * 2 * 9 * 8)
