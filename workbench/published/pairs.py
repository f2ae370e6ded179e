"""Pairs of published rows that did one thing in two ways: is the winner called rightly?"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

CLOSE_FRAC = 0.03  # published times that differ by less have no winner
# Constant guesses: who is faster, first first.
MONOLITH_WINS = ("monolith", "per-stage", "mixed", "graph_pdl", "graph", "eager")
CONVENTIONAL_WINS = ("graph_pdl", "graph", "eager", "mixed", "per-stage", "monolith")
ARMS = CONVENTIONAL_WINS[:3]
MODELS = ("predicted", "naive", "naive_whole")
CALLED = (*MODELS, "monolith_wins", "conventional_wins")
SAME = ["source", "model", "device", "batch", "subject"]


def pair_records(table: pd.DataFrame) -> list[dict[str, object]]:
    """Every two rows of one source, model, device, batch and subject whose kinds differ, and each row that is a ratio.

    ``published`` and the models' columns are times of ``a`` over ``b``: above 1, ``b`` is faster. ``choice`` says
    whether one of the two has megakernels. ``close`` ones have no winner. ``…_right`` says who called the winner; who
    calls both equally fast calls none.
    """
    pairs = []
    for _, group in table[table["quantity"] == "us"].groupby(SAME, sort=False):
        for one, other in combinations(group.to_dict("records"), 2):
            if one["kind"] != other["kind"]:
                a, b = sorted((one, other), key=lambda record: CONVENTIONAL_WINS.index(record["kind"]))
                ratios = {name: a[name] / b[name] for name in ("published", *MODELS)}
                pairs.append(_pair(a, (a["kind"], b["kind"]), (a["system"], b["system"]), ratios))
    for record in table[table["quantity"] == "ratio"].to_dict("records"):
        ratios = {name: record[name] for name in ("published", *MODELS)}
        pairs.append(_pair(record, (record["over_kind"], record["below_kind"]), ("", record["system"]), ratios))
    return pairs


def _pair(
    row: Mapping[Any, Any], kinds: tuple[str, str], systems: tuple[str, str], ratios: Mapping[str, float]
) -> dict[str, object]:
    leads = {name: ratios[name] - 1 for name in MODELS}
    for name, order in (("monolith_wins", MONOLITH_WINS), ("conventional_wins", CONVENTIONAL_WINS)):
        leads[name] = order.index(kinds[0]) - order.index(kinds[1])
    wins = ratios["published"] - 1
    return {
        **{name: row[name] for name in (*SAME, "family")},
        "choice": "megakernels or none" if (kinds[0] in ARMS) != (kinds[1] in ARMS) else "alike in that",
        "kinds": f"{kinds[0]} against {kinds[1]}",
        "a": systems[0],
        "b": systems[1],
        **ratios,
        "close": bool(max(ratios["published"], 1 / ratios["published"]) < 1 + CLOSE_FRAC),
        **{f"{name}_right": bool(lead * wins > 0) for name, lead in leads.items()},
    }
