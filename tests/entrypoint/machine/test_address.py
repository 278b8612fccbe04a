"""A node's own address: of a route, of an interface, and a loopback only where somebody asks."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from entrypoint.config.read import read_settings
from entrypoint.config.role import Head
from entrypoint.machine import address
from entrypoint.machine.interfaces import Interface
from entrypoint.machine.view import Machine
from entrypoint.net import dns
from entrypoint.net.wait import NotYetError
from entrypoint.preflight.check import Context, Result
from entrypoint.preflight.network import own_address
from entrypoint.preflight.run import CHECKS
from entrypoint.preflight.verdict import Verdict
from tests.support import machines

HEAD = Head(2, 2, "a test")
ETH0 = Interface("eth0", up=True, mtu=1500, addresses=("fe80::1", "fd00::5", "10.9.0.5"))
DOCKER = Interface("docker0", up=True, mtu=1500, addresses=("172.17.0.1",))
GN1 = {"ROLLCALL_HEAD_ADDRESS": "gn1"}
LOOKED_UP = socket.getaddrinfo


@pytest.fixture
def debian(monkeypatch: pytest.MonkeyPatch) -> None:
    """`127.0.1.1 gn1` in /etc/hosts, as Debian's installer writes it."""

    def getaddrinfo(host: str, *given: Any, **more: Any) -> Any:
        return LOOKED_UP("127.0.1.1" if host == "gn1" else host, *given, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def routes(monkeypatch: pytest.MonkeyPatch, **known: str) -> None:
    """Only these targets can be reached: `v4` and `v6` by default routes."""
    named = dict(zip(("v4", "v6"), address.NOWHERE, strict=True))
    table = {named.get(name, name): found for name, found in known.items()}
    monkeypatch.setattr(address, "source", table.get)


def of_head(environ: dict[str, str], everything: Sequence[Interface] = (ETH0,)) -> str:
    return address.own_head_address(
        read_settings(environ), environ.get("ROLLCALL_HEAD_ADDRESS"), everything
    )


def interface(environ: dict[str, str], root: Path, *names: str) -> tuple[Result, Context]:
    """What preflight finds on a head with these interfaces, the first at 10.9.0.5."""
    known = {name: [f"10.9.{number}.5"] for number, name in enumerate(names)}
    sys_of = machines.network(root, *names)
    where = Context(
        HEAD, read_settings(environ), Machine(sys=sys_of, dev=root, addresses=lambda: known)
    )
    (check,) = (one for one in CHECKS if one.name == "fabric.interface")
    return check.run(where), where


def test_a_workers_address_is_that_of_the_route_to_its_head() -> None:
    assert address.worker_address(read_settings({}), "127.0.0.1") == "127.0.0.1"
    given = read_settings({"ROLLCALL_NODE_ADDRESS": "10.1.2.3"})
    assert address.worker_address(given, "127.0.0.1") == "10.1.2.3"


@pytest.mark.usefixtures("debian")
def test_a_head_whose_name_leads_to_a_loopback_has_another_address(tmp_path: Path) -> None:
    own = of_head(GN1)
    assert not address.is_loopback(own)
    result, where = interface(GN1, tmp_path, "eth0")
    assert result.verdict is Verdict.PASS
    assert not address.is_loopback(own_address(where, [ETH0]))


def test_of_several_addresses_of_its_name_a_head_takes_one_that_is_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first may be that of a load balancer, or of a network that this machine lacks."""
    found = [
        address.Route("127.0.1.1", "127.0.0.1"),
        address.Route("192.0.2.7", "10.1.0.5"),
        address.Route("10.2.0.5", "10.2.0.5"),
    ]
    monkeypatch.setattr(address, "sources", lambda _: iter(found))
    assert of_head(GN1) == "10.2.0.5"
    found.pop()
    assert of_head(GN1) == "10.1.0.5", "behind an address of another machine, that of the route"


def test_the_routes_to_a_name_are_those_to_each_of_its_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def getaddrinfo(host: str, *given: Any, **more: Any) -> Any:
        found = ["127.0.0.9", "::1"] if host == "gn1" else [host]
        return [entry for one in found for entry in LOOKED_UP(one, *given, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert [(one.target, one.is_own) for one in address.sources("gn1")] == [
        ("127.0.0.9", False),
        ("::1", True),
    ]
    assert [*address.sources("no-such-host.invalid")] == []


@pytest.mark.parametrize(
    "environ",
    [
        {"ROLLCALL_HEAD_ADDRESS": "127.0.0.2"},
        {"ROLLCALL_HEAD_ADDRESS": "localhost"},
        {"ROLLCALL_NODE_ADDRESS": "127.0.0.1"},
    ],
)
def test_a_loopback_that_somebody_wrote_is_kept(environ: dict[str, str], tmp_path: Path) -> None:
    assert address.is_loopback(of_head(environ))
    assert interface(environ, tmp_path, "eth0")[0].verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("environ", "found", "is_fault"),
    [
        ({"ROLLCALL_HEAD_ADDRESS": "gn1"}, ["203.0.113.7"], True),
        ({"ROLLCALL_HEAD_ADDRESS": "gn1"}, ["203.0.113.7", "127.0.0.3"], False),
        ({"ROLLCALL_HEAD_ADDRESS": "gn1"}, ["2001:db8::7"], True),
        ({"ROLLCALL_HEAD_ADDRESS": "gn1"}, None, False),
        ({"HEAD_POD_ID": "abc123"}, ["203.0.113.7"], True),
        ({"HEAD_POD_ID": "abc123", "RUNPOD_POD_ID": "ABC123"}, ["203.0.113.7"], False),
        ({"ROLLCALL_HEAD_ADDRESS": "gn1", "RAY_WORKER": "0"}, ["203.0.113.7"], False),
        ({"ROLLCALL_HEAD_ADDRESS": "gn1", "EXPECTED_WORKERS": "0"}, ["203.0.113.7"], False),
        ({"NODE_RANK": "0", "NNODES": "2", "MASTER_ADDR": "gn1"}, ["203.0.113.7"], False),
        ({}, ["203.0.113.7"], False),
    ],
)
def test_only_a_node_that_is_a_head_by_default_must_have_the_heads_address(
    environ: dict[str, str],
    found: list[str] | None,
    is_fault: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def addresses(name: str) -> list[str]:
        if found is None:
            raise NotYetError(f"the name {name} does not resolve")
        return found

    monkeypatch.setattr(dns, "addresses", addresses)
    assert bool(address.second_head(read_settings(environ))) is is_fault


def test_the_default_route_of_either_family_counts_before_an_interface(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routes(monkeypatch, v4="10.1.0.5", v6="fd00::5")
    assert of_head({}) == "10.1.0.5"
    routes(monkeypatch, v6="fd00::5")
    assert of_head({}) == "fd00::5"


@pytest.mark.parametrize(
    ("everything", "own"),
    [
        ([ETH0], "10.9.0.5"),
        ([DOCKER, ETH0], "10.9.0.5"),
        ([Interface("eth1", False, 1500, ("10.8.0.5",)), ETH0], "10.9.0.5"),
        ([Interface("eth1", True, 1500, ("fe80::1", "fd00::5"))], "fd00::5"),
        ([Interface("eth1", True, 1500, ("fe80::1",))], "127.0.0.1"),
        ([], "127.0.0.1"),
    ],
)
def test_without_a_default_route_the_first_interface_counts(
    everything: list[Interface], own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes(monkeypatch)
    assert of_head({}, everything) == own


def test_a_head_with_no_address_but_a_loopbacks_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes(monkeypatch, gn1="127.0.0.1")
    result, _ = interface(GN1, tmp_path)
    assert result.verdict is Verdict.FAIL
    assert "set ROLLCALL_NODE_ADDRESS" in result.remedy


def test_a_node_does_not_begin_with_the_address_of_another_machine(tmp_path: Path) -> None:
    result, _ = interface({"ROLLCALL_NODE_ADDRESS": "192.0.2.77"}, tmp_path, "eth0")
    assert result.verdict is Verdict.FAIL
    assert result.evidence.startswith("192.0.2.77 is not an address of this machine, which has ")
    assert "set ROLLCALL_NODE_ADDRESS" in result.remedy


def test_preflight_judges_the_address_that_the_head_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes(monkeypatch, **{"10.9.1.1": "10.9.1.5", "v4": "10.9.0.5"})
    _, where = interface({"ROLLCALL_HEAD_ADDRESS": "10.9.1.1"}, tmp_path, "eth0", "eth1")
    assert own_address(where, [ETH0]) == of_head({"ROLLCALL_HEAD_ADDRESS": "10.9.1.1"})


ONE_INTERFACE = """
ip link set lo up
ip link add v0 type veth peer name v1
ip addr add 10.9.0.5/24 dev v0
ip link set v0 up; ip link set v1 up
"""
OF_HEAD = """
import json, sys
from entrypoint.machine import address
from entrypoint.config.role import head_address
from entrypoint.config.read import read_settings
settings = read_settings(json.loads(sys.argv[1]))
told = head_address(settings)
print(json.dumps(address.own_head_address(settings, told.value if told else None)))
"""


def in_a_namespace(script: str, environ: dict[str, str]) -> str:
    """The address of a head that `environ` makes, in a network of its own that `script` sets up."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("neither unshare nor ip")
    script = f'mount -t sysfs none /sys; {script}\nexec "$0" "$@"'
    python = (sys.executable, "-c", OF_HEAD, json.dumps(environ))
    done = subprocess.run(
        ["unshare", "-rnm", "sh", "-ec", script, *python],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if "unshare" in done.stderr or "RTNETLINK" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no network namespace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, str)
    return found


def test_a_network_without_a_default_route_gives_its_own_address() -> None:
    assert in_a_namespace(ONE_INTERFACE, {}) == "10.9.0.5"


def test_a_runpod_head_is_reached_where_its_own_id_leads_not_by_its_default_route(
    tmp_path: Path,
) -> None:
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n10.8.0.7 xyz789.runpod.internal\n")
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\n")  # refuses at once
    script = f"""{ONE_INTERFACE}
ip route add default via 10.9.0.1
ip link add podnet1 type veth peer name v2
ip addr add 10.8.0.7/24 dev podnet1
ip link set podnet1 up; ip link set v2 up
mount --bind {tmp_path}/hosts /etc/hosts
mount --bind {tmp_path}/resolv.conf /etc/resolv.conf"""
    assert in_a_namespace(script, {"RUNPOD_POD_ID": "xyz789"}) == "10.8.0.7"
    assert in_a_namespace(script, {"RUNPOD_POD_ID": "nosuch"}) == "10.9.0.5"
