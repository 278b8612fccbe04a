"""Where a worker looks for the head, and how long a name server may keep it waiting."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from entrypoint.net import dns
from entrypoint.net.wait import NotYetError
from entrypoint.node.find_head import HeadLocator
from entrypoint.run import lease
from entrypoint.run.lease import Lease

NAMELESS = "no-such-head.invalid"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Name servers that answer nobody until this is set; then each name has one address."""
    answers, asked = threading.Event(), socket.getaddrinfo

    def late(host: str, *_: Any, **__: Any) -> Any:
        answers.wait(20)
        return asked("127.0.0.5", None, type=socket.SOCK_STREAM)

    monkeypatch.setattr(dns, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", late)
    return answers


def test_a_name_that_does_not_resolve_is_named() -> None:
    with pytest.raises(NotYetError, match=r"no-such-head\.invalid does not resolve"):
        dns.resolve(NAMELESS)


def test_a_name_server_that_is_silent_keeps_nobody_and_is_asked_once_at_a_time(
    silent: threading.Event,
) -> None:
    began = time.monotonic()
    for _ in range(3):
        with pytest.raises(NotYetError, match="no name server answers for head yet"):
            dns.resolve("head")
    assert time.monotonic() - began < 5
    assert sum(thread.name == "resolve" for thread in threading.enumerate()) == 1
    silent.set()
    assert dns.resolve("head") == "127.0.0.5"
    assert dns.addresses("head") == ["127.0.0.5"]


def test_an_answer_that_comes_too_late_is_for_the_next_who_asks(silent: threading.Event) -> None:
    with pytest.raises(NotYetError):
        dns.resolve("slow-head")
    silent.set()
    while any(thread.name == "resolve" for thread in threading.enumerate()):
        time.sleep(0.01)
    assert dns.resolve("slow-head") == "127.0.0.5"


def test_an_answer_of_long_ago_is_not_taken(
    silent: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotYetError):
        dns.resolve("moved-head")
    first = dns._under_way["moved-head"]
    silent.set()
    first.answer.result(5)
    monkeypatch.setattr(dns, "HOLDS_SECONDS", 0.0)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(*"1234", ("127.0.0.6", 0))])
    assert dns.resolve("moved-head") == "127.0.0.6"


def test_the_head_is_at_each_of_its_names_addresses_and_believed_there_while_nobody_can_tell(
    tmp_path: Path,
) -> None:
    assert HeadLocator("localhost", tmp_path).is_at(dns.resolve("localhost"))
    assert not HeadLocator("127.0.0.1", tmp_path).is_at("127.0.0.9")
    assert HeadLocator(NAMELESS, tmp_path).is_at("127.0.0.9")


def test_where_its_name_has_no_answer_the_next_head_is_where_its_lease_says(
    tmp_path: Path, silent: threading.Event
) -> None:
    place = HeadLocator("head", tmp_path / ".leases", known=True)
    with Lease(place.leases, address="127.0.0.7"):
        assert place.is_at("127.0.0.7")
    with Lease(place.leases, address="127.0.0.8"):
        assert not place.is_at("127.0.0.7")
        assert place.find() == ["127.0.0.8"]
    silent.set()


def test_a_worker_that_is_new_goes_at_once_to_the_worker_that_leads_now(tmp_path: Path) -> None:
    place = HeadLocator("127.0.0.6", tmp_path / ".leases")
    place.leases.mkdir()
    (place.leases / "1").write_text('{"address": "127.0.0.6", "beat": 3}')  # it was killed
    assert place.find() == ["127.0.0.6"]
    with Lease(place.leases, address="127.0.0.7", was_worker=True):
        assert place.find() == ["127.0.0.7"]
        assert not place.is_at("127.0.0.6")


def test_before_it_was_found_once_a_lease_may_be_of_a_head_long_gone(
    tmp_path: Path, silent: threading.Event
) -> None:
    place = HeadLocator("new-head", tmp_path)
    with Lease(place.leases, address="127.0.0.7"), pytest.raises(NotYetError):
        place.find()
    silent.set()


def test_a_head_that_has_ended_tells_no_address(tmp_path: Path) -> None:
    with Lease(tmp_path, address="127.0.0.7"):
        assert lease.address(tmp_path) == "127.0.0.7"
    assert lease.address(tmp_path) == ""
