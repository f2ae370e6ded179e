"""Operators gathered one after another, fused as megakernels fuse them, then folded into loops and stages.

Tensors are objects until the end. Every change of a tensor's name (a residual stream is written in place, a repeated
layer writes what the layer before wrote) is tried and kept only if each read still finds the operator that it found
before, all loops unrolled. Nothing here needs torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from workbench.program import Loop, Node, Operator, Seq
from workbench.shapes import Argmax, Attention, Conv, Gather, Matmul, Shape


@dataclass(eq=False, slots=True)
class Tensor:
    """What an operator writes, or an input of the model where ``maker`` is None.

    ``control``: an input of whole numbers (ids, positions, masks); arithmetic with it is free. ``into``: the tensor
    that it became part of.
    """

    name: str
    element_bytes: int = 0
    maker: Draft | None = None
    control: bool = False
    into: Tensor | None = None

    def now(self) -> Tensor:
        """The tensor that holds this one's elements after the fusions so far."""
        return self.into.now() if self.into else self


@dataclass(eq=False, slots=True)
class Draft:
    """An operator in the making. ``path`` is its module's, a component each; ``parameters`` are those it counts."""

    path: tuple[str, ...]
    shape: Shape
    reads: list[Tensor]
    element_bytes: int
    parameters: tuple[str, ...] = ()
    position: int = 0
    writes: list[Tensor] = field(default_factory=list)


