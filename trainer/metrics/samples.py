"""Some samples of each step as rows of samples.jsonl: texts, tool calls, rewards, versions.

A row is bounded: long texts lose their middle, and long episodes their middle turns. Texts are
decoded from the tokens that the policy was trained on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from contract.redaction import redact_known
from contract.run_dir import write_atomically
from env.episodes.types import ReplyStop, StopReason, ToolCall
from trainer.types import Completion, Sample, TokenArray

LARGEST_FILE = 16_000_000
"""Bytes of samples.jsonl."""
LONGEST_PROMPT = 8_000
LONGEST_LABEL = 1_000
LONGEST_TURNS = 16_000
"""Characters of a prompt, of a label or an error, and of the turns of an episode together."""
MOST_TURNS = 40
MOST_CALLS = 4
"""Tool calls of a turn."""
MOST_METRICS = 100

Row = dict[str, Any]


class TokenReader(Protocol):
    """Reads the tokens of episodes."""

    def decode(self, tokens: Sequence[int], *, follows: bool = False) -> str:
        """Return a text. `follows`: it continues another."""

    def tool_calls(self, tokens: Sequence[int]) -> tuple[ToolCall, ...]:
        """Return the tool calls of a reply."""


@dataclass(frozen=True, slots=True)
class SampleRows:
    """Makes the rows of a step."""

    count: int
    """Rows of a step."""
    reader: TokenReader | None
    """None: each prompt has completions of one turn."""
    secrets: Collection[str] = ()
    """Texts to mask."""

    def of(self, samples: Sequence[Sample]) -> list[Row]:
        """Return rows of samples that are evenly spread over the step."""
        count = min(self.count, len(samples))
        return [self._row(samples[at * len(samples) // count]) for at in range(count)]

    def _row(self, sample: Sample) -> Row:
        completion, score, label = sample.completion, sample.score, sample.prompt.label
        own = {f"stop_{reason}" for reason in StopReason}
        metrics = [(name, value) for name, value in score.metrics.items() if name not in own]
        versions = completion.versions[completion.action_mask]
        prompt, turns = self._turns(sample)
        return {
            "row": sample.prompt.index,
            "prompt": self._text(prompt, LONGEST_PROMPT),
            "label": None if label is None else self._text(label, LONGEST_LABEL),
            "turns": turns,
            "reward": _number(score.reward),
            "metrics": {name: _number(value) for name, value in islice(metrics, MOST_METRICS)},
            "stop": stop_of(completion),
            "versions": [int(versions.min()), int(versions.max())] if len(versions) else [],
            "tokens": [len(completion.tokens), completion.length],
            **({} if score.ok else {"error": self._text(score.error, LONGEST_LABEL)}),
        }

    def _turns(self, sample: Sample) -> tuple[str, list[Row]]:
        """Return the first context, and each reply with the environment's answer."""
        completion = sample.completion
        if self.reader is None:
            return sample.prompt.text, [{"reply": self._text(completion.text, LONGEST_TURNS)}]
        first, *rest = spans(completion)
        replies = list(zip(rest[::2], [*rest[1::2], None], strict=False))
        most = LONGEST_TURNS // max(1, min(len(replies), MOST_TURNS))
        shown = [self._turn(completion, *turn, most) for turn in _ends(replies)]
        if (missing := len(replies) - len(shown)) > 0:
            shown.insert(MOST_TURNS // 2, {"turns_left_out": missing})
        return self.reader.decode(first.tokens), shown

    def _turn(self, completion: Completion, reply: Span, answer: Span | None, most: int) -> Row:
        assert self.reader is not None
        calls = self.reader.tool_calls(reply.tokens)[:MOST_CALLS]
        row: Row = {"reply": self._text(self.reader.decode(reply.tokens, follows=True), most)}
        if calls:
            row["tool_calls"] = [self._call(call, most // MOST_CALLS) for call in calls]
        if (reward := completion.turn_rewards.get(reply.end - 1)) is not None:
            row["reward"] = _number(reward)
        if answer:
            row["answer"] = self._text(self.reader.decode(answer.tokens, follows=True), most)
        return row

    def _call(self, call: ToolCall, most: int) -> Row:
        row = {"name": self._text(call.name, most)}
        if call.error:
            return row | {"error": self._text(call.error, most)}
        arguments = json.dumps(call.arguments, ensure_ascii=False, default=str)
        return row | {"arguments": self._text(arguments, most)}

    def _text(self, text: str, most: int) -> str:
        """Return a text without secrets, with at most about `most` characters."""
        text = redact_known(text.encode(errors="replace").decode(), self.secrets)
        if len(text) <= most:
            return text
        half = most // 2
        return f"{text[:half]} […{len(text) - 2 * half} characters…] {text[-half:]}"


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring tokens that are all actions, or all not."""

    tokens: Sequence[int]
    end: int
    """Index after the last token."""


def spans(completion: Completion) -> Iterator[Span]:
    """Yield what the policy read first, then replies and answers in turn."""
    mask = completion.action_mask
    cuts = [*(np.flatnonzero(mask[1:] != mask[:-1]) + 1).tolist(), len(mask)]
    if len(mask) and mask[0]:
        cuts = [0, *cuts]
    start = 0
    for end in cuts:
        yield Span(_plain(completion.tokens[start:end]), end)
        start = end


def stop_of(completion: Completion) -> str:
    """Return why a completion or an episode ended."""
    for reason in StopReason:
        if completion.metrics.get(f"stop_{reason}") == 1:
            return reason
    return ReplyStop.END if completion.finished else ReplyStop.LENGTH


def _ends(turns: Sequence[tuple[Span, Span | None]]) -> Sequence[tuple[Span, Span | None]]:
    half = MOST_TURNS // 2
    return turns if len(turns) <= MOST_TURNS else [*turns[:half], *turns[-half:]]


def _plain(tokens: TokenArray) -> list[int]:
    found: list[int] = tokens.tolist()
    return found


def _number(value: float) -> float | None:
    """Return a number as JSON has it; None for NaN and infinity."""
    return float(value) if math.isfinite(value) else None


def save_failed(directory: Path, step: int, samples: Sequence[Sample]) -> Path:
    """Write a JSON line for each sample: prompt, completion, label, reward. Returns the file."""
    path = directory / f"failed-step-{step}.jsonl"
    write_atomically(path, "".join(json.dumps(_failed_row(sample)) + "\n" for sample in samples))
    return path


def _failed_row(sample: Sample) -> dict[str, object]:
    return {
        "index": sample.prompt.index,
        "prompt": sample.prompt.text,
        "completion": sample.completion.text,
        "label": sample.prompt.label,
        "reward": repr(sample.score.reward),  # JSON has no name for NaN and infinity
        "error": sample.score.error,
        "metrics": {name: repr(value) for name, value in sample.score.metrics.items()},
        "tokens": sample.completion.tokens.tolist(),
        "finished": sample.completion.finished,
    }
