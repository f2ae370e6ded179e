"""From operator calls to tiles and events: ``lower`` drives, one module a family says how it is cut and what it needs.

To add a family: a module with ``boxes(shape, batch, count)`` and ``needs(shape, box, tensor_rank, producer)``, and a
row in FAMILIES.
"""

from __future__ import annotations

from workbench.lower.lowering import FAMILIES, Lowered, lower

__all__ = ["FAMILIES", "Lowered", "lower"]
