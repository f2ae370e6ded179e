"""Prediction: where lowering, cost and simulation meet. No measured run of a composition is read here.

lower + cost ─► queues  a level run in one way ─► regions  every region of a level ─► pricer  compositions
                                                     ▲
                          handover  which launch follows which
"""

from __future__ import annotations

from workbench.predict.prediction import ALL_CAUSES, Prediction, RegionPrediction
from workbench.predict.pricer import Launch, Pricer, restrict
from workbench.predict.queues import HOST_RULE, LevelQueue, executions, relevant_loops
from workbench.predict.regions import ILLEGAL_NS

__all__ = [
    "ALL_CAUSES",
    "HOST_RULE",
    "ILLEGAL_NS",
    "Launch",
    "LevelQueue",
    "Prediction",
    "Pricer",
    "RegionPrediction",
    "executions",
    "relevant_loops",
    "restrict",
]
