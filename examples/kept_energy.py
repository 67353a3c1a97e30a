# SPDX-License-Identifier: Apache-2.0
"""Reports how much of real gradients survives sparsification, layer by layer, at equal bytes.

    python examples/kept_energy.py

Trains the CNN of vision.py and both models of language.py in one process, with dense gradients, and
compresses the gradients of some steps on the side, without error feedback: spatial top-k, the flat
FFT with the density that fills no more words than top-k's payload, top-k in the view that
``view=auto`` has chosen by then, and top-k in the basis that ``view=learned`` has by then, learned
from what a worker would have sent, with error feedback. Prints tables in Markdown.
"""

from __future__ import annotations

import argparse
import os
from typing import Any, NamedTuple

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import fashion_mnist
import language
import tensorflow as tf
import vision

from tf_gradcomp import Compression
from tf_gradcomp.codecs import learned_basis
from tf_gradcomp.codecs.base import Draw, VariableShape
from tf_gradcomp.codecs.learned_basis import Rotation
from tf_gradcomp.controllers import view_choice
from tf_gradcomp.distribute.flattened_shape import flattened_shape
from tf_gradcomp.exchanges import learned_bases

MIN_ELEMENTS = 256  # of a layer that is worth a row
DRAW = Draw(bucket=0, worker=0, step=tf.constant(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--density", type=float, default=0.01, help="of top-k; default: %(default)s"
    )
    parser.add_argument("--steps", default="5,50,100,400", help="default: %(default)s")
    parser.add_argument("--text", metavar="FILE", help="for the language model; see language.py")
    args = parser.parse_args()
    steps = sorted(int(step) for step in args.steps.split(","))

    tf.keras.utils.set_random_seed(0)
    images = fashion_mnist.load(fashion_mnist.locate(None))
    batches = vision.training_data(images, seed=0, limit=None, num_workers=2)
    sgd = tf.keras.optimizers.SGD(0.05, momentum=0.9)
    print(f"### CNN on {images.name}\n")
    report(vision.build_model(), sgd, batches, steps, args.density)

    words = language.encode_words(language.read_text(args.text))
    for name, build in (
        ("LSTM language model", language.build_lstm),
        ("Transformer language model", language.build_transformer),
    ):
        print(f"\n### {name}\n")
        adam = tf.keras.optimizers.Adam(2e-3)
        report(build(), adam, language.sequences(words).repeat(), steps, args.density)


def report(model: Any, optimizer: Any, batches: Any, steps: list[int], density: float) -> None:
    """Trains up to the last of ``steps`` and prints a table of their gradients."""
    variables = model.trainable_variables
    shapes: list[VariableShape] = []
    watchers: list[LayerWatcher | None] = []
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step(inputs: tf.Tensor, targets: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = loss_of(targets, model(inputs, training=True))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        # While this is traced: a graph knows what a Flatten hid, an eager gradient does not.
        shapes[:] = [VariableShape(tuple(g.shape), flattened_shape(g)) for g in dense]
        return dense

    print(
        "| layer | shape | step | top-k | flat FFT | view=auto | view | auto / top-k "
        "| view=learned | learned / top-k |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for step, (inputs, targets) in enumerate(batches.take(steps[-1]), 1):
        gradients = train_step(inputs, targets)
        if not watchers:
            watchers = [LayerWatcher(s, density) if is_worth_it(s) else None for s in shapes]
        for watcher, variable, gradient in zip(watchers, variables, gradients, strict=True):
            if watcher is None:
                continue
            if view_choice.is_due(tf.constant(step)):
                watcher.choose(gradient)
            if step in steps:
                kept = watcher.kept(gradient)
                name = getattr(variable, "path", variable.name)
                shape = " x ".join(map(str, watcher.shape.shape))
                cells = [f"{k:.3f} ({np.sqrt(max(0.0, 1 - k)):.3f})" for k in kept]
                row = [
                    name,
                    shape,
                    str(step),
                    *cells[:-1],
                    watcher.view,
                    f"{kept.auto / kept.top_k:.2f}",
                    cells[-1],
                    f"{kept.learned / kept.top_k:.2f}",
                ]
                print("|", " | ".join(row), "|", flush=True)
            watcher.learned.follow(tf.reshape(gradient, [-1]), tf.constant(step))


def is_worth_it(shape: VariableShape) -> bool:
    return len(shape.shape) > 1 and shape.num_elements >= MIN_ELEMENTS


class Kept(NamedTuple):
    """The share of a gradient's energy that each method keeps."""

    top_k: float
    fft: float
    auto: float
    learned: float


class LayerWatcher:
    """Compresses the gradients of one variable in each way, as a worker would."""

    def __init__(self, shape: VariableShape, density: float) -> None:
        self.shape = shape
        self._density = density
        self._top_k = Compression.from_spec(f"topk:density={density}").build()
        bits = self._top_k.bits_per_element(shape.num_elements)
        self._fft = fft_of_at_most(bits, shape.num_elements)
        self._auto = Compression.from_spec(f"topk:density={density},view=auto").build()
        self._views = self._auto.transform.fit([shape])
        self._choice = tf.constant([0])
        self.learned = LearnedView(shape, density)

    @property
    def view(self) -> str:
        return self._views.candidates[0][int(self._choice[0])]

    def choose(self, gradient: tf.Tensor) -> None:
        energies = self._views.kept_energy(tf.reshape(gradient, [-1]), self._density)
        self._choice = view_choice.choose(energies, self._choice)

    def kept(self, gradient: tf.Tensor) -> Kept:
        flat = tf.reshape(gradient, [-1])
        return Kept(
            kept_share(self._top_k, self._top_k.transform, flat),
            kept_share(self._fft, self._fft.transform, flat),
            kept_share(self._auto, self._views.at(self._choice), flat),
            kept_share(self.learned.codec, self.learned.transform, flat),
        )


class LearnedView:
    """The learned basis of one variable, as a worker has it that only this one trains with."""

    def __init__(self, shape: VariableShape, density: float) -> None:
        self.codec = Compression.from_spec(f"topk:density={density},view=learned").build()
        self._view = self.codec.transform.fit([shape])
        self._layout = self._view.layout(shape.num_elements)
        self._bases = learned_bases.LearnedBases(self._view.learned, "CPU:0")
        self._residual = tf.zeros([shape.num_elements])
        self._in_graph = tf.function(self._sent)

    @property
    def transform(self) -> Any:
        """The transform that has the basis of now."""
        return self._view.at(None, self._bases.by_variable(self._bases.current()))

    def follow(self, flat: tf.Tensor, step: tf.Tensor) -> None:
        """Learns from what of a gradient, and of what was left of earlier ones, would be sent."""
        sent, self._residual = self._in_graph(flat, self._residual, self._bases.current(), step)
        before, bases = self.transform, self._bases.current()
        grams = self._bases.averaged(sent)
        is_due = step % learned_bases.PERIOD == 0
        if is_due:
            bases = [
                Rotation(*map(tf.constant, rotation_after(gram, basis)))
                for gram, basis in zip(grams, bases, strict=True)
            ]
        for variable, value in self._bases.updates(bases, grams):
            variable.assign(value)
        if is_due:
            residual = before.inverse(self._residual, flat.shape[0])
            self._residual = self.transform.forward(residual)

    def _sent(
        self, flat: tf.Tensor, residual: tf.Tensor, bases: list[Rotation], step: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns samples of what is sent, and the residual."""
        view = self._view.at(None, self._bases.by_variable(bases))
        encoded = self.codec.encode(view.forward(flat), residual, self._layout, DRAW)
        total, _ = self.codec.decode_sum(encoded.payload[tf.newaxis], self._layout, DRAW)
        return view.samples(total, step), encoded.residual


def rotation_after(gram: tf.Tensor, basis: Rotation) -> tuple[np.ndarray, np.ndarray]:
    """Returns both factors of the basis that follows one."""
    directions = learned_basis.leading_directions(gram, basis).numpy()
    return learned_basis.rotation_of(directions) or (basis.left.numpy(), basis.right.numpy())


def fft_of_at_most(bits: float, num_elements: int) -> Any:
    """The codec ``fft`` with the largest density whose payload has at most ``bits`` an element."""
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        codec = Compression.from_spec(f"fft:values=identity,density={middle}").build()
        fits = codec.bits_per_element(num_elements) <= bits
        low, high = (middle, high) if fits else (low, middle)
    return Compression.from_spec(f"fft:values=identity,density={max(low, 1e-9)}").build()


def kept_share(codec: Any, transform: Any, flat: tf.Tensor) -> float:
    """1 - the energy of the error over the energy of the gradient, for one worker."""
    layout = transform.layout(flat.shape[0])
    payload = codec.encode(transform.forward(flat), None, layout, DRAW).payload
    total, _ = codec.decode_sum(payload[tf.newaxis], layout, DRAW)
    error = flat - transform.inverse(total, flat.shape[0])
    energy = tf.reduce_sum(tf.square(tf.cast(flat, tf.float64)))
    return float(1 - tf.reduce_sum(tf.square(tf.cast(error, tf.float64))) / energy)


if __name__ == "__main__":
    main()
