"""From operators in a row to program text: names of tensors, loops of repeated layers, stages, names of operators.

Every change of a tensor's name (a residual stream is written in place, a layer writes what the layer before wrote) is
tried, and kept only if each read still finds the operator that it found before, all loops unrolled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from workbench.models.torch_fuse import Draft, Tensor, unique
from workbench.program import Loop, Node, Operator, Seq
from workbench.shapes import Argmax, Attention, Conv, Matmul, Shape

DIGITS = "0123456789"
MADE = "\0"  # what keys of tensors start with that are no inputs of the module


@dataclass(frozen=True, slots=True)
class Row:
    """One operator of the text. An empty component of its path is where the number of a folded layer stood."""

    draft: Draft
    path: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    @property
    def alike(self) -> object:
        """What rows have in common that may be iterations of one."""
        draft = self.draft
        return draft.shape, draft.element_bytes, draft.position, len(self.reads), len(self.writes)

    @property
    def residual(self) -> bool:
        """Whether its second read is added to its output, box by box."""
        return isinstance(self.draft.shape, Matmul | Conv) and self.draft.shape.residual

    @property
    def races(self) -> bool:
        """Whether a tile overwrites what another tile of the same call may still read."""
        return any(key in self.writes and (i != 1 or not self.residual) for i, key in enumerate(self.reads))


@dataclass(frozen=True, slots=True)
class Fold:
    """A loop: the rows are its first iteration's."""

    count: int
    path: tuple[str, ...]
    body: tuple[Item, ...]

    @property
    def alike(self) -> object:
        """As for a row."""
        return self.count, tuple(item.alike for item in self.body)


Item = Row | Fold
Stages = Sequence[Sequence[Item]]


def _rows(items: Iterable[Item], *, unrolled: bool = False) -> Iterator[Row]:
    for item in items:
        if isinstance(item, Row):
            yield item
        else:
            for _ in range(item.count if unrolled else 1):
                yield from _rows(item.body, unrolled=unrolled)


def _changed(items: Iterable[Item], change: Callable[[Row], Row]) -> tuple[Item, ...]:
    return tuple(
        change(item) if isinstance(item, Row) else replace(item, body=_changed(item.body, change)) for item in items
    )


def _flow(stages: Stages, outputs: Sequence[str]) -> list[object]:
    """For every read of every call, and for every output, the call that wrote it; its key, if none did."""
    last: dict[str, object] = {}
    found: list[object] = []
    for number, row in enumerate(row for stage in stages for row in _rows(stage, unrolled=True)):
        found.append(tuple(last.get(key, key) for key in row.reads))
        last.update((key, (number, rank)) for rank, key in enumerate(row.writes))
    return [*found, *(last.get(key, key) for key in outputs)]


class Folder:
    """The text, stage by stage, and what each read of it must find."""

    def __init__(self, stages: Stages, outputs: Sequence[str]) -> None:
        self.stages: list[tuple[Item, ...]] = [tuple(stage) for stage in stages]
        self.outputs = tuple(outputs)
        self.truth = _flow(stages, outputs)

    def attempt(self, stages: Stages, keys: Mapping[str, str]) -> bool:
        """Take the text with its tensors renamed, unless a read would find something else, or half of it."""

        def renamed(row: Row) -> Row:
            reads, writes = (tuple(keys.get(key, key) for key in side) for side in (row.reads, row.writes))
            return replace(row, reads=reads, writes=writes)

        changed = [_changed(stage, renamed) for stage in stages]
        outputs = tuple(keys.get(key, key) for key in self.outputs)
        if any(row.races for stage in changed for row in _rows(stage)) or _flow(changed, outputs) != self.truth:
            return False
        self.stages, self.outputs = changed, outputs
        return True

    def write_in_place(self) -> None:
        """A sum takes the name of the residual stream that it is added to, where nobody needs the old value."""
        keys: dict[str, str] = {}
        for row in [row for stage in self.stages for row in _rows(stage) if row.residual]:
            old, new = keys.get(row.reads[1], row.reads[1]), row.writes[0]
            if self.attempt(self.stages, {new: old}):
                keys[new] = old

    def fold(self) -> None:
        """Make loops of neighbours that repeat, shortest body first."""
        for stage in range(len(self.stages)):
            size = 1
            while 2 * size <= len(self.stages[stage]):
                start = 0
                while start + 2 * size <= len(self.stages[stage]):
                    self._fold_at(stage, start, size)
                    start += 1
                size += 1

    def _fold_at(self, stage: int, start: int, size: int) -> None:
        """Make a loop of as many bodies of ``size`` items from ``start`` on as data flow allows."""
        items = self.stages[stage]
        most = 1
        while start + (most + 1) * size <= len(items) and all(
            items[start + i].alike == items[start + most * size + i].alike for i in range(size)
        ):
            most += 1
        for count in range(most, 1, -1):
            bodies = [items[start + i * size : start + (i + 1) * size] for i in range(count)]
            body, path = _numberless(bodies[0], bodies[1])
            folded = (*items[:start], Fold(count, path, body), *items[start + count * size :])
            if self.attempt([*self.stages[:stage], folded, *self.stages[stage + 1 :]], _same_keys(bodies)):
                return


