"""What a file is, told from its content and not from its name.

`identify` never guesses that a file is a profile: a kind that no reader takes carries the words of its refusal.
"""

import os
import re
import sqlite3
import stat
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import ProfileError
from workbench.profiles.json_events import TraceNotes, decompressed

HEAD_BYTES = 1 << 18
GZIP_MAGIC = b"\x1f\x8b"
CAPTURE = "record the run with torch.profiler and prof.export_chrome_trace('trace.json.gz')"
NOT_YET = f"this version does not read it yet; {CAPTURE}"
ASK_UNITS = f"a timeline is needed, with every kernel's start and duration: {CAPTURE}"
NSYS_EXPORT = (
    "export it with `nsys export --type sqlite --output report.sqlite report.nsys-rep`, "
    "and next time record with `nsys profile --cuda-graph-trace=node`"
)
NCU_EXPORT = f"print it with `ncu --import report.ncu-rep --csv --page details`; for a timeline {CAPTURE}"


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a file was found to be."""

    path: Path
    kind: str  # one word or two with a hyphen; the key of its reader
    what: str  # in words
    way_out: str = ""  # what to do where no reader takes it
    gzipped: bool = False

    def refusal(self) -> ProfileError:
        """The error to raise where no reader takes this kind."""
        return ProfileError(f"{self.path}: {self.what}" + (f"; {self.way_out}" if self.way_out else ""))


# (kind, what, way out, first bytes)
_MAGIC: tuple[tuple[str, str, str, bytes], ...] = (
    (
        "lfs-pointer",
        "a Git LFS pointer, not the file itself",
        "fetch it with `git lfs pull`",
        b"version https://git-lfs",
    ),
    ("ncu-report", "a closed Nsight Compute report", NCU_EXPORT, b"NVR\0"),
    ("zip", "a zip archive", "unpack it and give the trace inside", b"PK\x03\x04"),
    ("zstd", "compressed with zstd", "unpack it with `zstd -d`", b"\x28\xb5\x2f\xfd"),
    ("bzip2", "compressed with bzip2", "unpack it with `bunzip2`", b"BZh"),
    ("xz", "compressed with xz", "unpack it with `unxz`", b"\xfd7zXZ\0"),
    ("gzip-twice", "gzip inside gzip", "unpack it once with `gunzip`", GZIP_MAGIC),
    ("utf-16", "text in UTF-16, as a PowerShell redirection writes it", "convert it to UTF-8", b"\xff\xfe"),
    ("parquet", "a Parquet table, not a profile", CAPTURE, b"PAR1"),
)
# (kind, what, way out, pattern) against the first text after white space; the first match wins
_JSON: tuple[tuple[str, str, str, str], ...] = (
    ("rocprofv3-json", "rocprofv3 JSON of ROCm", NOT_YET, r'\{\s*"rocprofiler-sdk-tool"'),
    ("kineto", "a Kineto Chrome trace", "", r'\{.*"traceEvents"\s*:'),
    ("tensorrt-layers", "TensorRT layer information (--exportLayerInfo), without times", NOT_YET, r'\{\s*"Layers"'),
    ("tensorrt-profile", "a TensorRT layer profile (--exportProfile)", NOT_YET, r'\[\s*\{\s*"count"\s*:'),
    ("tensorrt-times", "TensorRT run times (--exportTimes)", NOT_YET, r'\[\s*\{\s*"startEnqMs"'),
    (
        "trex-metadata",
        "TREx metadata of a TensorRT engine, without kernels",
        NOT_YET,
        r'\{\s*"(?:model_options|performance_summary|device_information)"|\[\s*\{\s*"Name".*"ComputeCapability"',
    ),
    ("nvbench", "nvbench benchmark JSON", f"it holds no timeline; {NOT_YET}", r'\{\s*"meta".*nvbench'),
    (
        "firefox",
        "a Firefox or samply CPU profile",
        CAPTURE,
        r'\{\s*"meta".*"(?:processType|preprocessedProfileVersion)"',
    ),
    ("speedscope", "a speedscope CPU profile", CAPTURE, r'\{.*"\$schema"\s*:\s*"https?://www\.speedscope'),
    (
        "execution-trace",
        "a PyTorch execution trace (ET): operators without times",
        CAPTURE,
        r'\{\s*"schema".*"nodes"\s*:',
    ),
    ("memory-timeline", "a torch memory timeline, without kernels", CAPTURE, r"\[\s*\[\s*-?\d"),
    (
        "proton",
        "a Triton Proton tree (.hatchet), summed over launches",
        f"it has no order; {NOT_YET}",
        r'\[\s*\{\s*"(?:children|frame|metrics)"',
    ),
    ("onnxruntime", "an ONNX Runtime profile", NOT_YET, r'\[\s*\{[^{}]*"cat"\s*:\s*"(?:Session|Node|Api)"'),
    ("kineto", "a list of Chrome trace events", "", r'\[.*"ph"\s*:'),
    ("json-object", "JSON", "", r"\{"),  # events may come after long metadata: its reader looks
    ("json-list", "a JSON list that holds no trace events", ASK_UNITS, r"\["),
)
_TEXT: tuple[tuple[str, str, str, str], ...] = (
    (
        "ncu-csv",
        "Nsight Compute CSV: times are taken kernel by kernel at locked clocks, no timeline",
        NOT_YET,
        r'(?:==(?:PROF|WARNING)==[^\n]*\n)*"?ID"?,"?Process ID',
    ),
    (
        "ncu-messages",
        "messages of ncu and no data",
        "run ncu again and look at its error",
        r"==(?:ERROR|PROF|WARNING)==",
    ),
    ("nsys-summary", "an nsys stats summary: kernels without order, stream or start", NOT_YET, r'"?Time ?\(%\)'),
    ("nsys-trace-csv", "an nsys stats trace CSV", NOT_YET, r'"?Start ?\('),
    (
        "nsys-console",
        "console output of nsys stats",
        f"a table for people; {NSYS_EXPORT}",
        r"(?:NOTICE|Generating SQLite|Processing \[|SKIPPED)| \*\* ",
    ),
    ("rocprofv3-csv", "rocprofv3 CSV of ROCm", NOT_YET, r'"?(?:Kind|Domain)"?,"?(?:Agent_Id|Function)'),
    ("tunableop", "PyTorch TunableOp results: chosen solutions, no kernels", CAPTURE, r"Validator,"),
    ("vidur", "a vidur operator benchmark table", f"it holds no timeline; {NOT_YET}", r"time_stats\."),
    ("perfetto-text", "a Perfetto text proto", CAPTURE, r".*\bpacket \{"),
    ("html", "a web page", "the download went wrong: fetch the file itself", r"<(?:!doctype|html)"),
)
_SUFFIXES = {
    ".nsys-rep": ("nsys-report", "a closed Nsight Systems report", NSYS_EXPORT),
    ".qdrep": ("nsys-report", "a closed Nsight Systems report", NSYS_EXPORT),
    ".pb": ("protobuf", "a binary protobuf (JAX XPlane?)", NOT_YET),
    ".pftrace": ("protobuf", "a binary Perfetto trace", NOT_YET),
}


def identify(path: str | os.PathLike[str]) -> FileKind:
    """Look at the first bytes of a file.

    Raises
    ------
    ProfileError
        Where there is nothing to look at: no such file, a folder, a device, no permission, empty, or a gzip so
        damaged that nothing comes out.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ProfileError(f"{path}: a folder; give one profile file")
        if not stat.S_ISREG(mode):
            raise ProfileError(f"{path}: not a regular file")
        with path.open("rb") as file:
            raw = file.read(HEAD_BYTES)
        if not raw:
            raise ProfileError(f"{path}: empty (0 bytes); was the profiler closed before the copy?")
        if not raw.startswith(GZIP_MAGIC):
            return _identify_bytes(path, raw, gzipped=False)
        head = _head(path)
    except ProfileError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ProfileError(f"{str(path)!r}: cannot be read: {reason}") from error
    if not head:
        raise ProfileError(f"{path}: a gzip so damaged or short that nothing comes out; copy it again")
    return _identify_bytes(path, head, gzipped=True)


