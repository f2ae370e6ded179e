"""ATen operations that make operators, one function each. To add one: a function here, and a row in HANDLERS.

Each is given the reader, the node and its arguments by name, and returns the node's value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from workbench.models.torch_fuse import Draft, Weights
from workbench.models.torch_graph import (
    LOOKS_AHEAD,
    FxNode,
    Value,
    beside_of,
    numel,
    operation,
    shape_of,
    sources_of,
    weights_of,
)
from workbench.models.torch_read import Handler, Reader
from workbench.shapes import Argmax, Attention, Conv, Depthwise, Gather, Matmul

Arguments = dict[str, Any]


def linear(reader: Reader, node: FxNode, given: Arguments) -> Value:
    """``x Wᵀ + b``."""
    outer, inner = shape_of(given["weight"])
    return _product(reader, node, given["input"], given["weight"], given.get("bias"), inner, outer)


def addmm(reader: Reader, node: FxNode, given: Arguments) -> Value:
    """``b + x W``."""
    if not reader.value(given["self"]).constant:
        raise reader.refusal(node, "adds a tensor that is no bias")
    return _product(reader, node, given["mat1"], given["mat2"], given["self"], *shape_of(given["mat2"]))


def matmul(reader: Reader, node: FxNode, given: Arguments) -> Value:
    """``x W`` for a matrix W of weights; of two tensors the first or the second product of attention."""
    left, right = (argument for argument in node.args[:2])
    weights, scores = reader.value(right), reader.value(left).scores
    if weights.constant and len(shape_of(right)) == 2:
        return _product(reader, node, left, right, None, *shape_of(right))
    if weights.constant or reader.value(left).constant:
        raise reader.refusal(node, "multiplies by weights that are not one matrix on the right")
    if scores and reader.value(left).softmaxed:
        _, query, key = scores
        own = {tensor for one in (query, key) for tensor in reader.value(one).sources}
        mask = [tensor for tensor in reader.value(left).sources if tensor not in own]
        sizes = shape_of(query)[-2], shape_of(key)[-1], shape_of(query)[-1]
        return _attention(reader, node, (query, key, right), sizes, Value(tuple(mask)))
    values = [reader.tensor(left), reader.tensor(right)]
    return Value(sources_of(values), beside_of(values), scores=(node, left, right))


def _product(
    reader: Reader, node: FxNode, given: FxNode, weight: FxNode, bias: FxNode | None, inner: int, outer: int
) -> Value:
    value, matrix = reader.tensor(given), reader.value(weight)
    if not matrix.constant or matrix.sources:
        raise reader.refusal(node, "has weights that are computed from its input")
    rows = reader.rows(node, given, numel(given) // inner)
    shape = Matmul(rows=rows, inner=inner, outer=outer, norm=value.normed > 0, per_column=int(bias is not None))
    weights = matrix.weights + (reader.value(bias).weights if bias is not None else ())
    size = weight.meta["val"].dtype.itemsize
    return reader.add(node, shape, weights, [value], gains=value.gains, size=size, leaf="matmul")


def embedding(reader: Reader, node: FxNode, given: Arguments) -> Value:
    """Rows of a table of weights, by ``embedding`` or by an index."""
    table, indices = node.all_input_nodes[0], node.all_input_nodes[-1]
    if not reader.value(table).constant or len(shape_of(table)) != 2 or indices is table:
        raise reader.refusal(node, "looks rows up in what is no table of weights")
    entries, width = shape_of(table)
    rows = reader.rows(node, indices, numel(node) // width)
    shape = Gather(rows=rows, tables=1, entries=entries, width=width)
    size = table.meta["val"].dtype.itemsize
    weights = reader.value(table).weights
    return reader.add(node, shape, weights, [reader.tensor(indices)], size=size, leaf="embedding")


def argmax(reader: Reader, node: FxNode, given: Arguments) -> Value:
    """Argmax over the last dimension."""
    source = given["self"]
    width = shape_of(source)[-1]
    if given["dim"] not in (-1, len(shape_of(source)) - 1):
        raise reader.refusal(node, "is not over the last dimension")
    shape = Argmax(width=width, rows=reader.rows(node, source, numel(source) // width))
    return reader.add(node, shape, (), [reader.tensor(source)], leaf="argmax")


def glu(reader: Reader, node: FxNode, given: Arguments) -> Value:
    """Gate and up in one product."""
    value = reader.tensor(given["self"])
    last = given["dim"] in (-1, len(shape_of(node)) - 1)
    gated = reader.gated_halves(node, value.sources) if last else None
    if gated is None:
        raise reader.refusal(node, "gates what is not all that one linear made, in halves of its columns")
    return replace(gated, beside=value.beside)


# -- norms and memory --------------------------------------------------------------------------------------------------


def norm(reader: Reader, node: FxNode, given: Arguments) -> Value:
    """RMSNorm and LayerNorm: remembered for the Matmul that reads it."""
    value = reader.tensor(given["input"])
    tables = [given[key] for key in ("weight", "bias") if given.get(key) is not None]
    gains = weights_of(reader.value(table) for table in tables)
    return replace(value, gains=gains, normed=prod(given["normalized_shape"]), place=())


def statistic(reader: Reader, node: FxNode, given: Arguments) -> Value:
    """Mean, sum, variance or length of rows: half a norm that is written out. Sum over looked-up rows: one lookup."""
    source = node.all_input_nodes[0]
    value = reader.tensor(source)
    dims, shape = given.get("dim"), shape_of(source)
    dims = [dim % len(shape) for dim in ([dims] if isinstance(dims, int) else dims or [])]
    if dims == [len(shape) - 1]:
        return replace(value, statistic=shape[-1], place=())
    maker = value.sources[0].maker
    tables = numel(source) // max(1, numel(node))
    lookup = maker.shape if maker and operation(node) == "sum" and reader.whole(value, node) else None
    if not maker or not isinstance(lookup, Gather) or lookup.extra or lookup.rows % tables:
        raise reader.refusal(node, "reduces a tensor; known are norms over the last dimension, and sums of embeddings")
    maker.shape = replace(lookup, rows=lookup.rows // tables, tables=lookup.tables * tables)
    reader.made[value.sources[0]] = node
    return Value(value.sources)


def softmax(reader: Reader, node: FxNode, given: Arguments) -> Value:
    """Softmax of scores."""
    value = reader.value(node.all_input_nodes[0])
    if not value.scores or value.softmaxed:
        raise reader.refusal(node, "is outside attention, where it has no operator family")
    return replace(value, softmaxed=True, place=())


def write(reader: Reader, node: FxNode, given: Arguments) -> Value:
    """A cache or another buffer written in place, whole or a part of it."""
    source = next(given[key] for key in ("values", "source", "src") if key in given)
    reader.write(given["self"], reader.tensor(source).sources if source in reader.values else ())
    return reader.value(given["self"])


# -- convolutions ------------------------------------------------------------------------------------------------------


def conv1d(reader: Reader, node: FxNode, given: Arguments) -> Value:
    """Convolution; of one channel each; of patches that do not overlap (stride = kernel), which is a Matmul."""
    wide, narrow, kernel = shape_of(given["weight"])
    stride, dilation, groups = given["stride"][0], given["dilation"][0], given["groups"]
    rows, channels, snake = shape_of(node)[-1], narrow * groups, reader.tensor(given["input"]).sine
    if kernel > 1 and given["padding"] not in ([0], "valid") and rows <= shape_of(given["input"])[-1] and stride == 1:
        reader.notes.add(LOOKS_AHEAD)
    shape: Conv | Depthwise | Matmul
    if groups == channels == wide and groups > 1 and stride == 1:
        shape = Depthwise(rows=rows, channels=wide, kernel=kernel)
    elif groups > 1:
        raise reader.refusal(node, f"has {groups} groups of {channels} channels; known are 1, and one a channel")
    elif stride == 1:
        shape = Conv(
            rows=rows, channels_in=channels, channels_out=wide, kernel=kernel, dilation=dilation, snake=snake
        )  # fmt: skip
    elif stride == kernel and dilation == 1 and not snake:
        shape = Matmul(rows=rows, inner=channels * kernel, outer=wide, per_column=int(given["bias"] is not None))
    else:
        raise reader.refusal(node, f"has stride {stride} and kernel {kernel}; known are stride 1, and both equal")
    return _convolution(reader, node, given, shape)


def conv_transpose1d(reader: Reader, node: FxNode, given: Arguments) -> Value:
    """Transposed convolution whose kernel is a multiple of its stride."""
    wide, narrow, kernel = shape_of(given["weight"])
    stride, dilation, groups = given["stride"][0], given["dilation"][0], given["groups"]
    if groups > 1 or dilation > 1 or kernel % stride:
        sizes = f"has kernel {kernel}, stride {stride}, {groups} groups and dilation {dilation}"
        raise reader.refusal(node, f"{sizes}; known are kernels that are a multiple of the stride, both others 1")
    shape = Conv(
        rows=shape_of(given["input"])[-1], channels_in=wide, channels_out=narrow, stride=stride,
        kernel=kernel if stride == 1 else 1, taps=kernel // stride if stride > 1 else 2,
        snake=reader.tensor(given["input"]).sine,
    )  # fmt: skip
    return _convolution(reader, node, given, shape)


def _convolution(reader: Reader, node: FxNode, given: Arguments, shape: Conv | Depthwise | Matmul) -> Value:
    reader.rows(node, node, numel(node))
    value = reader.tensor(given["input"])
    tables = [reader.value(given[key]) for key in ("weight", "bias") if given[key] is not None]
    if not all(table.constant and not table.sources for table in tables):
        raise reader.refusal(node, "has weights that are computed from its input")
    weights = weights_of(tables) + (value.weights if value.sine else ())
    size = given["weight"].meta["val"].dtype.itemsize
    return reader.add(node, shape, weights, [value], size=size, leaf="conv")


# -- attention ---------------------------------------------------------------------------------------------------------


def scaled_dot_product_attention(reader: Reader, node: FxNode, given: Arguments) -> Value:
    """Attention, its mask free; a mask that an operator computes is waited for."""
    query, key, value, mask = (given[name] for name in ("query", "key", "value", "attn_mask"))
    if given["dropout_p"]:
        raise reader.refusal(node, "drops elements at random", "dropout")
    sizes = shape_of(query)[-2], shape_of(key)[-2], shape_of(key)[-1]
    return _attention(reader, node, (query, key, value), sizes, reader.value(mask) if mask is not None else Value())


def _attention(
    reader: Reader, node: FxNode, given: tuple[FxNode, FxNode, FxNode], sizes: tuple[int, int, int], mask: Value
) -> Value:
    """``sizes``: query rows, positions seen, head width."""
    (rows, seen, width), values = sizes, [reader.tensor(one) for one in given]
    heads, kv_heads, value_heads = (
        numel(one) / (reader.batch * length * width * value.copies)
        for one, length, value in zip(given, (rows, seen, seen), values, strict=True)
    )
    if kv_heads != value_heads or heads % kv_heads or not kv_heads.is_integer():
        shapes = ", ".join(str(shape_of(one)) for one in given)
        raise reader.refusal(node, f"has queries, keys and values of shapes {shapes}, which are not equal heads")
    if seen < rows:
        raise reader.refusal(node, f"has {rows} new positions see {seen}; known is that they see themselves at least")
    asked, *cached = (_fresh(value) for value in values)
    normed = values[0].normed == values[1].normed == width
    gains: Weights | None = (*values[0].gains, *values[1].gains) if normed else None
    shape = Attention(rows=rows, heads=int(heads), kv_heads=int(kv_heads), head_dim=width)
    size = next((tensor.element_bytes for tensor in asked), 4)
    draft = Draft(reader.path(node, (), "attention"), shape, [], size, position=seen - rows)
    tensor = reader.drafts.attend(draft, asked, [tensor for part in cached for tensor in part], gains)
    draft.also = [*(tensor for tensor in mask.sources if tensor.maker), *beside_of((*values, mask))]
    reader.made[tensor] = node
    return Value((tensor,))


def _fresh(value: Value) -> Sequence[Any]:
    """What operators made of a value; inputs beside that are the cache that it is appended to."""
    return [tensor for tensor in value.sources if tensor.maker] or value.sources


HANDLERS: dict[str, Handler] = {
    "linear": linear, "addmm": addmm, "mm": matmul, "matmul": matmul, "bmm": matmul, "embedding": embedding,
    "argmax": argmax, "glu": glu, "rms_norm": norm, "layer_norm": norm, "mean": statistic, "sum": statistic,
    "var": statistic, "linalg_vector_norm": statistic, "softmax": softmax, "_softmax": softmax, "copy_": write,
    "index_put_": write, "index_copy_": write, "conv1d": conv1d, "conv_transpose1d": conv_transpose1d,
    "scaled_dot_product_attention": scaled_dot_product_attention,
}  # fmt: skip