def _same_keys(bodies: Stages) -> dict[str, str]:
    """Keys that make iterations one: each read and write has that which the first iteration mentions first."""
    rows = [list(_rows(body)) for body in bodies]
    parent = {key: key for row in rows[0] for key in (*row.reads, *row.writes)}
    order = {key: place for place, key in enumerate(parent)}

    def find(key: str) -> str:
        while parent.setdefault(key, key) != key:
            key = parent[key]
        return key

    for row, *others in zip(*rows, strict=True):
        for other in others:
            for pair in zip((*row.reads, *row.writes), (*other.reads, *other.writes), strict=True):
                first, second = sorted(map(find, pair), key=lambda key: order.get(key, len(order)))
                parent[second] = first
    return {key: find(key) for key in list(parent) if find(key) != key}


def _numberless(first: Sequence[Item], second: Sequence[Item]) -> tuple[tuple[Item, ...], tuple[str, ...]]:
    """The first iteration without the number that tells it from the second, and the path of what is numbered."""
    theirs = {one.draft: other.path for one, other in zip(_rows(first), _rows(second), strict=True)}
    heads: list[tuple[str, ...]] = []

    def change(row: Row) -> Row:
        other = theirs[row.draft]
        place = next((i for i, (a, b) in enumerate(zip(row.path, other, strict=False)) if a != b), -1)
        if place < 0 or row.path[place].rstrip(DIGITS) != other[place].rstrip(DIGITS):
            heads.append(row.path[:-1])
            return row
        stem = row.path[place].rstrip(DIGITS)
        heads.append((*row.path[:place], stem) if stem else row.path[:place])
        return replace(row, path=(*row.path[:place], stem, *row.path[place + 1 :]))

    body = _changed(first, change)
    return body, min(heads, key=len)


def arrange(drafts: Sequence[Draft], outputs: Sequence[Tensor], name: str) -> tuple[Node, ...]:
    """Stages of operators and loops, all named. Tensors in ``outputs`` keep their values to the end, but for caches.

    A stage is a top-level submodule that has more than one operator, all of them neighbours; operators of others go
    with the stage before. Where fewer than two stages come of this there is one, called ``name``.
    """
    drafts = _late(drafts)
    tensors = unique(tensor for draft in drafts for tensor in (*draft.all_reads, *draft.writes))
    keys = {tensor: f"{MADE}{i}" if tensor.maker else tensor.name for i, tensor in enumerate(tensors)}
    rows = [
        Row(draft, draft.path, *(tuple(keys[tensor] for tensor in side) for side in (draft.all_reads, draft.writes)))
        for draft in drafts
    ]  # fmt: skip
    stages = _stages(rows, name)
    kept = [keys[t] for t in unique(outputs) if t in keys and not (t.maker and len(t.maker.writes) > 1)]
    folder = Folder([stage for _, stage in stages], kept)
    folder.write_in_place()
    folder.fold()
    naming = _Naming([row for stage in folder.stages for row in _rows(stage)])
    return tuple(Seq(title, naming.nodes(items)) for (title, _), items in zip(stages, folder.stages, strict=True))


