# SPDX-License-Identifier: Apache-2.0
"""Iterators over distributed datasets that do not hold up training when they are dropped.

The thread that tunes a tf.data pipeline sleeps for up to a minute between two looks at it. An
iterator that is destroyed ends its pipeline, then wakes that thread and waits for it; but often
the thread reads that it is not cancelled yet, and sleeps on (TensorFlow 2.15 to 2.21). Keras drops
an iterator in every epoch, and where it does the next step waits, on all workers: a collective may
even run out of time.
"""

from __future__ import annotations

import atexit
import functools
import weakref
from typing import Any

import tensorflow as tf

from tf_gradcomp.ops import release

# Long enough for the pipeline itself to end, which takes milliseconds, before the next one starts:
# both may read from the same source.
_PIPELINE_END_SECONDS = 0.05


def drop_iterators_in_background(distributed_dataset: Any) -> Any:
    """Makes iterators of a distributed dataset be destroyed by threads of their own.

    Args:
      distributed_dataset: a ``tf.distribute.DistributedDataset``; changed in place.

    Returns:
      The same dataset.
    """
    dataset_class: Any = type(distributed_dataset)
    distributed_dataset.__class__ = _dropping_in_background(dataset_class)
    return distributed_dataset


@functools.cache
def _dropping_in_background(dataset_class: Any) -> Any:
    class DroppingInBackground(dataset_class):
        def __iter__(self) -> Any:
            if not tf.executing_eagerly():
                # A tf.function makes it for itself, and ends it with its call.
                return super().__iter__()
            release.await_releases(_PIPELINE_END_SECONDS)
            iterator = super().__iter__()
            handles = tf.nest.flatten(iterator, expand_composites=True)
            _finalizers()[id(iterator)] = weakref.finalize(iterator, _drop, id(iterator), handles)
            return iterator

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(DroppingInBackground, name, getattr(dataset_class, name))
    return DroppingInBackground


@functools.cache
def _finalizers() -> dict[int, weakref.finalize[..., Any]]:
    """What is to be done for each iterator that exists, by its id."""
    # Runs before the exit function of `release`, which was registered earlier.
    atexit.register(_hand_over_all)
    return {}


def _hand_over_all() -> None:
    """Hands over the iterators that exist when the process ends, and that are thus never destroyed.

    To destroy one is to wait for its pipeline, which may be waiting for the interpreter.
    """
    for finalizer in list(_finalizers().values()):
        finalizer()


def _drop(key: int, handles: list[tf.Tensor]) -> None:
    del _finalizers()[key]
    with tf.init_scope():  # an iterator may be dropped while a graph is built
        for handle in handles:
            release.release_in_background(handle)
