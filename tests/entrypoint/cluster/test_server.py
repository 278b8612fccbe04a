"""The head's HTTP, over real connections."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from contract.journal import append_event
from contract.launch.collectives import Entry, Group, Standing
from contract.progress import Progress
from entrypoint.cluster import serving
from entrypoint.cluster.client import RefusedError
from entrypoint.cluster.server import HeadPhase
from entrypoint.cluster.trust import WrongTokenError
from entrypoint.net.wait import NotYetError
from entrypoint.processes.inbox import (
    HeadLost,
    HeadSaid,
    JobOver,
    JoinAgain,
    Message,
    RanksAsked,
    StacksAsked,
)
from entrypoint.processes.rank_processes import RankProcess
from tests.support.control import TOKEN, VERSIONS, Head, asking, node_info, shared
from tests.support.waiting import eventually


def test_a_head_waits_for_a_page_that_is_open_to_read_the_outcome(head: Head) -> None:
    link = head.link()
    with httpx.Client(base_url=link.partition("?")[0]) as page, ThreadPoolExecutor() as pool:
        page.get(link)  # gives the cookie
        page.get("/v1/state")
        head.control.announce("failed", 70)
        waiting = pool.submit(head.control.wait_until_acknowledged, 5)
        time.sleep(0.5)
        assert not waiting.done()
        assert page.get("/v1/state").json()["outcome"]["outcome"] == "failed"
        began = time.monotonic()
        waiting.result(5)
        assert time.monotonic() - began < 3


def test_a_head_waits_for_no_program_that_has_asked(head: Head) -> None:
    head.get("/v1/state")
    head.control.announce("failed", 70)
    began = time.monotonic()
    head.control.wait_until_acknowledged(5)
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("path", ["/", "/v1/state", "/v1/outcome", "/v1/events", "/metrics"])
def test_nothing_but_health_answers_without_the_token(head: Head, path: str) -> None:
    assert head.get(path, token="wrong").status_code == 401
    assert httpx.get(f"http://127.0.0.1:{head.port}/healthz").status_code == 200


def test_a_worker_with_a_wrong_token_is_told_so(head: Head) -> None:
    with pytest.raises(WrongTokenError):
        head.client("wrong").check_in(node_info("a"))


def test_the_roll_completes_as_workers_join(head: Head) -> None:
    client = head.client()
    client.check_in(node_info("a"))
    assert not head.control.roll().complete
    for name, address in (("a", "127.0.0.3"), ("b", "127.0.0.4")):
        assert client.check_in(node_info(name, address), joined=True).incarnation == "first"
    assert head.control.roll().complete


def test_saying_the_same_again_is_no_news(head: Head) -> None:
    for _ in range(3):
        head.client().check_in(node_info("a"), joined=True)
    assert len(head.heard.check_ins) == 1


def test_every_waiting_worker_hears_the_outcome_at_once(head: Head) -> None:
    said: list[Message] = []
    clients = [head.client() for _ in range(2)]
    for client, name, address in zip(clients, "ab", ("127.0.0.3", "127.0.0.4"), strict=True):
        client.check_in(node_info(name, address), joined=True)
        client.watch(name, "first", said.append)
    eventually(lambda: all(node["silent_seconds"] == 0 for node in head.control.state()["nodes"]))
    head.control.announce("finished", 0)
    head.control.wait_until_acknowledged(5)
    eventually(lambda: len(said) == 2)
    assert said == [HeadSaid("finished", 0)] * 2


def test_a_worker_that_dies_is_seen_to_leave(head: Head) -> None:
    client = head.client()
    client.check_in(node_info("a"), joined=True)
    entry = head.control._registry._entries["a"]
    with asking(head, "a"):
        assert entry.asking == 1
    eventually(lambda: entry.asking == 0)
    assert not entry.present(time.monotonic())
    assert head.control.roll().present == ()


def test_a_worker_that_died_may_come_back_at_once_with_another_address(head: Head) -> None:
    client = head.client()
    client.check_in(node_info("a", "127.0.0.3"), joined=True)
    with asking(head, "a"), pytest.raises(NotYetError, match="another node"):
        client.check_in(node_info("a", "127.0.0.9"))
    eventually(lambda: head.control._registry._entries["a"].asking == 0)
    client.check_in(node_info("a", "127.0.0.9"))
    assert head.control.state()["nodes"][0]["address"] == "127.0.0.9"


def test_one_worker_alone_is_sent_to_join_again(head: Head) -> None:
    said: dict[str, list[Message]] = {"a": [], "b": []}
    for node, address in (("a", "127.0.0.3"), ("b", "127.0.0.4")):
        client = head.client()
        client.check_in(node_info(node, address), joined=True)
        client.watch(node, "first", said[node].append)
    eventually(lambda: all(one.asking for one in head.control._registry._entries.values()))
    head.control.renew("a")
    eventually(lambda: said["a"] == [JoinAgain()])
    assert head.control.roll().present == ("b",)
    head.client().check_in(node_info("a"))
    assert head.heard.rejoins == ["a"], "what Ray had of it is over"
    head.client().check_in(node_info("a"), joined=True)
    assert head.control.roll().present == ("a", "b")
    assert said["b"] == []


def test_beginning_anew_sends_every_worker_to_join_again(head: Head) -> None:
    said: list[Message] = []
    client = head.client()
    client.check_in(node_info("a"), joined=True)
    client.watch("a", "first", said.append)
    eventually(lambda: head.control._registry._entries["a"].asking == 1)
    head.control.new_incarnation()
    eventually(lambda: said == [HeadLost("the head was started again")])
    assert head.control.roll().present == ()
    anew = client.check_in(node_info("a"), joined=True).incarnation
    assert anew not in ("", "first")
    client.watch("a", anew, said.append)
    head.control.announce("finished", 0)
    eventually(lambda: said[1:] == [HeadSaid("finished", 0)])


def test_every_worker_hears_once_that_the_stacks_of_an_attempt_are_wanted(head: Head) -> None:
    said: list[Message] = []
    for name, address in (("a", "127.0.0.3"), ("b", "127.0.0.4")):
        client = head.client()
        client.check_in(node_info(name, address), joined=True)
        client.watch(name, "first", said.append)
    eventually(lambda: all(one.asking for one in head.control._registry._entries.values()))
    head.control.ask_for_stacks(3)
    eventually(lambda: len(said) == 2)
    head.control.announce("finished", 0)
    eventually(lambda: len(said) == 4)
    assert said == [StacksAsked(3)] * 2 + [HeadSaid("finished", 0)] * 2


def test_the_workers_hear_of_which_job_the_stacks_are_wanted(head: Head) -> None:
    said: list[Message] = []
    client = head.client()
    client.check_in(node_info("a"), joined=True)
    client.watch("a", "first", said.append)
    head.control.jobs.shown = "job-2"
    head.control.ask_for_stacks(1)
    eventually(lambda: said == [StacksAsked(1, "job-2")])


def test_every_worker_that_is_heard_says_what_a_job_has_left_on_it(head: Head) -> None:
    silent = head.client()
    silent.check_in(node_info("silent", "127.0.0.9"), joined=True)
    heard: dict[str, list[Message]] = {"a": [], "b": []}

    def watches(name: str, address: str, left: str) -> None:
        client = head.client()
        client.check_in(node_info(name, address), joined=True)

        def put(message: Message) -> None:
            heard[name].append(message)
            if isinstance(message, JobOver):
                client.tell_left_over(name, message.submission_id, left)

        client.watch(name, "first", put)

    watches("a", "127.0.0.3", "")
    watches("b", "127.0.0.4", "1 process (7: sleep)")
    eventually(lambda: sum(one.asking for one in head.control._registry._entries.values()) == 2)
    began = time.monotonic()
    for job in ("rollcall-1", "rollcall-2"):
        head.control.sweep(job)
        assert head.control.left_over(timeout=20) == {"b": "1 process (7: sleep)"}
        head.control.end_sweep()
    assert time.monotonic() - began < 10
    assert heard["a"] == heard["b"] == [JobOver("rollcall-1"), JobOver("rollcall-2")]
    silent.tell_left_over("silent", "rollcall-2", "2 processes (8: a, 9: b)")
    assert head.control.left_over() == {"silent": "2 processes (8: a, 9: b)"}, "late, and not lost"
    assert head.control.left_over() == {}


def test_every_worker_that_is_heard_says_where_its_ranks_stand(head: Head) -> None:
    client = head.client()
    client.check_in(node_info("a"), joined=True)
    entry = Entry("all-reduce", "[[4]]", 31.5, done=False, begun=False)
    groups = {"gloo default_pg": Group((0, 1), {4: entry})}
    here = [
        RankProcess(7, "ray::Actor", 0, 2, "10.0.0.7:29500", Standing(groups, "train.py:3 in f")),
        RankProcess(8, rank=1, world=2),
    ]

    def put(message: Message) -> None:
        if isinstance(message, RanksAsked):
            client.tell_ranks("a", message.number - 1, [])  # late, of the question before
            client.tell_ranks("a", message.number, here)

    client.watch("a", "first", put)
    eventually(lambda: head.control._registry._entries["a"].asking == 1)
    for _ in range(2):
        assert head.control.ranks(timeout=20) == {"a": here}


def test_a_worker_that_is_heard_and_does_not_answer_is_waited_for_a_short_time(head: Head) -> None:
    client = head.client()
    client.check_in(node_info("a"), joined=True)
    client.watch("a", "first", lambda _: None)
    eventually(lambda: head.control._registry._entries["a"].asking == 1)
    began = time.monotonic()
    head.control.sweep("rollcall-1")
    assert head.control.left_over(timeout=1.5) == {}
    assert 1.4 < time.monotonic() - began < 5


def test_an_evicted_worker_is_off_the_roll_and_only_another_machine_may_take_its_name(
    head: Head,
) -> None:
    client = head.client()
    client.check_in(node_info("a"), joined=True)
    assert head.control.worker_at("127.0.0.3") == "a"
    head.control.evict("a", "a GPU of a failed")
    assert head.control.roll().present == ()
    assert head.control.worker_at("127.0.0.3") is None
    with pytest.raises(RefusedError, match="a GPU of a failed"):
        client.check_in(node_info("a"))
    assert client.check_in(node_info("a", "127.0.0.9"), joined=True).incarnation == "first"


def test_a_worker_that_leaves_is_off_the_roll_and_waits_until_it_is_released(head: Head) -> None:
    said: list[Message] = []
    client = head.client()
    assert not client.leave("a", "SIGTERM")
    client.check_in(node_info("a"), joined=True)
    client.watch("a", "first", said.append)
    eventually(lambda: head.control._registry._entries["a"].asking == 1)
    assert client.leave("a", "SIGTERM")
    assert head.heard.leaves == [("a", "SIGTERM")]
    assert head.control.is_leaving("a")
    assert head.control.roll().present == ()
    assert said == []
    head.control.release_leaving()
    eventually(lambda: len(said) == 1)
    assert said == [JoinAgain()]
    assert not head.control.is_leaving("a")


@pytest.mark.parametrize(("examined", "back"), [("first", False), ("", False), ("second", True)])
def test_an_evicted_worker_is_taken_back_once_it_has_passed_its_checks_anew(
    head: Head, examined: str, back: bool
) -> None:
    client = head.client()
    client.check_in(replace(node_info("a"), examined="first"), joined=True)
    head.control.evict("a", "a GPU of a failed")
    again = replace(node_info("a"), examined=examined)
    if not back:
        with pytest.raises(RefusedError, match="a GPU of a failed"):
            client.check_in(again)
        return
    client.check_in(again, joined=True)
    assert head.control.roll().present == ("a",)


def test_a_worker_learns_that_its_head_is_gone(head: Head) -> None:
    said: list[Message] = []
    client = head.client()
    client.check_in(node_info("a"), joined=True)
    client.watch("a", "first", said.append)
    head.control.__exit__()
    eventually(lambda: len(said) == 1)
    assert isinstance(said[0], HeadLost)


def test_a_worker_learns_that_its_head_was_started_again(head: Head) -> None:
    said: list[Message] = []
    client = head.client()
    client.check_in(node_info("a"), joined=True)
    client.watch("a", "an-earlier-one", said.append)
    head.control.announce("finished", 0)
    eventually(lambda: said == [HeadLost("the head was started again")])


def test_a_malformed_check_in_is_refused_naming_the_field(head: Head) -> None:
    answer = head.client().ask("POST", "/v1/check-in", json={"node": "a"})
    assert answer.status_code == 400
    assert "address" in answer.json()["reason"]


def test_state_metrics_and_page_show_the_progress(head: Head) -> None:
    Progress(step=3, total_steps=9, samples=48, attempt=1, reward=0.5, reward_first=0.1).write(
        head.run.progress
    )
    assert head.get("/v1/state").json()["progress"]["step"] == 3
    assert "rollcall_step 3.0" in head.get("/metrics").text
    page = head.get("/")
    assert page.is_success
    assert '<ol id="events">' in page.text


def test_events_are_streamed_as_the_journal_grows(head: Head) -> None:
    append_event(head.run.journal, "start", "one")
    later = threading.Timer(0.5, append_event, (head.run.journal, "roll", "two"))
    later.start()
    url = f"http://127.0.0.1:{head.port}/v1/events?token={TOKEN}"
    sentences: list[str] = []
    with httpx.stream("GET", url, timeout=10) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:"):
                sentences.append(json.loads(line[5:])["sentence"])
            if len(sentences) == 2:
                break
    assert sentences == ["one", "two"]


def test_a_stop_is_passed_on_and_says_what_keeps_the_head_from_saving(head: Head) -> None:
    head.control.phase, head.control.sentence = HeadPhase.AWAITING_STORAGE, "/run: full"
    answer = head.client().ask("POST", "/v1/stop")
    assert answer.status_code == 202
    assert answer.json() == {"stopping": True, "cannot_save": "/run: full"}
    assert head.heard.stops == [
        "asked over HTTP by a command (rollcall stop) or a client at 127.0.0.1"
    ]


def test_a_taken_port_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken, pytest.raises(OSError, match="in use"):
        Head(tmp_path, taken.getsockname()[1])


def test_what_differs_is_told_once_when_all_have_joined(strict: Head) -> None:
    told = strict.heard.differences
    client = strict.client()
    client.check_in(shared("a"), joined=True)
    assert told == []
    other = shared("b", versions=VERSIONS | {"torch": "2.0.0"})
    for _ in range(2):
        client.check_in(other, joined=True)
    assert told == ["nodes.software: b: torch is 2.0.0, on 2 of 3 nodes not there"]
    assert strict.control.state()["differences"] == told


@contextmanager
def reads_nothing(head: Head) -> Iterator[None]:
    """A page that is open, and takes little more than the system keeps for it."""
    with socket.socket() as page:
        page.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        page.connect(("127.0.0.1", head.port))
        request = f"GET /v1/events?token={TOKEN} HTTP/1.1\r\nHost: x\r\n\r\n"
        page.sendall(request.encode())
        assert page.recv(12) == b"HTTP/1.1 200"
        yield


def test_what_is_open_at_the_end_is_answered_and_leaves_no_traceback(
    head: Head,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page, one that reads nothing, and a worker's question."""
    monkeypatch.setattr(serving, "CLOSE_SECONDS", 5.0)  # a busy machine needs some for 6 MB
    head.client().check_in(node_info("a"))
    url = f"http://127.0.0.1:{head.port}/v1/events"
    asks = {"Authorization": f"Bearer {TOKEN}"}
    with (
        reads_nothing(head),
        asking(head, "a"),
        httpx.stream("GET", url, headers=asks, timeout=20) as page,
        ThreadPoolExecutor() as pool,
    ):
        for number in range(60):  # more than the system keeps
            append_event(head.run.journal, "large", f"{number}" + 100_000 * "x")
        append_event(head.run.journal, "outcome", "the job has finished", {"outcome": "finished"})
        text = pool.submit(page.read)
        head.control.__exit__()
        assert b"the job has finished" in text.result(20)
    assert not head.control._serving._thread.is_alive()
    assert "Traceback" not in caplog.text + capfd.readouterr().err