def unique(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Tensors as they are now, each once, in order."""
    return list(dict.fromkeys(tensor.now() for tensor in tensors))


class Drafts:
    """Operators in an order in which they can run, and the fusions that need no more than their shapes."""

    def __init__(self) -> None:
        self.all: list[Draft] = []

    def add(self, draft: Draft) -> Tensor:
        """Append an operator; its output."""
        draft.writes = [Tensor(f"{len(self.all)}", draft.element_bytes, draft)]
        self.all.append(draft)
        return draft.writes[0]

    def merge(self, parts: Sequence[Draft], leaf: str, shape: Matmul, outputs: Sequence[Sequence[Tensor]]) -> Draft:
        """One Matmul for several that read the same; the tensors of ``outputs[i]`` become its output i."""
        first = min(parts, key=self.all.index)
        common = [names[0] for names in zip(*(part.path for part in parts), strict=False) if len(set(names)) == 1]
        if len(parts) > 1:
            first.path = (*common, leaf)
        first.shape = shape
        first.parameters = tuple(dict.fromkeys(name for part in parts for name in part.parameters))
        first.writes = [group[0] for group in outputs]
        for group in outputs:
            group[0].maker = first
            for tensor in group[1:]:
                tensor.into = group[0]
        self.all = [draft for draft in self.all if draft is first or draft not in parts]
        return first

    def add_into(self, host: Draft, others: Sequence[Tensor]) -> bool:
        """Fuse an addition into the operator that made one of its terms; False where its shape has no room for it."""
        shape = host.shape
        if isinstance(shape, Matmul | Conv) and not shape.residual and len(host.reads) == 1:
            host.shape = replace(shape, residual=True)
        elif isinstance(shape, Gather) and not shape.extra:
            first = others[0].maker
            if first and isinstance(first.shape, Gather) and replace(first.shape, tables=shape.tables) == shape:
                host.shape = replace(shape, tables=shape.tables + first.shape.tables)
                host.reads = unique((*first.reads, *host.reads))
                host.parameters += first.parameters
                self.all.remove(first)
                return True
            host.shape = replace(shape, extra=True)
        elif isinstance(shape, Matmul) and shape.residual and len(host.reads) == 2:  # a + b + c: make it a + (b + c)
            inner = host.reads[1].now().maker
            return inner is not None and self._alone(host.reads[1], host) and self.add_into(inner, others)
        else:
            return False
        host.reads.extend(tensor for tensor in unique(others) if tensor not in host.reads)
        if any(tensor.maker and self.all.index(tensor.maker) > self.all.index(host) for tensor in host.reads):
            self.all.remove(host)  # nobody has read it yet, so it may wait for what it adds
            self.all.append(host)
        return True

    def _alone(self, tensor: Tensor, reader: Draft) -> bool:
        others = (draft for draft in self.all if draft is not reader)
        return all(tensor.now() is not read.now() for draft in others for read in draft.reads)

    def attend(
        self, draft: Draft, queries: Sequence[Tensor], cached: Sequence[Tensor], gains: tuple[str, ...] | None
    ) -> Tensor:
        """Append attention; the products that make its queries, keys and values become one where they read the same.

        ``gains`` are the parameters of a norm a head, None where there is none.
        """
        shape = draft.shape
        assert isinstance(shape, Attention)
        tensors = unique((*queries, *cached))
        makers = list(dict.fromkeys(tensor.maker for tensor in tensors))
        columns = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        draft.reads = tensors
        if shapes := _mergeable(makers, columns):
            parts = [maker for maker in makers if maker]
            outputs = [queries, cached] if len(parts) > 1 else [queries, [Tensor("", draft.element_bytes)]]
            merged = replace(
                shapes[0], outer=columns, heads=shape.head_dim, head_norm=gains is not None,
                per_column=max(part.per_column for part in shapes),
            )  # fmt: skip
            product = self.merge(parts, "qkv", merged, [unique(group) for group in outputs])
            product.position = draft.position
            product.parameters += gains or ()
            draft.reads = list(product.writes)
        elif len(makers) == 1 and makers[0] and len(makers[0].writes) == 2:
            draft.reads = list(makers[0].writes)  # merged for an attention before
        return self.add(draft)

    def gate(self, gate: Tensor, up: Tensor) -> Tensor | None:
        """Fuse ``act(gate) · up``, whose parts are two products of one input or the halves of one; None where not."""
        makers = list(dict.fromkeys([gate.maker, up.maker]))
        columns = sum(maker.shape.outer for maker in makers if maker and isinstance(maker.shape, Matmul))
        shapes = _mergeable(makers, columns)
        if not shapes or columns % 2 or len({shape.outer for shape in shapes}) > 1:
            return None
        parts = [maker for maker in makers if maker]
        merged = replace(shapes[0], outer=columns // 2, gated=True)
        return self.merge(parts, "gate_up", merged, [unique((gate, up))]).writes[0]


def _mergeable(makers: Sequence[Draft | None], columns: int) -> list[Matmul]:
    """Shapes of plain products of one input that have so many columns together; none where they are not that."""
    found: list[Matmul] = []
    for maker in makers:
        if maker is None or not isinstance(maker.shape, Matmul) or len(maker.writes) > 1:
            return []
        if maker.shape.gated or maker.shape.residual or unique(maker.reads) != unique(makers[0].reads):  # type: ignore[union-attr]
            return []
        found.append(maker.shape)
    alike = {(shape.rows, shape.inner, shape.norm) for shape in found}
    sizes = {maker.element_bytes for maker in makers if maker}
    return found if len(alike) == len(sizes) == 1 and sum(shape.outer for shape in found) == columns else []


# -- names and loops ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    """One operator of the text. An empty component of its path is where the number of a folded layer stood."""

    draft: Draft
    path: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    @property
    def alike(self) -> object:
        shape = self.draft.shape
        return shape, self.draft.element_bytes, self.draft.position, len(self.reads), len(self.writes)

    @property
    def races(self) -> bool:
        """Whether a tile would overwrite what another tile of the same call still reads."""
        own_box = 1 if isinstance(self.draft.shape, Matmul | Conv) and self.draft.shape.residual else None
        return any(name in self.writes and i != own_box for i, name in enumerate(self.reads))


@dataclass(frozen=True, slots=True)
class _Fold:
    count: int
    path: tuple[str, ...]
    body: tuple[_Item, ...]

    @property
    def alike(self) -> object:
        return self.count, tuple(item.alike for item in self.body)


_Item = _Row | _Fold


def _text(items: Iterable[_Item]) -> Iterator[_Row]:
    for item in items:
        if isinstance(item, _Row):
            yield item
        else:
            yield from _text(item.body)


def _unrolled(items: Iterable[_Item]) -> Iterator[_Row]:
    for item in items:
        if isinstance(item, _Row):
            yield item
        else:
            for _ in range(item.count):
                yield from _unrolled(item.body)


def _over(items: Iterable[_Item], change: Callable[[_Row], _Row]) -> tuple[_Item, ...]:
    return tuple(
        change(item) if isinstance(item, _Row) else replace(item, body=_over(item.body, change)) for item in items
    )


class _Folder:
    """The text, stage by stage, and what each read of it must find."""

    def __init__(self, stages: Sequence[Sequence[_Row]], outputs: Sequence[str]) -> None:
        self.stages: list[tuple[_Item, ...]] = [tuple(stage) for stage in stages]
        self.outputs = tuple(outputs)
        self.truth = self._flow(self.stages, self.outputs)

    @staticmethod
    def _flow(stages: Sequence[Sequence[_Item]], outputs: Sequence[str]) -> list[object]:
        """For every read of every call, and for every output, the call that wrote it (the name, if none did)."""
        last: dict[str, object] = {}
        found: list[object] = []
        for number, row in enumerate(row for stage in stages for row in _unrolled(stage)):
            found.append(tuple(last.get(name, name) for name in row.reads))
            last.update((name, (number, rank)) for rank, name in enumerate(row.writes))
        return [*found, *(last.get(name, name) for name in outputs)]

    def attempt(self, stages: Sequence[Sequence[_Item]], names: Mapping[str, str]) -> bool:
        """Take the text with its tensors renamed, unless a read would find another operator's or a half-written one."""

        def renamed(row: _Row) -> _Row:
            reads, writes = (tuple(names.get(name, name) for name in side) for side in (row.reads, row.writes))
            return replace(row, reads=reads, writes=writes)

        changed = [_over(stage, renamed) for stage in stages]
        outputs = tuple(names.get(name, name) for name in self.outputs)
        if any(row.races for stage in changed for row in _text(stage)) or self._flow(changed, outputs) != self.truth:
            return False
        self.stages, self.outputs = changed, outputs
        return True

    def write_in_place(self) -> None:
        """A sum takes the name of the residual stream that it is added to, where nobody needs the old value."""
        rows = [row for stage in self.stages for row in _text(stage)]
        names: dict[str, str] = {}
        for row in rows:
            if isinstance(row.draft.shape, Matmul | Conv) and row.draft.shape.residual:
                old, new = names.get(row.reads[1], row.reads[1]), row.writes[0]
                if self.attempt(self.stages, {new: old}):
                    names[new] = old

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
        items = self.stages[stage]
        bodies = [items[i : i + size] for i in range(start, len(items) - size + 1, size)]
        alike = [tuple(item.alike for item in body) for body in bodies]
        most = next((n for n, kind in enumerate(alike) if kind != alike[0]), len(alike))
        for count in (most, *range(2, most)):
            if count < 2:
                return
            names, (body, path) = _same_names(bodies[:count]), _numberless(bodies[0], bodies[1])
            folded = (*items[:start], _Fold(count, path, body), *items[start + count * size :])
            if not self.attempt([*self.stages[:stage], folded, *self.stages[stage + 1 :]], names) and count < most:
                return


def _same_names(bodies: Sequence[Sequence[_Item]]) -> dict[str, str]:
    """Names that make the iterations one: each read and write takes the name that the first iteration first had."""
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    rows = [list(_text(body)) for body in bodies]
    for row in rows[0]:
        for name in (*row.reads, *row.writes):
            find(name)
    order = {name: i for i, name in enumerate(parent)}
    for row, *others in zip(*rows, strict=True):
        for other in others:
            for a, b in zip((*row.reads, *row.writes), (*other.reads, *other.writes), strict=True):
                first, second = sorted((find(a), find(b)), key=lambda name: order.get(name, len(order)))
                parent[second] = first
    return {name: find(name) for name in parent if find(name) != name}


def _numberless(first: Sequence[_Item], second: Sequence[_Item]) -> tuple[tuple[_Item, ...], tuple[str, ...]]:
    """The first iteration without the number that tells it from the second, and the path of what is numbered."""
    theirs = {a.draft: b.path for a, b in zip(_text(first), _text(second), strict=True)}
    heads: list[tuple[str, ...]] = []

    def change(row: _Row) -> _Row:
        other = theirs[row.draft]
        if len(other) != len(row.path):
            return row
        path = tuple(
            a if a == b or a.rstrip("0123456789") != b.rstrip("0123456789") else a.rstrip("0123456789")
            for a, b in zip(row.path, other, strict=True)
        )
        place = next((i for i, (a, b) in enumerate(zip(path, row.path, strict=True)) if a != b), len(path) - 1)
        heads.append(path[: place + 1] if path[place] and path != row.path else path[:place])
        return replace(row, path=path)

    body = _over(first, change)
    return body, min(heads, key=len, default=())


def arrange(drafts: Drafts, outputs: Sequence[Tensor], name: str) -> tuple[Node, ...]:
    """Stages of operators and loops, named; tensors too. ``outputs`` keep their values to the end.

    A stage is a top-level submodule with more than one operator, if these stand together; operators of others go with
    their neighbours. Where that leaves one stage it is called ``name``.
    """
    tensors = unique(tensor for draft in drafts.all for tensor in (*draft.reads, *draft.writes))
    key = {tensor: tensor.name if tensor.maker is None else f"\0{i}" for i, tensor in enumerate(tensors)}
    rows = [
        _Row(
            draft, draft.path, tuple(key[t] for t in unique(draft.reads)), tuple(key[t] for t in unique(draft.writes))
        )
        for draft in drafts.all
    ]  # fmt: skip
    stages = _stages(rows, name)
    kept = [key[tensor] for tensor in unique(outputs) if tensor in key]
    folder = _Folder([stage for _, stage in stages], kept)
    folder.write_in_place()
    folder.fold()
    taken = {tensor.name for tensor in tensors if tensor.maker is None}
    naming = _Naming([row for stage in folder.stages for row in _text(stage)], taken)
    return tuple(Seq(title, naming.nodes(items)) for (title, _), items in zip(stages, folder.stages, strict=True))


def _stages(rows: Sequence[_Row], name: str) -> list[tuple[str, list[_Row]]]:
    runs = [(head, list(run)) for head, run in groupby(rows, key=lambda row: row.path[0])]
    often = Counter(head for head, run in runs if len(run) > 1)
    stages: list[tuple[str, list[_Row]]] = []
    before: list[_Row] = []
    for head, run in runs:
        if len(run) > 1:
            stages.append((head, [*before, *run]))
            before = []
        elif stages:
            stages[-1][1].extend(run)
        else:
            before.extend(run)
    if len(stages) < 2 or max(often.values()) > 1:
        return [(_word(name), list(rows))]
    return [(_word(head), run) for head, run in stages]


def _word(name: str) -> str:
    return name.replace("|", "_").replace("@", "_")


_OUTPUTS: dict[type, str] = {Attention: "a", Argmax: "token"}


class _Naming:
    """Names of operators, loops and tensors: short where that is unique, else the module's path, else numbered."""

    def __init__(self, rows: Sequence[_Row], inputs: set[str]) -> None:
        self.taken: set[str] = set()
        shorts = Counter(_short(row) for row in rows)
        self.operators = {
            row.draft: self._free(_short(row) if shorts[_short(row)] == 1 else _full(row)) for row in rows
        }
        writers = Counter(name for row in rows for name in row.writes)
        self.tensors: dict[str, str] = {}
        streams = 0
        for row in rows:
            own = self.operators[row.draft]
            shape = row.draft.shape
            outputs = ["q", "kv"] if len(row.writes) > 1 else [_OUTPUTS.get(type(shape), "out")]
            if isinstance(shape, Matmul) and shape.gated:
                outputs = ["f"]
            for name, output in zip(row.writes, outputs, strict=True):
                if not name.startswith("\0") or name in self.tensors:
                    continue
                streams += writers[name] > 1
                stream = f"x{streams}" if streams > 1 else "x"
                self.tensors[name] = stream if writers[name] > 1 else f"{own}.{output}"
                while self.tensors[name] in inputs:
                    self.tensors[name] += "_"

    def _free(self, name: str) -> str:
        number, found = 1, name
        while found in self.taken:
            number += 1
            found = f"{name}_{number}"
        self.taken.add(found)
        return found

    def nodes(self, items: Iterable[_Item]) -> tuple[Node, ...]:
        """Program text of a level."""
        found: list[Node] = []
        for item in items:
            if isinstance(item, _Fold):
                name = self._free(_word(".".join(part for part in item.path if part) or "loop"))
                found.append(Loop(name, item.count, self.nodes(item.body)))
                continue
            reads, writes = (tuple(self.tensors.get(t, t) for t in side) for side in (item.reads, item.writes))
            draft = item.draft
            found.append(
                Operator(
                    name=self.operators[draft], shape=draft.shape, reads=reads, writes=writes,
                    position=draft.position, element_bytes=draft.element_bytes,
                )
            )  # fmt: skip
        return tuple(found)


def _full(row: _Row) -> str:
    path = row.path if row.path[-1] else (*row.path, type(row.draft.shape).__name__.lower())
    return _word(".".join(part for part in path if part))


def _short(row: _Row) -> str:
    """Without what stands between a layer's number and the operator: ``layers.qkv``."""
    path = row.path if row.path[-1] else (*row.path, type(row.draft.shape).__name__.lower())
    numbers = [i for i, part in enumerate(path[:-1]) if not part or part.isdigit()]
    return _word(".".join(part for part in (*path[: numbers[-1] + 1 if numbers else -1], path[-1]) if part))
