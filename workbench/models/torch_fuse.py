"""Operators as they are gathered from a graph, one after another, and the fusions of megakernels between them.

An operator is a draft until the end, and its tensors are objects without names. Which nodes of a graph call for a
fusion is ``torch_read``'s to say; whether shapes allow it is said here. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import prod

from workbench.shapes import Attention, Conv, Gather, Matmul, Shape, output_size

Weights = tuple[tuple[str, int], ...]  # parameters by name, and how many of its elements


@dataclass(eq=False, slots=True)
class Tensor:
    """What an operator writes, or an input of the module where ``maker`` is None.

    ``control``: an input of whole numbers (ids, positions, masks), with which arithmetic is free. ``into``: the tensor
    that it became part of.
    """

    name: str = ""
    element_bytes: int = 0
    maker: Draft | None = None
    control: bool = False
    into: Tensor | None = None

    def now(self) -> Tensor:
        """The tensor that holds this one's elements after the fusions so far."""
        return self.into.now() if self.into else self


@dataclass(eq=False, slots=True)
class Draft:
    """An operator in the making; ``path`` is its module's name, a component each.

    ``added`` is what its shape reads for an addition that is fused into it, ``also`` what is read beside it for others,
    ``uncounted`` elements a request that no shape has room for. ``weights`` are the parameters that its shape counts,
    ``gains`` those of them that belong to norms.
    """

    path: tuple[str, ...]
    shape: Shape
    reads: list[Tensor]
    element_bytes: int
    weights: Weights = ()
    gains: Weights = ()
    position: int = 0
    added: list[Tensor] = field(default_factory=list)
    also: list[Tensor] = field(default_factory=list)
    uncounted: int = 0
    writes: list[Tensor] = field(default_factory=list)

    @property
    def all_reads(self) -> list[Tensor]:
        """Tensors as they are now. What a Gather adds comes after its indices; a residual is always second."""
        if isinstance(self.shape, Gather) or not self.added:
            return unique((*self.reads, *self.added, *self.also))
        main = self.reads[0].now()
        residual, *rest = unique(self.added)
        return [main, residual, *(t for t in unique((*self.reads, *rest, *self.also)) if t not in (main, residual))]


