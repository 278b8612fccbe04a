"""How the flags have episodes run: the trial of an environment leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import psutil

from tests.support.environments import HOLDING
from tests.support.tiny_run import Tiny
from trainer.rollout import episode_setup


def test_an_environment_that_shows_its_tools_is_closed(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "holding.py").write_text(HOLDING)
    spec = f"{tmp_path}/holding.py:Holding"
    config = tiny.config(
        tmp_path / "run", environment=spec, advantage_estimator="group_norm", init_kl_coef=0
    )
    before = set(psutil.Process().children())
    assert episode_setup.of_flags(config)
    assert set(psutil.Process().children()) <= before
