"""A server whose packages are not installed says which, as on another trainer's image."""

from __future__ import annotations

import sys

import pytest

from entrypoint.__main__ import main
from entrypoint.commands import packages


@pytest.mark.parametrize("command", ["serve-retriever --index /x", "serve-reward --model /x"])
def test_a_missing_package_is_named_with_what_to_do(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda name: None if name == "numpy" else name)
    monkeypatch.setattr(sys, "argv", ["rollcall", *command.split()])
    assert main() == 64
    said = capsys.readouterr().err
    assert said.startswith(f"{command.split()[0]}: numpy not installed here: run the image")


def test_commands_that_need_nothing_else_lack_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda _: None)
    assert packages.lacking("status") == ""
