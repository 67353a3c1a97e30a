# SPDX-License-Identifier: Apache-2.0
"""The only door to private names of TensorFlow and Keras; ``compat`` lists them."""
