"""Whole events from a Chrome trace that may be large, gzipped, cut off or damaged.

One event is held at a time, so memory is bounded by the longest value and not by the file. Numbers with a point or an
exponent stay the text that the file has, because a float cannot hold an epoch in nanoseconds.
"""

import codecs
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.errors import ProfileError

CHUNK_BYTES = 1 << 17
AHEAD_CHARS = 1 << 16  # text kept in front of an event, so that a failure to decode is seldom a lack of text; not
# more, because every failure costs a count of the lines before it (json's own error text)
LONGEST_TOKEN = 64  # an error this near to the end of the text may only be the text's end
VALUE_LIMIT_CHARS = 1 << 26  # no event and no metadata of a trace is longer; what is, is not a trace

_DECODER = json.JSONDecoder(parse_float=str, parse_constant=lambda _: None, strict=False)
_SPACE = re.compile(r"[ \t\r\n]*")
_SPACE_AND_COMMAS = re.compile(r"[ \t\r\n,]*")
_NEXT_EVENT = re.compile(r',\s*\{\s*"(?:ph|cat|name|ts|dur|pid|tid|args|id|s|bp)"\s*:')
_LAST_EVENT = re.compile(r'\}\s*\](?=\s*(?:,\s*"|\}\s*$|$))')
_TRACE_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_NOT_FINITE = re.compile(
    r'("(?:[^"\\]|\\.)*")|-?\b(?:inf|nan)(?:inity)?\b(?:\(\w*\))?|-?1\.#\w+', re.IGNORECASE | re.DOTALL
)
_ESCAPE = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\')


@dataclass(slots=True)
class TraceNotes:
    """What a reading learnt about the file besides its events; filled while events are drawn."""

    keys: list[str] = field(default_factory=list)  # top-level keys of a dict-shaped trace
    metadata: dict[str, Any] = field(default_factory=dict)
    found_events: bool = False  # there is a list of events, empty or not
    dropped: Counter[str] = field(default_factory=Counter)  # events lost, by reason
    repaired: Counter[str] = field(default_factory=Counter)
    truncated: bool = False
    first_bad_char: int | None = None  # where the first event that could not be decoded begins
    events: int = 0


def decompressed(path: Path, *, gzipped: bool, notes: TraceNotes) -> Iterator[bytes]:
    """The file's bytes in chunks. A cut or corrupt gzip gives what comes before the damage, and sets `truncated`."""
    with path.open("rb") as file:
        raw = iter(lambda: file.read(CHUNK_BYTES), b"")
        yield from (_inflate(raw, notes) if gzipped else raw)


def _inflate(raw: Iterator[bytes], notes: TraceNotes) -> Iterator[bytes]:
    stream, begun, members = zlib.decompressobj(wbits=31), False, 0
    try:
        for chunk in raw:
            while chunk:
                if members and not begun and not chunk.startswith(b"\x1f"):
                    return  # what follows a gzip and is none itself
                yield stream.decompress(chunk, CHUNK_BYTES)  # bounded, so that a bomb cannot fill the memory
                begun, chunk = True, stream.unconsumed_tail
                while not chunk and not stream.eof and (pending := stream.decompress(b"", CHUNK_BYTES)):
                    yield pending
                if stream.eof:
                    chunk = stream.unused_data.lstrip(b"\0")
                    stream, begun, members = zlib.decompressobj(wbits=31), False, members + 1
        notes.truncated |= begun
    except zlib.error:
        notes.truncated = True


class _Text:
    """Decoded text with a position, refilled and trimmed as reading goes on."""

    def __init__(self, path: Path, *, gzipped: bool, notes: TraceNotes) -> None:
        self.path = path
        self._chunks, self._notes = decompressed(path, gzipped=gzipped, notes=notes), notes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.text, self.pos, self.final = "", 0, False
        self.passed = 0  # characters trimmed from the front

    def ahead(self, chars: int) -> bool:
        """Have at least `chars` characters in front, or all that the file has; False if nothing could be added."""
        rest = self.text[self.pos :]
        parts, have = [rest], len(rest)
        while have < chars and not self.final:
            chunk = next(self._chunks, None)
            self.final = chunk is None
            new = self._decoder.decode(chunk or b"", final=self.final)
            if bad := new.count("\N{REPLACEMENT CHARACTER}"):
                self._notes.repaired["bytes that are not UTF-8"] += bad
            parts.append(new)
            have += len(new)
        self.passed += self.pos
        self.text, self.pos = "".join(parts), 0
        return have > len(rest)

    def more(self) -> bool:
        return self.ahead(len(self.text) - self.pos + 1)

    def peek(self, skip: re.Pattern[str] = _SPACE) -> str:
        """Next character that is not to be skipped; empty at the end of the file."""
        while True:
            match = skip.match(self.text, self.pos)
            self.pos = match.end() if match else self.pos
            if self.pos < len(self.text) or not self.more():
                return self.text[self.pos : self.pos + 1]

    def value(self) -> Any:
        """Decode one JSON value here. Raises ValueError where there is none, or it is cut off, or too long."""
        need = AHEAD_CHARS
        self.peek()
        while True:
            if len(self.text) - self.pos < need and not self.final:
                self.ahead(need)
            try:
                value, end = _DECODER.raw_decode(self.text, self.pos)
            except RecursionError as error:
                raise ValueError("nested too deep") from error
            except ValueError:
                if self.final or need >= VALUE_LIMIT_CHARS:
                    raise
            else:
                if end < len(self.text) or self.final:  # a number at the very end may go on
                    self.pos = end
                    return value
            need *= 4


