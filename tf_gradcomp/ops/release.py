# SPDX-License-Identifier: Apache-2.0
"""Resources that are destroyed in the background."""

from __future__ import annotations

import atexit
import functools

import tensorflow as tf

from tf_gradcomp.ops import loader

tf.no_gradient("Gradcomp>ReleaseInBackground")
tf.no_gradient("Gradcomp>FinishReleases")


def release_in_background(handle: tf.Tensor) -> None:
    """Lets a thread of its own destroy a resource, once nothing else owns it.

    It begins within a tenth of a second. Until then the resource lives on as if it had one owner
    more. What is left when the process ends is not destroyed at all.

    Args:
      handle: resource scalar that owns its resource, such as an anonymous iterator's.
    """
    _finish_at_exit()
    loader.load().gradcomp_release_in_background(handle=handle)


@functools.cache
def _finish_at_exit() -> None:
    """Has threads stop before the interpreter does: a dataset may call Python when it ends."""
    atexit.register(loader.load().gradcomp_finish_releases)
