"""Unions of tile bodies compiled without a GPU: Triton to PTX, ptxas to a cubin, and what both say of it.

Readings are kept by content in the user's cache folder: the bodies' source without comments, versions, options. Triton
is imported when something has to be compiled, not before.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import io
import json
import re
import struct
import tempfile
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import platformdirs

from workbench.bodies.table import KINDS, Key, Reading, union_name
from workbench.errors import MeasureError

SOURCES = ("words", "access", "finish", "products", "attention", "convolutions", "small", "kernel")
STAGES = 3  # of the software pipeline that feeds tensor cores from shared memory
REGISTERS_PER_SM = 65_536  # of 8.0, 9.0 and 12.0 alike: CUDA C++ programming guide, technical specifications
MOST_REGISTERS = 255  # a thread can name
CAPPED_BLOCKS = 2  # that a register cap lets live on an SM

TILE_SHAPES: dict[str, dict[str, int]] = {
    "large": {
        "gemv_columns": 16, "gemv_inner": 512, "mma_columns": 128, "mma_inner": 64,
        "attention_rows": 16, "attention_positions": 64, "attention_width": 128,
        "convolution_rows": 128, "convolution_columns": 128, "convolution_inner": 64,
        "lookup_columns": 1024, "scan_rows": 64, "scan_width": 128,
        "depthwise_rows": 16, "depthwise_columns": 64, "depthwise_taps": 8,
    },
    "small": {
        "gemv_columns": 16, "gemv_inner": 256, "mma_columns": 64, "mma_inner": 64,
        "attention_rows": 16, "attention_positions": 32, "attention_width": 128,
        "convolution_rows": 64, "convolution_columns": 64, "convolution_inner": 32,
        "lookup_columns": 512, "scan_rows": 32, "scan_width": 128,
        "depthwise_rows": 16, "depthwise_columns": 64, "depthwise_taps": 8,
    },
}  # fmt: skip
MEMORIES = {
    "queue": "*i32", "bounds": "*i32", "edges": "*i32", "events": "*i32",
    "weights": "*bf16", "values": "*bf16", "sums": "*fp32", "tokens": "*i32",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rung:
    """How a kernel is built: ``build``, warps a block, shape of tiles."""

    build: str
    warps: int
    shape: str

    @property
    def cap(self) -> int | None:
        """Most registers a thread, so that CAPPED_BLOCKS fit on an SM; None: as many as the compiler likes."""
        if self.build != "capped":
            return None
        return min(MOST_REGISTERS, REGISTERS_PER_SM // (CAPPED_BLOCKS * self.warps * 32) // 8 * 8)


def installed() -> str | None:
    """Triton's version, None where it is not installed."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return None


def need_triton() -> None:
    """MeasureError unless Triton is installed."""
    if installed() is None:
        raise MeasureError("compiling bodies needs Triton, which is not installed: pip install '.[triton]'")


@cache
def source_digest() -> str:
    """The bodies' source, comments, docstrings and layout left out, as 16 hexadecimal digits."""
    content = hashlib.sha256()
    for name in SOURCES:
        content.update(f"{name}\n".encode())
        for text in _tokens((Path(__file__).parent / f"{name}.py").read_text()):
            content.update(f"{text}\n".encode())
    return content.hexdigest()[:16]


def _tokens(source: str) -> Iterable[str]:
    """What is left of a source without what does not run."""
    fresh = True  # at a statement's start
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.NL):
            continue
        if token.type in (tokenize.INDENT, tokenize.DEDENT):
            yield tokenize.tok_name[token.type]
            continue
        if not (fresh and token.type == tokenize.STRING):
            yield token.string.strip()
        fresh = token.type == tokenize.NEWLINE


def versions(archs: Iterable[str]) -> dict[str, str]:
    """What a table of these architectures is made with: Triton, ptxas by architecture, and the bodies' source."""
    return {
        "triton": installed() or "",
        "source": source_digest(),
        **{f"ptxas {arch}": _ptxas(arch) for arch in sorted(archs)},
    }


@cache
def _ptxas(arch: str) -> str:
    from triton.backends.nvidia.compiler import get_ptxas_version

    found = re.search(r"V(\d[\d.]*)", get_ptxas_version(_number(arch)))
    return found.group(1) if found else "unknown"


def _number(arch: str) -> int:
    return int(arch.removeprefix("sm_"))


