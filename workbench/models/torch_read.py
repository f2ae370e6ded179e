"""The walk over an exported ATen graph: what each node's elements come from, and which arithmetic is free or fused.

Casts, views, activations, masks and rotary embedding leave a value's sources as they are; norms are remembered until a
Matmul reads them; sums of two tensors go into the operator that made one of them. Operations that make operators are in
``torch_operators``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from workbench.errors import ProgramError
from workbench.models.torch_fuse import Draft, Drafts, Tensor, Weights, unique
from workbench.models.torch_graph import (
    EXPANSIONS,
    JOINS,
    LIKE,
    LOOKS_AHEAD,
    NO_ATTENTION,
    PLAIN_SUMS,
    POINTWISE,
    VIEWS,
    WAY,
    WAYS,
    WEIGHTED,
    FxNode,
    Place,
    Value,
    arguments,
    beside_of,
    module_of,
    numel,
    operation,
    overlap,
    shape_of,
    sources_of,
    weights_of,
)
from workbench.shapes import Conv, Gather, Matmul, Shape

Handler = Callable[["Reader", FxNode, dict[str, Any]], Value]


class Reader:
    """Walks a graph once, in order; ``drafts`` are the operators so far. Shapes are divided by ``batch``."""

    def __init__(self, exported: Any, batch: int, handlers: Mapping[str, Handler]) -> None:
        self.batch, self.handlers, self.nodes = batch, handlers, list(exported.graph.nodes)
        signature = exported.graph_signature
        self.parameters = dict(signature.inputs_to_parameters)
        self.names = {**self.parameters, **signature.inputs_to_buffers}
        self.inputs = set(signature.user_inputs)
        self.drafts = Drafts()
        self.values: dict[FxNode, Value] = {}
        self.made: dict[Tensor, FxNode] = {}  # where a tensor is complete, what is fused behind it included
        self.absorbed: dict[Tensor, FxNode] = {}  # the addition that a tensor went into
        self.written: dict[FxNode, list[tuple[Place, tuple[Tensor, ...]]]] = {}  # into memory viewed later
        self.beside = 0  # elements read for arithmetic before an operator, which no shape counts
        self.notes: set[str] = set()
        self.live: set[FxNode] = set()
        stack = [node for node in self.nodes if node.op == "output" or operation(node).endswith("_")]
        while stack:
            node = stack.pop()
            if node not in self.live:
                self.live.add(node)
                stack.extend(node.all_input_nodes)

    def read(self) -> list[Tensor]:
        """Fill ``drafts``; the tensors that the module returns."""
        for node in self.nodes:
            if node.op == "output":
                return [tensor for given in node.all_input_nodes for tensor in self.tensor(given).sources]
            if node in self.live:
                value = self._visit(node)
                self.values[node] = value if value.place else replace(value, place=(node,))
        raise AssertionError("a graph without an output")

    def _visit(self, node: FxNode) -> Value:
        if node.op == "placeholder":
            return self._given(node)
        full = operation(node)
        op = full if full in self.handlers else full.removesuffix("_")
        # a view's sources are those of what it views when it is used: what is written there later is in it too
        values = [self.values[given] if op in VIEWS - JOINS else self.value(given) for given in node.all_input_nodes]
        if op in LIKE:
            values = values[:1]
        handler = self.handlers.get(op)
        lookup = op in ("index", "index_select") and values and not values[0].sources and len(shape_of(node)) > 1
        if lookup and values[0].weights and len(values) == 2:
            handler = self.handlers["embedding"]
        elif node.op == "get_attr" or (op not in WEIGHTED and all(value.constant for value in values)):
            return self._constant(node, op, values)
        if op in ("dropout", "feature_dropout") and arguments(node).get("train"):
            raise self.refusal(node, "drops elements at random")
        if handler:
            return handler(self, node, arguments(node))
        if op not in VIEWS | POINTWISE:
            raise self.refusal(node, "has no operator family here")
        value = self._view(node, op, values) if op in VIEWS else self._pointwise(node, op)
        if full != op:  # in place
            self.write(node.all_input_nodes[0], value.sources)
        return value

    def _given(self, node: FxNode) -> Value:
        if node.name in self.names:
            return Value(weights=((self.names[node.name], numel(node)),))
        value = node.meta["val"]
        if node.name not in self.inputs or not hasattr(value, "dtype"):
            return Value()
        control = not (value.dtype.is_floating_point or value.dtype.is_complex)
        return Value((Tensor(node.name, value.dtype.itemsize, control=control),))

    def _constant(self, node: FxNode, op: str, values: Sequence[Value]) -> Value:
        weights = weights_of(values)
        if op in VIEWS and len(values) == 1 and hasattr(node.meta.get("val"), "shape"):  # a part counts as a part
            weights = tuple((name, min(size, numel(node))) for name, size in weights)
        return Value(sources_of(values), weights=weights, place=self._place(node, op, values))

    # -- memory ------------------------------------------------------------------------------------------------------

    def value(self, node: FxNode) -> Value:
        """The value of a node, with what was written since into the memory that it views."""
        value = self.values[node]
        more = [sources for place, sources in self.written.get(value.place[0], ()) if overlap(place, value.place)]
        sources = tuple(unique((*value.sources, *(tensor for group in more for tensor in group))))
        return value if sources == value.sources else replace(value, sources=sources)

    def tensor(self, node: FxNode) -> Value:
        """The value of a node that must be a tensor of its own: no scores of attention, no half of a norm."""
        value = self.value(node)
        if value.scores:
            raise self.refusal(value.scores[0], NO_ATTENTION)
        if value.statistic:
            raise self.refusal(node, "is a sum or mean over a row that is no part of a norm")
        return value

    def write(self, target: FxNode, sources: tuple[Tensor, ...]) -> None:
        """Remember what was written into a view."""
        place = self.values[target].place
        self.written.setdefault(place[0], []).append((place, sources))

    def _place(self, node: FxNode, op: str, values: Sequence[Value]) -> Place:
        if op not in VIEWS - JOINS or not values:
            return (node,)
        place, given = values[0].place, arguments(node)
        if op == "select":
            shape = shape_of(node.all_input_nodes[0])
            dim = given["dim"] % len(shape)
            return (*place, ("select", dim, given["index"] % shape[dim])) if isinstance(given["index"], int) else place
        return place if op == "slice" and not given["start"] and given["step"] == 1 else (*place, node)

    def _view(self, node: FxNode, op: str, values: Sequence[Value]) -> Value:
        shaped = [value for value in values if not value.constant]
        main = next((value for value in shaped if any(tensor.maker for tensor in value.sources)), shaped[0])
        if len(shaped) > 1:
            for given in node.all_input_nodes:
                self.tensor(given)
        copies = main.copies
        if op in EXPANSIONS:
            copies *= max(1, numel(node) // max(1, numel(node.all_input_nodes[0])))
        if op in ("pad", "constant_pad_nd") and arguments(node)["pad"][1:2] > [0]:
            self.notes.add(LOOKS_AHEAD)
        sources = sorted(sources_of(shaped), key=lambda tensor: tensor.maker is None)  # what is remembered comes last
        return replace(
            main, sources=tuple(sources), beside=beside_of(shaped), weights=weights_of(shaped), copies=copies,
            place=self._place(node, op, values), sine=any(value.sine for value in shaped),
        )  # fmt: skip

    # -- arithmetic --------------------------------------------------------------------------------------------------

    def _pointwise(self, node: FxNode, op: str) -> Value:
        tables = [given for given in node.all_input_nodes if self.value(given).constant]
        main = [given for given in node.all_input_nodes if given not in tables]
        values = [self.value(given) for given in main]
        if any(value.scores for value in values):
            return self._on_scores(values)
        every = max((value.sources for value in values), key=len)
        if any(set(value.sources) - set(every) for value in values):
            return self._combined(node, op, main)
        whole = [given for given, value in zip(main, values, strict=True) if not value.statistic]
        halves = [given for given in main if given not in whole]
        if op == "mul" and len(whole) == 2 and (gated := self.gated_halves(node, every)):
            return replace(gated, beside=beside_of(values))
        result = replace(
            self.value((whole or main)[0]), sources=every, beside=beside_of(values), weights=weights_of(values),
            place=(), copies=max(value.copies for value in values),
            sine=op in ("sin", "cos") or any(value.sine for value in values),
        )  # fmt: skip
        if whole and halves and op in ("mul", "div"):
            result = replace(result, normed=self.value(halves[0]).statistic, gains=())
        for table in tables:
            result = self._with_table(node, op, result, table)
        return result

    def _on_scores(self, values: Sequence[Value]) -> Value:
        """Scaling and masking of scores, free before their softmax."""
        scored = [value for value in values if value.scores]
        first = scored[0]
        if any(value.scores != first.scores or value.softmaxed for value in scored):
            raise self.refusal(first.scores[0] if first.scores else None, NO_ATTENTION)
        return replace(first, sources=sources_of(values), place=())

    def _with_table(self, node: FxNode, op: str, value: Value, table: FxNode) -> Value:
        """Arithmetic with parameters: positions, the gain of a norm, a bias, LayerScale, Snake's alpha."""
        names = set(self.parameters.values())
        weights = tuple(weight for weight in self.value(table).weights if weight[0] in names)
        shape, size = shape_of(table), numel(table)
        if not weights or size == 1:
            return value
        if size != max(shape):
            if op != "add":
                raise self.refusal(node, f"takes {weights[0][0]}, parameters of shape {shape} that are no row")
            rows, bytes_ = size // shape[-1], table.meta["val"].dtype.itemsize
            positions = Gather(rows=rows, tables=1, entries=rows, width=shape[-1], extra=True)
            return self.add(node, positions, weights, [], added=value, size=bytes_, leaf="positions")
        if value.normed:
            return replace(value, gains=(*value.gains, *weights))
        maker = value.sources[0].maker
        if not maker or op not in ("add", "mul") or not self.whole(value, node):
            return replace(value, weights=(*value.weights, *weights))
        if isinstance(maker.shape, Matmul) and not maker.shape.gated and maker.shape.outer == size:
            maker.shape = replace(maker.shape, per_column=maker.shape.per_column + 1)
        elif not isinstance(maker.shape, Conv) or op != "add":
            return replace(value, weights=(*value.weights, *weights))
        maker.weights += weights
        return value

    def _combined(self, node: FxNode, op: str, given: Sequence[FxNode]) -> Value:
        """Arithmetic of two tensors: a residual's addition, or gate times up."""
        values = [self.tensor(one) for one in given]
        small = [i for i, one in enumerate(given) if numel(one) < numel(node)]
        if len(small) == 1 and len(given) == 2 and op in ("add", "sub", "mul", "div"):
            return self._broadcast(node, op, values[1 - small[0]], values[small[0]], given[small[0]])
        if op in ("add", "sub") and len(values) == 2 and not small:
            hosts = [i for i in (0, 1) if self.whole(values[i], node)]
            if hosts:
                host = max(hosts, key=lambda i: self.drafts.room(values[i].sources[0]))
                return self._sum(node, values[host], values[1 - host])
        if op == "mul" and len(values) == 2 and not small and all(self.whole(value, node) for value in values):
            gated = self._gated(node, values[0].sources[0], values[1].sources[0])
            if gated:
                return replace(gated, beside=beside_of(values))
        raise self.refusal(node, f"combines {' and '.join(one.name for one in given)}; {PLAIN_SUMS}")

    def _sum(self, node: FxNode, host: Value, other: Value) -> Value:
        (tensor,) = host.sources
        assert tensor.maker
        self.drafts.add_into(tensor.maker, other.sources, partial(self._lone_term, node))
        self.drafts.read_beside(tensor.maker, beside_of((host, other)), 0)
        self.made[tensor] = node
        self.absorbed.update((term, node) for term in other.sources)
        return Value((tensor,))

    def _broadcast(self, node: FxNode, op: str, big: Value, small: Value, given: FxNode) -> Value:
        """A sum or product with a tensor of fewer elements: behind what made the larger, or before what reads it."""
        maker = big.sources[0].maker
        if not maker or not self.whole(big, node):
            self.beside += numel(given)
            return replace(big, beside=tuple(unique((*beside_of((big, small)), *small.sources))), place=())
        shape, rest = shape_of(node), shape_of(given)
        if op == "add" and isinstance(maker.shape, Gather) and rest[rest[:1] == (1,) :] == shape[1:]:  # positions
            return self._sum(node, big, small)
        self.drafts.read_beside(maker, (*beside_of((big, small)), *small.sources), numel(given) // self.batch)
        self.made[big.sources[0]] = node
        return Value(big.sources)

    def gated_halves(self, node: FxNode, sources: tuple[Tensor, ...]) -> Value | None:
        """A product of the two halves of what one Matmul made: gate and up; None where it is not that."""
        shape = sources[0].maker.shape if len(sources) == 1 and sources[0].maker else None
        halved = isinstance(shape, Matmul) and 2 * numel(node) == self.batch * shape.rows * shape.outer
        return self._gated(node, sources[0], sources[0]) if halved and self._lone(sources[0], node) else None

    def _gated(self, node: FxNode, gate: Tensor, up: Tensor) -> Value | None:
        fused = self.drafts.gate(gate, up)
        if fused is None:
            return None
        self.made[fused] = node
        return Value((fused,))

    def whole(self, value: Value, node: FxNode) -> bool:
        """Whether a value is what one operator made, not normalised, and all that is made of it goes into the node."""
        return len(value.sources) == 1 and not value.normed and self._lone(value.sources[0], node)

    def _lone(self, tensor: Tensor, reader: FxNode) -> bool:
        if tensor not in self.made:
            return False
        stack, seen = [self.made[tensor]], {reader}
        while stack:
            for user in stack.pop().users:
                if user in seen or user not in self.live:
                    continue
                if user not in self.values or self.values[user].sources != (tensor,):
                    return False
                seen.add(user)
                stack.append(user)
        return True

    def _lone_term(self, node: FxNode, tensor: Tensor) -> bool:
        return self._lone(tensor, self.absorbed.get(tensor, node))

    # -- operators ---------------------------------------------------------------------------------------------------

    def add(
        self, node: FxNode, shape: Shape, weights: Weights, reads: Sequence[Value], *, gains: Weights = (),
        added: Value | None = None, size: int = 0, leaf: str,
    ) -> Value:  # fmt: skip
        """Append the operator that a node is; ``size`` bytes an element, that of what it reads unless given."""
        sources, also = sources_of(reads), beside_of((*reads, added or Value()))
        size = size or next((tensor.element_bytes for tensor in sources), 4)
        path = self.path(node, weights, leaf)
        more = list(added.sources) if added else []
        draft = Draft(path, shape, list(sources), size, weights, gains, added=more, also=list(also))
        tensor = self.drafts.add(draft)
        self.made[tensor] = node
        return Value((tensor,))

    def rows(self, node: FxNode, given: FxNode, count: int) -> int:
        """``count`` rows of all requests as rows of one; tables of no request (positions) are as they are."""
        if given in self.values and self.values[given].constant and shape_of(given)[:1] != (self.batch,):
            return count
        if count % self.batch:
            raise self.refusal(node, f"has {count} rows, which is not a multiple of the batch {self.batch}")
        return count // self.batch

    def path(self, node: FxNode, weights: Weights, leaf: str) -> tuple[str, ...]:
        """A layer's own name; of a function called with parameters their name; else where it is called, and what."""
        path, kind = module_of(node)
        if weights and kind.endswith(("Linear", "Conv1d", "ConvTranspose1d", "Embedding")):
            found = path
        elif weights:
            found = weights[0][0].removesuffix("weight").rstrip("._")
        else:
            found = f"{path}.{leaf}"
        return tuple(part for part in found.split(".") if part) or (leaf,)

    def refusal(self, node: FxNode, reason: str, way: str = "") -> ProgramError:
        """One line: the node, its module, its operation, the reason and the way out."""
        path, kind = module_of(node)
        where = f"in {path} ({kind.rpartition('.')[2]})" if path else "in the module itself"
        way = WAYS.get(way or operation(node).strip("_"), WAY)
        return ProgramError(f"{node.name} {where}: {node.target} {reason}; {way}")

    def assumed(self) -> str:
        """What is counted otherwise than the module has it, in elements; empty where nothing is."""
        over = under = 0
        counted: set[str] = set()
        for draft in self.drafts.all:
            counted.update(name for name, _ in (*draft.weights, *draft.gains))
            if not isinstance(draft.shape, Gather):
                here = draft.shape.elements(1, draft.position)[0]
                here -= sum(size for _, size in (*draft.weights, *draft.gains))
                over, under = over + max(0, here), under + max(0, -here)
        used = {self.parameters.get(node.name, ""): numel(node) for node in self.live if node.name in self.parameters}
        under += sum(size for name, size in used.items() if name not in counted and size > 1)
        beside = self.beside // self.batch + sum(draft.uncounted for draft in self.drafts.all)
        parts = [f"{over:,} elements of weights counted that the module has not"] if over else []
        parts += [f"{under:,} elements of its parameters not counted"] if under else []
        parts += [f"{beside:,} elements a request not counted that fused arithmetic reads"] if beside else []
        return "; ".join([*parts, *sorted(self.notes)])
