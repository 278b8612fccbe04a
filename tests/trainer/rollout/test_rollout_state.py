"""Which flags pending rollouts depend on."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.support.environments import write
from tests.support.tiny_run import Tiny
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.rollout_state import settings_of


@pytest.mark.parametrize("field", [field.name for field in fields(SamplingSettings)])
def test_pending_rollouts_depend_on_every_sampling_flag(
    tiny: Tiny, run_dir: Path, field: str
) -> None:
    config = tiny.config(run_dir)
    other = replace(config.sampling, **{field: getattr(config.sampling, field) / 2})
    assert settings_of(replace(config, sampling=other)) != settings_of(config)


def test_pending_episodes_depend_on_the_longest_episode(
    tiny: Tiny, run_dir: Path, tmp_path: Path
) -> None:
    """A run that resumes with a smaller --max_len, for its memory, must not train longer ones."""
    own = {"environment": write(tmp_path), "prompt_max_len": 32}
    one, two = (tiny.config(run_dir, max_len=longest, **own) for longest in (200, 100))
    assert settings_of(one) != settings_of(two)


def test_the_sampling_of_pending_rollouts_is_stored_under_the_names_of_its_flags(
    tiny: Tiny, run_dir: Path
) -> None:
    stored = settings_of(tiny.config(run_dir, generate_max_len=7, temperature=0.5, top_p=0.9))
    sampling = {"generate_max_len": 7, "temperature": 0.5, "top_p": 0.9}
    assert sampling.items() <= stored.items()
