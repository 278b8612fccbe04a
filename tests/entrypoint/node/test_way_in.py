"""A worker and a head whose name has several addresses: real servers on loopback addresses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from entrypoint.cluster.client import CheckedIn, ControlClient, RefusedError
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.net import relay, sockets, wait
from entrypoint.net.http import bearer
from entrypoint.node import own_info, unfit_report
from entrypoint.node.member import Member
from entrypoint.node.membership import Membership
from entrypoint.node.way_in import through
from entrypoint.preflight import network
from entrypoint.processes.inbox import Inbox, StopAsked
from entrypoint.processes.services import Services
from tests.support.control import TOKEN, VERSIONS, Head, answers
from tests.support.waiting import eventually

NAME = "the-head.invalid"
RESOLVE = socket.getaddrinfo
Named = Callable[..., list[str]]
HERITAGE: dict[str, Any] = {
    "variables": {},
    "job": [],
    "recipe": "command",
    "expected_workers": 2,
    "hosts": [],
    "patience": 8.0,
}


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Named:
    """Gives the head's name its addresses, and returns the list, which a test may change."""
    known: list[str] = []

    def resolve(host: str, *rest: Any, **more: Any) -> Any:
        found = known if host == NAME else [host]
        return [entry for one in found for entry in RESOLVE(one, *rest, **more)]

    def name(*addresses: str) -> list[str]:
        known[:] = addresses
        return known

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(own_info, "versions", lambda _: VERSIONS)
    return name


@contextmanager
def head_at(run: Path, address: str, own: str, port: int = 0) -> Iterator[Head]:
    """A head that listens at one address alone, or at all if that is "". `own`: that of its Ray."""
    head = Head(run, port, address)
    object.__setattr__(head.control._registry.me, "address", own)
    with head.control:
        eventually(lambda: answers(head.port, address or "127.0.0.1"))
        yield head


@contextmanager
def other_server(address: str, port: int) -> Iterator[None]:
    """A web server that is not a head."""
    other = HTTPServer((address, port), BaseHTTPRequestHandler)
    thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield
    finally:
        other.shutdown()
        other.server_close()
        thread.join()


def settings_of(run: Path, head: Head, name: str = NAME, **more: str) -> Settings:
    given = {
        "RAY_WORKER": "1",
        "ROLLCALL_HEAD_ADDRESS": name,
        "ROLLCALL_CONTROL_PORT": str(head.port),
        "ROLLCALL_TOKEN": TOKEN,
        "ROLLCALL_NODE_NAME": "w1",
        "ROLLCALL_HEAD_TIMEOUT": "10s",
        "ROLLCALL_RUN_DIR": str(run / "other"),
        "ROLLCALL_STORAGE": "head",
    }
    return read_settings(given | more)


