"""A model as executed to its first output and per further output: a tree of ``Seq``, ``Loop`` and operators.

Conventions: shapes are per request; a batch of B requests has B times the rows. One multiply-add counts as two
FLOPs. Bytes are those moved if nothing stays on chip between operators; weights are counted once a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from workbench.errors import ProgramError
from workbench.shapes import Shape


class Work(NamedTuple):
    """What one call of an operator moves and computes, for a whole batch."""

    weight_bytes: int
    read_bytes: int
    write_bytes: int
    flops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One node of the model's graph.

    ``reads`` and ``writes`` name tensors; the events of a megakernel follow from them. Its position (cached
    tokens before this call) is ``position``, plus the index of loop ``position_loop`` where one is named.
    """

    name: str
    shape: Shape
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    position: int = 0
    position_loop: str = ""
    element_bytes: int = 4

    def at(self, index: Mapping[str, int]) -> int:
        """Position of this call, given the index of every loop around it."""
        return self.position + (index[self.position_loop] if self.position_loop else 0)

    def work(self, batch: int, position: int) -> Work:
        """Bytes and FLOPs of one call on a batch of ``batch`` requests."""
        weights, reads, writes, flops = self.shape.elements(batch, position)
        size = self.element_bytes
        return Work(weights * size, reads * size, writes * size, flops)


@dataclass(frozen=True, slots=True)
class Seq:
    """A named stage: its nodes run in order."""

    name: str
    body: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """``count`` iterations of a body. Its back edge is a boundary of its own."""

    name: str
    count: int
    body: tuple[Node, ...]


Node = Operator | Seq | Loop
Item = Operator | Loop


class Call(NamedTuple):
    """One execution of an operator: the loop indices around it are ``index``."""

    operator: Operator
    index: Mapping[str, int]  # type: ignore[assignment]  # hides tuple.index, which nobody needs of a call

    @property
    def position(self) -> int:
        """Cached tokens before this call."""
        return self.operator.at(self.index)


def items(nodes: tuple[Node, ...]) -> tuple[Item, ...]:
    """The operators and loops of one level of program text, in order; stages are labels and dissolve."""
    found: list[Item] = []
    for node in nodes:
        if isinstance(node, Seq):
            found.extend(items(node.body))
        else:
            found.append(node)
    return tuple(found)


def calls(nodes: tuple[Node, ...], index: Mapping[str, int] | None = None) -> Iterator[Call]:
    """Every operator call of ``nodes`` in execution order, loops unrolled."""
    index = dict(index or {})
    for node in nodes:
        if isinstance(node, Operator):
            yield Call(node, index)
        elif isinstance(node, Seq):
            yield from calls(node.body, index)
        else:
            for i in range(node.count):
                yield from calls(node.body, {**index, node.name: i})


@dataclass(frozen=True, slots=True)
class Program:
    """A model as executed to its first output (``first``) and per further output (``further``).

    ``outputs_ns`` is the playing time of what one further output holds (audio), None for tokens. ``assumed``
    says what about the model is a stand-in; it is shown wherever a prediction for it is.
    """

    name: str
    first: tuple[Node, ...]
    further: tuple[Node, ...]
    parameters: Mapping[str, int] = field(default_factory=dict)
    output_ns: int | None = None
    assumed: str = ""

    def __post_init__(self) -> None:
        check_program(self)

    def operators(self) -> dict[str, Operator]:
        """Operators of the way to the first output by name, in text order."""
        return {op.name: op for op in _walk_operators(self.first)}

    def loops(self) -> dict[str, Loop]:
        """Loops of the way to the first output by name, outer before inner."""
        return {loop.name: loop for loop in _walk_loops(self.first)}

    def stages(self) -> dict[str, str]:
        """Innermost stage of every operator, by operator name."""
        return dict(_walk_stages(self.first, ""))

    def work(self, batch: int) -> Work:
        """Bytes and FLOPs to the first output, all calls together."""
        parts = [call.operator.work(batch, call.position) for call in calls(self.first)]
        return Work(*(sum(column) for column in zip(*parts, strict=True)))

    def __str__(self) -> str:
        head = (
            f"{self.name}: {len(self.operators())} operators, {sum(1 for _ in calls(self.first))} calls to first output"
        )
        return "\n".join([head, *_text(self.first, 1)])


def _text(nodes: tuple[Node, ...], depth: int) -> Iterator[str]:
    pad = "  " * depth
    for node in nodes:
        if isinstance(node, Operator):
            yield f"{pad}{node.name:<22} {type(node.shape).__name__.lower()}"
        elif isinstance(node, Seq):
            yield f"{pad}[{node.name}]"
            yield from _text(node.body, depth + 1)
        else:
            yield f"{pad}loop {node.name} × {node.count}"
            yield from _text(node.body, depth + 1)


def _walk_operators(nodes: tuple[Node, ...]) -> Iterator[Operator]:
    for node in nodes:
        if isinstance(node, Operator):
            yield node
        else:
            yield from _walk_operators(node.body)


def _walk_loops(nodes: tuple[Node, ...]) -> Iterator[Loop]:
    for node in nodes:
        if isinstance(node, Loop):
            yield node
        if not isinstance(node, Operator):
            yield from _walk_loops(node.body)


def _walk_stages(nodes: tuple[Node, ...], stage: str) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, Operator):
            yield node.name, stage
        else:
            yield from _walk_stages(node.body, node.name if isinstance(node, Seq) else stage)


def check_program(program: Program) -> None:
    """Raise ProgramError unless names are unique, loops run, positions resolve and every operator writes a tensor."""
    if not program.first:
        raise ProgramError(f"program {program.name!r} has no operators on the way to its first output")
    for part, nodes in (("first", program.first), ("further", program.further)):
        seen: set[str] = set()
        for name in [op.name for op in _walk_operators(nodes)] + [loop.name for loop in _walk_loops(nodes)]:
            if name in seen:
                raise ProgramError(
                    f"program {program.name!r}, {part}: the name {name!r} stands twice; names are unique"
                )
            if "|" in name or "@" in name:
                raise ProgramError(
                    f"program {program.name!r}, {part}: the name {name!r} holds | or @, as boundaries do"
                )
            seen.add(name)
        _check_nodes(program.name, nodes, ())


def _check_nodes(program: str, nodes: tuple[Node, ...], around: tuple[str, ...]) -> None:
    for node in nodes:
        if isinstance(node, Operator):
            if node.position_loop and node.position_loop not in around:
                raise ProgramError(
                    f"program {program!r}: operator {node.name!r} takes its position from loop "
                    f"{node.position_loop!r}, which is not around it (around it: {', '.join(around) or 'none'})"
                )
            if not node.writes:
                raise ProgramError(f"program {program!r}: operator {node.name!r} writes no tensor")
            continue
        if not node.body:
            raise ProgramError(f"program {program!r}: {type(node).__name__.lower()} {node.name!r} is empty")
        if isinstance(node, Loop) and node.count < 1:
            raise ProgramError(f"program {program!r}: loop {node.name!r} runs {node.count} times; at least 1 is needed")
        _check_nodes(program, node.body, (*around, node.name) if isinstance(node, Loop) else around)
