"""Which of a user's command lines are programs of the product."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrypoint.processes.programs import unshadowed


@pytest.mark.parametrize(
    ("words", "more"),
    [
        ("python3 -m env.server --task x", "python3 -P -m env.server --task x"),
        ("/usr/bin/python -u -m trainer.supervised", "/usr/bin/python -P -u -m trainer.supervised"),
        ("python -m env.nothing", "python -m env.nothing"),
        ("python -m http.server", "python -m http.server"),
        ("python train.py -m env.server", "python train.py -m env.server"),
        ("python -c x -m env.server", "python -c x -m env.server"),
        ("python -m", "python -m"),
        ("ruby -m env.server", "ruby -m env.server"),
        ("python", "python"),
    ],
)
def test_only_our_programs_are_started_in_another_way(
    words: str, more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert " ".join(unshadowed(words.split())) == more
