"""The host's side of the persistent kernel: tensors placed in its four memories, records of tiles, and the launch.

It needs torch's tensors and a GPU, or Triton's interpreter (``TRITON_INTERPRET=1``, on the CPU, fp32: its bf16 is
silently wrong). Blocks run one after another there, so a tile may only wait for tiles of its own block or of earlier
ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.bodies import kernel, words
from workbench.bodies.table import KINDS
from workbench.errors import GraphError

UNIT, RECORD = words.UNIT.value, words.RECORD.value
INT32 = 2**31


@dataclass
class Memory:
    """One of the kernel's memories, filled from its start: rows padded to whole units with zeros."""

    flat: Any  # a torch tensor of one dimension
    used: int = 0  # units

    def place(self, tensor: Any) -> tuple[int, int]:
        """Copy rows in; returns where they are and the step between them, both in units."""
        rows = tensor.reshape(-1, tensor.shape[-1])
        step = -(-rows.shape[1] // UNIT)
        at = self.used
        self.used += step * rows.shape[0]
        if self.used * UNIT > len(self.flat):
            raise GraphError(f"a memory of {len(self.flat)} elements is full; {self.used * UNIT} are needed")
        self.read(at, step, *rows.shape).copy_(rows)
        return at, step

    def read(self, at: int, step: int, rows: int, columns: int) -> Any:
        """Rows as they are now, a view."""
        return self.flat[at * UNIT : (at + step * rows) * UNIT].reshape(rows, step * UNIT)[:, :columns]


@dataclass
class Queue:
    """Static queues of tiles, one a block, and the events between them."""

    blocks: int = 1
    events: int = 0
    _records: list[list[list[int]]] = field(default_factory=list)
    _edges: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._records = [[] for _ in range(self.blocks)]

    def event(self) -> int:
        """A new event."""
        self.events += 1
        return self.events - 1

    def tile(
        self,
        kind: str,
        block: int = 0,
        waits: Iterable[tuple[int, int]] = (),
        signals: Iterable[tuple[int, int]] = (),
        **operands: int,
    ) -> None:
        """Append a tile; ``operands`` are words by name in small letters, those not given are NONE.

        ``waits`` are events with their thresholds, ``signals`` with their increments. GraphError where a word has no
        such name or does not fit into 32 bits.
        """
        record = [words.NONE.value] * RECORD
        for name, value in operands.items():
            index = getattr(words, name.upper(), None)
            if index is None:
                raise GraphError(f"a record has no word {name!r}; names are those of `bodies.words`")
            if not -INT32 <= value < INT32:
                raise GraphError(f"word {name} is {value}; 32 bits hold it if it is given in units of {UNIT}")
            record[index.value] = value
        record[words.OPCODE.value] = KINDS.index(kind)
        for first, count, given in ((words.WAIT, words.WAITS, waits), (words.SIGNAL, words.SIGNALS, signals)):
            edges = list(given)
            record[first.value], record[count.value] = len(self._edges), len(edges)
            self._edges += edges
        self._records[block].append(record)

    def arrays(self) -> tuple[NDArray[np.int32], ...]:
        """Records, their bounds by block, edges, and events at zero."""
        records = np.array([record for own in self._records for record in own], np.int32).reshape(-1, RECORD)
        bounds = np.cumsum([0, *map(len, self._records)], dtype=np.int32)
        edges = np.array(self._edges or [(0, 0)], np.int32)
        return records, bounds, edges, np.zeros(max(1, self.events), np.int32)

    def kinds(self) -> frozenset[str]:
        """Kinds of bodies that its tiles need."""
        return frozenset(KINDS[record[words.OPCODE.value]] for own in self._records for record in own)

    def run(
        self,
        weights: Memory,
        values: Memory,
        sums: Memory,
        tokens: Any,
        tiles: Mapping[str, int],
        kinds: frozenset[str] | None = None,
        called: bool = False,
        warps: int = 8,
    ) -> None:
        """Launch the kernel once on these memories; blocks must all fit on the device at once."""
        arrays = [tokens.new_tensor(array) for array in self.arrays()]
        kernel.persistent[(self.blocks,)](
            *arrays, weights.flat, values.flat, sums.flat, tokens,
            kinds=bits(kinds or self.kinds()), called=called, num_warps=warps, **tiles,
        )  # fmt: skip


def bits(kinds: Iterable[str]) -> int:
    """Kinds as the kernel's ``kinds``."""
    return sum(1 << KINDS.index(kind) for kind in set(kinds))
