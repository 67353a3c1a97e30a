# SPDX-License-Identifier: Apache-2.0
"""Finds the shape that a Flatten hid from a dense kernel, in the graph of the training step.

A dense layer behind a Flatten sees ``H * W * C`` inputs in a row; that they are the channels of
positions in an image is gone from its kernel's shape. The gradient's own graph still knows: it is
a product with the layer's input, and that comes from a reshape.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

_MAX_OPS = 64  # between gradient and product, or product and reshape; real graphs have a few


def flattened_shape(gradient: tf.Tensor) -> tuple[int, ...]:
    """Returns the shape that was flattened into the first axis of a dense kernel.

    Args:
      gradient: the gradient of any variable. Scaling, casts, clipping and the like may lie between
        it and the layer, and activations, dropout and the like between layer and Flatten.

    Returns:
      The shape without the batch, of at least two axes; empty if the gradient is not that of a
      kernel behind a Flatten, or nothing can be told, as in eager execution or where the layer was
      called in a function of its own.
    """
    shape = gradient.shape
    if shape.rank != 2 or not shape.is_fully_defined():
        return ()
    product = _search(gradient, _is_kernel_gradient, lambda tensor: tensor.shape == shape)
    if product is None:
        return ()
    num_inputs = shape[0]
    layer_input = product.inputs[0]
    reshape = _search(
        layer_input,
        lambda op: op.type == "Reshape" and _flattens(op.inputs[0].shape, num_inputs),
        lambda tensor: tensor.shape.rank == 2 and tensor.shape[1] == num_inputs,
    )
    return () if reshape is None else tuple(reshape.inputs[0].shape[1:].as_list())


def _search(
    start: tf.Tensor,
    is_found: Callable[[tf.Operation], bool],
    may_pass: Callable[[tf.Tensor], bool],
) -> tf.Operation | None:
    """Follows a tensor to the nearest operation wanted, by way of tensors that may be passed."""
    waiting = [start]
    seen: set[tuple[int, str]] = set()
    while waiting and len(seen) < _MAX_OPS:
        op = getattr(waiting.pop(0), "op", None)  # eager tensors have none
        if op is None or (id(op.graph), op.name) in seen:
            continue
        seen.add((id(op.graph), op.name))
        if is_found(op):
            return op
        inputs = _captured(op) if op.type == "Placeholder" else op.inputs
        waiting += [tensor for tensor in inputs if may_pass(tensor)]
    return None


def _captured(placeholder: tf.Operation) -> list[tf.Tensor]:
    """Returns the tensor that a branch of a condition has from the graph around it."""
    captures = getattr(placeholder.graph, "captures", ())  # a graph on its own has none
    output = placeholder.outputs[0]
    return [external for external, internal in captures if internal is output]


def _is_kernel_gradient(op: tf.Operation) -> bool:
    return op.type == "MatMul" and op.get_attr("transpose_a") and not op.get_attr("transpose_b")


def _flattens(shape: tf.TensorShape, num_inputs: int) -> bool:
    """Whether a tensor holds ``num_inputs`` values for each example, in several axes."""
    if shape.rank is None or shape.rank < 3:
        return False
    return shape[1:].is_fully_defined() and shape[1:].num_elements() == num_inputs
