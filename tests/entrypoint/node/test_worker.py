"""What a worker makes of whatever ends its membership."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from contract.journal import append_event
from contract.run_dir import RunFiles
from entrypoint.cluster import client
from entrypoint.cluster.client import RefusedError
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.net import sockets, wait
from entrypoint.node import candidate, own_info
from entrypoint.node.member import Member
from entrypoint.node.membership import TRIES, Membership
from entrypoint.node.way_in import WayIn
from entrypoint.preflight.run import examined_whole
from entrypoint.processes import stacks
from entrypoint.processes.inbox import (
    HeadLost,
    HeadSaid,
    Inbox,
    Message,
    RayEnded,
    SpareUnfit,
    StacksAsked,
    StopAsked,
)
from entrypoint.processes.services import Services
from entrypoint.run.lost_head import Failover
from tests.support.control import TOKEN, VERSIONS, Head
from tests.support.hurried import hurried
from tests.support.waiting import eventually


def kept(monkeypatch: pytest.MonkeyPatch, *endings: Message, steady: bool = False) -> int:
    """The exit code of a worker whose memberships end so, one after the other."""
    left = iter(endings)
    monkeypatch.setattr(Membership, "_join_once", lambda self: next(left))
    monkeypatch.setattr(wait, "backoff", lambda failures: 0.0)
    monkeypatch.setattr(wait, "STEADY_SECONDS", -1.0 if steady else 60.0)
    settings = read_settings({"RAY_WORKER": "1", "HEAD_POD_ID": "abc"})
    services = Services(settings, is_head=False, env={}, tell=print)
    return Membership(settings, {}, "token", Inbox(), services).keep()


@pytest.mark.parametrize(
    ("environ", "whole"),
    [
        ({}, True),
        ({"ROLLCALL_PREFLIGHT": "warn"}, False),
        ({"ROLLCALL_PREFLIGHT_SKIP": "gpu.ecc"}, False),
    ],
)
def test_only_a_strict_preflight_of_all_checks_vouches_for_a_worker(
    environ: dict[str, str], whole: bool
) -> None:
    assert examined_whole(read_settings(environ)) is whole


@pytest.mark.parametrize(("outcome", "code"), [("finished", 0), ("failed", 70), ("stopped", 143)])
def test_it_ends_with_the_outcomes_code(
    monkeypatch: pytest.MonkeyPatch, outcome: str, code: int
) -> None:
    assert kept(monkeypatch, HeadSaid(outcome, code)) == code


def test_it_ends_with_143_when_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept(monkeypatch, StopAsked("SIGTERM")) == 143


def test_it_joins_again_when_the_head_or_its_own_ray_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = (HeadLost("gone"), RayEnded(1), HeadLost("started again"))
    assert kept(monkeypatch, *lost, HeadSaid("finished", 0)) == 0


def test_it_gives_up_on_a_ray_that_ends_again_and_again_and_names_rays_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert kept(monkeypatch, *[RayEnded(1)] * TRIES) == 75
    assert "RUN/logs/ray-" in caplog.messages[-1]


def test_a_ray_that_ends_now_and_then_is_started_again_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endings = [RayEnded(1)] * (2 * TRIES)
    assert kept(monkeypatch, *endings, HeadSaid("finished", 0), steady=True) == 0


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"host": "node-7"}, "was last there 3 min 20 s ago: no worker takes its place, as no"),
        ({"host": "node-7", "over": True}, "can be reached from here"),
    ],
)
def test_a_worker_that_gives_up_says_what_the_run_directory_tells_of_its_head(
    tmp_path: Path, closed_port: int, row: dict[str, object], said: str
) -> None:
    run = RunFiles(tmp_path)
    run.leases.mkdir()
    (run.leases / "1").write_text(json.dumps(row))
    long_ago = time.time() - 200
    os.utime(run.leases / "1", (long_ago, long_ago))
    failover = Failover.of_head(120.0, "").as_dict()
    append_event(run.journal, "start", "this is the head", {"failover": failover})
    environ = {
        "RAY_WORKER": "1",
        "ROLLCALL_HEAD_ADDRESS": "127.0.0.6",
        "ROLLCALL_CONTROL_PORT": str(closed_port),
        "ROLLCALL_HEAD_TIMEOUT": "0.2s",
        "ROLLCALL_RUN_DIR": str(tmp_path),
    }
    settings = hurried(environ)
    services = Services(settings, is_head=False, env={}, tell=print)
    with pytest.raises(wait.GaveUpError) as caught:
        Membership(settings, {}, TOKEN, Inbox(), services)._join_once()
    assert re.search(said.replace("20 s", r"2\d s"), str(caught.value))
    assert ("was last there" in str(caught.value)) != bool(row.get("over"))


def test_a_worker_that_waits_for_its_head_follows_the_heads_name_to_another_address(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    head: Head,
    closed_port: int,
) -> None:
    asked, resolve = [], socket.getaddrinfo

    def moving(host: str, *rest: Any, **more: Any) -> Any:
        if host != "the-head.invalid":
            return resolve(host, *rest, **more)
        asked.append(host)
        moved = len(asked) > 3  # nobody listens at the first address
        return resolve("127.0.0.1" if moved else "127.0.0.6", None, type=socket.SOCK_STREAM)

    monkeypatch.setattr(socket, "getaddrinfo", moving)
    monkeypatch.setattr(own_info, "versions", lambda _: VERSIONS)
    environ = {
        "RAY_WORKER": "1",
        "ROLLCALL_HEAD_ADDRESS": "the-head.invalid",
        "ROLLCALL_CONTROL_PORT": str(head.port),
        "ROLLCALL_NODE_NAME": "w1",
        "ROLLCALL_HEAD_TIMEOUT": "20s",
        "ROLLCALL_RUN_DIR": str(tmp_path),
    }
    settings, inbox = read_settings(environ), Inbox()
    services = Services(settings, is_head=False, env={}, tell=print)
    membership = Membership(settings, {}, TOKEN, inbox, services)
    head.control.bequeath(None, closed_port)
    tried, connect = [], sockets.connect

    def connecting(host: str, port: int) -> None:
        tried.append(port)
        connect(host, port)

    monkeypatch.setattr(sockets, "connect", connecting)
    assert membership._join_once() == HeadLost("it is elsewhere now")
    assert set(tried) == {closed_port}
    monkeypatch.setattr(services, "wait_ready", lambda *_: inbox.put(StopAsked("SIGTERM")))
    assert membership._join_once() == StopAsked("SIGTERM")
    assert head.heard.check_ins[0][0] == "w1"


def test_a_worker_leaves_a_silent_head_as_soon_as_a_later_one_has_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = RunFiles(tmp_path).leases
    leases.mkdir()
    (leases / "1").write_text('{"beat": 7}')
    monkeypatch.setattr(own_info, "versions", lambda _: VERSIONS)
    monkeypatch.setattr(candidate, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(client, "TRIES", 10**6)  # by itself, it would not give this head up
    head = Head(tmp_path)
    with ExitStack() as running:
        running.enter_context(head.control)
        environ = {
            "RAY_WORKER": "1",
            "ROLLCALL_HEAD_ADDRESS": "127.0.0.1",
            "ROLLCALL_CONTROL_PORT": str(head.port),
            "ROLLCALL_RUN_DIR": str(tmp_path),
        }
        settings, inbox = read_settings(environ), Inbox()
        services = Services(settings, is_head=False, env={}, tell=print)
        membership = Membership(settings, {}, TOKEN, inbox, services)

        def belong(*_: Any) -> Message | None:
            running.close()
            eventually(lambda: membership.candidate.watch._vigil is not None)
            (leases / "2").write_text('{"beat": 0}')
            return inbox.take(timeout=10)

        monkeypatch.setattr(Member, "belong", belong)
        monkeypatch.setattr(sockets, "connect", lambda *_, **__: None)
        assert membership._join_once() == HeadLost("a later head has the lease")
    membership.candidate.watch.end()


def member_of(head: Head, settings: Settings, inbox: Inbox, address: str) -> Member:
    info = own_info.of_worker(settings, address, {}, "")
    return Member(settings, inbox, WayIn("127.0.0.1", head.client(), info, "first", None), TOKEN)


def test_the_stacks_of_a_submitted_job_lie_with_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: Head
) -> None:
    written: list[Path] = []
    monkeypatch.setattr(stacks, "collect", lambda settings, path: written.append(path))
    environ = {"RAY_WORKER": "1", "HEAD_POD_ID": "abc", "ROLLCALL_RUN_DIR": str(tmp_path)}
    settings = read_settings(environ | {"ROLLCALL_NODE_NAME": "gn2"})
    inbox = Inbox()
    for message in (StacksAsked(1), StacksAsked(2, "job-3"), HeadSaid("finished", 0)):
        inbox.put(message)
    member_of(head, settings, inbox, "10.0.0.2")._next_message()
    name = "logs/stacks-attempt-{}-gn2.txt"
    assert written == [tmp_path / name.format(1), tmp_path / "jobs/job-3" / name.format(2)]


def test_a_spare_whose_check_fails_is_refused_by_its_name_and_ends(
    tmp_path: Path, head: Head
) -> None:
    environ = {"RAY_WORKER": "1", "HEAD_POD_ID": "abc", "ROLLCALL_RUN_DIR": str(tmp_path)}
    settings = read_settings(environ | {"ROLLCALL_NODE_NAME": "gn2"})
    inbox = Inbox()
    inbox.put(SpareUnfit("gpu.burn: GPU 3: a wrong product"))
    with pytest.raises(RefusedError, match=r"gn2 is not fit: gpu\.burn: GPU 3"):
        member_of(head, settings, inbox, "127.0.0.1")._next_message()
