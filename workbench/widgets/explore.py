"""The explorer: move the cuts of a model by hand and see the prediction, why, and what was measured, at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ipywidgets as w
import traitlets as t

from workbench.compose import Composition, conventional, cuts_of, from_cuts
from workbench.errors import CompositionError, WorkbenchError
from workbench.models import MODELS
from workbench.predict import Prediction
from workbench.widgets import texts
from workbench.widgets.controls import set_choice
from workbench.widgets.cuts import idle_cuts, missing_cuts, names_in
from workbench.widgets.sources import Source, devices, open_source
from workbench.widgets.view import View


class Explorer(w.VBox):
    """Choose model, device, batch, cuts and treatments; everything shown follows from these five traits.

    ``cuts`` names boundaries as ``compose.boundaries`` does. ``treatments`` maps a region's first item to how it runs,
    a configuration (``"2x1"``) or an arm (``"replay"``); a region that a cut makes keeps the treatment of the one it
    came from. Where the cuts are not legal, ``composition`` and ``prediction`` are None, ``problem`` says why, and
    ``shown`` is the last legal prediction. What else goes wrong is in ``error``, in words.
    """

    model = t.Unicode(help="a model of workbench.models")
    device = t.Unicode(help="a label of `sources.devices`")
    batch = t.Int(help="requests")
    cuts = t.Any(frozenset(), help="names of the boundaries that are cut")
    treatments = t.Dict(help="treatment by a region's first item")

    def __init__(self, folders: Mapping[str, Path] | None = None, *, model: str = "demo_tts", batch: int = 1) -> None:
        """``folders`` are the devices to choose from, by label: a store's folder or a GPU's file each."""
        super().__init__(layout={"width": "100%", "overflow": "hidden"})
        self.folders = devices() if folders is None else dict(folders)
        if not self.folders:
            raise WorkbenchError("no device was found; `workbench bench` makes one of this machine (about a minute)")
        self.problem, self.error = "", ""
        self.composition: Composition | None = None
        self.prediction: Prediction | None = None
        self.shown: Prediction | None = None
        self._sources: dict[tuple[str, str, int], Source] = {}
        self._rows: dict[str, list[object]] = {}
        self._program, self._busy, self._guarding = "", True, False
        self.model, self.device, self.batch = model, next(iter(self.folders)), batch
        self._busy = False
        self.view = View()
        self.children = [self.view]
        self._connect()
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
        if isinstance(proposal["value"], str):
            raise t.TraitError(f"cuts={proposal['value']!r}: expected a set of boundary names, as in {{'frames@'}}")
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
        self.show(conventional(self.source.pricer.program, arm))

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
        pricer = self.source.pricer
        kinds = dict.fromkeys(pricer.place, str(self.source.configuration))
        if self.shown is not None:
            for region in self.shown.composition.regions:
                how = str(region.configuration or region.arm)
                if how in pricer.treatments:
                    for name in region.items:
                        depth, i = pricer.place[name]
                        kinds |= dict.fromkeys(names_in(pricer.levels[depth].items[i]), how)
        return kinds | self.treatments

    # -- view ----------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        view = self.view
        for name in ("model", "device", "batch"):
            getattr(view, name).observe(partial(self._picked, name), names="value")
        view.everywhere.observe(self._treat_all, names="value")
        view.cuts.observe(lambda change: self.set_trait("cuts", change["new"]), names="cuts")
        view.regions.observe(lambda change: self.set_trait("treatments", change["new"]), names="treatments")
        view.also_cut.on_click(lambda _: self._guard(self.also_cut))
        view.drop_idle.on_click(lambda _: self._guard(self.drop_idle))

    def _picked(self, name: str, change: Any) -> None:
        if not self._busy and change["new"] is not None:
            self.set_trait(name, change["new"])

    def _treat_all(self, change: Any) -> None:
        """Run every region in one way."""
        if not self._busy and change["new"] and self.composition is not None:
            self.treatments = {region.items[0]: change["new"] for region in self.composition.regions}

    def _guard(self, act: Callable[[], None]) -> None:
        """Do something and show what goes wrong in words: an exception in a callback is otherwise seen by nobody."""
        outermost, self._guarding = not self._guarding, True
        if outermost:
            self.error = ""
        try:
            act()
        except WorkbenchError as error:
            self.error = str(error)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            if outermost:
                self._guarding = False
                self.view.show_error(self.error)

    def _open(self) -> None:
        """Take over a model, device and batch."""
        view = self.view
        view.show_busy(f"Pricing and selecting: {self.model} on {self.device}, batch {self.batch} …")
        try:
            source = self.source
        except WorkbenchError:
            self.composition = self.prediction = self.shown = None
            view.hide()
            raise
        pricer = source.pricer
        self._busy = True
        try:
            set_choice(view.model, sorted(MODELS), self.model)
            set_choice(view.device, self.folders, self.device)
            set_choice(view.batch, source.batches, self.batch)
            set_choice(view.everywhere, ("", *pricer.treatments), "")
            if self._program != self.model:
                view.cuts.set_program(pricer.program)
                self._program = self.model
        finally:
            self._busy = False
        arms = {arm: partial(self.conventional, arm) for arm in pricer.arms}
        designs: dict[str, Callable[[], None]] = {
            "monolith": self.monolith,
            "per stage": self.per_stage,
            **arms,
            "select best": self.select_best,
        }
        view.set_designs({name: partial(self._guard, act) for name, act in designs.items()})
        self._rows = texts.measured_rows(source.samples, self.batch, source.measured)
        if self.shown is None:
            self.monolith()
        elif set(self.treatments.values()) <= set(pricer.treatments):
            self._refresh()
        else:  # of another device: keep the cuts
            self._set(self.cuts, {})

    def _refresh(self) -> None:
        """Follow the cuts and treatments: compose, predict, redraw."""
        source, view = self.source, self.view
        view.cuts.cuts = self.cuts
        try:
            found = from_cuts(source.pricer.program, self.cuts, self._kinds())
            found = Composition(found.regions, source.names.get(found.digest, ""))
            prediction = source.pricer.predict(found)
        except WorkbenchError as error:
            self.problem, self.composition, self.prediction = str(error), None, None
            ways = (sorted(self.missing), sorted(self.idle)) if isinstance(error, CompositionError) else ((), ())
            view.refuse(self.problem, self.shown is not None, *ways)
            return
        self.problem, self.composition, self.prediction, self.shown = "", found, prediction, prediction
        view.refuse("", False, (), ())
        self._busy = True
        try:
            view.regions.show(found, source.pricer.treatments)
            self.treatments = view.regions.treatments
            set_choice(view.everywhere, ("", *source.pricer.treatments), "")
        finally:
            self._busy = False
        view.draw(source.pricer, prediction, source.selection.best)
        view.show_measured(self._rows, found.digest, source.note)

    def as_text(self) -> str:
        """What the explorer shows, as text: for a page without scripts, a terminal or a log."""
        if self.shown is None:
            return self.error or self.problem
        source, cuts = self.source, cuts_of(self.source.pricer.program, self.shown.composition)
        return texts.as_text(self.shown, source.selection.best, self.problem, cuts, self._rows, source.note)
