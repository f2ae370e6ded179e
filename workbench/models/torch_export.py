"""From a torch module to a program: ``torch.export`` traces it, and its ATen graph is read operator by operator.

The graph is read undecomposed and fused as in ``decoder``: ``torch_read`` walks it, ``torch_operators`` knows the
operations, ``torch_fuse`` what fits together, and ``torch_fold`` makes program text of what results.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from workbench.errors import ProgramError
from workbench.models.torch_fold import arrange
from workbench.models.torch_operators import HANDLERS
from workbench.models.torch_read import Reader
from workbench.program import Node, Program

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram


def from_module(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    batch: int = 1,
    further: tuple[Any, ...] | None = None,
    further_kwargs: Mapping[str, Any] | None = None,
) -> Program:
    """The program of one call ``module(*args, **kwargs)``. Nothing is computed; module and arguments may be on meta.

    ``batch`` requests are in the example: the first tensor given has them as its first dimension, and shapes are
    divided by it. A further output is the same call again, or ``module(*further, **further_kwargs)`` where given (one
    decode step, say). The program is named after the module's class unless ``name`` is given.

    Counted as everywhere here: attention as the full rectangle of what it is given, masked or not; convolutions as
    causal ones; any gate's activation as SiLU; a LayerNorm as an RMSNorm, its bias as folded into the product's; a norm
    only where a Matmul reads it. ``Program.assumed`` says by how many elements the weights counted then differ from the
    parameters. What constants, parameters, positions and masks alone make is free. Element sizes are the weights'.

    Raises ProgramError, in one line, where torch is missing, where ``torch.export`` fails, and for a node that no
    operator family can hold: which node, in which module, and the way out.
    """
    try:
        import torch
    except ImportError:
        raise ProgramError("torch is needed to read a torch module, and is not installed: pip install torch") from None
    if not isinstance(module, torch.nn.Module) or not isinstance(args, tuple):
        given = f"{type(module).__name__} and {type(args).__name__}"
        raise ProgramError(f"from_module takes a torch.nn.Module and a tuple of its arguments, not {given}")
    name = name or type(module).__name__
    first, assumed = _nodes(module, args, kwargs, name, batch)
    then = first
    if further is not None or further_kwargs is not None:
        then, more = _nodes(module, further or (), further_kwargs, name, batch)
        assumed = "; ".join(dict.fromkeys(part for part in (assumed, more) if part))
    return Program(name=name, first=first, further=then, assumed=assumed)


def _nodes(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, name: str, batch: int
) -> tuple[tuple[Node, ...], str]:
    import torch

    shapes = [tuple(given.shape) for given in (*args, *(kwargs or {}).values()) if isinstance(given, torch.Tensor)]
    if batch < 1 or (shapes and shapes[0][:1] != (batch,)):
        raise ProgramError(f"{name}: batch is {batch}, but the first tensor given is {shapes[:1]}: batch comes first")
    reader = Reader(_export(module, args, kwargs), batch, HANDLERS)
    outputs = reader.read()
    if not reader.drafts.all:
        raise ProgramError(f"{name}: nothing in it is a product, a convolution, attention, an embedding or an argmax")
    return arrange(reader.drafts.all, outputs, name), reader.assumed()


def _export(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> ExportedProgram:
    import torch

    try:
        with _quiet(), torch.no_grad():
            return torch.export.export(module, args, dict(kwargs or {}), strict=False)
    except Exception as error:  # torch has no one type for what it cannot trace; the module's own errors come out too
        reason = (str(error).strip() or "no reason given").splitlines()[0]
        raise ProgramError(
            f"torch.export cannot trace {type(module).__name__}: {type(error).__name__}, {reason:.200}; the arguments "
            "must be those of one call, and neither a branch nor a size may depend on data"
        ) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from printing half-made graphs when it fails, from warnings, and from a stack trace for every node."""
    import torch.fx.config as config

    disabled, nowhere = logging.root.manager.disable, io.StringIO()
    traces = getattr(config, "do_not_emit_stack_traces", False)  # absent from older releases
    logging.disable(logging.CRITICAL)
    config.do_not_emit_stack_traces = True  # a fifth of the time
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        config.do_not_emit_stack_traces = traces
        logging.disable(disabled)
