"""What ``predict --why``, ``predict --against`` and ``select --sensitivity`` show: data for JSON, and text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.cli import options

if TYPE_CHECKING:
    import pandas as pd

    from workbench.compose import Composition
    from workbench.predict import Prediction, Pricer
    from workbench.search import Selection

SHOWN = 16  # rows of a table in text; JSON has all
Answer = tuple[Any, str]


def against(pricer: Pricer, prediction: Prediction, other: Composition) -> Answer:
    """What a prediction takes more than another composition, by cause and stage; in JSON by place of both too."""
    from workbench.why import path_by_name, stage_waterfall, waterfall

    base = pricer.predict(other)
    by_stage = stage_waterfall(path_by_name(pricer, other), path_by_name(pricer, prediction.composition))
    data = {
        "prediction": options.prediction_json(base),
        "difference_ns": prediction.ttfo_ns - base.ttfo_ns,
        "by_place": options.records(waterfall(base, prediction)),
        "by_stage": options.records(by_stage),
    }
    head = f"against {_name(base.composition)} ({base.ttfo_ns / 1e3:,.1f} µs), µs more:"
    return data, "\n".join([head, *_steps(by_stage)])


def _steps(table: pd.DataFrame) -> list[str]:
    """A waterfall in lines: a cause's total, then its parts; what is the same on both sides is left out."""
    lines = []
    for cause, part in table.groupby("cause", sort=False):
        if (part["difference_ns"] != 0).any():
            lines.append(_line(str(cause), part["difference_ns"].sum()))
            rows = part[part["difference_ns"] != 0]
            lines += [_line(f"  {where}", ns) for where, ns in zip(rows["where"], rows["difference_ns"], strict=True)]
    return [*lines, _line("all", table["difference_ns"].sum())]


def _line(label: str, ns: float) -> str:
    return f"{label:<32} {ns / 1e3:>+12,.3f}"


def path(pricer: Pricer, composition: Composition) -> Answer:
    """The critical path by operator: in text the longest rows, in JSON all in program order."""
    from workbench.predict import ALL_CAUSES
    from workbench.why import path_by_name

    table = path_by_name(pricer, composition)
    longest = table.sort_values("ns", ascending=False, kind="stable")
    top, rest = longest.head(SHOWN), longest.iloc[SHOWN:]
    shown = top[["stage", "operator", "how", "calls"]].assign(us=top["ns"] / 1e3, percent=100 * top["share_frac"])
    shown = shown.assign(**{cause: top[cause] / 1e3 for cause in ALL_CAUSES if table[cause].any()}).round(1)
    text = f"the critical path by operator, µs:\n{shown.to_string(index=False)}"
    if len(rest):
        text += f"\nand {len(rest)} more rows: {rest['ns'].sum() / 1e3:,.1f} µs"
    return options.records(table), text


def sensitivity(pricer: Pricer, selection: Selection) -> Answer:
    """At what value of each quantity of the device the choice flips to the fastest of another shape."""
    from tqdm import tqdm

    from workbench.sensitivity import knobs, rivals_of
    from workbench.sensitivity import sensitivity as vary

    chosen, rivals = knobs(pricer), rivals_of(selection)
    if not rivals:
        return None, "sensitivity: no other shape is in the shortlist"
    with tqdm(total=len(chosen), desc="quantities", disable=None, leave=False) as bar:

        def tick() -> None:
            bar.update()

        found = vary(pricer, selection.best.composition, rivals, chosen=chosen, tick=tick)
    data = {"sentences": list(found.sentences), "table": options.records(found.table)}
    return data, "\n".join(found.sentences)


def _name(composition: Composition) -> str:
    return composition.name or f"{composition.shape} {composition.digest}"
