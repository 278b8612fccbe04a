"""A job is read by no shell: its syntax is a fault, but for what is quoted."""

from __future__ import annotations

import pytest

from entrypoint.config.read import read_settings
from entrypoint.job.recipes import base as recipes


def test_shell_syntax_in_quotes_is_text() -> None:
    quoted = """bash -c "a | tee $LOG 2>&1" '|' \\> x=y%1 ^a$ 5"""
    words = ("bash", "-c", "a | tee $LOG 2>&1", "|", ">", "x=y%1", "^a$", "5")
    settings = read_settings({"ROLLCALL_RECIPE": "command", "ROLLCALL_JOB": quoted})
    assert settings.job == words
    assert recipes.load("command").faults(settings) == []


@pytest.mark.parametrize("word", ["|", "||", "&&", "&", "<", ">", ">>", ">log", "2>&1", "&>log"])
def test_shell_syntax_among_the_words_of_the_command_line_is_a_fault(word: str) -> None:
    settings = read_settings({"ROLLCALL_RECIPE": "command"}, ["echo", word, "log"])
    (fault,) = recipes.load("command").faults(settings)
    assert f"shell syntax {word}," in fault
    assert "bash -c" in fault


@pytest.mark.parametrize("word", ["<s>", ">=1.0", "a|b", "-", ";", "R&D"])
def test_words_that_only_look_like_shell_syntax_are_passed_on(word: str) -> None:
    settings = read_settings({"ROLLCALL_RECIPE": "command"}, ["echo", word])
    assert recipes.load("command").faults(settings) == []
