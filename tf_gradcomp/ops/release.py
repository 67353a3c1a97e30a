# SPDX-License-Identifier: Apache-2.0
"""Resources that are destroyed in the background."""

from __future__ import annotations

import atexit
import functools

import tensorflow as tf

from tf_gradcomp.ops import loader

tf.no_gradient("Gradcomp>ReleaseInBackground")
tf.no_gradient("Gradcomp>AwaitReleases")
tf.no_gradient("Gradcomp>FinishReleases")


def release_in_background(handle: tf.Tensor) -> None:
    """Has a thread of its own destroy a resource, as soon as nothing else owns it.

    To be called when the other owners are about to let go: the thread asks in intervals of one
    millisecond, and of up to a tenth of a second later on. When the process ends, what has begun
    to be destroyed is waited for, and the rest is not destroyed at all.

    Args:
      handle: resource scalar that owns its resource, such as an anonymous iterator's.
    """
    _finish_at_exit()
    loader.load().gradcomp_release_in_background(handle=handle)


def await_releases(seconds: float) -> None:
    """Waits until all that was to be destroyed is, but not for longer than ``seconds``."""
    _finish_at_exit()
    with tf.device("CPU:0"):
        loader.load().gradcomp_await_releases(seconds=seconds)


@functools.cache
def _finish_at_exit() -> None:
    """Has threads stop before the interpreter does: a resource may hold Python objects."""
    atexit.register(_finish)


def _finish() -> None:
    with tf.device("CPU:0"):
        loader.load().gradcomp_finish_releases()
