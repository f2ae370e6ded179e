"""Attention: cut along heads, requests, and parts of the cache; a tile needs its own heads' queries, keys and values.

Parts of the cache leave partial results, which ``lowering`` has a Reduce put together (flash decoding).
"""

from __future__ import annotations

from workbench.compose import Configuration
from workbench.lower.cut import FAR, Bound, Boxes, Window, at, own_columns, own_rows, row_blocks, runs, scaled, window
from workbench.shapes import Attention, Matmul, Reduce, Shape, output_size
from workbench.tiles import Edges, Grid

SPLIT_ROWS = 16  # from here on (a prefill) there are queries enough, and the cache is not split


def parts(shape: Attention, batch: int, configuration: Configuration) -> int:
    """Parts of the cache: at most ``partitions``, and no more than give each worker a tile."""
    if not configuration.partitions or shape.rows >= SPLIT_ROWS:
        return 1
    return max(1, min(configuration.partitions, configuration.count // (shape.kv_heads * batch)))


def cut(shape: Shape, batch: int, configuration: Configuration) -> Grid:
    """Runs of whole query heads, or with ``partitions`` of whole groups that share keys and values."""
    assert isinstance(shape, Attention)
    inner = tuple(range(parts(shape, batch, configuration) + 1))
    heads, width = shape.heads, shape.head_dim
    if configuration.partitions:
        heads, width = shape.kv_heads, shape.heads // shape.kv_heads * shape.head_dim
    blocks, rows = row_blocks(batch, shape.rows, configuration.rows)
    if len(rows) == 2:
        requests, columns = head_runs(heads, width, batch, configuration.count // (len(inner) - 1))
    else:  # long prefills: a request's rows are cut, so requests are too
        requests, columns = blocks, scaled(runs(heads, 1, configuration.count), width)
    return Grid(requests, rows, columns, inner)


def head_runs(heads: int, width: int, batch: int, count: int) -> tuple[Edges, Edges]:
    """Edges of requests and columns: whole heads, and requests where a head a tile leaves at least as many again."""
    strips = runs(heads, 1, count)
    return runs(batch, 1, count // (len(strips) - 1)), scaled(strips, width)


def needs(shape: Shape, boxes: Boxes, tensor_rank: int, producer: Shape) -> list[Window] | None:
    """Columns of the QKV product that hold this tile's query heads and their key and value heads.

    Of rows, its own queries, and all keys and values: shapes do not tell which of them lie behind.
    """
    assert isinstance(shape, Attention)
    width, group = shape.head_dim, shape.heads // shape.kv_heads
    queries, keys = shape.heads * width, shape.kv_heads * width
    heads = producer.heads if isinstance(producer, Matmul) else producer.unit if isinstance(producer, Reduce) else 0
    if heads != width or output_size(producer) != (shape.rows, queries + 2 * keys):
        return None
    first = at(boxes, "column_start") // width // group * width
    last = ((at(boxes, "column_stop") - 1) // width // group + 1) * width
    seen: tuple[Bound, Bound] = (0, FAR)
    return [
        window(boxes, own_rows(boxes), own_columns(boxes)),
        window(boxes, seen, (queries + first, queries + last)),
        window(boxes, seen, (queries + keys + first, queries + keys + last)),
    ]
