"""Profiles: what a run's kernels did and when.

    file ─► identify (sniff) ─► one reader a format (kineto) ─► kernel table, checked ─┬─► attribute_kernels
                                                             └► LoadReport             └─► stream_gaps

| module | holds |
|---|---|
| `kernels` | the canonical table: its columns, its check, and interval arithmetic on it |
| `sniff` | what a file is, by content; the words of a refusal |
| `json_events` | whole events out of a large, cut or damaged Chrome trace |
| `nesting` | which spans of a thread lie in which |
| `kineto` | torch.profiler's Chrome trace, five eras, CUDA, ROCm and CPU |
| `report` | `LoadReport` and `Profile` |
| `attribute` | kernels to operators; gaps |

To add a format: a module with ``read(file: FileKind) -> Profile``, one row in `READERS`, a pattern in `sniff`.
"""

import os
from collections.abc import Callable

from workbench.errors import ProfileError
from workbench.profiles import kineto
from workbench.profiles.attribute import attribute_kernels, operator_summary, stream_gaps
from workbench.profiles.kernels import (
    ANNOTATION_SEPARATOR,
    KERNEL_COLUMNS,
    check_kernels,
    only_kernels,
)
from workbench.profiles.report import LoadReport, Profile
from workbench.profiles.sniff import FileKind, identify

__all__ = [
    "ANNOTATION_SEPARATOR",
    "KERNEL_COLUMNS",
    "READERS",
    "FileKind",
    "LoadReport",
    "Profile",
    "attribute_kernels",
    "check_kernels",
    "identify",
    "load",
    "only_kernels",
    "operator_summary",
    "stream_gaps",
]

READERS: dict[str, Callable[[FileKind], Profile]] = {"kineto": kineto.read, "json-object": kineto.read}


def load(path: str | os.PathLike[str]) -> Profile:
    """Read a profile of any supported format, told from its content.

    Raises
    ------
    ProfileError
        One line: what the file is, why it cannot be read, and the way out.
    """
    file = identify(path)
    reader = READERS.get(file.kind)
    if reader is None:
        raise file.refusal()
    try:
        return reader(file)
    except OSError as error:
        raise ProfileError(f"{file.path}: cannot be read: {error.strerror or error}") from error
