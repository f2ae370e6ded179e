"""How far a choice hangs on the numbers of a device: one quantity at a time, and where another composition wins.

Of a GPU the quantities are those of its file that are no count of what an SM holds, and the prefetch depth; of another
device each overhead of each way to run a region. A quantity is scaled alone, everything else stays, and what follows
from it follows (bandwidth and the time to load a tile, say).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import floor, isclose, sqrt
from typing import TYPE_CHECKING

from workbench.compose import Composition
from workbench.cost import Costs, Roofline
from workbench.errors import CompositionError, WorkbenchError
from workbench.gpu import OVERHEADS, Gpu
from workbench.hardware import MECHANISM_FIELDS, Device
from workbench.predict import ILLEGAL_NS, Pricer
from workbench.search import Selection, k_best, named_compositions

if TYPE_CHECKING:
    import pandas as pd

SPAN = 4.0  # quantities are scaled from 1/SPAN to SPAN
TOLERANCE = 1e-3  # of a quantity that is not whole, relative: how closely a flip is found
# Left out: what the configurations are made for; the spread, which moves no prediction; one of two that are multiplied.
LEFT_OUT = (
    "sm_count", "shared_bytes_per_sm", "shared_bytes_per_block", "registers_per_sm", "threads_per_sm", "error_frac",
    "achieved_frac", "measured_dram_bytes_per_s",
)  # fmt: skip
TOGETHER = {"dram_bytes_per_s": ("dram_bytes_per_s", "measured_dram_bytes_per_s")}
SAID = {
    "clock_hz": "SM clock",
    "dram_bytes_per_s": "DRAM bandwidth",
    "l2_bytes": "L2 size",
    "bf16_flops_per_s": "tensor-core peak",
    "eager_gap_ns": "eager launch gap",
    "graph_gap_ns": "captured graph's launch gap",
    "kernel_ramp_ns": "kernel ramp",
    "launch_ns": "host's launch",
    ".launch_ns": "launch",
    "gap_ns": "launch gap",
    "dispatch_ns": "tile dispatch",
    "event_ns": "event latency",
    "signal_ns": "signal",
    "drain_ns": "drain",
    "host_ns": "host's time before the first launch",
    "latency_ns": "DRAM latency",
    "bytes_in_flight_per_warp": "bytes in flight of a warp",
    "l2_over_dram": "L2 bandwidth over DRAM's",
    "compute_frac": "share of peak arithmetic",
    "prefetch_depth": "prefetch depth",
}
UNITS = {
    "_bytes_per_s": (1e9, " GB/s"),
    "_flops_per_s": (1e12, " TFLOP/s"),
    "_hz": (1e9, " GHz"),
    "_ns": (1e3, " µs"),
    "_bytes": (2**20, " MiB"),
}
COLUMNS = (
    "quantity", "value", "low", "high", "best_low_ns", "rival_low_ns", "best_high_ns", "rival_high_ns", "flip_below",
    "below", "flip_above", "above", "fastest_low", "fastest_low_ns", "fastest_high", "fastest_high_ns",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Knob:
    """One quantity of a pricer's device: its value, and the pricer that another value would make."""

    name: str
    value: float
    whole: bool
    pricer: Callable[[float], Pricer]
    most: float = float("inf")

    def scaled(self, factor: float) -> float:
        """The value times a factor, as far as it may go."""
        found = min(self.value * factor, self.most)
        return float(floor(found)) if self.whole else found

    def said(self, value: float) -> str:
        """The value with its unit."""
        for ending, (size, unit) in UNITS.items():
            if self.name.endswith(ending):
                return f"{value / size:,.4g}{unit}"
        return f"{value:,.4g}"

    def __str__(self) -> str:
        arm, _, field = self.name.rpartition(".")
        said = SAID.get(f".{field}" if arm else field, SAID.get(field, field))
        return f"{arm}'s {said}" if arm else said


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """``table``: a row a quantity. ``sentences``: first what is claimed, then one a quantity.

    Of the table: ``best`` and ``rival`` are the times of the composition chosen and of the fastest of its rivals at the
    ends of the range, missing where none can run; ``flip_below`` is the least value found at which the choice still
    holds going down, missing where it holds at all that were tried, ``below`` who wins beyond it, and likewise going
    up; ``fastest`` is the best of all compositions at an end, missing if that was not asked for.
    """

    table: pd.DataFrame
    sentences: tuple[str, ...]


