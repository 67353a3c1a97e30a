# SPDX-License-Identifier: Apache-2.0
"""A codec made of parts: transform, then sparsifier (or none), then quantizer."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tf_gradcomp.codecs import base


@dataclasses.dataclass(frozen=True)
class Pipeline(base.Codec):
    """``transform -> sparsifier -> quantizer``; the payload is ``positions | codes``.

    Attributes:
      transform: maps buckets to coefficients.
      sparsifier: keeps some items; ``None`` keeps all, in order, with no positions block.
      quantizer: codes the kept values.
    """

    transform: base.Transform
    sparsifier: base.Sparsifier | None
    quantizer: base.Quantizer

    @property
    def biased(self) -> bool:
        return (self.sparsifier is not None and self.sparsifier.biased) or self.quantizer.biased

    @property
    def lossless(self) -> bool:
        return self.sparsifier is None and self.quantizer.lossless

    @property
    def stochastic(self) -> bool:
        return (
            self.sparsifier is not None and self.sparsifier.stochastic
        ) or self.quantizer.stochastic

    @property
    def addable(self) -> tf.DType | None:
        return self.quantizer.addable if self.sparsifier is None else None

    @property
    def adjustable(self) -> frozenset[str]:
        density = {"density"} if self.sparsifier is not None and self.sparsifier.adjustable else ()
        return frozenset(density).union({"bits"} if self.quantizer.adjustable else ())

    @property
    def bits_range(self) -> tuple[int, int]:
        return self.quantizer.bits_range

    def at(self, density: tf.Tensor | None = None, bits: tf.Tensor | None = None) -> Pipeline:
        sparsifier, quantizer = self.sparsifier, self.quantizer
        if density is not None:
            if sparsifier is None:
                raise NotImplementedError("a codec without a sparsifier has no density")
            sparsifier = sparsifier.at(density)
        if bits is not None:
            quantizer = quantizer.at(bits)
        return dataclasses.replace(self, sparsifier=sparsifier, quantizer=quantizer)

    def density(self, layout: base.Layout) -> float | tf.Tensor:
        return (
            1.0 if self.sparsifier is None else self.sparsifier.num_kept(layout) / layout.num_items
        )

    def num_words(self, layout: base.Layout) -> int:
        if self.sparsifier is None:
            return self.quantizer.num_words(layout.num_values)
        num_values = self.sparsifier.num_kept(layout) * layout.components
        return self.sparsifier.num_words(layout) + self.quantizer.num_words(num_values)

    def encode(
        self,
        coefficients: tf.Tensor,
        residual: tf.Tensor | None,
        layout: base.Layout,
        draw: base.Draw,
    ) -> base.Encoded:
        with_residual = residual is not None
        if self.sparsifier is None:
            words, error = self.quantizer.encode(coefficients, residual, with_residual, draw)
            return base.Encoded(words, error)
        selected = self.sparsifier.select(coefficients, residual, layout, draw)
        codes, error = self.quantizer.encode(selected.kept, None, with_residual, draw)
        if with_residual:
            residual = self.sparsifier.replace(selected.total, selected.positions, error)
        sent = self.sparsifier.sent(selected.positions)
        payload = tf.concat([sent, codes], axis=0)
        return base.Encoded(payload, residual, selected.positions)

    def without(
        self, coefficients: tf.Tensor, positions: tf.Tensor | None, layout: base.Layout
    ) -> tf.Tensor:
        if self.sparsifier is None or positions is None:
            return coefficients
        zeros = tf.zeros((self.sparsifier.num_kept(layout), *layout.shape[1:]))
        return self.sparsifier.replace(coefficients, positions, zeros)

    def decode_sum(
        self, payloads: tf.Tensor, layout: base.Layout, draw: base.Draw
    ) -> tuple[tf.Tensor, tf.Tensor]:
        if self.sparsifier is None:
            total = self.quantizer.decode_sum(payloads, layout.num_values)
            return tf.reshape(total, layout.shape), self.quantizer.all_finite(payloads)
        with tf.device("CPU:0"):  # which is where numbers of items and words are needed
            num_values = self.sparsifier.num_kept(layout) * layout.components
            num_code_words = self.quantizer.num_words(num_values)
        positions, codes = payloads[:, :-num_code_words], payloads[:, -num_code_words:]
        values = self.quantizer.decode(codes, num_values)
        kept = tf.reshape(values, (payloads.shape[0], -1, *layout.shape[1:]))
        # Items that are not finite rank first, so the quantizer has seen them if there are any.
        return self.sparsifier.sum(positions, kept, layout, draw), self.quantizer.all_finite(codes)

    def addends(self, payload: tf.Tensor, layout: base.Layout) -> tf.Tensor:
        assert self.sparsifier is None
        return tf.reshape(self.quantizer.addends(payload, layout.num_values), layout.shape)