def _late(drafts: Sequence[Draft]) -> list[Draft]:
    """Residual sums right before their first reader where others read the old value until then."""
    order = list(drafts)
    for draft in reversed(drafts):
        if not (isinstance(draft.shape, Matmul | Conv) and draft.shape.residual):
            continue
        start = order.index(draft)
        readers = (i for i in range(start + 1, len(order)) if draft.writes[0] in order[i].all_reads)
        between = order[start + 1 : next(readers, start)]
        alike = all(other.path[0] == draft.path[0] for other in between)
        if alike and any(draft.added[0].now() in other.all_reads for other in between):
            order[start : start + 1 + len(between)] = [*between, draft]
    return order


def _stages(rows: Sequence[Row], name: str) -> list[tuple[str, list[Row]]]:
    runs = [(head, list(run)) for head, run in groupby(rows, key=lambda row: row.path[0])]
    titles = [head for head, run in runs if len(run) > 1 and not head.isdigit()]
    if len(titles) < 2 or any(count > 1 for head, count in Counter(head for head, _ in runs).items() if head in titles):
        return [(_word(name), list(rows))]
    stages: list[tuple[str, list[Row]]] = []
    before: list[Row] = []
    for head, run in runs:
        if head in titles:
            stages.append((_word(head), [*before, *run]))
            before = []
        elif stages:
            stages[-1][1].extend(run)
        else:
            before.extend(run)
    return stages


class _Naming:
    """Names of operators, loops and tensors: short where that is unique, else the module's path, else numbered."""

    def __init__(self, rows: Sequence[Row]) -> None:
        shorts = Counter(_short(row) for row in rows)
        self.taken: set[str] = set()
        self.operators = {
            row.draft: _free(_short(row) if shorts[_short(row)] == 1 else _full(row), self.taken) for row in rows
        }
        streams = {key for row in rows if row.residual for key in row.writes}
        names = {key for row in rows for key in row.reads if not key.startswith(MADE)}
        self.tensors = {key: key for key in names}
        for row in rows:
            own = self.operators[row.draft]
            outputs = ["q", "kv"] if len(row.writes) > 1 else [_output(row.draft.shape)]
            for key, output in zip(row.writes, outputs, strict=True):
                before = own if output == "out" else own.rpartition(".")[0]
                name = "x" if key in streams else ".".join(part for part in (before, output) if part)
                if key not in self.tensors:
                    self.tensors[key] = _free(name, names)

    def nodes(self, items: Iterable[Item]) -> tuple[Node, ...]:
        """Program text of a level."""
        found: list[Node] = []
        for item in items:
            if isinstance(item, Fold):
                name = _free(_word(".".join(part for part in item.path if part)) or "loop", self.taken)
                found.append(Loop(name, item.count, self.nodes(item.body)))
                continue
            reads, writes = (tuple(self.tensors[key] for key in side) for side in (item.reads, item.writes))
            draft = item.draft
            found.append(
                Operator(
                    name=self.operators[draft], shape=draft.shape, reads=reads, writes=writes,
                    position=draft.position, element_bytes=draft.element_bytes,
                )
            )  # fmt: skip
        return tuple(found)


def _output(shape: Shape) -> str:
    """What an operator's output is called; ``out``: by the operator's own name."""
    if isinstance(shape, Matmul):
        return "f" if shape.gated else "out"
    return {Attention: "a", Argmax: "token"}.get(type(shape), "out")


def _free(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found)
    return found


def _word(name: str) -> str:
    return name.replace("|", "_").replace("@", "_")


def _path(row: Row) -> tuple[str, ...]:
    return row.path if row.path[-1] else (*row.path, type(row.draft.shape).__name__.lower())


def _full(row: Row) -> str:
    return _word(".".join(part for part in _path(row) if part))


def _short(row: Row) -> str:
    """Without what stands between a layer's number and the operator: ``layers.qkv``."""
    *path, leaf = _path(row)
    numbers = [i for i, part in enumerate(path) if not part or part.isdigit()]
    return _word(".".join(part for part in (*path[: numbers[-1] + 1 if numbers else len(path)], leaf) if part))
