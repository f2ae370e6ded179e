"""Which published row is which case: tables of patterns, the first that matches a row's fields wins.

A row is refused with a reason, or it has a device, a model, a subject (what is timed) and a way to run. Whatever a row
does not say and a case needs is assumed here, and noted in the case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench.models.llama import PROMPT
from workbench.published.cases import (
    EAGER,
    FRAME_NS,
    GRAPH,
    GRAPH_PDL,
    MEGAKERNEL,
    MONOLITH,
    PER_STAGE,
    Case,
    How,
    Term,
)
from workbench.published.parts import LANGUAGE_MODELS, Part, part, step
from workbench.published.rows import Row

REASONS: Mapping[str, str] = {
    "model": "no program of this model here",
    "device": "no file of this device here, or it is not named, or there are several",
    "precision": "weights of 8 or 4 bits",
    "operator": "a single operator or layer, or kernels that do nothing",
    "not a time": "a share, a size, a bandwidth or a floor",
    "host": "work of the host alone",
    "cold": "a first run, before anything is warm",
    "concurrency": "requests that queue, overlap or end at different times",
    "length": "the length of the audio or of the chunk is not given",
    "illegal": "no composition of the row's kind can run there, as modelled",
}
Where = Mapping[str, str]  # patterns by field of a row, all of which must be found in it

REFUSALS: tuple[tuple[str, Where], ...] = (
    ("not a time", {"kind": "reference"}),
    ("not a time", {"metric": "dram_bw|hbm_util|peak_vram|floor|throughput_gain"}),
    ("operator", {"model": "MoE layer|LM head|empty kernels"}),
    ("operator", {"what": "^op_"}),
    ("model", {"model": "MLP train|DSpark|DeltaNet|Omni|Magpie|25Hz|^LLM decode|70B"}),
    ("precision", {"system": "int8|fp8"}),
    ("precision", {"model": "NVFP4"}),
    ("host", {"what": "^(tokenize|embed_build|host_overhead_frame)$"}),
    ("host", {"system": "^(tokenize|embed build)$"}),
    ("device", {"gpu": "Jetson|T4|RTX 4060|Laptop|Ascend|unnamed|unstated|8xH100"}),
    ("cold", {"system": "cold|no warm-up"}),
    ("concurrency", {"batch": "qps"}),
    ("concurrency", {"gpu": "H200", "batch": "^([2-9]|10)$"}),
    ("concurrency", {"gpu": "L40S"}),
    ("concurrency", {"source": "newgrit", "batch": "^(8|16)$", "metric": "xRT"}),
    ("length", {"metric": "E2EL|full_latency|e2e_p95"}),
    ("length", {"metric": "TTFP_mean"}),
    ("length", {"metric": "(?i)^rtf$", "system": "^(megakernel streaming|streaming megakernels)$"}),
    ("length", {"metric": "TTFC_mean"}),
)

DEVICES: tuple[tuple[str, str, str], ...] = (
    ("H100", "h100_sxm", ""),
    ("H200", "h200", ""),
    ("H20", "h20", ""),
    ("B200", "b200", ""),
    ("A800", "a100_80", "an A800 is an A100 80GB with slower links between GPUs"),
    ("A100 80GB", "a100_80", ""),
    ("A100 .108 SM", "a100_80", "which A100 is not said; 80 GB assumed"),
    ("^A100$", "a100_40", "40 GB, as the authors' blog says (recalled)"),
    ("RTX 3090", "rtx_3090", ""),
    ("RTX 4090 .presumed", "rtx_4090", "which GPU is presumed by the table"),
    ("RTX 4090", "rtx_4090", ""),
    ("RTX 5090", "rtx_5090", ""),
    ("GB10", "gb10", ""),
)
MODELS: tuple[tuple[str, str, str], ...] = (
    ("^Llama-3.2-1B", "llama_3_2_1b", ""),
    ("^Llama-3.1-8B", "llama_3_1_8b", ""),
    ("^Llama-shaped 2048h 4L", "llama_2048h_4l", ""),
    ("^Llama-shaped 2048h 8L", "llama_2048h_8l", ""),
    ("^Llama-shaped 2048h 16L", "llama_2048h_16l", ""),
    ("^Qwen3-8B$", "qwen3_8b", ""),
    ("^Qwen3-0.6B$", "qwen3_0_6b", ""),
    ("^Qwen3-32B$", "qwen3_32b", ""),
    ("^SmolLM2-135M$", "smollm2_135m", ""),
    ("^Qwen3-TTS-12Hz .0.6B/1.7B", "qwen3_tts_0_6b", "0.6B or 1.7B, the smaller assumed"),
    ("^Qwen3-TTS-12Hz-0.6B", "qwen3_tts_0_6b", ""),
    ("^Qwen3-TTS-12Hz-1.7B", "qwen3_tts_1_7b", ""),
    ("^Qwen3-TTS$", "qwen3_tts_0_6b", "size not said, 0.6B assumed"),
)

ASSUMED_POSITION = 256
POSITIONS: tuple[tuple[str, str], ...] = (
    (r"^(\d+)(?: in)?/(\d+)", "the middle of what is generated"),
    (r"^(?:pos|ctx) (\d+)", ""),
    (r"^short$", "position 32 assumed"),
    (r"", f"position {ASSUMED_POSITION} assumed"),
)
CALIBRATION: Where = {"model": "^Llama-3.2-1B$", "gpu": "^H100 SXM$", "source": "^msaroufim"}

# -- how it runs -----------------------------------------------------------------------------------------------------

LOOPS_GRAPHED = How("graph", (("prefill", "eager"), ("codec", "eager")))
TALKER_ALONE = How("eager", (("talker", MEGAKERNEL),))
TALKER_AND_GRAPH = How("graph", (("talker", MEGAKERNEL), ("prefill", "eager"), ("codec", "eager")))
BUT_CODEC = How(MEGAKERNEL, (("codec", "eager"),))
HOST = "the host of an eager run is not modelled beyond the gap of a launch"
ENGINE = "the engine's own work between steps is not modelled"

HOWS: tuple[tuple[Where, How, str], ...] = (
    ({"system": "PDL"}, GRAPH_PDL, ""),
    ({"source": "gauravlochab", "system": "megakernel talker only|CP eager|torch.compile", "metric": "RTF"},
     TALKER_ALONE, HOST),
    ({"source": "gauravlochab", "kind": "mixed", "metric": "RTF"}, TALKER_AND_GRAPH, HOST),
    ({"source": "gauravlochab", "what": "^(prefill|codec_chunk)", "kind": "mixed"}, EAGER, HOST),
    ({"source": "gauravlochab", "what": "^talker_step_first"}, MONOLITH, "the first of a request"),
    ({"source": "gauravlochab", "what": "^code_pred", "system": "graphed CP"}, GRAPH, ""),
    ({"system": "torch.compile"}, EAGER, "compiled: fused, as our operators are, and launched one by one"),
    ({"source": "madhavdhuppe"}, TALKER_ALONE, HOST),
    ({"source": "jayanth", "kind": "^conventional"}, EAGER, HOST),
    ({"source": "jayanth"}, BUT_CODEC, ""),
    ({"source": "qwen-tts-turbo"}, PER_STAGE, ""),
    ({"kind": "^mega|^monolith", "source": "MegaQwen"}, MONOLITH, "phases end at grid barriers, not at tile events"),
    ({"kind": "^mega|^monolith"}, MONOLITH, ""),
    ({"kind": "^conventional_eager$"}, EAGER, HOST),
    ({"kind": "^cuda_graph$", "source": "faster-qwen3-tts|newgrit"}, LOOPS_GRAPHED,
     "prefill and codec are not in its graphs"),
    ({"kind": "^cuda_graph$"}, GRAPH, ENGINE),
    ({"system": "(?i)eager|\\bHF\\b|torch|no graph|slower of two|ExLlama"}, EAGER, HOST),
    ({"source": "faster-qwen3-tts"}, LOOPS_GRAPHED, "prefill and codec are not in its graphs"),
    ({"kind": "^conventional$"}, GRAPH, ENGINE),
)  # fmt: skip

# -- what is timed ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class T:
    """A term to be: ``stages`` of the row's model (or of ``model``); CHUNK stands for the row's chunk of frames."""

    stages: tuple[str, ...] = ()
    times: int = 1
    how: How | None = None
    model: str = ""
    further: bool = False
    parameters: Mapping[str, int | str] = field(default_factory=dict)


CHUNK = "chunk"
CHUNK_25 = "chunks of 25 frames assumed, upstream's default then"
HOST_PART = "9.5 ms of host work is not modelled"
WINDOWED: Mapping[str, int | str] = {"codec": "windowed"}
TALKER = T(("talker",), parameters={"first_frames": 2})
PREDICTOR = T(("first_predictor",), parameters={"first_frames": 1})
FRAME = T(("talker", "predictor"), parameters={"first_frames": 2})
PREFILL_110 = T(("prefill",), how=EAGER, parameters={"prompt": 110})
TALKER_110 = T(("talker",), times=110, parameters={"first_frames": 2, "prompt": 55})
TRUNK_110 = T(model="qwen3_0_6b", times=110, how=MONOLITH, parameters={"prompt": 55})
TALKER_8 = T(("talker",), times=8, parameters={"first_frames": 2, "prompt": 4})


def _codec(frames: int) -> T:
    return T(("codec",), how=EAGER, parameters={"first_frames": frames})


def _as(how: How, *terms: T) -> tuple[T, ...]:
    return tuple(T(t.stages, t.times, how, t.model, t.further, t.parameters) for t in terms)


ONE_FRAME = (*_as(MONOLITH, TALKER), *_as(GRAPH, PREDICTOR), _codec(1))
STEADY = T(further=True, parameters={"chunk_frames": CHUNK, **WINDOWED})
WHOLE = T(parameters={"first_frames": CHUNK})
# Name, patterns, terms, frames of the chunk where the row does not say (0: it does, or needs none), note.
SUBJECTS: tuple[tuple[str, Where, tuple[T, ...], int, str], ...] = (
    # one stage
    ("talker step", {"what": "^talker_step$", "system": "lm_head"},
     (T(model="qwen3_0_6b", parameters={"prompt": 10}),), 0, "with the language model's head, as it ran"),
    ("talker step", {"what": "^talker_step"}, (TALKER,), 0, ""),
    ("predictor frame", {"what": "^code_predictor_frame"}, (PREDICTOR,), 0, ""),
    ("prefill", {"what": "^prefill$", "system": "incl lm_head"}, (TRUNK_110,), 0, ""),
    ("prefill", {"what": "^prefill$", "system": "110 sequential"}, _as(MONOLITH, TALKER_110), 0,
     "the codec's head at each step"),
    ("prefill", {"what": "^prefill$"}, (PREFILL_110,), 0, ""),
    ("codec chunk", {"what": "^codec_chunk_1frame$"}, (_codec(1),), 0, ""),
    ("talker, 42 frames", {"what": "^talker_total_42"},
     (T(("prefill", "talker"), parameters={"first_frames": 43, "prompt": 110}),), 0, ""),
    ("predictor, 42 frames", {"what": "^code_predictor_total_42"},
     (T(("first_predictor", "predictor"), parameters={"first_frames": 42}),), 0, ""),
    ("codec, 42 frames", {"what": "^codec_total_42"}, (_codec(42),), 0,
     "all frames at once; what else it holds is not said"),
    ("frame step", {"what": "^frame_step$"}, (FRAME,), 0, "talker and predictor; the codec is not in it"),
    ("frame step", {"metric": "time_to_first_frame"}, (FRAME,), 0, "the prefix is cached"),
    ("prefill", {"metric": "^stage$", "system": "prefill 8 steps"}, (TALKER_8,), 0, ""),
    ("talker step", {"metric": "^stage$", "system": "talker"}, (TALKER,), 0, ""),
    ("predictor frame", {"metric": "^stage$", "system": "code predictor"}, (PREDICTOR,), 0,
     "a launch a forward there, a frame one launch here"),
    ("codec chunk", {"metric": "^stage$", "system": "vocoder"}, (_codec(1),), 0, "one frame, as the first chunk has"),
    # to the first sound
    ("first codes", {"metric": "ttfc", "source": "jayanth"}, (TALKER_8, TALKER, PREDICTOR), 0, HOST_PART),
    ("first sound", {"metric": "ttfa", "source": "jayanth"}, (TALKER_8, TALKER, PREDICTOR, _codec(1)), 0, HOST_PART),
    ("first sound", {"metric": "TTFC", "system": "pre-graph"},
     (TRUNK_110, *2 * _as(MONOLITH, TALKER), *2 * _as(EAGER, PREDICTOR), _codec(2)), 0, HOST),
    ("first sound", {"metric": "TTFC", "system": "per-token prefill"}, (TRUNK_110, *ONE_FRAME), 0, HOST),
    ("first sound", {"metric": "TTFC", "system": "L1 skip"}, (*_as(MONOLITH, TALKER_110), *ONE_FRAME), 0, HOST),
    ("first sound", {"metric": "TTFC", "system": "B2|B3"}, (PREFILL_110, *ONE_FRAME), 0, HOST),
    ("first sound", {"metric": "(?i)^ttfa$"}, (WHOLE,), 0, "prompt of 10 positions assumed"),
    # multiples of real time
    ("all", {"metric": "(?i)^rtf", "source": "gauravlochab"},
     (T(parameters={"first_frames": CHUNK, "prompt": 110}),), 42,
     "42 frames after a prompt of 110, as its stages are given"),
    ("steady", {"metric": "(?i)^rtf", "source": "jayanth"}, (T(further=True, parameters={"chunk_frames": CHUNK}),), 25,
     "the codec's part over 25 frames assumed"),
    ("steady", {"metric": "(?i)^rtf", "source": "madhavdhuppe"}, (STEADY,), 9, "18 chunks of 13.6 s of audio"),
    ("all", {"metric": "^xRT$", "source": "newgrit"}, (WHOLE,), 56, "4.5 s of audio, from latency times speed"),
    ("steady", {"metric": "RTF", "system": "async chunk"}, (STEADY,), 25, CHUNK_25),
    ("steady", {"metric": "RTF", "system": "FP32"}, (STEADY,), 25, f"{CHUNK_25}; its codec is in fp32, ours in bf16"),
    ("all", {"metric": "RTF", "gpu": "H200"}, (WHOLE,), 72, "5.8 s of audio, from latency over RTF"),
    ("steady", {"metric": "RTF", "source": "vllm-omni"}, (STEADY,), 25, CHUNK_25),
    ("steady", {"metric": "xRT|speed_x_realtime", "source": "faster-qwen3-tts"}, (STEADY,), 8, ""),
)  # fmt: skip
TOKEN = "decode_step|tpot|itl|decode_throughput|^latency$"
RATIO = "ratio_cublas_over_amk|speedup_vs_(vllm|sglang)"


def found(where: Where, row: Row) -> bool:
    """Whether all patterns are found in the row's fields."""
    return all(re.search(pattern, getattr(row, name)) for name, pattern in where.items())


