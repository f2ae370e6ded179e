"""The explorer's controls: a toggle a boundary, and a choice of treatment a region. State is in traits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

import ipywidgets as w
import traitlets as t

from workbench.compose import Composition, Level, boundaries, levels
from workbench.program import Loop, Program

WRAP = {"flex_flow": "row wrap", "align_items": "center", "overflow": "hidden"}


class CutPanel(w.VBox):
    """A toggle for every boundary of a program, grouped by level; ``cuts`` holds those that are on."""

    cuts = t.Any(frozenset(), help="names of the boundaries that are cut")

    def __init__(self) -> None:
        super().__init__()
        self.toggles: dict[str, Any] = {}
        self.add_class("wb-cuts")
        self._quiet = False

    def set_program(self, program: Program) -> None:
        """Make the toggles of a program, none of them on."""
        what = boundaries(program)
        stage = program.stages()
        self.toggles = {name: self._toggle(name, text) for name, text in what.items()}
        self.children = [self._row(level, stage) for level in levels(program)]
        self.cuts = frozenset()

    def _toggle(self, name: str, what: str) -> Any:
        label = f"↻ {name} {what.removeprefix('back edge ')}" if name.endswith("@") else name
        toggle = w.ToggleButton(
            description=label, tooltip=f"{name}: {what}", layout={"width": "auto", "margin": "1px 3px 1px 0"}
        )
        toggle.observe(lambda change: self._toggled(name, change["new"]), names="value")
        return toggle

    def _row(self, level: Level, stage: Mapping[str, str]) -> Any:
        names = [f"{a.name}|{b.name}" for a, b in pairwise(level.items)]
        names += [f"{item.name}@" for item in level.items if isinstance(item, Loop)]
        place = f"in loop {level.around[-1].name}" if level.around else "in the program"
        stages = ", ".join(dict.fromkeys(stage[item.name] for item in level.items if item.name in stage))
        head = w.HTML(
            f'<span class="wb-note">{escape(place)}{f" (stage {escape(stages)})" if stages else ""}</span>',
            layout={"margin": f"0 8px 0 {12 * len(level.around)}px", "flex": "0 0 auto"},
        )
        return w.Box([head, *(self.toggles[name] for name in names)], layout=WRAP)

    def _toggled(self, name: str, on: bool) -> None:
        self.toggles[name].button_style = "warning" if on else ""
        if not self._quiet:
            self.cuts = self.cuts | {name} if on else self.cuts - {name}

    @t.observe("cuts")
    def _sync(self, change: Any) -> None:
        self._quiet = True
        try:
            for name, toggle in self.toggles.items():
                toggle.value = name in change["new"]
        finally:
            self._quiet = False


class RegionPanel(w.VBox):
    """How each region of a composition is run; ``treatments`` maps a region's first item to a treatment."""

    treatments = t.Dict(help="treatment by a region's first item: a configuration (2x1) or an arm (replay)")

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[str, tuple[Any, Any, Any]] = {}
        self._quiet = False

    @property
    def choices(self) -> dict[str, Any]:
        """The dropdown of each region shown, by its first item."""
        shown: set[Any] = set(self.children)
        return {first: choice for first, (row, _, choice) in self._rows.items() if row in shown}

    def show(self, composition: Composition, options: Sequence[str]) -> None:
        """Show the regions of a composition, each with its treatment."""
        rows, chosen = [], {}
        self._quiet = True
        try:
            for number, region in enumerate(composition.regions, start=1):
                first, how = region.items[0], str(region.configuration or region.arm)
                row, label, choice = self._row(first)
                last = "" if len(region.items) == 1 else f" … {region.items[-1]}"
                label.value = f"{number}. {escape(first + last)}"
                set_choice(choice, options, how)
                chosen[first] = how
                rows.append(row)
            self.treatments = chosen
            self.children = rows
        finally:
            self._quiet = False

    def _row(self, first: str) -> tuple[Any, Any, Any]:
        if first not in self._rows:
            label = w.HTML(layout={"flex": "1 1 auto", "min_width": "0", "overflow": "hidden"})
            choice = w.Dropdown(layout={"width": "96px", "flex": "0 0 auto"})
            choice.observe(lambda change: self._chosen(first, change["new"]), names="value")
            self._rows[first] = w.HBox([label, choice], layout={"flex": "0 0 auto"}), label, choice
        return self._rows[first]

    def _chosen(self, first: str, how: str | None) -> None:
        if not self._quiet and how is not None:
            self.treatments = {**self.treatments, first: how}


def set_choice(choice: Any, options: Iterable[Any], value: Any) -> None:
    """Set a dropdown; a value that is not among the options is added, so that a state from Python can be shown."""
    wanted = tuple(dict.fromkeys([*options, value]))
    if tuple(choice.options) != wanted:
        choice.options = wanted
    if choice.value != value:
        choice.value = value
