"""What the loop rule asks of a set of cuts: the least to add, or the least to drop, until it is legal.

The rule (``compose``): a cut inside a loop needs the loop's back edge cut, and a cut back edge needs the boundaries on
both sides of the loop cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from workbench.compose import levels
from workbench.program import Item, Loop, Program, items


def asks_for(program: Program) -> dict[str, frozenset[str]]:
    """For every boundary the others that must be cut with it, one step of the rule."""
    found: dict[str, frozenset[str]] = {}
    for level in levels(program):
        around = frozenset({f"{level.around[-1].name}@"} if level.around else ())
        edges = [f"{a.name}|{b.name}" for a, b in pairwise(level.items)]
        found |= dict.fromkeys(edges, around)
        for i, item in enumerate(level.items):
            if isinstance(item, Loop):
                found[f"{item.name}@"] = around | frozenset(edges[max(0, i - 1) : i + 1])
    return found


def missing_cuts(program: Program, cuts: Iterable[str]) -> frozenset[str]:
    """The fewest further boundaries whose cutting makes ``cuts`` legal under the rule; names not known are left alone.

    >>> from workbench.models import load_program
    >>> sorted(missing_cuts(load_program("demo_tts"), {"prefill.qkv|prefill.attention"}))
    ['prefill.embed|prefill.layers', 'prefill.layers@', 'prefill.layers|frames']
    """
    rule, given = asks_for(program), frozenset(cuts)
    reached, todo = set(given), list(given)
    while todo:
        new = rule.get(todo.pop(), frozenset()) - reached
        reached |= new
        todo.extend(new)
    return frozenset(reached) - given


def idle_cuts(program: Program, cuts: Iterable[str]) -> frozenset[str]:
    """The fewest of ``cuts`` whose dropping makes the rest legal: unknown ones, and those that lack what they need."""
    rule, given = asks_for(program), frozenset(cuts)
    kept = given & rule.keys()
    while lacking := {cut for cut in kept if not rule[cut] <= kept}:
        kept -= lacking
    return given - kept


def names_in(item: Item) -> list[str]:
    """An item's name and those of everything in it."""
    inner = [name for part in items(item.body) for name in names_in(part)] if isinstance(item, Loop) else []
    return [item.name, *inner]
