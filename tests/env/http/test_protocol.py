"""The wire format: what we write we read again, and what others write we do not misread."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env.http.protocol import (
    AnswerError,
    RequestError,
    read_answer,
    read_request,
    write_answer,
    write_request,
)
from env.types import RewardRequest, Score

finite = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=20)
scores = st.one_of(
    st.builds(Score.of, finite, acc=finite, format=finite),
    st.text(min_size=1, max_size=20).map(Score.failed),
)
requests_ = st.builds(RewardRequest, texts, texts, st.none() | texts)


@given(st.lists(requests_, max_size=5))
def test_a_request_survives_the_wire(requests: list[RewardRequest]) -> None:
    assert read_request(json.dumps(write_request(requests)).encode()) == requests


@given(st.lists(scores, max_size=5))
def test_scores_survive_the_wire_with_status_metrics_and_reasons(scores: list[Score]) -> None:
    wire = json.loads(json.dumps(write_answer(scores), allow_nan=False))
    for sent, got in zip(scores, read_answer(wire, len(scores)), strict=True):
        assert got.status is sent.status
        assert got.error == sent.error
        if sent.ok:
            assert (got.reward, got.metrics) == (sent.reward, sent.metrics)


def test_a_score_that_is_no_number_travels_as_a_failure() -> None:
    wire = write_answer([Score.of(float("nan")), Score.of(float("inf"), acc=float("nan"))])
    assert wire["rewards"] == [None, None]
    assert wire["errors"] == ["the reward is nan", "the reward is inf"]
    assert not any(score.ok for score in read_answer(wire, 2))


def test_a_column_of_rewards_is_a_list_of_them() -> None:
    """As of a model's logits [B, 1], whose author squeezes nothing."""
    answer = {"rewards": [[0.5], [None], [2]], "scores": [[1.0], [0.0], [1.0]]}
    first, second, third = read_answer(answer | {"extra_logs": {"n": [[1], [2], [3]]}}, 3)
    assert (first.reward, first.metrics) == (0.5, {"acc": 1.0, "n": 1.0})
    assert (second.ok, third.reward) == (False, 2.0)
    assert [score.reward for score in read_answer([[0.25]], 1)] == [0.25]
    with pytest.raises(AnswerError, match="is a list: give a number"):
        read_answer([[1.0, 2.0], [1.0, 2.0]], 2)
    same = {"rewards": [[0.5]], "scores": [0.5]}
    assert read_answer(same, 1)[0].metrics == {}, "a server that repeats its rewards"


def test_the_answer_has_the_shapes_of_openrlhf_and_openrlhf_m() -> None:
    wire = write_answer([Score.of(0.7, acc=1.0, format=0.0), Score.of(0.1, acc=0.0, format=1.0)])
    assert wire["rewards"] == [0.7, 0.1]
    assert wire["scores"] == wire["acc_rewards"] == [1.0, 0.0]
    assert wire["format_rewards"] == [0.0, 1.0]
    assert wire["extra_logs"] == {"acc": [1.0, 0.0], "format": [0.0, 1.0]}
    assert "acc_rewards" not in write_answer([Score.of(1.0)])


def test_answers_of_other_servers_are_read() -> None:
    other = {"rewards": [1, 0.5], "format_rewards": [1, 0], "extra_logs": {"n": [3, "x"]}}
    first, second = read_answer(other, 2)
    assert (first.reward, first.metrics) == (1.0, {"n": 3.0, "format": 1.0})
    assert (second.reward, second.metrics) == (0.5, {"format": 0.0})
    assert [score.reward for score in read_answer([0.25], 1)] == [0.25]
    judged = {"rewards": [1, -1], "scores": [1, 0], "extra_logs": {"n": [3, 4]}}
    assert [s.metrics for s in read_answer(judged, 2)] == [{"n": 3, "acc": 1}, {"n": 4, "acc": 0}]
    repeated = {"rewards": [0.5, -1], "scores": [0.5, -1]}
    assert [(s.accuracy, s.metrics) for s in read_answer(repeated, 2)] == [(0.5, {}), (-1, {})]
    (failed,) = read_answer({"rewards": [None]}, 1)
    assert not failed.ok
    assert failed.error


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({}, "no list of rewards"),
        ("busy", "no list of rewards in 'busy'"),
        (None, "no list of rewards"),
        ({"rewards": 1.0}, "no list of rewards"),
        ({"rewards": [1.0]}, "1 reward for 2 completions"),
        ({"rewards": [1.0, 2.0, 3.0]}, "3 rewards for 2"),
        ({"rewards": [1.0, float("nan")]}, "nan is not a finite number"),
        ({"rewards": [1.0, "2"]}, r"'2' is a text \(str\): give a number, such as 1.0"),
        ({"rewards": [[1.0, 0.0], [2.0, 0.0]]}, "is a list: give a number"),
    ],
)
def test_an_answer_that_is_none_is_never_read_as_rewards(answer: Any, says: str) -> None:
    with pytest.raises(AnswerError, match=says):
        read_answer(answer, 2)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 10**5, "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "'query' is missing"),
        (b'{"query": "1+1=2", "prompts": []}', r"'query' is '1\+1=2', where a list is wanted"),
        (b'{"query": ["a"]}', "'prompts' is missing"),
        (b'{"query": ["a"], "prompts": []}', "'prompts' has 0 items, 'query' has 1"),
        (b'{"query": ["a", 3], "prompts": ["a", "b"]}', r"'query'\[1\] is 3, where a text"),
        (b'{"query": ["a"], "prompts": ["a"], "labels": []}', "'labels' has 0 items"),
    ],
)
def test_a_malformed_request_names_its_field(body: bytes, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        read_request(body)


def test_labels_may_be_absent_or_of_any_kind() -> None:
    (request,) = read_request(b'{"query": ["ab"], "prompts": ["a"]}')
    assert (request.response, request.label) == ("b", None)
    body = b'{"query": ["", "", ""], "prompts": ["", "", ""], "labels": [7, null, {"a": [1]}]}'
    assert [request.label for request in read_request(body)] == ["7", None, '{"a": [1]}']
