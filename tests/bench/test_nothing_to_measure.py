"""A benchmark that is asked to measure nothing refuses, and reaches no target by it."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

NONE = {
    "async": ["--seeds"],
    "boot": ["--pairs"],
    "episodes": ["--rounds"],
    "goodput": ["--days"],
    "gpu": ["--micro", "--tokens", "--lora"],
    "learning": ["--seeds"],
    "page": ["--seconds", "--viewers"],
    "preflight": ["--rounds", "--rolls"],
    "recovery": ["--rounds"],
    "retrieval": ["--passages", "--queries"],
    "scale": ["--rounds"],
    "step": ["--rounds"],
    "supervised": ["--rounds", "--steps"],
    "weights": ["--versions"],
}


def refusal(
    name: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    monkeypatch.setattr(sys, "argv", [f"bench.{name}", *words])
    with pytest.raises(SystemExit) as ended:
        import_module(f"bench.{name}").main()
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", NONE)
def test_a_count_of_none_is_refused_in_words(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag in NONE[name]:
        for count in ("0", "-1"):
            said = refusal(name, [flag, count], monkeypatch, capsys)
            assert flag in said
            assert count in said


@pytest.mark.parametrize(
    ("name", "words", "there_is"),
    [
        ("tell", ["flood"], "no fault has flood in its name"),
        ("recovery", ["--faults", "flood"], ""),
    ],
)
def test_a_fault_that_there_is_not_is_refused_before_anything_starts(
    name: str,
    words: list[str],
    there_is: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = refusal(name, words, monkeypatch, capsys)
    assert "flood" in said
    assert there_is in said
