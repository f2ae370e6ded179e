"""Prediction: where lowering, cost and simulation meet. No measured run of a composition is read here.

lower + cost ─► queues  a level run in one way ─► regions  every region of a level ─► pricer  compositions
                                                     ▲
                          handover  which launch follows which; streaming  what of it is a stream
"""

from __future__ import annotations

from workbench.predict.prediction import ALL_CAUSES, Prediction, RegionPrediction
from workbench.predict.pricer import Launch, Pricer, restrict
from workbench.predict.queues import HOST_RULE, LevelQueue, executions, relevant_loops
from workbench.predict.regions import ILLEGAL_NS
from workbench.predict.streaming import P95_RULE, HostTime, nearest_rank_p95

__all__ = [
    "ALL_CAUSES",
    "HOST_RULE",
    "ILLEGAL_NS",
    "P95_RULE",
    "HostTime",
    "Launch",
    "LevelQueue",
    "Prediction",
    "Pricer",
    "RegionPrediction",
    "executions",
    "nearest_rank_p95",
    "relevant_loops",
    "restrict",
]
