"""Which flags pending rollouts depend on, and how those of another version are read."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from env.types import Prompt, Score
from tests.support.environments import write
from tests.support.tiny_run import Tiny
from trainer.checkpoint.resume import ResumeError
from trainer.checkpoint.writer import DriverState, RunState
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.rollout_state import (
    PendingRollouts,
    PromptGroup,
    pending_at,
    settings_of,
    whole,
)
from trainer.types import Completion, PartialRollout


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


def test_a_score_replaces_no_metric_of_its_episode() -> None:
    own = {"turns": 2.0, "stop_done": 1.0, "acc": 0.0}
    none = np.zeros(0, dtype=np.int32)
    completion = Completion(
        text="",
        tokens=none,
        action_mask=none > 0,
        log_probs=none.astype(np.float32),
        finished=True,
        versions=none,
        metrics=own,
    )
    score = whole(completion, Score.of(1.0, turns=9, acc=1.0))
    assert score.metrics == own | {"acc": 1.0, "score_turns": 9}


def changed(content: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Pending rollouts as another version would write them."""
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    header = json.loads(str(arrays["told"]))
    change(header)
    out = io.BytesIO()
    np.savez(out, **arrays | {"told": np.array(json.dumps(header))})
    return out.getvalue()


def pending() -> PendingRollouts:
    group = PromptGroup(number=1, prompt=Prompt(0, "1+1=", "2"), version=3)
    group.given_scores = {0: Score.of(0.5)}
    return PendingRollouts(settings={}, groups=[group], prompts=[Prompt(1, "1+2=", "3")])


def test_pending_rollouts_of_another_version_are_read_as_far_as_they_are_known() -> None:
    def newer(header: dict[str, Any]) -> None:
        group = header["groups"][0]
        for row in (header["prompts"][0], group["prompt"], group["given_scores"]["0"]):
            row["later"] = 1
        del header["prompts"][0]["label"]

    found = PendingRollouts.parse(changed(pending().dump(), newer))
    (group,), (prompt,) = found.groups, found.prompts
    assert (group.prompt, group.given_scores) == (Prompt(0, "1+1=", "2"), {0: Score.of(0.5)})
    assert prompt == Prompt(1, "1+2=")


def test_pending_rollouts_with_longer_integers_of_an_older_version_are_read() -> None:
    tokens = np.arange(3, dtype=np.int64)
    begun = PartialRollout(
        (1, 0),
        "1+1=",
        seed=5,
        tokens=tokens,  # type: ignore[arg-type]
        log_probs=np.zeros(3, dtype=np.float32),
        versions=tokens - 1,  # type: ignore[arg-type]
    )
    written = pending()
    written.groups[0].partials[0] = begun
    (group,) = PendingRollouts.parse(written.dump()).groups
    found = group.partials[0]
    assert found.tokens.dtype == found.versions.dtype == np.int32
    assert (found.tokens.tolist(), found.versions.tolist()) == ([0, 1, 2], [-1, 0, 1])


def test_pending_rollouts_that_this_version_cannot_read_are_named(
    tiny: Tiny, run_dir: Path
) -> None:
    content = changed(pending().dump(), lambda header: header["groups"][0].pop("version"))
    beginning = DriverState(RunState(step=7, seed=0, prompts={}), content)
    with pytest.raises(ResumeError, match="under way at step 7 cannot be read: KeyError"):
        pending_at(tiny.config(run_dir, async_train=True), beginning)
