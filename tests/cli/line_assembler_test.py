# SPDX-License-Identifier: Apache-2.0
"""Lines as a terminal would leave them, however the bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_gradcomp.cli.line_assembler import MAX_LINE, LineAssembler


def lines(*chunks: bytes) -> list[str]:
    assembler = LineAssembler()
    completed = [line for chunk in chunks for line in assembler.feed(chunk)]
    return completed + assembler.feed(b"", final=True)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n\n", ["", ""]),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\npartial", ["one", "partial"]),
        (b"windows\r\n", ["windows"]),
        # tqdm: a return, then the bar; a return and blanks to wipe it.
        (b"\r 10%\r 50%\r100%\n", ["100%"]),
        (b"\r 10%\r 50%", [" 50%"]),
        (b" 50%\r", [" 50%"]),
        (b"50%\r   \rdone\n", ["done"]),
        # Keras on a terminal: as many backspaces as the bar is wide, then a return.
        (b"1/2 [=>.]\b\b\b\b\b\b\b\b\b\r2/2 [===]\n", ["2/2 [===]"]),
        # Form feed, line and paragraph separators and the like do not end lines.
        ("a\x0bb\x0cc\x1cd\x85e\u2028f\n".encode(), ["a\x0bb\x0cc\x1cd\x85e\u2028f"]),
        (b"\x1b[1m12\x1b[0m\n", ["\x1b[1m12\x1b[0m"]),
        (b"\xff\xfe caf\xc3\xa9\n", ["\ufffd\ufffd café"]),
        (b"cut \xe2\x82", ["cut \ufffd"]),
    ],
)
def test_examples(data, expected):
    assert lines(data) == expected
    assert lines(*(data[i : i + 1] for i in range(len(data)))) == expected


@given(
    st.lists(st.sampled_from([b"a", b"bc", b"\r", b"\b", b"\n", b"\xc3\xa9", b"\xff"])).map(
        b"".join
    ),
    st.lists(st.integers(0, 60)),
)
def test_chunks_do_not_matter(data, cuts):
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    chunks = [data[a:b] for a, b in zip(places, places[1:], strict=False)]
    assert lines(*chunks) == lines(data)


def test_long_line_is_cut_without_loss():
    chunk = "0123456789é".encode() * 6000
    pieces = lines(*[chunk] * 40, b"end\n")
    assert "".join(pieces) == chunk.decode() * 40 + "end"
    assert len(pieces) > 1
    assert all(len(piece) < MAX_LINE + len(chunk) for piece in pieces)


def test_endless_progress_bar_is_not_hoarded():
    assembler = LineAssembler()
    for step in range(3000):
        assert assembler.feed(b"\r%06d " % step + b"#" * 1000) == []
    assert assembler.feed(b"\n") == ["002999 " + "#" * 1000]
