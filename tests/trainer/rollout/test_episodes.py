"""Episodes in training: tokens, staleness, checkpoints, failures, many at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from contract.manifest import checkpoint_path
from env.environments.load import EnvironmentSpecError
from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from tests.support.environments import write
from tests.support.saved_states import leaves_of
from tests.support.tiny_run import GRPO, StopAfter, Tiny, events, metric_rows, share_of, train
from trainer.checkpoint.writer import IN_FLIGHT
from trainer.cluster.stop import Stopped
from trainer.config.config import Config
from trainer.rollout import prompts as data
from trainer.rollout.rollout_state import PendingRollouts
from trainer.types import Sample, TrainingError


def flags(directory: Path, **more: Any) -> dict[str, Any]:
    return {
        **GRPO,
        "environment": write(directory),
        "remote_rm_url": None,
        "max_len": 64,
        "prompt_max_len": 16,
        **more,
    }


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("partial", [False, True])
def test_episodes_are_trained_on(
    tiny: Tiny, tmp_path: Path, trained: list[Sample], ahead: bool, partial: bool
) -> None:
    own = {"async_train": True, "partial_rollout": partial} if ahead else {}
    config = tiny.config(tmp_path / "run", **flags(tmp_path, **own))
    state = train(config)
    assert state.step == 4
    assert len(trained) == 4 * 8
    for sample in trained:
        completion = sample.completion
        starts = np.flatnonzero(np.diff(completion.action_mask.astype(int)) == 1)
        assert len(starts) == completion.metrics["turns"] == 3
        assert completion.metrics["stop_done"] == 1
        assert set(completion.versions[~completion.action_mask]) == {-1}
        assert not completion.log_probs[~completion.action_mask].any()
        assert list(completion.turn_rewards) == [np.flatnonzero(completion.action_mask)[-1]]
    row = metric_rows(config)[-1]
    assert row["train/turns"] == 3
    assert row["train/stop_done"] == 1


def same_samples(one: Sequence[Sample], other: Sequence[Sample]) -> bool:
    return len(one) == len(other) and all(
        (a.completion.tokens == b.completion.tokens).all()
        and (a.completion.log_probs == b.completion.log_probs).all()
        for a, b in zip(one, other, strict=True)
    )


def stopped_and_resumed(config: Config) -> PendingRollouts:
    """Train with a stop on the way. Returns what was pending then."""
    after = StopAfter(2)
    with pytest.raises(Stopped):
        train(config, after.reward, after.stop)
    step = metric_rows(config)[-1]["step"]
    assert step < 4
    pending = (checkpoint_path(config.checkpoints, step) / IN_FLIGHT).read_bytes()
    train(config, share_of("1"))
    return PendingRollouts.parse(pending)


def test_a_resumed_run_repeats_to_the_bit(
    tiny: Tiny, tmp_path: Path, trained: list[Sample]
) -> None:
    """With tools whose time differs, a critic and evaluations."""
    own: dict[str, Any] = {
        "full_determinism": True,
        "advantage_estimator": "gae",
        "eval_dataset": tiny.held_out,
        "eval_steps": 2,
        "environment_args": '{"slowest": 0.05, "own_score": false}',
        "remote_rm_url": "arithmetic",
    }
    one, two = (tiny.config(tmp_path / name, **flags(tmp_path, **own)) for name in ("one", "two"))
    train(one, share_of("1"))
    uninterrupted = list(trained)
    trained.clear()
    stopped_and_resumed(two)
    assert same_samples(uninterrupted, trained)
    assert leaves_of(one, 4) == leaves_of(two, 4)
    assert "eval/pass1" in metric_rows(two)[-1] or events(two, "evaluation")


def test_an_unfinished_episode_begins_again_from_its_task(
    tiny: Tiny, tmp_path: Path, trained: list[Sample]
) -> None:
    arguments = '{"slowest": 0.3, "own_score": false}'
    own: dict[str, Any] = {"async_train": True, "max_staleness": 2, "environment_args": arguments}
    own["remote_rm_url"] = "arithmetic"
    config = tiny.config(tmp_path / "run", **flags(tmp_path, **own))
    pending = stopped_and_resumed(config)
    begun = [partial for group in pending.groups for partial in group.partials.values()]
    assert begun
    assert not any(len(partial.tokens) for partial in begun)
    dealt = data.load(config).stream.next_batch(4 * config.rollout_batch_size)
    assert sorted(s.prompt.index for s in trained) == sorted([p.index for p in dealt] * 2)
    assert all(s.completion.metrics["turns"] == 3 for s in trained)


FAILING = """\
from env.episodes.environment import Environment
from env.episodes.types import Turn

