"""What would make up for a prediction's error: an effect by what the row runs, with the arithmetic, never a claim.

The missing time is spread over what the run has most of: kernels of its main arm, else serial stages of a megakernel;
whether the price that comes out is one that such a thing can have is left to the reader. Eager launches have a
yardstick: what a host's launch took in an engine that fell back to them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workbench.published.predicted import Predicted, Sum

# 940 kernels in 11 ms of host time, a later chunk at 16 requests: vllm-omni issues #3485 and #1675.
DISPATCH_US = 11_000 / 940
EFFECTS = {
    "host": "host work for each eager launch (python, dispatch), or kernels that are not fused",
    "unfused": "kernels of a graph that are not fused as ours are, or engine work between its replays",
    "bodies": "megakernel bodies or barriers slower than priced, or host work around each launch",
    "too slow": "priced too high",
    "floor": "published below what DRAM needs: the row is not what its label says, or it keeps weights on chip",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """``effect`` is a key of EFFECTS; ``each_us`` what each of the things it is spread over would have to take."""

    effect: str
    each_us: float
    arithmetic: str


def explain(predicted: Predicted, published: float) -> Explanation:
    """What would make up for the difference to a published time in ns, or to a ratio."""
    if predicted.over is None:
        return _time(predicted.below, published)
    implied_ns = predicted.over.ns / published
    found = _time(predicted.below, implied_ns)
    said = f"if the conventional side is right, the megakernel took {implied_ns / 1e3:,.0f} µs: {found.arithmetic}"
    return replace(found, arithmetic=said)


def _time(run: Sum, published_ns: float) -> Explanation:
    missing_us = (published_ns - run.ns) / 1e3
    used = f"{run.floor_ns / published_ns:.0%} of DRAM's peak published, {run.floor_ns / run.ns:.0%} predicted"
    if published_ns < run.floor_ns:
        said = f"{published_ns / 1e3:,.0f} µs against {run.floor_ns / 1e3:,.0f} that DRAM needs"
        return Explanation("floor", missing_us, said)
    if missing_us < 0:
        cause, length = max(run.causes_ns.items(), key=lambda item: item[1])
        said = f"{-missing_us:,.0f} µs too many; {cause} is {length / run.ns:.0%} of the prediction; {used}"
        return Explanation("too slow", missing_us, said)
    arms = {arm: count for arm, count in run.launches.items() if arm != "megakernel"}
    if arms:
        arm, count = max(arms.items(), key=lambda item: item[1])
        said = f"{missing_us:,.0f} µs over {count:,} {arm} kernels of ours: {missing_us / count:,.1f} µs each"
        if arm == "eager":
            said += f", as {missing_us / count / DISPATCH_US:,.1f} launches of {DISPATCH_US:.1f} µs on the host"
        return Explanation("host" if arm == "eager" else "unfused", missing_us / count, said)
    each_us = missing_us / max(1, run.stages)
    launches = run.launches["megakernel"]
    said = f"{missing_us:,.0f} µs over {run.stages:,} serial stages: {each_us:,.1f} µs each, or over {launches:,} "
    return Explanation("bodies", each_us, f"{said}launches: {missing_us / launches:,.1f}; {used}")
