"""A reward function of TRL's kind gets the columns of its row, also after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract.manifest import checkpoint_path
from env.registry import reward_function
from tests.support.tiny_run import Tiny, metric_rows, train
from trainer.checkpoint.writer import IN_FLIGHT
from trainer.cluster.stop import Stopped, StopRequest
from trainer.rollout.rollout_state import PendingRollouts

FUNCTION = """\
def scored(completions, completion_ids, answer, prompt=None, **columns):
    assert all(isinstance(one, str) for one in answer)
    return [len(ids) / 3 + len(c) / 100 for c, ids in zip(completions, completion_ids)]
"""


def test_columns_are_there_after_a_resume(tiny: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(FUNCTION)
    own: dict[str, Any] = {"async_train": True, "max_staleness": 2, "label_key": None}
    own |= {"advantage_estimator": "group_norm", "init_kl_coef": 0, "max_steps": 3}
    config = tiny.config(tmp_path / "run", **own, remote_rm_url=f"{path}:scored")
    reward, stop = reward_function(config.reward_spec), StopRequest()

    def stopping(requests: Any) -> Any:
        stop.requested = True
        return reward(requests)

    with pytest.raises(Stopped):
        train(config, stopping, stop)
    step = metric_rows(config)[-1]["step"]
    content = (checkpoint_path(config.checkpoints, step) / IN_FLIGHT).read_bytes()
    assert PendingRollouts.parse(content).groups
    train(config, reward)
    rows = metric_rows(config)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["train/reward_failed"] == 0 for row in rows)
