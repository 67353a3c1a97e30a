# SPDX-License-Identifier: Apache-2.0
"""Native operations: a loader and one module per operation family.

Nothing is imported here, so that `tf_gradcomp.ops.loader.check()` costs no TensorFlow import.
"""