def read(arch: str, rung: Rung, kinds: frozenset[str], folder: Path | None = None) -> Reading:
    """What the compiler makes of one kernel, from the cache where it is; ``folder``: another cache than the user's.

    MeasureError where Triton is not installed or a kernel cannot be compiled.
    """
    need_triton()
    folder = folder or platformdirs.user_cache_path("megakernel-workbench") / "bodies"
    content = [versions([arch]), arch, asdict(rung), rung.cap, STAGES, TILE_SHAPES[rung.shape], union_name(kinds)]
    path = folder / f"{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):  # not there, or not what was written
        return Reading(**json.loads(path.read_text()))
    reading = _compile(arch, rung, kinds)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(reading)))
    except OSError as error:
        warnings.warn(f"{folder}: compiled bodies are not kept ({error.strerror})", stacklevel=2)
    return reading


def row(arch: str, rung: Rung, kinds: frozenset[str], folder: Path | None = None) -> tuple[Key, Reading]:
    """``read``, as a row of a table."""
    return (arch, rung.build, rung.warps, rung.shape, kinds), read(arch, rung, kinds, folder)


@dataclass(frozen=True, slots=True)
class _Made:
    ptx: str
    shared_bytes: int  # dynamic shared memory that it is launched with
    log: str  # of ptxas
    cubin: bytes


def _compile(arch: str, rung: Rung, kinds: frozenset[str]) -> Reading:
    try:
        made = _made(arch, rung.build == "called", rung.warps, rung.shape, kinds)
        log, cubin = (made.log, made.cubin) if rung.cap is None else _capped(arch, rung, made.ptx)
    except Exception as error:  # Triton has no common class of its errors
        reason = " ".join(str(error).split()) or type(error).__name__
        name = union_name(kinds)
        raise MeasureError(f"{arch}, {rung.build}: a kernel of {name} cannot be compiled: {reason:.300}") from error
    # of functions, the kernel's own line has the registers of all that it calls
    registers = max(int(text) for text in re.findall(r"Used (\d+) registers", log))
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    stack = [int(text) for text in re.findall(r"(\d+) bytes cumulative stack size", log)]
    return Reading(
        registers=registers,
        shared_bytes=made.shared_bytes,
        spill_bytes=sum(int(stores) + int(loads) for _, stores, loads in frames),
        stack_bytes=max([*stack, *(int(frame) for frame, _, _ in frames)]),
        code_bytes=code_bytes(cubin),
        warps=rung.warps,
    )


@contextlib.contextmanager
def _quietly() -> Iterator[io.StringIO]:
    """Triton's own cache in a folder that goes away, since readings are kept here; ptxas's log is yielded."""
    from triton import knobs

    printed = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        knobs.cache.scope(),
        knobs.nvidia.scope(),
        contextlib.redirect_stdout(printed),
    ):
        knobs.cache.dir = folder
        knobs.nvidia.dump_ptxas_log = True
        yield printed


def _options(warps: int) -> dict[str, Any]:
    return {"num_warps": warps, "num_stages": STAGES, "enable_fp_fusion": True}


@lru_cache(1)  # a cap changes no PTX but one line
def _made(arch: str, called: bool, warps: int, shape: str, kinds: frozenset[str]) -> _Made:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from workbench.bodies.kernel import persistent

    bits = sum(1 << KINDS.index(kind) for kind in kinds)
    constants = {"kinds": bits, "called": called, **TILE_SHAPES[shape]}
    signature = MEMORIES | dict.fromkeys(constants, "constexpr")
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(MEMORIES))}
    source = ASTSource(persistent, signature, constants, aligned)
    with _quietly() as printed:
        made = triton.compile(source, target=GPUTarget("cuda", _number(arch), 32), options=_options(warps))
    return _Made(made.asm["ptx"], made.metadata.shared, printed.getvalue(), made.asm["cubin"])


def _capped(arch: str, rung: Rung, ptx: str) -> tuple[str, bytes]:
    """What ptxas says, and the cubin that it makes, with at most so many registers; Triton's option adds this line."""
    from triton.backends.compiler import GPUTarget, Language
    from triton.compiler import make_backend

    ptx, changed = re.subn(r"^(\.reqntid .*)$", rf"\1\n.maxnreg {rung.cap}", ptx, count=1, flags=re.MULTILINE)
    if not changed:
        raise MeasureError("the PTX has no line .reqntid to put a cap behind")
    backend = make_backend(GPUTarget("cuda", _number(arch), 32))
    stages: dict[str, Any] = {}
    backend.add_stages(stages, backend.parse_options(_options(rung.warps)), Language.TRITON)
    with _quietly() as printed:
        cubin: bytes = stages["cubin"](ptx, {})
    return printed.getvalue(), cubin


def code_bytes(cubin: bytes) -> int:
    """Bytes of instructions: sizes of an ELF file's sections ``.text*`` (64 bits, little-endian)."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    start = headers[names][4]
    return sum(length for name, *_, length in headers if cubin.startswith(b".text", start + name))
