# SPDX-License-Identifier: Apache-2.0
"""Iterators over distributed datasets that do not hold up training when they are dropped.

The thread that tunes a tf.data pipeline sleeps for up to a minute between two looks at it. An
iterator that is destroyed wakes the thread and waits for it, but often the thread reads that it is
not cancelled yet, and sleeps on (TensorFlow 2.15 to 2.21). Keras drops an iterator in every epoch,
and where it does the next step waits, on all workers: a collective may even time out.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from tf_gradcomp.ops.release import release_in_background


def drop_iterators_in_background(distributed_dataset: Any) -> Any:
    """Makes iterators of a distributed dataset be destroyed by a thread of their own.

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
        __doc__ = dataset_class.__doc__

        def __iter__(self) -> Any:
            iterator = super().__iter__()
            # An iterator that a tf.function makes for itself ends with the function's call.
            if tf.executing_eagerly():
                for handle in tf.nest.flatten(iterator, expand_composites=True):
                    release_in_background(handle)
            return iterator

    DroppingInBackground.__name__ = dataset_class.__name__
    return DroppingInBackground