def case_of(row: Row) -> Case | str:
    """The case of a row, or the reason (a key of REASONS) why there is none."""
    for reason, where in REFUSALS:
        if found(where, row):
            return reason
    device = next((d for d in DEVICES if re.search(d[0], row.gpu)), None)
    model = next((m for m in MODELS if re.search(m[0], row.model)), None)
    if device is None or model is None:
        return "device" if device is None else "model"
    (_, device_key, device_note), (_, model_key, model_note) = device, model
    notes = [device_note, model_note]
    if model_key in LANGUAGE_MODELS:
        return _language_case(row, device_key, model_key, notes)
    return _speech_case(row, device_key, model_key, notes)


def _how(row: Row, notes: list[str]) -> How:
    for where, how, note in HOWS:
        if found(where, row):
            notes.append(note)
            return how
    raise LookupError(f"{row.table} line {row.line}: no pattern says how {row.system!r} ({row.kind}) runs")


def _position(row: Row, notes: list[str]) -> int:
    what = "short" if row.table == "tts" else row.what
    for pattern, note in POSITIONS:
        if match := re.search(pattern, what):
            notes.append(note)
            numbers = [int(number) for number in match.groups()]
            if not numbers:
                return 32 if what else ASSUMED_POSITION
            return numbers[0] + (numbers[1] // 2 if len(numbers) > 1 else 0)
    raise LookupError(f"{row.table} line {row.line}: no pattern reads a position from {what!r}")


def _language_case(row: Row, device: str, model: str, notes: list[str]) -> Case | str:
    batch, times = int(row.batch), 1
    if most := re.search(r"max-num-batched-tokens=(\d+)", row.system):
        batch, times = int(most.group(1)), batch // int(most.group(1))
        notes.append(f"{times} passes of {batch} a token" if times > 1 else "")
    position = PROMPT if found(CALIBRATION, row) else _position(row, notes)
    timed, subject = step(model, position), f"step at {position}"
    if re.search(RATIO, row.metric):
        notes.append(ENGINE if "speedup" in row.metric else "")
        return _case(device, batch, subject, (Term(timed, MONOLITH),), notes, over=(Term(timed, GRAPH),))
    if not re.search(TOKEN, row.metric):
        return "operator"
    how = _how(row, notes)
    without = "prefetch" if "no L2 prefetch" in row.system else ""
    return _case(device, batch, subject, (Term(timed, how, times),), notes, without=without)


def _chunk(row: Row) -> int | None:
    match = re.search(
        r"chunk[ _](?:size=)?(\d+)|chunk (\d+) frames|(\d+)-frame first chunk", f"{row.what} {row.system}"
    )
    return int(next(filter(None, match.groups()))) if match else None


def _speech_case(row: Row, device: str, model: str, notes: list[str]) -> Case | str:
    timed = next((timed for timed in SUBJECTS if found(timed[1], row)), None)
    if timed is None:
        return "length"
    name, _, terms, frames, note = timed
    how = _how(row, notes) if any(term.how is None for term in terms) else EAGER
    notes.append(note)
    chunk = frames or _chunk(row)
    if chunk is None and any(CHUNK in term.parameters.values() for term in terms):
        return "length"
    made = tuple(Term(_part(model, term, chunk), term.how or how, term.times) for term in terms)
    audio_ns = chunk * FRAME_NS if chunk is not None and row.scale in ("xrt", "rtf") else 0
    subject = f"{name}, {chunk} frames" if chunk is not None and name in ("first sound", "steady") else name
    return _case(device, int(row.batch), subject, made, notes, audio_ns=audio_ns)


def _part(model: str, term: T, chunk: int | None) -> Part:
    given = {name: chunk if value == CHUNK and chunk else value for name, value in term.parameters.items()}
    if term.model:
        return step(term.model, int(given["prompt"]))
    return part(model, *term.stages, further=term.further, **given)


def _case(
    device: str,
    batch: int,
    subject: str,
    terms: tuple[Term, ...],
    notes: list[str],
    *,
    over: tuple[Term, ...] = (),
    without: str = "",
    audio_ns: int = 0,
) -> Case:
    return Case(device, batch, subject, terms, over, without, audio_ns, tuple(dict.fromkeys(filter(None, notes))))
