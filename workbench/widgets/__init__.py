"""Notebook widgets: state in traits, a view that redraws; what they show is computed elsewhere."""

from workbench.widgets.cuts import asks_for, idle_cuts, missing_cuts
from workbench.widgets.explore import Explorer
from workbench.widgets.sources import devices

__all__ = ["Explorer", "asks_for", "devices", "idle_cuts", "missing_cuts"]
