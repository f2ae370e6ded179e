"""Comparison on a table small enough to check by eye, and the sentence it ends with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from scipy import stats

from workbench.compare import CONSTANT_GUESSES, Comparison, compare, median_interval_ns
from workbench.compose import Composition, Configuration, Kind, Region
from workbench.errors import MeasureError
from workbench.hardware import Provenance
from workbench.predict import Prediction

Times = Sequence[float] | npt.NDArray[np.float64]


def composition(name: str) -> Composition:
    """A design of the kind that its name says."""
    kinds = {"monolith": "m", "eager": "c", "replay": "c", "per-stage": "mm", "mixed": "mc", "other": "mcm"}
    made = []
    for i, kind in enumerate(kinds[name.split()[0]]):
        if kind == "m":
            made.append(Region((f"{name}{i}",), Kind.MEGAKERNEL, Configuration(2)))
        else:
            made.append(Region((f"{name}{i}",), Kind.CONVENTIONAL, arm="eager"))
    return Composition(tuple(made), name)


def prediction(name: str, us: float, batch: int = 1) -> Prediction:
    ns = int(us * 1000)
    return Prediction(
        program="p", device="d", batch=batch, composition=composition(name), ttfo_ns=ns,
        interval_ns=(ns - 1000, ns + 1000), causes_ns={}, regions=(), throughput_per_s=None,
        provenance=Provenance.MEASURED,
    )  # fmt: skip


def compared(rows: Sequence[tuple[str, float, Times]], batch: int = 1, tied: Sequence[str] = ()) -> Comparison:
    """Rows of name, predicted µs and measured µs."""
    samples = pd.DataFrame(
        [(batch, composition(name).digest, us * 1000) for name, _, measured in rows for us in measured],
        columns=["batch", "digest", "ttfo_ns"],
    )
    predictions = {batch: [prediction(name, us, batch) for name, us, _ in rows]}
    return compare(predictions, samples, {batch: {composition(name).digest for name in tied}})


FIVE = [
    # name            predicted   measured (µs)
    ("monolith 2x1", 100, [110, 110, 110]),
    ("eager", 200, [180, 180, 180]),
    ("per-stage 2x1", 120, [100, 90, 170]),  # its median is 100, its mean is not
    ("mixed", 90, [120, 120, 120]),
    ("other", 300, [330, 330, 330]),
]
#                 monolith  eager  per-stage  mixed    other
ERRORS = np.array([-10 / 110, 20 / 180, 20 / 100, -30 / 120, -30 / 330])


def test_five_designs_by_hand() -> None:
    got = compared(FIVE)
    row = got.by_batch.iloc[0]
    assert row["compositions"] == 5
    assert row["bias_frac"] == pytest.approx(ERRORS.mean())
    assert row["mape"] == pytest.approx(np.abs(ERRORS).mean())
    assert got.table["error_frac"].tolist() == pytest.approx(ERRORS.tolist())
    # order predicted: mixed, monolith, per-stage, eager, other; measured: per-stage, monolith, mixed, eager, other
    assert row["rank"] == pytest.approx(1 - 6 * (2**2 + 2**2) / (5 * (5**2 - 1)))
    assert (row["picked"], row["measured_best"]) == ("mixed", "per-stage 2x1")
    assert row["regret"] == pytest.approx(120 / 100 - 1)
    assert row["regret always monolith"] == pytest.approx(110 / 100 - 1)
    assert row["regret always conventional"] == pytest.approx(180 / 100 - 1)
    assert row["regret always a megakernel a stage"] == 0


def test_the_table_has_a_row_a_design_with_medians_and_intervals() -> None:
    table = compared(FIVE).table
    assert table["composition"].tolist() == [name for name, *_ in FIVE]
    assert table["measured_us"].tolist() == [110, 180, 100, 120, 330]
    assert table["measured_low_us"].tolist() == [110, 180, 90, 120, 330]
    assert table["measured_high_us"].tolist() == [110, 180, 170, 120, 330]
    assert table["predicted_us"].tolist() == [100, 200, 120, 90, 300]
    assert table["predicted_low_us"].tolist() == [99, 199, 119, 89, 299]
    assert table["predicted_high_us"].tolist() == [101, 201, 121, 91, 301]
    assert table["samples"].tolist() == [3] * 5
    assert table["shape"].tolist() == ["monolith", "conventional", "megakernels", "mixed", "mixed"]
    assert set(table["provenance"]) == {"measured here"}


@pytest.mark.parametrize(("tied", "expected"), [((), False), (("per-stage 2x1",), True), (("eager", "mixed"), False)])
def test_the_measured_best_is_looked_for_in_the_predicted_tie_set(tied: tuple[str, ...], expected: bool) -> None:
    assert compared(FIVE, tied=tied).by_batch["best_in_tie_set"].tolist() == [expected]


def test_the_best_of_several_of_a_kind_stands_for_a_constant_guess() -> None:
    rows = [*FIVE, ("monolith 1x1", 500, [104]), ("replay", 500, [150])]
    row = compared(rows).by_batch.iloc[0]
    assert row["regret always monolith"] == pytest.approx(0.04)
    assert row["regret always conventional"] == pytest.approx(0.5)


def test_a_pick_of_the_measured_best_has_no_regret() -> None:
    row = compared([("monolith 2x1", 50, [100.0]), ("eager", 80, [130.0])]).by_batch.iloc[0]
    assert row["regret"] == row["regret_low"] == row["regret_high"] == 0
    assert row["best_in_tie_set"]
    assert row["rank"] == pytest.approx(1)


def test_designs_that_cannot_be_told_apart_are_counted_as_tied() -> None:
    rng = np.random.default_rng(0)
    rows = [
        ("monolith 2x1", 100, rng.normal(100, 10, 50)), ("per-stage 2x1", 100, rng.normal(100, 10, 50)),
        ("eager", 100, rng.normal(200, 10, 50)),
    ]  # fmt: skip
    row = compared([(name, us, list(measured)) for name, us, measured in rows]).by_batch.iloc[0]
    assert row["measured_tied"] == 2
    assert math.isnan(row["rank"])  # all predicted alike: there is no order to compare


def test_only_what_was_measured_takes_part() -> None:
    samples = pd.DataFrame(
        [(1, composition(name).digest, us * 1000) for name, us in (("monolith 2x1", 110), ("eager", 180))],
        columns=["batch", "digest", "ttfo_ns"],
    )
    predictions = {1: [prediction(name, us) for name, us, _ in FIVE]}
    got = compare(predictions, samples, {})
    assert got.table["composition"].tolist() == ["monolith 2x1", "eager"]
    assert got.by_batch["regret"].tolist() == [0]  # mixed would have been picked, but nobody measured it


@pytest.mark.parametrize("names", [(), ("eager",)])
def test_fewer_than_two_measured_designs_are_refused(names: tuple[str, ...]) -> None:
    samples = pd.DataFrame(
        [(4, composition(name).digest, 1000.0) for name in names], columns=["batch", "digest", "ttfo_ns"]
    )
    predictions = {4: [prediction(name, us, 4) for name, us, _ in FIVE]}
    with pytest.raises(
        MeasureError, match=f"batch 4: {len(names)} of 5 predicted compositions were measured; at least"
    ):
        compare(predictions, samples, {})


# -- the verdict -------------------------------------------------------------------------------------------------------


def verdict(rows: Sequence[tuple[str, float, Times]], batch: int = 1) -> str:
    return compared(rows, batch).verdict


def test_a_pick_better_than_every_constant_guess_shows_skill() -> None:
    said = verdict([
        ("mixed", 80, [100]), ("monolith 2x1", 90, [120]), ("eager", 95, [110]), ("per-stage 2x1", 99, [130]),
    ])  # fmt: skip
    assert said == ("skill: mean regret 0.0% (0.0% to 0.0%) against 10.0% for always conventional, batches 1")


def test_a_pick_that_a_constant_guess_would_have_made_shows_none() -> None:
    said = verdict([("monolith 2x1", 80, [100]), ("eager", 95, [110]), ("per-stage 2x1", 99, [130])])
    assert said.startswith("no skill over always monolith is shown: mean regret 0.0% (0.0% to 0.0%) against 0.0%, ")


def test_a_pick_worse_than_a_constant_guess_is_called_so() -> None:
    quiet = [(name, us, [float(np.median(measured))]) for name, us, measured in FIVE]
    assert verdict(quiet) == (
        "worse than always a megakernel a stage: mean regret 20.0% (20.0% to 20.0%) against 0.0%, batches 1"
    )
    assert verdict(FIVE).startswith("no skill over always a megakernel a stage"), "170 µs was measured once"


def test_a_difference_within_the_noise_is_not_called_skill() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        said = verdict(
            [(name, 80 + i, rng.normal(100, 10, 15)) for i, name in enumerate(("mixed", "monolith", "eager"))]
        )
        assert said.startswith("no skill over always "), seed
        assert "within the noise of the measurements" in said


@pytest.mark.parametrize(("pick", "expected"), [(100, "skill: "), (140, "worse than always ")])
def test_a_difference_well_beyond_the_noise_is(pick: float, expected: str) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        means = {"mixed": pick, "monolith": 120, "eager": 122}
        rows = [(name, 80 + i, rng.normal(mean, 10, 30)) for i, (name, mean) in enumerate(means.items())]
        assert verdict(rows).startswith(expected), seed


def test_without_a_constant_guess_at_every_batch_skill_cannot_be_judged() -> None:
    said = verdict([("mixed", 80, [100]), ("other", 90, [120])])
    assert said == "mean regret 0.0%; no constant guess was measured at every batch, so skill cannot be judged"


def test_regrets_are_averaged_over_batches_and_guesses_must_be_at_all_of_them() -> None:
    #             batch 1: picks monolith, 100 against 100    batch 8: picks monolith, 150 against 100
    samples, predictions = [], {}
    for batch, measured in ((1, {"monolith 2x1": 100, "eager": 120}), (8, {"monolith 2x1": 150, "per-stage 2x1": 100})):
        samples += [(batch, composition(name).digest, us * 1000) for name, us in measured.items()]
        predictions[batch] = [prediction(name, 10 + i, batch) for i, name in enumerate(measured)]
    got = compare(predictions, pd.DataFrame(samples, columns=["batch", "digest", "ttfo_ns"]), {})
    assert got.by_batch["batch"].tolist() == [1, 8]
    assert got.by_batch["regret"].tolist() == pytest.approx([0, 0.5])
    assert got.verdict.startswith("no skill over always monolith is shown: mean regret 25.0% ")
    assert got.verdict.endswith("batches 1, 8")
    assert "25.0%" in str(got)
    assert [name for name in CONSTANT_GUESSES if got.by_batch[f"regret {name}"].notna().all()] == ["always monolith"]


# -- intervals ---------------------------------------------------------------------------------------------------------


def test_the_medians_interval_is_that_of_binomial_order_statistics() -> None:
    times = np.random.default_rng(3).permutation(np.arange(101.0))
    low, high = median_interval_ns(times)
    assert low == pytest.approx(float(stats.binom.ppf(0.025, 101, 0.5)), abs=3)
    assert high == pytest.approx(float(stats.binom.ppf(0.975, 101, 0.5)), abs=3)
    assert median_interval_ns(times) == (low, high)


def test_one_sample_is_its_own_interval() -> None:
    assert median_interval_ns(np.array([7.0])) == (7, 7)
    assert median_interval_ns(np.array([5, 5, 5])) == (5, 5)
