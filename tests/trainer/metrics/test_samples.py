"""samples.jsonl: some samples of each step, bounded, without secrets, once after a resume."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.files.append import append_line
from contract.metrics.json_lines import JsonLines
from env.episodes.chat import TemplateChat
from env.types import Prompt, Score
from tests.support import environments
from tests.support.chats import tokenizer
from tests.support.tiny_run import GRPO, Tiny, share_of, train
from trainer.cluster.stop import Stopped, StopRequest
from trainer.config.config import Config
from trainer.metrics.samples import LARGEST_FILE, SampleRows
from trainer.types import Completion, Sample

SECRET = "correct-horse-battery"


def rows_of(config: Config) -> list[dict[str, Any]]:
    return [json.loads(line) for line in config.files.samples.read_text().splitlines()]


def test_episodes_of_each_step_are_kept(tiny: Tiny, tmp_path: Path) -> None:
    own = {"environment": environments.write(tmp_path), "remote_rm_url": None, "max_len": 64}
    config = tiny.config(tmp_path / "run", **GRPO, **own, max_steps=2, prompt_max_len=16)
    train(config)
    rows = rows_of(config)
    assert Counter(row["step"] for row in rows) == {1: 4, 2: 4}
    prompts = {json.loads(line)["prompt"] for line in tiny.prompts.read_text().splitlines()}
    for row in rows:
        assert row["prompt"] in prompts
        assert [turn.get("answer") for turn in row["turns"]] == ["+1=", "+2=", None]
        assert [turn.get("reward") for turn in row["turns"]] == [None, None, 0.25]
        assert row["stop"] == "done"
        assert row["versions"] == [row["step"] - 1] * 2
        ones = "".join(turn["reply"] for turn in row["turns"])
        assert row["reward"] == pytest.approx(0.25 + ones.count("1") / max(1, len(ones)))
        assert row["metrics"]["turns"] == 3


class StopAfter:
    """A request to stop that comes with the first call of the reward function."""

    def __init__(self) -> None:
        self.stop = StopRequest()

    def __call__(self, requests: Any) -> list[Score]:
        self.stop.requested = True
        return share_of("1")(requests)


def test_a_resumed_run_has_each_sample_once(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny.config(tmp_path / "run", **GRPO, max_steps=3, log_samples=2)
    after = StopAfter()
    with pytest.raises(Stopped):
        train(config, after, after.stop)
    (before,) = {row["step"] for row in rows_of(config)}
    lost = {"step": before + 1, "prompt": "of a step that is repeated"}
    with config.files.samples.open("a") as file:
        file.write(json.dumps(lost) + '\n{"step": 2, "at')  # a crash
    train(config, share_of("1"))
    rows = rows_of(config)
    assert Counter(row["step"] for row in rows) == {1: 2, 2: 2, 3: 2}
    assert lost["prompt"] not in {row["prompt"] for row in rows}
    assert {row["stop"] for row in rows} <= {"end", "length"}
    for row in rows:
        (turn,) = row["turns"]
        reply = turn["reply"]
        assert row["reward"] == pytest.approx(reply.count("1") / max(1, len(reply)))


def test_no_samples_if_none_are_wanted(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny.config(tmp_path / "run", **GRPO, max_steps=1, log_samples=0)
    train(config)
    assert not config.files.samples.exists()


CALL = '<tool_call>\n{"name": "look", "arguments": {"page": 7}}\n</tool_call>'


def sample(*parts: tuple[bool, str], label: str = "5", **score: float) -> Sample:
    """Return a sample of the parts of an episode, each with whether the policy wrote it."""
    encode = tokenizer("qwen2_5")
    tokens, mask = list[int](), list[bool]()
    for is_action, text in parts:
        own = encode(text)["input_ids"]
        tokens += own
        mask += [is_action] * len(own)
    actions = np.array(mask)
    completion = Completion(
        text="",
        tokens=np.array(tokens),
        action_mask=actions,
        log_probs=np.zeros(len(mask), dtype=np.float32),
        finished=True,
        versions=np.where(actions, 3, -1),
    )
    return Sample(Prompt(4, "2+3=", label), completion, Score.of(1.0, **score))


def row_of(one: Sample) -> dict[str, Any]:
    (row,) = SampleRows(4, TemplateChat(tokenizer("qwen2_5")), {SECRET}).of([one])
    return row


def test_tool_calls_are_shown() -> None:
    malformed = "<tool_call>{</tool_call>"
    row = row_of(sample((False, "2+3="), (True, CALL), (False, "a page"), (True, malformed)))
    assert row["turns"][0]["tool_calls"] == [{"name": "look", "arguments": '{"page": 7}'}]
    assert row["turns"][0]["answer"] == "a page"
    assert row["turns"][1]["tool_calls"][0]["error"].startswith("not JSON")
    assert row["versions"] == [3, 3]


def test_a_row_is_bounded_and_says_what_is_left_out() -> None:
    long = "x" * 500
    turns = [(True, long), (False, long)] * 60
    row = row_of(sample((False, long * 20), *turns, label=long * 20))
    assert len(json.dumps(row)) < LARGEST_FILE / 32
    assert len(row["turns"]) == 41
    assert row["turns"][20] == {"turns_left_out": 20}
    assert row["turns"][0]["reply"] == f"{'x' * 200} […100 characters…] {'x' * 200}"
    assert row["prompt"].startswith("xxx")
    assert len(row["prompt"]) < 8_100
    assert len(row["label"]) < 1_100


def test_a_row_has_no_secret_and_no_number_that_json_lacks() -> None:
    call = CALL.replace("7", f'"{SECRET}"')
    texts = (
        (False, f"key {SECRET}"),
        (True, call),
        (False, f"http://me:{SECRET}@host/"),
        (True, "a"),
    )
    row = row_of(sample(*texts, label=SECRET, bad=float("nan")))
    text = json.dumps(row, allow_nan=False)
    assert SECRET not in text
    assert "********" in text
    assert row["metrics"] == {"bad": None}


def test_a_failed_sample_says_why() -> None:
    one = sample((False, "2+3="))
    row = row_of(Sample(one.prompt, one.completion, Score.failed("no retriever")))
    assert (row["error"], row["reward"], row["turns"], row["versions"]) == (
        *("no retriever", None),
        *([], []),
    )


def test_the_file_is_bounded_and_keeps_the_newest_steps(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    lines = JsonLines(path, 0, largest=20_000)
    for step in range(1, 501):
        for _ in range(2):
            lines.log(step, {"text": "x" * 100})
        assert path.stat().st_size <= 20_000
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert steps == sorted(steps)
    assert set(range(480, 501)) <= set(steps)
    assert 0 < sum(step < 400 for step in steps) < 40
    assert set(Counter(steps).values()) == {2}


def test_a_step_that_is_larger_than_the_file_may_be_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reads, read = tmp_path / "samples.jsonl", list[Path](), Path.read_bytes

    def counted(path: Path) -> bytes:
        reads.append(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    lines = JsonLines(path, 0, largest=20_000)
    for step in range(1, 5):
        for _ in range(300):
            lines.log(step, {"text": "x" * 100})
    assert len(reads) <= 2 * 4, "each thinning reads the file twice"
    steps = Counter(json.loads(line)["step"] for line in path.read_text().splitlines())
    assert steps == {4: 300}


def test_a_torn_line_is_ended_before_the_next_and_short_writes_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st')
    write = os.write
    monkeypatch.setattr(os, "write", lambda to, content: write(to, bytes(content)[:5]))
    append_line(path, b'{"step": 2, "text": "long"}')
    monkeypatch.undo()
    whole, _, second, end = path.read_bytes().split(b"\n")
    assert (whole, second, end) == (b'{"step": 1}', b'{"step": 2, "text": "long"}', b"")
