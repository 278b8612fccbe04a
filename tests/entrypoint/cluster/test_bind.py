"""A head that listens at one address: who finds it there, and who does not."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from entrypoint.commands.head_client import ask_there
from entrypoint.commands.places import Place, places
from entrypoint.config.read import read_settings
from entrypoint.machine import address
from entrypoint.net import dns
from entrypoint.net.port_block import why_not
from entrypoint.net.sockets import host_port
from entrypoint.net.wait import NotYetError
from entrypoint.node.way_in import through
from tests.support.control import TOKEN, Head, answers, node_info
from tests.support.waiting import eventually

OWN, OTHER = "127.0.0.2", "127.0.0.1"


def test_other_addresses_are_refused_and_workers_and_commands_find_it(tmp_path: Path) -> None:
    head = Head(tmp_path, address=OWN)
    with head.control:
        eventually(lambda: answers(head.port, OWN))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((OTHER, head.port), timeout=3)
        assert isinstance(why_not(head.port, OWN), OSError)
        assert why_not(head.port, OTHER) is None  # another server may have the port there

        way = through(
            [OTHER, OWN],
            lambda host: (head.client(host=host), node_info("a")),
            lambda client, info: client.check_in(info),
        )
        assert way.host == OWN
        way.client.close()

        given = {"ROLLCALL_BIND": OWN, "ROLLCALL_CONTROL_PORT": str(head.port)}
        settings = read_settings({**given, "ROLLCALL_TOKEN": TOKEN})  # as on the head's node
        state, url = ask_there(settings, "GET", "/v1/state")
        assert url == f"http://{OWN}:{head.port}"
        assert state["nodes"][0]["node"] == "a"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6")
def test_ipv6_alone_is_an_address_like_another(tmp_path: Path) -> None:
    head = Head(tmp_path, address="::1")
    with head.control:
        eventually(lambda: answers(head.port, "::1"))
        assert not answers(head.port, OTHER)
        given = {"ROLLCALL_BIND": "[::1]", "ROLLCALL_CONTROL_PORT": str(head.port)}
        settings = read_settings({**given, "ROLLCALL_TOKEN": TOKEN})
        state, url = ask_there(settings, "GET", "/v1/state")
        assert url == f"http://{host_port('::1', head.port)}"
        assert state["head"] == "head"


def test_with_ipv4_alone_ipv6_is_refused(tmp_path: Path) -> None:
    head = Head(tmp_path, address="0.0.0.0")
    with head.control:
        eventually(lambda: answers(head.port, OTHER))
        assert not answers(head.port, "::1")


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({"EXPECTED_WORKERS": "0"}, "ROLLCALL_BIND=127.0.0.1"),
        ({"EXPECTED_WORKERS": "2", "ROLLCALL_BIND": "::"}, "ROLLCALL_BIND=10.0.0.2"),
        ({"ROLLCALL_BIND": "10.0.0.2"}, ""),
        ({"ROLLCALL_TLS": "auto"}, ""),
    ],
)
def test_a_head_says_that_all_interfaces_reach_its_page_in_plain_text(
    given: dict[str, str], limit: str
) -> None:
    said = address.exposure(read_settings(given), "10.0.0.2")
    assert bool(said) == bool(limit)
    assert limit in said
    assert not limit or said.startswith("port 8267 listens on all interfaces, without TLS. ")


@pytest.mark.parametrize(
    ("workers", "many"), [("1", "the head waits for 1 worker"), ("2", "waits for 2 workers")]
)
def test_nodes_on_one_machine_need_the_heads_address_on_the_head_too(
    workers: str, many: str
) -> None:
    given = {"ROLLCALL_BIND": "127.0.0.2", "EXPECTED_WORKERS": workers}
    fault = address.bind_fault(read_settings(given))
    assert fault is not None
    assert fault.problem.endswith(many)
    assert "set ROLLCALL_HEAD_ADDRESS=127.0.0.2, too" in fault.remedy
    assert (
        address.bind_fault(read_settings({**given, "ROLLCALL_HEAD_ADDRESS": "127.0.0.2"})) is None
    )


def test_where_it_listens_is_where_others_find_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = {"ROLLCALL_BIND": "10.9.0.5", "EXPECTED_WORKERS": "0"}
    assert address.own_head_address(read_settings(bound), None) == "10.9.0.5"
    apart = read_settings({**bound, "ROLLCALL_NODE_ADDRESS": "10.8.0.5"})
    assert (address.own_head_address(apart, None), address.bound(apart)) == ("10.8.0.5", "10.9.0.5")
    everywhere = read_settings({"ROLLCALL_BIND": "::", "ROLLCALL_CONTROL_PORT": "8267"})
    assert places(everywhere) == [Place("localhost")]

    def unknown(_: str) -> list[str]:
        raise NotYetError("no name server answers")

    monkeypatch.setattr(dns, "addresses", unknown)
    named = read_settings({"ROLLCALL_BIND": "gn1"})
    fault = address.bind_fault(named)
    assert fault is not None
    assert "has no address: no name server answers" in str(fault)
