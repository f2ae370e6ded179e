"""Figures: tables made from predictions and runs, a pure function from each table to a plotly figure, and files.

    predictions, comparisons ─► tables ─► plots, timeline ─► write   name.csv .html .json .pdf .svg .png

A function that draws names the columns it needs, refuses a table without them, and computes nothing.
"""

from workbench.figures.drawing import PALETTE, safe
from workbench.figures.gallery import draw_all, headline_table, inputs_of, make_all
from workbench.figures.plots import causes_bar, predicted_vs_measured, ranking, ttfo_by_batch, waterfall
from workbench.figures.tables import (
    LAUNCH_LANE,
    causes_table,
    chain_table,
    comparison_table,
    difference_table,
    launches,
    predictions_table,
    timeline_table,
    title_of,
)
from workbench.figures.timeline import composition_strip, tile_timeline
from workbench.figures.write import NO_BROWSER, browser, trail, write, write_page, write_pictures

__all__ = [
    "LAUNCH_LANE",
    "NO_BROWSER",
    "PALETTE",
    "browser",
    "causes_bar",
    "causes_table",
    "chain_table",
    "comparison_table",
    "composition_strip",
    "difference_table",
    "draw_all",
    "headline_table",
    "inputs_of",
    "launches",
    "make_all",
    "predicted_vs_measured",
    "predictions_table",
    "ranking",
    "safe",
    "tile_timeline",
    "timeline_table",
    "title_of",
    "trail",
    "ttfo_by_batch",
    "waterfall",
    "write",
    "write_page",
    "write_pictures",
]
