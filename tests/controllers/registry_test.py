# SPDX-License-Identifier: Apache-2.0
"""Controllers as text, and back."""

import dataclasses

import hypothesis
import hypothesis.strategies as st
import pytest

from tf_gradcomp.compression import Compression
from tf_gradcomp.controllers import registry
from tf_gradcomp.controllers.lags import Lags
from tf_gradcomp.controllers.layer_window import PICKS, LayerWindow

controllers = st.builds(Lags, st.integers(5, 10**9), st.floats(1, 1e9)) | st.builds(
    LayerWindow,
    st.integers(1, 10**9),
    st.floats(1e-9, 1),
    st.none() | st.integers(1, 10**9),
    st.sampled_from(PICKS),
    st.integers(0, 2**31 - 1),
)


@hypothesis.given(controllers)
def test_text_gives_back_an_equal_controller(controller):
    text = registry.to_spec(controller)
    assert registry.from_spec(text) == controller
    assert registry.from_spec(f"  {text} ") == controller


@hypothesis.given(controllers, st.booleans())
def test_compressions_with_one_go_to_text_and_data_and_back(controller, short):
    compression = Compression("topk", controller=controller, scope="layer", start_after=7)
    for copy in (
        Compression.from_spec(compression.to_spec()),
        Compression.from_dict(compression.to_dict()),
        dataclasses.replace(compression, controller=registry.to_spec(controller)),
    ):
        assert copy == compression
        assert hash(copy) == hash(compression)
    assert compression.steady() == Compression("topk", scope="layer")


def test_text_is_the_shortest():
    assert registry.to_spec(Lags()) == "lags"
    assert registry.to_spec(Lags(period=7)) == "lags(period=7)"
    assert registry.to_spec(LayerWindow(patience=7, pick="uniform")) == (
        "layer_window(patience=7,pick=uniform)"
    )
    assert registry.from_spec("layer_window()") == LayerWindow()
    assert registry.from_spec("layer_window(patience=none)") == LayerWindow()


def test_a_class_of_the_user_s_own_is_described():
    class Mine(LayerWindow):
        pass

    assert "Mine(period=5" in registry.to_spec(Mine(period=5))
    compression = Compression("identity", controller=Mine(period=5))
    assert "Mine(period=5" in str(compression)
    assert compression != Compression("identity", controller=Mine(period=6))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("", ["none or one of lags, layer_window", "''"]),
        ("lag", ["lags, layer_window", "'lag'"]),
        ("lags(period=3", ["in parentheses", "'lags(period=3'"]),
        ("lags:period=3", ["in parentheses"]),
        ("lags(periods=3)", ["'lags' has no field 'periods'", "period, max_ratio, profile"]),
        ("lags(statistics=3)", ["no field 'statistics'"]),
        ("lags(ready_seconds=3)", ["no field 'ready_seconds'"]),
        ("layer_window(period)", ["key=value", "'period'"]),
        ("layer_window(period=2,period=3)", ["'period' is given twice"]),
        ("layer_window(period=0)", ["period", "at least 1", "got 0"]),
        ("layer_window(period=2.0)", ["period", "integer", "got 2.0"]),
        ("layer_window(budget=nan)", ["budget must be in (0, 1]", "nan"]),
        ("layer_window(pick=random)", ["pick", "window, uniform, arcsine", "'random'"]),
        ("layer_window(patience=true)", ["patience", "True"]),
        ("lags(max_ratio=inf)", ["max_ratio", "[1, 1e9]", "inf"]),
        ("lags(profile=/no/such/file)", ["/no/such/file", "cannot be read"]),
    ],
)
def test_what_is_wrong_is_said(spec, words):
    with pytest.raises(ValueError) as error:
        registry.from_spec(spec)
    for word in words:
        assert word in str(error.value)
    with pytest.raises(ValueError, match="compression spec|controller"):
        Compression.from_spec(f"topk:controller={spec}")