def stayed_at(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> tuple[Membership, list[tuple[str, str]]]:
    """Join once; return the membership, and the head's and the node's addresses for Ray."""
    inbox, used = Inbox(), list[tuple[str, str]]()
    services = Services(settings, is_head=False, env={}, tell=print)

    def belong(member: Member) -> StopAsked:
        used.append((member.way.host, member.way.info.address))
        return StopAsked("SIGTERM")

    monkeypatch.setattr(Member, "belong", belong)
    monkeypatch.setattr(sockets, "connect", lambda *_, **__: None)
    membership = Membership(settings, {}, TOKEN, inbox, services)
    assert membership._join_once() == StopAsked("SIGTERM")
    return membership, used


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_address_that_answers_as_a_head_is_kept_wherever_it_stands(
    place: int, named: Named, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with head_at(tmp_path, "127.0.0.5", "127.0.0.5") as head:
        addresses = ["127.0.0.6", "127.0.0.7"]  # nobody, and a server that is not a head
        addresses.insert(place, "127.0.0.5")
        named(*addresses)
        with other_server("127.0.0.7", head.port):
            settings = settings_of(tmp_path, head)
            membership, used = stayed_at(settings, monkeypatch)
        assert used == [("127.0.0.5", "127.0.0.1")]
        assert head.heard.check_ins == [("w1", None)]
        assert membership.locator.find()[0] == "127.0.0.5"


def test_of_both_address_families_the_one_that_answers_is_kept(
    named: Named, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for answering, other in (("127.0.0.1", "::1"), ("::1", "127.0.0.1")):
        with head_at(tmp_path, answering, answering) as head:
            named(other, answering)
            _, used = stayed_at(settings_of(tmp_path, head), monkeypatch)
            assert used == [(answering, answering)]


def test_an_ipv6_literal_is_the_heads_address(
    named: Named, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with head_at(tmp_path, "::1", "::1") as head:
        _, used = stayed_at(settings_of(tmp_path, head, "::1"), monkeypatch)
    assert used == [("::1", "::1")]


def test_of_two_that_answer_the_one_of_the_heads_ray_is_taken(
    named: Named, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with head_at(tmp_path, "", "127.0.0.3") as head:
        named("127.0.0.2", "127.0.0.4", "127.0.0.3")
        _, used = stayed_at(settings_of(tmp_path, head), monkeypatch)
    assert used == [("127.0.0.3", "127.0.0.1")]


def test_no_connection_stays_open_if_the_second_address_refuses_the_node() -> None:
    opened: dict[str, ControlClient] = {}

    def door(host: str) -> tuple[ControlClient, NodeInfo]:
        opened[host] = ControlClient(host, 1, TOKEN)
        return opened[host], NodeInfo(node="w1", address=host, versions={})

    def check_in(client: ControlClient, info: NodeInfo) -> CheckedIn:
        if info.address == "127.0.0.2":
            raise RefusedError("another run")
        return CheckedIn("a", "127.0.0.2")

    with pytest.raises(RefusedError):
        through(["127.0.0.1", "127.0.0.2"], door, check_in)
    assert [client._http.is_closed for client in opened.values()] == [True, True]


def test_a_head_whose_ray_is_out_of_reach_is_told_what_to_set(
    named: Named, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with head_at(tmp_path, "127.0.0.5", "127.0.0.6") as head:
        named("127.0.0.6", "127.0.0.5")
        stayed_at(settings_of(tmp_path, head), monkeypatch)
    (said,) = [one for one in caplog.messages if "ROLLCALL_NODE_ADDRESS" in one]
    assert said.startswith("the head answers at 127.0.0.5, and its Ray is at 127.0.0.6, where")
    assert "ROLLCALL_NODE_ADDRESS=127.0.0.5 on the head" in said


def test_all_addresses_are_named_if_none_answers(
    named: Named, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with head_at(tmp_path, "127.0.0.5", "127.0.0.5") as head:
        named("127.0.0.6", "127.0.0.7")
        settings = settings_of(tmp_path, head, ROLLCALL_HEAD_TIMEOUT="1s")
        services = Services(settings, is_head=False, env={}, tell=print)
        membership = Membership(settings, {}, TOKEN, Inbox(), services)
        with other_server("127.0.0.7", head.port), pytest.raises(wait.GaveUpError) as gave_up:
            membership._join_once()
    said = str(gave_up.value)
    assert f"http://127.0.0.6:{head.port}: " in said
    assert f"http://127.0.0.7:{head.port}/v1/check-in answers 501" in said


def test_after_a_restart_the_head_is_found_at_its_other_address(
    named: Named, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with head_at(tmp_path, "127.0.0.5", "127.0.0.5") as head:
        named("127.0.0.5", "127.0.0.6")
        settings = settings_of(tmp_path, head)
        membership, used = stayed_at(settings, monkeypatch)
    with head_at(tmp_path, "127.0.0.6", "127.0.0.6", head.port):
        assert membership._join_once() == StopAsked("SIGTERM")
    assert [host for host, _ in used] == ["127.0.0.5", "127.0.0.6"]


def test_an_unfit_worker_reports_to_the_address_that_answers(
    named: Named, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with head_at(tmp_path, "127.0.0.5", "127.0.0.5") as head:
        named("127.0.0.6", "127.0.0.5")
        settings = settings_of(tmp_path, head)
        unfit_report.report(settings, ("no GPU",))
        assert network.head_at(settings, NAME) == "127.0.0.5"
        assert [node for node, _ in head.heard.check_ins] == ["w1"]


def test_after_a_takeover_the_heads_own_address_is_taken_and_not_one_that_leads_there(
    named: Named, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with head_at(tmp_path, "127.0.0.5", "127.0.0.5") as head:
        head.control.bequeath(HERITAGE | {"takeovers": 1})
        listener = sockets.listen(head.port, "127.0.0.6")
        with relay.relaying(listener, "127.0.0.5", head.port):
            named("127.0.0.6")
            settings = settings_of(tmp_path, head, ROLLCALL_BIND="127.0.0.7")
            _, used = stayed_at(settings, monkeypatch)
    assert used == [("127.0.0.5", "127.0.0.1")]


def test_a_worker_of_a_head_that_has_moved_leads_to_it_while_it_stays(
    named: Named, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[int] = []

    def belong(member: Member) -> StopAsked:
        place = f"http://127.0.0.7:{member.settings.control_port}/v1/state"
        asked = httpx.get(place, headers=bearer(TOKEN), trust_env=False)
        answered.append(asked.status_code)
        return StopAsked("SIGTERM")

    for takeovers in (0, 1):
        with head_at(tmp_path, "127.0.0.5", "127.0.0.5") as head:
            head.control.bequeath(HERITAGE | {"takeovers": takeovers})
            named("127.0.0.5")
            settings = settings_of(tmp_path, head, ROLLCALL_BIND="127.0.0.7")
            services = Services(settings, is_head=False, env={}, tell=print)
            membership = Membership(settings, {}, TOKEN, Inbox(), services)
            monkeypatch.setattr(Member, "belong", belong)
            monkeypatch.setattr(sockets, "connect", lambda *_, **__: None)
            if takeovers:
                assert membership._join_once() == StopAsked("SIGTERM")
            else:
                with pytest.raises(httpx.ConnectError):
                    membership._join_once()
            assert not answers(head.port, "127.0.0.7")
    assert answered == [200]
