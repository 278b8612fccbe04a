"""Tags that are special tokens: rewards, stop strings, environments and samples see them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from env.episodes.types import Context
from env.registry import reward_function
from tests.support import tags
from tests.support.engines import settings
from tests.support.tiny_run import GRPO, Tiny, metric_rows, train
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.types import PartialRollout, Request

SAMPLING = SamplingSettings(max_new_tokens=20)


@pytest.fixture(scope="module")
def tagged(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    directory = tmp_path_factory.mktemp("tagged")
    rows = directory / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": tags.QUESTION, "answer": "J"}) + "\n")
    return Tiny(tags.write_tagged_model(directory / "model"), rows, rows)


def test_a_completion_has_its_tags_and_not_its_end(tagged: Tiny) -> None:
    (one,) = HFEngine(settings(tagged)).generate([Request("\n", (1,))], SAMPLING)
    assert (one.text, one.finished) == ("<answer>J</answer>", True)


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_a_reply_stops_at_a_special_token(tagged: Tiny, seconds: float) -> None:
    engine = HFEngine(settings(tagged))
    tokens = tuple(engine._texts.prompt(tags.QUESTION))
    context = Context(tokens, 20, ("</answer>", "</search>"))
    (at_once,) = engine.generate([Request("", (1,), context)], SAMPLING)
    partial, ended = PartialRollout((0, 0), "", 1, context=context), []
    for call in range(20):
        ended += engine.write([] if call else [partial], SAMPLING, seconds).ended
    (piecewise,) = ended
    for completion in (at_once, piecewise.completion):
        assert completion.text == tags.REPLIES[0]
        assert completion.finished


def test_search_r1_s_policy_searches_and_answers_with_special_tags(
    tagged: Tiny, tmp_path: Path
) -> None:
    config = tagged.config(
        tmp_path / "run",
        **GRPO,
        environment=tags.write_environment(tmp_path),
        reward=("exact-match", "format?pattern=.*<answer>.*</answer>"),
        remote_rm_url=None,
        generate_max_len=12,
        max_len=200,
        max_turns=3,
        max_steps=1,
        rollout_batch_size=1,
        train_batch_size=2,
        log_samples=2,
    )
    train(config, reward_function(config.reward_spec))
    (row,) = metric_rows(config)
    assert (row["train/searches"], row["train/invalid_actions"]) == (1, 0)
    assert row["train/reward"] == 2
    samples = config.files.samples.read_text().splitlines()
    first, second = json.loads(samples[0])["turns"]
    assert (first["reply"], first["answer"]) == (tags.REPLIES[0], tags.INFORMATION)
    assert second["reply"] == tags.REPLIES[1]
