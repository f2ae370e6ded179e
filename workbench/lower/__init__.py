"""From operator calls to tiles and events: ``lower`` drives, one module a family says how it is cut and what it needs.

To add a family: a module with ``cut(shape, batch, configuration)`` and ``needs(shape, boxes, tensor_rank, producer)``,
and a row in FAMILIES.
"""

from __future__ import annotations

from workbench.lower.families import FAMILIES
from workbench.lower.lowering import Lowered, lower

__all__ = ["FAMILIES", "Lowered", "lower"]
