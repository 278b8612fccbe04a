"""What the head's HTTP answers to the page: state, events after the last one, curves."""

from __future__ import annotations

import json
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from typing import Any

import httpx
import pytest

from contract.journal import append_event, timestamp
from contract.journal_file.lines import event_of, line_of
from contract.run_dir import RunFiles
from entrypoint.cluster import event_stream, view_routes
from entrypoint.run import curves
from entrypoint.run import token as run_token
from tests.support.control import TOKEN, Head, asking, head, node_info
from tests.support.job_head import JobHead, job_head

__all__ = ["head", "job_head"]

Found = Generator[tuple[str, dict[str, Any]], None, None]


def events(head: Head, query: str = "", last_id: str = "") -> Found:
    """The id and the event of each message, as a browser asks for them."""
    headers = {"Authorization": f"Bearer {TOKEN}"} | ({"Last-Event-ID": last_id} if last_id else {})
    url = f"http://127.0.0.1:{head.port}/v1/events{query}"
    with httpx.stream("GET", url, headers=headers, timeout=10) as stream:
        known = ""
        for line in stream.iter_lines():
            name, _, value = line.partition(": ")
            known = value if name == "id" else known
            if name == "data":
                yield known, json.loads(value)


def sentences(head: Head, count: int, query: str = "", last_id: str = "") -> list[str]:
    with closing(events(head, query, last_id)) as found:
        return [event["sentence"] for _, event in islice(found, count)]


def test_a_reader_that_comes_again_gets_no_event_twice(head: Head) -> None:
    for sentence in ("one", "two"):
        append_event(head.run.journal, "roll", sentence)
    with closing(events(head)) as found:
        (first, _), (second, _) = islice(found, 2)
    assert sentences(head, 1, last_id=first) == ["two"]
    append_event(head.run.journal, "roll", "three")
    assert sentences(head, 1, "?last=9", second) == ["three"]
    assert int(second) < head.run.journal.stat().st_size


@pytest.mark.parametrize("known", ["3", "99999", "-1", "x"])
def test_a_reader_of_another_journal_gets_all(head: Head, known: str) -> None:
    append_event(head.run.journal, "roll", "one")
    assert sentences(head, 1, last_id=known) == ["one"]


def test_the_page_asks_for_the_last_events_without_the_steps(head: Head) -> None:
    for number in range(9):
        append_event(head.run.journal, "step", f"step {number}", {"step": number})
        append_event(head.run.journal, "roll", f"roll {number}")
    assert sentences(head, 2, "?without=step&last=2") == ["roll 7", "roll 8"]


def test_a_reader_that_asks_for_none_gets_only_what_comes(head: Head) -> None:
    append_event(head.run.journal, "roll", "old")
    with closing(events(head, "?last=0")) as found, ThreadPoolExecutor() as thread:
        first = thread.submit(next, found)
        with pytest.raises(TimeoutError):
            first.result(2 * event_stream.POLL_SECONDS)
        append_event(head.run.journal, "roll", "new")
        assert first.result(10)[1]["sentence"] == "new"


def test_of_a_long_journal_only_the_end_is_read_for_the_page(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "READ_BYTES", 1000)
    with head.run.journal.open("wb") as file:
        for number in range(3000):
            kind = "step" if number % 10 else "roll"
            details = {"step": number, "kind": "roll"}
            event = {"kind": kind, "sentence": f"{kind} {number} \N{RIGHTWARDS ARROW}"}
            source = {"at": timestamp(), "node": "gn1", "attempt": 1}
            file.write(line_of({**source, **event, "details": details}) + b"\n")
        file.write(b'{"at": "half an ev')
    parsed = []

    def counted(line: bytes) -> dict[str, Any] | None:
        parsed.append(line)
        return event_of(line)

    monkeypatch.setattr(event_stream, "event_of", counted)
    expected = [f"roll {number} \N{RIGHTWARDS ARROW}" for number in range(2950, 3000, 10)]
    assert sentences(head, 5, "?without=step&last=5") == expected
    assert len(parsed) == 5
    assert len(sentences(head, 300, "?without=step&last=9999")) == 300
    assert sentences(head, 3000) == [json.loads(line)["sentence"] for line in complete(head)]


def complete(head: Head) -> list[bytes]:
    return head.run.journal.read_bytes().splitlines()[:-1]