def knobs(pricer: Pricer) -> list[Knob]:
    """The quantities of a pricer's device that are not 0; of a GPU's those of its file."""
    if isinstance(pricer.table, Roofline):
        return list(_gpu_knobs(pricer, pricer.table))
    return list(_device_knobs(pricer))


def rivals_of(selection: Selection) -> list[Composition]:
    """The fastest shortlisted composition of each other shape than the best one's, fastest first."""
    first: dict[str, Composition] = {}
    for prediction in selection.shortlist:
        first.setdefault(prediction.composition.shape, prediction.composition)
    first.pop(selection.best.composition.shape)
    return list(first.values())


def sensitivity(
    pricer: Pricer,
    best: Composition,
    rivals: Sequence[Composition],
    *,
    span: float = SPAN,
    ends: bool = True,
    chosen: Sequence[Knob] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Sensitivity:
    """Scale each quantity (``knobs``) alone from 1/``span`` to ``span``: where is a rival faster than ``best``?

    Tried are the ends and their square roots, each way from the value outwards; between the last at which ``best`` is
    not slower and the first at which a rival is faster, interpolation and bisection by turns find a place where that
    changes, to 1 of a whole quantity or TOLERANCE. A choice that flips and flips back between two that were tried is
    not seen. With ``ends`` the exact search over all compositions runs at both ends of every quantity. ``tick`` is
    called after each.

    WorkbenchError if there is no rival, or one is faster than ``best`` to begin with.
    """
    import pandas as pd

    if not rivals:
        raise WorkbenchError("no rival: a choice flips to another composition, so name one")
    base = _Times(pricer, best, rivals)
    if base.rival_ns < base.best_ns:
        raise WorkbenchError(f"{_name(base.rival)} is faster than {_name(best)} to begin with: choose it instead")
    known = {c.digest: c for c in (*named_compositions(pricer), best, *rivals)}

    def fastest_of_all(value: float) -> tuple[int, Composition]:
        ns, found = k_best(knob.pricer(value), 1)[0]
        return ns, known.get(found.digest, found)

    rows, sentences = [], [_claim(best, rivals, span, ends)]
    for knob in knobs(pricer) if chosen is None else chosen:
        low, high = (_explore(knob, base, (sqrt(end), end)) for end in (1 / span, span))
        fastest = [fastest_of_all(way.value) if ends else None for way in (low, high)]
        rows.append(_row(knob, low, high, fastest))
        sentences.append(_sentence(knob, low, high, fastest))
        tick()
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return Sensitivity(table.astype({name: "Int64" for name in COLUMNS if name.endswith("_ns")}), tuple(sentences))


# -- quantities --------------------------------------------------------------------------------------------------------


def _gpu_knobs(pricer: Pricer, table: Roofline) -> Iterator[Knob]:
    gpu = table.gpu

    def at(name: str) -> Callable[[float], Pricer]:
        def make(value: float) -> Pricer:
            scale = value / gpu[name]
            changed = {
                each: replace(gpu.quantities[each], value=value if each == name else gpu[each] * scale)
                for each in TOGETHER.get(name, (name,))
                if each in gpu.quantities
            }
            other = replace(gpu, quantities={**gpu.quantities, **changed})
            return _again(pricer, other.device(), _priced(table, other))

        return make

    for name, quantity in gpu.quantities.items():
        whole = name in OVERHEADS
        value = float(floor(quantity.value)) if whole else quantity.value
        if name not in LEFT_OUT and value:
            yield Knob(name, value, whole, at(name), 1.0 if name.endswith("_frac") else float("inf"))
    if depth := pricer.device.prefetch_depth:
        yield Knob(
            "prefetch_depth", depth, True,
            lambda value: _again(pricer, replace(gpu.device(), prefetch_depth=int(value)), table),
        )  # fmt: skip


def _priced(table: Roofline, gpu: Gpu) -> Roofline:
    """The roofline of another GPU, with the same configurations."""
    found = Roofline(gpu)
    found.configurations, found.kernel_configurations = table.configurations, table.kernel_configurations
    return found


def _device_knobs(pricer: Pricer) -> Iterator[Knob]:
    device = replace(pricer.device, host_ns=pricer.device.host_ns - pricer.host.first_ns)

    def at(arm: str, field: str, value: float) -> Callable[[float], Pricer]:
        def make(other: float) -> Pricer:
            entries = {
                workers: replace(o, **{field: round(getattr(o, field) * other / value)})
                for workers, o in device.overheads[arm].items()
            }
            return _again(pricer, replace(device, overheads={**device.overheads, arm: entries}), pricer.table)

        return make

    for arm in ("megakernel", *pricer.arms):
        most = device.overheads[arm][max(device.overheads[arm])]
        for field in MECHANISM_FIELDS:
            if value := getattr(most, field):
                yield Knob(f"{arm}.{field}", value, True, at(arm, field, value))
    if device.host_ns:
        yield Knob(
            "host_ns", device.host_ns, True,
            lambda value: _again(pricer, replace(device, host_ns=int(value)), pricer.table),
        )  # fmt: skip


def _again(pricer: Pricer, device: Device, table: Costs) -> Pricer:
    return Pricer(
        pricer.program, device, table, pricer.batch, pricer.configurations, pricer.arms, host=pricer.host
    )  # fmt: skip


# -- where the choice flips --------------------------------------------------------------------------------------------


class _Times:
    """What the composition chosen and the fastest of its rivals take."""

    def __init__(self, pricer: Pricer, best: Composition, rivals: Sequence[Composition]) -> None:
        self.best, self.rivals = best, rivals
        self.best_ns = _total_ns(pricer, best)
        totals = [_total_ns(pricer, rival) for rival in rivals]
        self.rival_ns = min(totals)
        self.rival = rivals[totals.index(self.rival_ns)]

    @property
    def margin_ns(self) -> int:
        """By how much the choice is faster than its fastest rival."""
        return self.rival_ns - self.best_ns

    @property
    def flipped(self) -> bool:
        return self.margin_ns < 0

    @property
    def least_ns(self) -> int:
        return min(self.best_ns, self.rival_ns)

    def like(self, other: _Times) -> bool:
        """Whether a change of the device changed nothing."""
        return (self.best_ns, self.rival_ns) == (other.best_ns, other.rival_ns)

    def at(self, pricer: Pricer) -> _Times:
        """The same at another pricer."""
        return _Times(pricer, self.best, self.rivals)


def _total_ns(pricer: Pricer, composition: Composition) -> int:
    """ILLEGAL_NS if it cannot run."""
    try:
        for region in composition.regions:
            pricer.check_resources(region)
    except CompositionError:
        return ILLEGAL_NS
    return min(pricer.total_ns(composition), ILLEGAL_NS)


@dataclass(frozen=True, slots=True)
class _Way:
    """One way from a quantity's value: its end and the times there; where the choice last held, and who wins beyond."""

    value: float
    times: _Times
    held: float | None
    winner: Composition | None


def _explore(knob: Knob, base: _Times, factors: tuple[float, ...]) -> _Way:
    end = knob.scaled(factors[-1])
    last = base.at(knob.pricer(end))
    if last.like(base):
        return _Way(end, last, None, None)
    inside = knob.value, base
    for factor in factors:
        value = knob.scaled(factor)
        times = last if value == end else base.at(knob.pricer(value))
        if times.flipped:
            held, winner = _between(knob, inside, (value, times))
            return _Way(end, last, held, winner)
        inside = value, times
    return _Way(end, last, None, None)


def _between(knob: Knob, held: tuple[float, _Times], beyond: tuple[float, _Times]) -> tuple[float, Composition]:
    """A value at which the choice holds and, next to it, who wins; it holds at ``held`` and not at ``beyond``.

    Times are mostly straight lines of a quantity, so every second guess is where the line between the two ends is 0.
    """
    straight = True
    while abs(beyond[0] - held[0]) > 1 if knob.whole else not isclose(beyond[0], held[0], rel_tol=TOLERANCE):
        share = held[1].margin_ns / (held[1].margin_ns - beyond[1].margin_ns) if straight else 0.5
        middle = held[0] + share * (beyond[0] - held[0])
        least, most = sorted((held[0], beyond[0]))
        step = 1.0 if knob.whole else TOLERANCE * most / 2
        middle = min(max(floor(middle) if knob.whole else middle, least + step), most - step)
        found = held[1].at(knob.pricer(middle))
        if found.flipped:
            beyond = middle, found
        else:
            held = middle, found
        straight = not straight
    return held[0], beyond[1].rival


# -- words -------------------------------------------------------------------------------------------------------------


def _name(composition: Composition) -> str:
    return composition.name or f"{composition.shape} {composition.digest}"


def _claim(best: Composition, rivals: Sequence[Composition], span: float, ends: bool) -> str:
    exact = "; at the two ends also against the fastest of all compositions" if ends else ""
    return (
        f"{_name(best)} against {', '.join(map(_name, rivals))}: each quantity scaled alone, tried at "
        f"1/{span:g}, 1/{sqrt(span):.3g}, {sqrt(span):.3g} and {span:g} of its value, and closer where the faster "
        f"one changes between two that were tried{exact}"
    )


def _row(knob: Knob, low: _Way, high: _Way, fastest: Sequence[tuple[int, Composition] | None]) -> dict[str, object]:
    row: dict[str, object] = {"quantity": knob.name, "value": knob.value, "low": low.value, "high": high.value}
    for way, side, beyond, of_all in ((low, "low", "below", fastest[0]), (high, "high", "above", fastest[1])):
        for name, ns in (("best", way.times.best_ns), ("rival", way.times.rival_ns)):
            row[f"{name}_{side}_ns"] = ns if ns < ILLEGAL_NS else None
        row[f"flip_{beyond}"], row[beyond] = way.held, None if way.winner is None else _name(way.winner)
        row[f"fastest_{side}"] = None if of_all is None else _name(of_all[1])
        row[f"fastest_{side}_ns"] = None if of_all is None else of_all[0]
    return row


def _sentence(knob: Knob, low: _Way, high: _Way, fastest: Sequence[tuple[int, Composition] | None]) -> str:
    flips = [
        f"to {_name(way.winner)} {side} {knob.said(way.held)}"
        for way, side in ((low, "under"), (high, "over"))
        if way.winner is not None and way.held is not None
    ]
    said = f"the choice flips {' and '.join(flips)}"
    others = [
        f"at {knob.said(way.value)} the fastest of all is {_name(of_all[1])}, "
        f"by {(way.times.least_ns - of_all[0]) / 1e3:,.1f} µs"
        for way, of_all in zip((low, high), fastest, strict=True)
        if of_all is not None and of_all[0] < way.times.least_ns
    ]
    if not flips:
        to = " to these" if others else ""
        said = f"no flip{to} within {knob.said(low.value)} … {knob.said(high.value)}"
    return "; ".join([f"{knob} ({knob.said(knob.value)}): {said}", *others])