def unique(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Tensors as they are now, each once, in order."""
    return list(dict.fromkeys(tensor.now() for tensor in tensors))


class Drafts:
    """Operators in an order in which they can run."""

    def __init__(self) -> None:
        self.all: list[Draft] = []

    def add(self, draft: Draft) -> Tensor:
        """Append an operator; its output."""
        draft.writes = [Tensor(element_bytes=draft.element_bytes, maker=draft)]
        self.all.append(draft)
        return draft.writes[0]

    def places(self) -> dict[Draft, int]:
        """Where each operator stands."""
        return {draft: place for place, draft in enumerate(self.all)}

    def room(self, tensor: Tensor) -> tuple[bool, int]:
        """How fit what made a tensor is for an addition: whether its shape counts one more, then how late it runs."""
        maker = tensor.maker
        assert maker
        return isinstance(maker.shape, Matmul | Conv | Gather) and not maker.added, self.places()[maker]

    def merge(self, parts: Sequence[Draft], leaf: str, shape: Matmul, outputs: Sequence[Sequence[Tensor]]) -> Draft:
        """One Matmul for several of one input; the tensors of ``outputs[i]`` become its output i."""
        first = min(parts, key=self.places().__getitem__)
        if len(parts) > 1:
            levels = zip(*(part.path for part in parts), strict=False)
            first.path = (*(names[0] for names in takewhile(lambda names: len(set(names)) == 1, levels)), leaf)
        first.shape, first.uncounted = shape, sum(part.uncounted for part in parts)
        first.weights = tuple(weight for part in parts for weight in part.weights)
        first.gains = tuple(dict.fromkeys(gain for part in parts for gain in part.gains))
        first.writes = [group[0] for group in outputs]
        for group in outputs:
            group[0].maker = first
            for tensor in group[1:]:
                tensor.into = group[0]
        self.all = [draft for draft in self.all if draft is first or draft not in parts]
        return first

    def add_into(self, host: Draft, terms: Sequence[Tensor], lone: Callable[[Tensor], bool]) -> None:
        """Fuse an addition into the operator that made one of its terms and that nothing else has read yet.

        ``lone``: whether nothing reads a tensor but the sum that it went into.
        """
        shape, terms = host.shape, unique(terms)
        inner = host.added[0].now() if host.added else None
        first = terms[0].maker if len(terms) == 1 else None
        if isinstance(shape, Matmul | Conv) and not shape.residual and host.reads:
            host.shape, host.added = replace(shape, residual=True), terms
        elif isinstance(shape, Gather) and first and (tables := _together(first.shape, shape)) and lone(terms[0]):
            host.shape, host.weights = tables, host.weights + first.weights
            host.reads, host.added = unique((*first.reads, *host.reads)), [*first.added, *host.added]
            self.all.remove(first)
        elif isinstance(shape, Gather) and not shape.extra:
            host.shape, host.added = replace(shape, extra=True), terms
        elif inner and inner.maker and not inner.maker.added and lone(inner):  # a + b + c: make it a + (b + c)
            self.add_into(inner.maker, terms, lone)
        else:
            self.read_beside(host, terms, prod(output_size(shape)))
        self._wait(host)

    def read_beside(self, host: Draft, tensors: Sequence[Tensor], elements: int) -> None:
        """Fuse arithmetic with tensors of so many elements, which the operator's shape does not count, behind it."""
        host.also = unique((*host.also, *tensors))
        host.uncounted += elements
        self._wait(host)

    def _wait(self, host: Draft) -> None:
        """An operator that nothing has read yet moves behind what it reads."""
        places = self.places()
        if any(tensor.maker and places[tensor.maker] > places[host] for tensor in host.all_reads):
            self.all.remove(host)
            self.all.append(host)

    def attend(
        self, draft: Draft, queries: Sequence[Tensor], cached: Sequence[Tensor], gains: Weights | None
    ) -> Tensor:
        """Append attention; the products that make its queries, keys and values become one where they have one input.

        ``cached`` are the tensors of keys and values, ``gains`` the parameters of a norm a head, None if there is none.
        """
        shape, asked, cached = draft.shape, unique(queries), unique(cached)
        assert isinstance(shape, Attention)
        maker = asked[0].maker if len(asked) == 1 else None
        mine = [tensor for tensor in cached if tensor.maker and maker and _same_input(tensor.maker, maker)]
        before = [tensor.maker.writes[-1] if tensor.maker else tensor for tensor in cached if tensor not in mine]
        parts = list(dict.fromkeys(part for part in (maker, *(tensor.maker for tensor in mine)) if part))
        columns = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        shapes = _plain(parts, columns)
        if maker and mine and shapes:
            merged = replace(
                shapes[0], outer=columns, heads=shape.head_dim, head_norm=gains is not None,
                per_column=max(part.per_column for part in shapes),
            )  # fmt: skip
            keys = mine if len(parts) > 1 else [Tensor(element_bytes=draft.element_bytes)]
            maker = self.merge(parts, "qkv", merged, [asked, keys])
            maker.position = draft.position
            maker.weights += gains or ()
            if len(draft.path) == 1:  # a function of the whole module: it goes with its product
                draft.path = (*maker.path[:-1], *draft.path)
        joint = maker and len(maker.writes) > 1 and all(tensor.now().maker is maker for tensor in mine)
        draft.reads = unique((*(maker.writes if maker and joint else (*asked, *mine)), *before))
        return self.add(draft)

    def gate(self, gate: Tensor, up: Tensor) -> Tensor | None:
        """Fuse ``act(gate) · up`` of two products of one input, or of the halves of one product; None where it is not.

        Halves are given as one tensor twice.
        """
        parts = list(dict.fromkeys(tensor.maker for tensor in (gate.now(), up.now()) if tensor.maker))
        columns = sum(part.shape.outer for part in parts if isinstance(part.shape, Matmul))
        shapes = _plain(parts, columns)
        if not shapes or columns % 2 or len({(shape.outer, shape.per_column) for shape in shapes}) > 1:
            return None
        merged = replace(shapes[0], outer=columns // 2, gated=True)
        return self.merge(parts, "gate_up", merged, [unique((gate, up))]).writes[0]


def _together(one: Shape, other: Gather) -> Gather | None:
    """Two lookups as one that adds them."""
    if not isinstance(one, Gather) or (one.extra and other.extra):
        return None
    both = replace(other, tables=one.tables + other.tables, extra=one.extra or other.extra)
    return both if replace(one, tables=both.tables, extra=both.extra) == both else None


def _same_input(one: Draft, other: Draft) -> bool:
    alike = one.gains == other.gains and unique(one.also) == unique(other.also)
    return alike and unique(one.reads) == unique(other.reads)


def _plain(parts: Sequence[Draft], columns: int) -> list[Matmul]:
    """Shapes of unfused products of one input that have so many columns together; none where they are not that."""
    shapes = [part.shape for part in parts if isinstance(part.shape, Matmul) and len(part.writes) == 1]
    alike = {(shape.rows, shape.inner, shape.norm) for shape in shapes}
    fused = any(shape.gated or shape.residual for shape in shapes)
    same = all(_same_input(part, parts[0]) and part.element_bytes == parts[0].element_bytes for part in parts)
    right = len(shapes) == len(parts) and len(alike) == 1 and sum(shape.outer for shape in shapes) == columns
    return shapes if right and same and not fused else []