def read_events(path: Path, *, gzipped: bool, notes: TraceNotes) -> Iterator[dict[str, Any]]:
    """Draw the events of a dict- or list-shaped Chrome trace in the file's order; fill `notes` on the way.

    An event that is not JSON is repaired where that is safe (numbers that are not finite become None, bare
    backslashes are doubled), else dropped and counted. Nothing after the last whole event is guessed.

    Raises
    ------
    ProfileError
        Where the file has no list of events at all.
    """
    text = _Text(path, gzipped=gzipped, notes=notes)
    text.ahead(AHEAD_CHARS)
    text.pos = int(text.text.startswith("\N{ZERO WIDTH NO-BREAK SPACE}"))  # a byte order mark
    if text.peek() == "[":
        text.pos += 1
        notes.found_events = True
        yield from _array(text, notes)
    elif text.peek() == "{":
        text.pos += 1
        yield from _object(text, notes)
    else:
        raise ProfileError(f"{path}: not JSON: it begins with {text.text[text.pos : text.pos + 20]!r}")


def _object(text: _Text, notes: TraceNotes) -> Iterator[dict[str, Any]]:
    while text.peek(_SPACE_AND_COMMAS) != "}":
        key = _entry(text, notes)
        if key is None and not _skip_to_events(text, notes):
            return
        if key in (None, "traceEvents"):
            notes.found_events = True
            yield from _array(text, notes)


def _entry(text: _Text, notes: TraceNotes) -> str | None:
    """Read one key with its value, of traceEvents the opening bracket alone; the key, or None if it is no JSON."""
    try:
        key = str(text.value())
        if text.peek() != ":":
            return None
        text.pos += 1
        if key == "traceEvents":
            is_list = text.peek() == "["
            text.pos += 1
            return key if is_list else None
        notes.metadata[key] = text.value()
    except ValueError:
        return None
    notes.keys.append(key)
    return key


def _skip_to_events(text: _Text, notes: TraceNotes) -> bool:
    """After metadata that is not JSON, go to the events if they are still to come."""
    if notes.found_events:
        if text.final and not text.text.rstrip().endswith("}"):
            notes.truncated = True
        else:
            notes.repaired["unreadable text after the events, ignored"] += 1
        return False
    while not (found := _TRACE_EVENTS.search(text.text, text.pos)):
        text.pos = max(text.pos, len(text.text) - AHEAD_CHARS)
        if not text.more():
            notes.truncated = True
            return False
    text.pos = found.end()
    notes.repaired["unreadable text before the events, ignored"] += 1
    return True


def _array(text: _Text, notes: TraceNotes) -> Iterator[dict[str, Any]]:
    while (char := text.peek(_SPACE_AND_COMMAS)) != "]":
        if not char:
            notes.truncated = True
            return
        if len(text.text) - text.pos < AHEAD_CHARS and not text.final:
            text.ahead(2 * AHEAD_CHARS)
        try:
            event, text.pos = _DECODER.raw_decode(text.text, text.pos)
        except (ValueError, RecursionError) as error:
            event = _damaged_event(text, notes, error)
            if event is None:
                continue
        notes.events += 1
        if isinstance(event, dict):
            yield event
        else:
            notes.dropped["not an object"] += 1
    text.pos += 1


def _damaged_event(text: _Text, notes: TraceNotes, error: Exception) -> Any:
    """Take the text of one event that does not decode here, for the reason `error`; its repair, or None.

    It reaches to where the next event begins, or the list ends; where neither is to be seen the file was cut off.
    """
    while True:
        here, size = text.pos, len(text.text)
        bad = error.pos if isinstance(error, json.JSONDecodeError) else here
        ends_open = bad > size - LONGEST_TOKEN or str(error).startswith("Unterminated string")
        if text.final or not ends_open:
            found = _NEXT_EVENT.search(text.text, max(here + 1, text.text.rfind(",", here, bad)))
            found = found or (_LAST_EVENT.search(text.text, max(here, bad - LONGEST_TOKEN)) if text.final else None)
            if found or text.final:
                break
        if size - here > VALUE_LIMIT_CHARS:
            raise ProfileError(f"{text.path}: not a trace: the value at character {text.passed + here} does not end")
        text.ahead(4 * (size - here) + AHEAD_CHARS)
        try:  # it may have been whole, only longer than the text in front
            event, text.pos = _DECODER.raw_decode(text.text, text.pos)
            return event
        except (ValueError, RecursionError) as again:
            error = again
    if not found:
        notes.truncated, text.pos = True, size
        return None
    stop = found.start() + (found[0][0] == "}")
    candidate, start = text.text[here:stop], text.passed + here
    text.pos = stop
    event = _repaired(candidate, notes)
    if event is None:
        notes.dropped["not valid JSON"] += 1
        if notes.first_bad_char is None:
            notes.first_bad_char = start
    return event


def _repaired(candidate: str, notes: TraceNotes) -> Any:
    numbers = _NOT_FINITE.sub(lambda m: m[1] or "null", candidate)
    slashes = _ESCAPE.sub(lambda m: m[1] or "\\\\", candidate)
    both = _ESCAPE.sub(lambda m: m[1] or "\\\\", numbers)
    for attempt, what in (
        (numbers, "numbers that are not finite, now missing"),
        (slashes, "bare backslashes, doubled"),
        (both, "bare backslashes, doubled"),
    ):
        try:
            event, end = _DECODER.raw_decode(attempt)
        except (ValueError, RecursionError):
            continue
        if not attempt[end:].strip():
            notes.repaired[what] += 1
            return event
    return None