def _head(path: Path) -> bytes:
    """First bytes of what a gzip holds."""
    head = b""
    for chunk in decompressed(path, gzipped=True, notes=TraceNotes()):
        head += chunk
        if len(head) >= HEAD_BYTES:
            break
    return head


def _identify_bytes(path: Path, head: bytes, *, gzipped: bool) -> FileKind:
    if head.startswith(b"SQLite format 3\0"):
        return _identify_sqlite(path, gzipped=gzipped)
    for kind, what, way_out, magic in _MAGIC:
        if head.startswith(magic):
            return FileKind(path, kind, what, way_out, gzipped)
    if head[257:262] == b"ustar":
        return FileKind(path, "tar", "a tar archive", "unpack it and give the trace inside", gzipped)
    text = head.decode("utf-8", "replace").lstrip("\N{ZERO WIDTH NO-BREAK SPACE} \t\r\n")
    for kind, what, way_out, pattern in _JSON if text[:1] in ("{", "[") else _TEXT:
        if re.match(pattern, text, re.DOTALL | re.IGNORECASE if pattern.startswith("<") else re.DOTALL):
            return FileKind(path, kind, what, way_out, gzipped)
    for suffix, (kind, what, way_out) in _SUFFIXES.items():
        if path.name.removesuffix(".gz").endswith(suffix):
            return FileKind(path, kind, what, way_out, gzipped)
    if not text.strip("\0"):
        return FileKind(path, "blank", "nothing but white space or zeros", "copy it again", gzipped)
    if b"\0" in head or text.count("\N{REPLACEMENT CHARACTER}") > len(text) // 20:
        return FileKind(path, "binary", "binary of a kind that is not known", CAPTURE, gzipped)
    first = text.splitlines()[0]
    if "," in first:
        return FileKind(path, "csv", f"a CSV table that begins with {first[:60]!r}, not a profile", ASK_UNITS, gzipped)
    return FileKind(path, "text", f"text that begins with {first[:60]!r}, not a profile", CAPTURE, gzipped)


def _identify_sqlite(path: Path, *, gzipped: bool) -> FileKind:
    if gzipped:
        return FileKind(path, "sqlite-gzip", "a gzipped SQLite database", "unpack it with `gunzip`", gzipped)
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            tables = {
                str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
        finally:
            connection.close()
    except (sqlite3.Error, UnicodeError, ValueError) as error:
        return FileKind(path, "sqlite-damaged", f"a damaged SQLite database ({error})", "export it again", gzipped)
    if "StringIds" in tables:
        return FileKind(path, "nsys-sqlite", "an Nsight Systems SQLite export", NOT_YET, gzipped)
    if any(name.startswith("rocpd") for name in tables):
        return FileKind(path, "rocpd", "a ROCm rocpd database", NOT_YET, gzipped)
    return FileKind(
        path, "sqlite", f"an SQLite database with {len(tables)} tables, none of a profiler", CAPTURE, gzipped
    )
