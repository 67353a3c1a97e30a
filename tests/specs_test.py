# SPDX-License-Identifier: Apache-2.0
"""Fields of one-line specs: every value comes back, and nonsense is refused."""

import hypothesis
import hypothesis.strategies as st
import pytest

from tf_gradcomp import specs

words = st.from_regex(r"[a-z_/][a-z_/.]*", fullmatch=True).filter(
    lambda word: word not in ("true", "false", "none", "nan", "inf", "infinity")
)
values = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | words
    | st.builds(
        lambda name, fields: f"{name}({specs.format_fields(fields.items())})",
        words,
        st.dictionaries(words, st.integers() | st.booleans() | st.none() | words, max_size=3),
    )
)


@hypothesis.given(st.dictionaries(words, values, max_size=5))
def test_fields_are_read_as_they_were_written(fields):
    assert specs.parse_fields(specs.format_fields(fields.items())) == fields


@hypothesis.given(st.text(alphabet="ab=,() 1.", max_size=30))
def test_any_text_is_read_or_refused(text):
    try:
        fields = specs.parse_fields(text)
    except ValueError as error:
        message = str(error)
    else:
        message = ""
    if message:
        assert "key=value" in message or "twice" in message
        return
    for key, value in fields.items():
        assert key == key.strip() != ""
        assert value != ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        (" a = 1 , b = two ,", {"a": 1, "b": "two"}),
        ("a=1.0,b=1e-3,c=-2", {"a": 1.0, "b": 1e-3, "c": -2}),
        ("a=TRUE,b=False,c=None", {"a": True, "b": False, "c": None}),
        ("a=f(b=1,c=2),d=3", {"a": "f(b=1,c=2)", "d": 3}),
    ],
)
def test_values_have_the_type_that_they_look_like(text, expected):
    found = specs.parse_fields(text)
    assert found == expected
    assert list(map(type, found.values())) == list(map(type, expected.values()))


@pytest.mark.parametrize("text", ["a", "a=", "=1", "a=1,b", "a=f(b=1,c=2),d"])
def test_what_is_no_field_is_refused(text):
    with pytest.raises(ValueError, match="expected key=value, got"):
        specs.parse_fields(text)


def test_a_field_is_given_once():
    with pytest.raises(ValueError, match="'a' is given twice"):
        specs.parse_fields("a=1,b=2,a=1")