class Failing(Environment):
    async def reset(self, task):
        self.row = task.index
        return task.messages

    async def step(self, reply):
        if {when}:
            raise ConnectionError("no retriever")
        return Turn(done=True, reward=1)
"""


def failing(directory: Path, when: str) -> str:
    path = directory / "failing.py"
    path.write_text(FAILING.format(when=when))
    return f"{path}:Failing"


def test_a_dropped_episode_is_no_zero(tiny: Tiny, tmp_path: Path, trained: list[Sample]) -> None:
    own = {"environment": failing(tmp_path, "self.row % 2"), "environment_failure": "drop"}
    config = tiny.config(tmp_path / "run", **flags(tmp_path, **own))
    train(config)
    failed = [sample for sample in trained if not sample.score.ok]
    assert 0 < len(failed) < len(trained)
    assert "no retriever" in failed[0].score.error
    assert not any(sample.completion.action_mask.any() for sample in failed)
    row = metric_rows(config)[-1]
    assert row["train/reward"] == 1.0
    assert row["train/reward_failed"] > 0


@pytest.mark.parametrize("own", [{"environment_failure": "fail"}, {"environment_failure": "drop"}])
def test_a_run_whose_environment_always_fails_ends_and_says_why(
    tiny: Tiny, tmp_path: Path, own: dict[str, str]
) -> None:
    config = tiny.config(
        tmp_path / "run", **flags(tmp_path, **own, environment=failing(tmp_path, "True"))
    )
    with pytest.raises(TrainingError, match=r"Failing\.step raised ConnectionError: no retriever"):
        train(config)


def test_an_environment_without_any_reward_is_named(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny.config(tmp_path / "run", **flags(tmp_path, environment="single-turn"))
    with pytest.raises(TrainingError, match="neither a score nor rewards of turns"):
        train(config)


def test_a_single_turn_is_the_synchronous_run(
    tiny: Tiny, tmp_path: Path, trained: list[Sample]
) -> None:
    """In lockstep a reply is written in the batch that a synchronous run would write."""
    train(tiny.config(tmp_path / "one", **GRPO), share_of("1"))
    synchronous = list(trained)
    trained.clear()
    own = {"environment": "single-turn", "full_determinism": True}
    train(tiny.config(tmp_path / "two", **GRPO, **own), share_of("1"))
    assert [s.score.reward for s in synchronous] == [s.score.reward for s in trained]
    for one, other in zip(synchronous, trained, strict=True):
        assert (one.completion.tokens == other.completion.tokens).all()
        assert (one.completion.action_mask == other.completion.action_mask).all()


TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<a>{% endif %}"
)
TOOLS = '''\
from env.episodes.tools import ToolEnv


def double(number: int) -> int:
    """Double a number.

    Args:
        number: The number.
    """
    return 2 * number


class Doubling(ToolEnv):
    def __init__(self):
        super().__init__([double])

    async def step(self, reply):
        call = ToolCall("double", {"number": len(reply.text)}, "call00001")
        return await super().step(Reply(reply.text, [call], last=reply.last))


from env.episodes.types import Reply, ToolCall
'''


def test_tools_are_shown_and_answered_in_the_chat_template(
    tiny: Tiny, tmp_path: Path, trained: list[Sample]
) -> None:
    model = tmp_path / "model"
    write_model(TinyModel(hidden_size=16, layers=1, heads=2, max_length=1024), None, model)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    (tmp_path / "tools.py").write_text(TOOLS)
    own = {"environment": f"{tmp_path}/tools.py:Doubling", "max_turns": 2, "max_steps": 1}
    own |= {"pretrain": model, "apply_chat_template": True, "remote_rm_url": "arithmetic"}
    own |= {"max_len": 900, "prompt_max_len": 600}
    train(tiny.config(tmp_path / "run", **flags(tmp_path, **own)), share_of("1"))
    tokens = AutoTokenizer.from_pretrained(model)
    assert trained
    for sample in trained:
        completion = sample.completion
        shown = tokens.decode(completion.tokens)
        assert '"description": "Double a number."' in shown
        assert re.search(r"<tool>\d+</s>\n<a>", shown)
        assert completion.metrics["turns"] == 2
        assert completion.metrics["stop_turns"] == 1
        assert completion.metrics["tool_calls"] == 1


def test_tools_without_a_chat_template_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    config = tiny.config(
        tmp_path / "run", **flags(tmp_path, environment=f"{tmp_path}/tools.py:Doubling")
    )
    with pytest.raises(
        EnvironmentSpecError, match="no chat template, which the environment's tools need"
    ):
        train(config)
