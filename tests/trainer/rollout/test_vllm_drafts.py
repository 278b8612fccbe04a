"""Unfinished rollouts in vLLM's engine, which generates nothing here."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from env.episodes.types import Context
from tests.support.engines import settings
from tests.support.tiny_run import Tiny
from trainer.rollout.tokenizer_io import Texts
from trainer.rollout.vllm_drafts import PartialRollouts, _UnderWay
from trainer.types import PartialRollout


class _Engine:
    """Keeps the new tokens of one request as vLLM's output processor does."""

    def __init__(self, tokens: list[int]) -> None:
        state = SimpleNamespace(
            detokenizer=SimpleNamespace(output_token_ids=tokens),
            logprobs_processor=SimpleNamespace(
                logprobs=SimpleNamespace(logprobs=[0.0] * len(tokens))
            ),
        )
        self.output_processor = SimpleNamespace(request_states={"state-0": state})

    def step(self) -> list[object]:
        return []

    def abort_request(self, names: list[str]) -> None:
        """It has none."""


def test_a_stop_string_that_a_weight_update_divides_ends_its_rollout_at_once(tiny: Tiny) -> None:
    texts = Texts(settings(tiny))
    before, after = (np.array(texts.prompt(text), dtype=np.int32) for text in ("12+3", "0=1"))
    begun = PartialRollout(
        (0, 0),
        "",
        seed=1,
        tokens=before,
        log_probs=np.zeros(len(before), dtype=np.float32),
        versions=np.zeros(len(before), dtype=np.int32),
        context=Context(tokens=tuple(texts.prompt("7=")), limit=20, stops=("30=",)),
    )
    rollouts = PartialRollouts(_Engine(after.tolist()), texts)
    rollouts._under_way["rollout-0"] = _UnderWay(begun, 1, "state-0")
    (ended,) = rollouts.go_on(0)
    assert ended.completion.text == "12+30="
    assert ended.completion.tokens.dtype == ended.completion.versions.dtype == np.int32
    assert rollouts.left == frozenset()
