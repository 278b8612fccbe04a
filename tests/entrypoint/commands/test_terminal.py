"""What a job prints is shown on a terminal, and not obeyed by it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoint.commands.terminal import harmless


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]52;c;ZXZpbA==\x07a", "a"),  # the clipboard
        ("\x1b]0;title\x1b\\a", "a"),
        ("\x1b[2J\x1b[Ha", "a"),
        ("\x1bca", "a"),  # reset
        ("\x1bP+q544e\x1b\\a", "a"),
        ("\x9b2Ja\x07", "2Ja"),
        ("\x1b[31mred\x1b[0m\tä\r\n", "\x1b[31mred\x1b[0m\tä\r\n"),
    ],
)
def test_only_colours_are_left_of_what_a_terminal_obeys(text: str, shown: str) -> None:
    assert harmless(text) == shown


@given(st.text(st.sampled_from("\x1b[]0;52cmPJ\x07\\a\x9b"), max_size=20))
def test_no_sequence_but_a_colour_is_left_of_any_text(text: str) -> None:
    rest = re.sub(r"\x1b\[[0-9;:]*m", "", harmless(text))
    assert not set("\x1b\x07\x9b") & set(rest)
