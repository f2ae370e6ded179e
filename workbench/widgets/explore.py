"""The explorer: move the cuts of a model by hand and see the prediction, why, and what was measured, at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ipywidgets as w
import traitlets as t

from workbench.compose import Composition, cuts_of, from_cuts, operators_in, stage_cuts
from workbench.errors import CompositionError, WorkbenchError
from workbench.figures import difference_table, tile_timeline, timeline_table, waterfall
from workbench.models import MODELS
from workbench.predict import Prediction
from workbench.widgets import texts
from workbench.widgets.controls import CutPanel, RegionPanel, set_choice
from workbench.widgets.cuts import idle_cuts, missing_cuts
from workbench.widgets.drawings import Drawing
from workbench.widgets.sources import Source, open_source, stores

FULL = {"width": "100%", "min_width": "0"}
TILES_DRAWN = 4_000


class Explorer(w.VBox):
    """Choose model, device, batch, cuts and treatments; everything shown follows from these five traits.

    ``cuts`` names boundaries as ``compose.boundaries`` does. ``treatments`` maps a region's first item to how it runs,
    a configuration (``"2x1"``) or an arm (``"replay"``); a region that a cut makes keeps the treatment of the one it
    came from. Where the cuts are not legal, ``composition`` and ``prediction`` are None, ``problem`` says why, and
    ``shown`` is the last legal prediction.
    """

    model = t.Unicode(help="a model of workbench.models")
    device = t.Unicode(help="a label of `stores`")
    batch = t.Int(help="requests")
    cuts = t.Any(frozenset(), help="names of the boundaries that are cut")
    treatments = t.Dict(help="treatment by a region's first item")

    def __init__(self, folders: Mapping[str, Path] | None = None, *, model: str = "demo_tts", batch: int = 1) -> None:
        super().__init__(layout={"width": "100%", "overflow": "hidden"})
        self.folders = stores() if folders is None else dict(folders)
        if not self.folders:
            raise WorkbenchError("no store with benchmarks was found; `workbench bench` makes one (about a minute)")
        self.problem = ""
        self.composition: Composition | None = None
        self.prediction: Prediction | None = None
        self.shown: Prediction | None = None
        self._sources: dict[tuple[str, str, int], Source] = {}
        self._busy = False
        self._build()
        self._busy = True
        self.model, self.device, self.batch = model, next(iter(self.folders)), batch
        self._busy = False
        self._guard(self._open)

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def source(self) -> Source:
        """Pricer, selection and measured runs of the model, device and batch chosen."""
        key = (self.model, self.device, self.batch)
        if key not in self._sources:
            if self.device not in self.folders:
                raise WorkbenchError(f"no device is called {self.device!r}; there are: {', '.join(self.folders)}")
            self._sources[key] = open_source(self.model, self.folders[self.device], self.batch)
        return self._sources[key]

    @t.validate("cuts")
    def _as_frozenset(self, proposal: Any) -> frozenset[str]:
        return frozenset(proposal["value"])

    @t.observe("model", "device", "batch")
    def _source_changed(self, change: Any) -> None:
        if not self._busy:
            if change["name"] == "model":
                self.shown = None
            self._guard(self._open)

    @t.observe("cuts", "treatments")
    def _state_changed(self, change: Any) -> None:
        if not self._busy:
            self._guard(self._refresh)

    def show(self, composition: Composition) -> None:
        """Take over the cuts and treatments of a composition."""
        how = {region.items[0]: str(region.configuration or region.arm) for region in composition.regions}
        self._set(cuts_of(self.source.pricer.program, composition), how)

    def monolith(self) -> None:
        """One megakernel, at the configuration under which it is predicted fastest."""
        self.show(self.source.fastest("monolith"))

    def per_stage(self) -> None:
        """One megakernel a stage, at the configuration under which that is predicted fastest."""
        self.show(self.source.fastest("per-stage"))

    def conventional(self, arm: str) -> None:
        """No megakernel."""
        self.show(self.source.fastest(arm))

    def select_best(self) -> None:
        """The selected best composition."""
        self.show(self.source.selection.best.composition)

    def also_cut(self) -> None:
        """Cut what the loop rule asks for as well."""
        self.cuts = self.cuts | self.missing

    def drop_idle(self) -> None:
        """Drop the cuts that lack what the loop rule asks for."""
        self.cuts = self.cuts - self.idle

    @property
    def missing(self) -> frozenset[str]:
        """The further cuts that the loop rule asks for."""
        return missing_cuts(self.source.pricer.program, self.cuts)

    @property
    def idle(self) -> frozenset[str]:
        """The cuts that lack what the loop rule asks for."""
        return idle_cuts(self.source.pricer.program, self.cuts)

    def _set(self, cuts: Iterable[str], treatments: Mapping[str, str]) -> None:
        """Change both and redraw once."""
        self._busy = True
        try:
            self.cuts, self.treatments = frozenset(cuts), dict(treatments)
        finally:
            self._busy = False
        self._guard(self._refresh)

    def _kinds(self) -> dict[str, str]:
        """Treatment of every item as a region's first: as set, else as in the last legal composition."""
        source = self.source
        kinds = dict.fromkeys(source.pricer.place, str(source.fastest_configuration()))
        if self.shown is not None:
            for region in self.shown.composition.regions:
                how = str(region.configuration or region.arm)
                for name in region.items:
                    depth, i = source.pricer.place[name]
                    inside = {op.name for op in operators_in(source.pricer.levels[depth].items[i])}
                    kinds |= dict.fromkeys([name, *inside], how)
        return kinds | self.treatments
