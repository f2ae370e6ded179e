"""Nodes of an exported ATen graph: the words for what they do, and the value that each is given.

Nodes are taken as they come: torch itself is not imported here.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

from workbench.errors import ProgramError
from workbench.models.torch_fuse import Tensor, Weights, unique

FxNode = Any  # torch.fx.Node: a name for readers; torch is not needed to check this module
Place = tuple[Any, ...]  # a node whose memory is viewed, then the views that matter

EXPANSIONS = {"broadcast_to", "expand", "expand_as", "repeat", "repeat_interleave", "tile"}
LIKE = {"expand_as", "type_as", "view_as"}  # of a second tensor only its shape or type is taken
JOINS = {"cat", "concat", "concatenate", "constant_pad_nd", "hstack", "pad", "stack", "vstack", "where"}
VIEWS = EXPANSIONS | JOINS | {
    "_reshape_alias", "_to_copy", "_unsafe_view", "alias", "chunk", "clone", "contiguous", "detach", "dropout",
    "feature_dropout", "flatten", "flip", "getitem", "index", "index_select", "lift_fresh_copy", "mT", "masked_fill",
    "movedim", "narrow", "numpy_T", "permute", "reshape", "roll", "select", "slice", "split", "split_with_sizes",
    "squeeze", "swapaxes", "t", "to", "transpose", "tril", "triu", "type_as", "unbind", "unflatten", "unsqueeze",
    "view", "view_as", "view_as_complex", "view_as_real",
}  # fmt: skip
POINTWISE = {
    "abs", "add", "celu", "clamp", "clamp_max", "clamp_min", "cos", "div", "elu", "erf", "exp", "expm1", "floor",
    "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log", "log1p", "log_sigmoid", "maximum", "minimum",
    "mish", "mul", "neg", "pow", "prelu", "reciprocal", "relu", "relu6", "round", "rsqrt", "rsub", "selu", "sigmoid",
    "sign", "silu", "sin", "softplus", "sqrt", "square", "sub", "tanh", "threshold",
}  # fmt: skip
WAYS = {
    "batch_norm": "fold it into the convolution before it (torch.nn.utils.fusion.fuse_conv_bn_eval)",
    "dropout": "call eval() on the module first",
    "multinomial": "end the module at its logits, or with argmax",
    "softmax": "end the module at its logits, or with argmax",
    "topk": "end the module at its logits, or with argmax; write a mixture of experts by hand (workbench.program)",
    "wrap_with_autocast": "leave torch.autocast out of the module",
}
WAY = "export the parts before and after it, or write its operators by hand (workbench.program)"
NO_ATTENTION = "multiplies two tensors, neither of them weights, and is no attention"
PLAIN_SUMS = "known are sums with what an operator just made, and act(gate) * up of two linears of one input"
LOOKS_AHEAD = "convolutions that look ahead counted as causal"
# operators even where all that they are given is constant
WEIGHTED = {"addmm", "conv1d", "conv_transpose1d", "copy_", "embedding", "index_copy_", "index_put_", "linear"}


@dataclass(frozen=True, slots=True)
class Value:
    """What a node holds: elements of ``sources`` after free arithmetic; of none, constants and parameters alone.

    ``beside``: smaller tensors in the arithmetic, to be read with them. ``weights``: parameters in it that no operator
    counts yet. ``normed``: elements that a norm was taken over, 0 for none, by the parameters ``gains``. ``statistic``:
    it is one number a row of so many elements, half a norm. ``sine``: went through a sine. ``copies``: of each element,
    by expansion. ``place``: the node whose memory it views, and how. ``scores``: the product of queries and keys that
    it is, and these two.
    """

    sources: tuple[Tensor, ...] = ()
    beside: tuple[Tensor, ...] = ()
    weights: Weights = ()
    gains: Weights = ()
    normed: int = 0
    statistic: int = 0
    sine: bool = False
    copies: int = 1
    place: Place = ()
    scores: tuple[FxNode, FxNode, FxNode] | None = None
    softmaxed: bool = False

    @property
    def constant(self) -> bool:
        """Whether it comes from parameters, constants and whole numbers given as input alone."""
        return all(tensor.control for tensor in self.sources)


def overlap(one: Place, other: Place) -> bool:
    """Whether two views of a node's memory may share elements; only unlike indices of one dimension say no."""
    for a, b in zip(one[1:], other[1:], strict=False):
        if a != b:
            return not (isinstance(a, tuple) and isinstance(b, tuple) and a[1] == b[1])
    return True


def sources_of(values: Iterable[Value]) -> tuple[Tensor, ...]:
    """Tensors that any of the values comes from."""
    return tuple(unique(tensor for value in values for tensor in value.sources))


def beside_of(values: Iterable[Value]) -> tuple[Tensor, ...]:
    """Tensors to be read beside the sources of any of the values."""
    return tuple(unique(tensor for value in values for tensor in value.beside))


def weights_of(values: Iterable[Value]) -> Weights:
    """Parameters that are in any of the values."""
    return tuple(dict.fromkeys(weight for value in values for weight in value.weights))


def module_of(node: FxNode) -> tuple[str, str]:
    """Name and class of the module that a node was called in."""
    path, kind = list((node.meta.get("nn_module_stack") or {"": ("", "")}).values())[-1]
    return ".".join(part.partition("@")[0] for part in path.split(".")), str(kind)


def operation(node: FxNode) -> str:
    """The name of an ATen operation without its overload; of a Python function its own."""
    if node.op != "call_function":
        return str(node.op)
    if node.target is operator.getitem:
        return "getitem"
    schema = getattr(node.target, "_schema", None)
    return str(schema.name.partition("::")[2] if schema else getattr(node.target, "__name__", node.target))


def arguments(node: FxNode) -> dict[str, Any]:
    """Arguments by the names that the operation's schema gives them."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return dict(node.kwargs)
    given = {argument.name: argument.default_value for argument in schema.arguments}
    given.update(zip(list(given), node.args, strict=False))
    return {**given, **node.kwargs}


def shape_of(node: FxNode) -> tuple[int, ...]:
    """Sizes of a node's tensor; ProgramError where they depend on data."""
    sizes = tuple(getattr(node.meta.get("val"), "shape", ()))
    if not all(isinstance(size, int) for size in sizes):
        raise ProgramError(f"{node.name}: its shape {sizes} depends on data; sizes must follow from the example's")
    return sizes


def numel(node: FxNode) -> int:
    """Elements of a node's tensor."""
    return prod(shape_of(node))
