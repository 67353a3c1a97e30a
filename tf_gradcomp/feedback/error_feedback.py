# SPDX-License-Identifier: Apache-2.0
"""Error feedback: what one step could not send is added to the next step's gradient.

Source: Seide et al., "1-Bit Stochastic Gradient Descent", INTERSPEECH 2014; for compression
in general Karimireddy et al., "Error Feedback Fixes SignSGD", ICML 2019 (arXiv 1901.09847).
"""

from __future__ import annotations

from tf_gradcomp import state


class ErrorFeedback:
    """The residual of one bucket on one worker.

    With a codec, the residual has the shape of the bucket's coefficients: transforms are linear, so
    it can live behind them, and no inverse transform is needed to update it. With a low-rank
    method it has that of the bucket. It is in the units of the gradient passed to the exchange.
    """

    def __init__(self, shape: tuple[int, ...], device: str, name: str) -> None:
        self.residual = state.local_zeros(shape, device, name)