def test_a_reader_cannot_have_a_whole_journal_read_at_once(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal may have 200,000 events: 300 MiB of the head's memory for each such reader."""
    monkeypatch.setattr(view_routes, "MOST_LAST", 3)
    for number in range(6):
        append_event(head.run.journal, "roll", f"roll {number}")
    assert sentences(head, 3, "?last=999999") == ["roll 3", "roll 4", "roll 5"]


def test_the_state_names_run_head_and_what_its_reader_may(head: Head) -> None:
    row = {"run_id": "a1", "recipe": "builtin", "model": "tiny"}
    head.run.run.write_text(json.dumps(row | {"command": ["--pretrain", "tiny"]}))
    state = head.get("/v1/state").json()
    facts = {"name": head.run.root.name, "id": "a1", "recipe": "builtin", "model": "tiny"}
    assert state["run"] == {**facts, "run_dir": str(head.run.root), "algorithm": "PPO (gae)"}
    assert state["head_node"]["present"]
    assert state["head_node"]["versions"]["ray"] == "2.55.0"
    assert state["may_stop"]
    assert not head.get("/v1/state", run_token.read_only(TOKEN)).json()["may_stop"]


def test_long_answers_are_compressed_for_those_who_take_it_and_events_are_not(head: Head) -> None:
    for number in range(100):
        head.control._registry.check_in(node_info(f"gpu-{number}"), "")
    append_event(head.run.journal, "roll", "one " * 1000)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    url = f"http://127.0.0.1:{head.port}/v1"
    with httpx.Client(headers=headers) as browser:
        whole = browser.get(f"{url}/state")
        assert whole.headers["content-encoding"] == "gzip"
        assert whole.num_bytes_downloaded < len(whole.content) / 10
        assert len(whole.json()["nodes"]) == 100
        plain = browser.get(f"{url}/state", headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        with browser.stream("GET", f"{url}/events") as events:
            assert "content-encoding" not in events.headers
            assert "one one" in next(line for line in events.iter_lines() if "data" in line)


def test_a_brief_state_leaves_out_the_nodes_that_are_well(head: Head) -> None:
    client = head.client()
    client.check_in(node_info("a"), joined=True)
    client.check_in(node_info("b"))
    with asking(head, "a"):
        brief = head.get("/v1/state?brief=1").json()
    assert brief["present"] == 1
    assert [node["node"] for node in brief["nodes"]] == ["b"]


def test_the_curves_are_those_of_the_run(head: Head) -> None:
    head.run.metrics.write_text('{"step": 1, "train/reward": 0.5}\n')
    answer = head.get("/v1/curves").json()
    assert answer["series"] == {"train/reward": [0.5]}
    best = {"metric": "train/reward", "title": "reward", "value": 0.5, "step": 1}
    assert answer["best"] == best
    assert head.get(f"/v1/curves?after=2&version={answer['version']}").json()["series"] == {}


def test_pages_of_two_runs_read_each_row_once(
    job_head: JobHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[bytes] = []
    monkeypatch.setattr(curves.Curves, "_add", lambda _, row: rows.append(row))
    monkeypatch.setattr(view_routes, "MOST_CURVES", 2)
    for number in (1, 2, 3):
        job_head.queue.submit(["true"], {}, "")
        run = RunFiles(job_head.run.jobs / f"job-{number}")
        run.metrics.write_text('{"step": 1}\n{"step": 2}\n')
    for number in (1, 2, 1, 2):
        job_head.head.get(f"/v1/curves?job=job-{number}")
    assert len(rows) == 4
    for number in (3, 2, 1):  # the third run's have replaced the first one's
        job_head.head.get(f"/v1/curves?job=job-{number}")
    assert len(rows) == 8


def test_the_samples_are_the_newest(head: Head) -> None:
    assert head.get("/v1/samples").json() == {"samples": []}
    rows = [{"step": step, "prompt": "p" * 40_000} for step in range(12)]
    head.run.samples.write_text("".join(json.dumps(row) + "\n" for row in rows) + "damaged\n")
    found = [row["step"] for row in head.get("/v1/samples").json()["samples"]]
    assert found == [6, 7, 8, 9, 10, 11]  # of the last 256 KiB


@pytest.mark.parametrize("turns", [7, None, [7], [{"tool_calls": 7}], {"reply": "x"}])
def test_a_sample_that_another_program_wrote_has_the_shape_that_the_page_reads(
    turns: object, head: Head
) -> None:
    row = {"step": 1, "prompt": "p" * 100_000, "turns": turns, "metrics": 7}
    head.run.samples.write_text(json.dumps(row) + "\n")
    (shown,) = head.get("/v1/samples").json()["samples"]
    assert shown["metrics"] == {}
    assert all(turn["tool_calls"] == [] for turn in shown["turns"])
    assert len(shown["prompt"]) < 20_000


def test_a_sentence_of_megabytes_reaches_no_page(head: Head) -> None:
    append_event(head.run.journal, "note", "s" * 3_000_000, {"text": "t" * 3_000_000})
    assert head.run.journal.stat().st_size < 100_000
    long = {**json.loads(head.run.journal.read_text()), "sentence": "s" * 3_000_000}
    del long["crc"]
    head.run.journal.write_bytes(json.dumps(long).encode() + b"\n")  # as another program would
    (sentence,) = sentences(head, 1)
    assert "…2991808 characters…" in sentence
    assert len(sentence) < 10_000
