"""Ports and left-over processes, with real listeners and real processes."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from contract.files.child_variables import NODE_MARK
from entrypoint.config.parsers import port_range
from entrypoint.config.read import read_settings
from entrypoint.config.role import Head, Worker
from entrypoint.config.settings import Settings
from entrypoint.machine import port_holders
from entrypoint.net import node_claims
from entrypoint.net import port_block as port_block_of
from entrypoint.preflight import ports
from entrypoint.preflight.check import Context
from entrypoint.preflight.run import run_checks
from entrypoint.preflight.verdict import Finding, Verdict
from entrypoint.processes import process
from tests.support.other_user import as_nobody

HEAD = Head(1, 1, "a test")
WORKER = Worker("head", "a test")
LISTEN = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
listener.accept()
"""


@pytest.fixture(autouse=True)
def ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "ENDING_SECONDS", 0.2)


@pytest.fixture
def settings(port_block: int) -> Settings:
    first = port_block
    return read_settings(
        {
            "ROLLCALL_WORKER_PORTS": f"{first}-{first + 39}",
            "ROLLCALL_RAY_PORT": str(first + 40),
            "ROLLCALL_DASHBOARD_PORT": str(first + 41),
            "ROLLCALL_CONTROL_PORT": str(first + 42),
            "ROLLCALL_NODE_NAME": f"test-{os.getpid()}-{first}",
        }
    )


@pytest.fixture
def left_over(settings: Settings) -> Iterator[int]:
    """A process with this node's mark that holds its Ray port: what a killed node leaves."""
    child = subprocess.Popen(
        [sys.executable, "-c", LISTEN, str(settings.ray_port)],
        env=os.environ | {NODE_MARK: settings.node_mark},
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    yield child.pid
    child.kill()
    child.wait()
    child.stdout.close()


def found(settings: Settings, role: Head | Worker = HEAD) -> Finding:
    return ports.ports(Context(role, settings))


def test_free_ports_pass(settings: Settings) -> None:
    finding = found(settings)
    assert finding.verdict is Verdict.PASS
    assert "12 ports and 31 of 31 worker ports are free" in finding.evidence


@pytest.mark.parametrize("offset", [40, 41, 42, 0, 7])
def test_a_taken_port_fails_by_its_number_its_holder_and_its_variable(
    settings: Settings, port_block: int, offset: int
) -> None:
    variable = {
        40: "ROLLCALL_RAY_PORT",
        41: "ROLLCALL_DASHBOARD_PORT",
        42: "ROLLCALL_CONTROL_PORT",
    }.get(offset, "ROLLCALL_WORKER_PORTS")
    with socket.create_server(("127.0.0.1", port_block + offset)):
        finding = found(settings)
    assert finding.verdict is Verdict.FAIL
    assert f"{port_block + offset}: Address already in use" in finding.evidence
    assert f"process {os.getpid()}" in finding.evidence
    assert variable in finding.remedy


def test_a_port_that_is_let_go_of_in_time_is_free(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "ENDING_SECONDS", 30.0)
    with socket.create_server(("127.0.0.1", settings.ray_port)) as server:
        ending = threading.Timer(0.3, server.close)
        ending.start()
        assert found(settings).verdict is Verdict.PASS
        ending.join()


def test_a_worker_does_not_need_the_heads_ports(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", settings.ray_port)):
        assert found(settings, WORKER).verdict is Verdict.PASS


def test_a_closing_connection_does_not_take_a_port(settings: Settings) -> None:
    """A head that starts again within a minute finds its port in TIME_WAIT."""
    with socket.create_server(("127.0.0.1", settings.ray_port)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        accepted.close()
        client.close()
    assert found(settings).verdict is Verdict.PASS


def test_too_few_worker_ports_fail(settings: Settings, port_block: int) -> None:
    servers = [socket.create_server(("127.0.0.1", port_block + offset)) for offset in range(11, 30)]
    try:
        finding = found(settings)
    finally:
        for server in servers:
            server.close()
    assert finding.verdict is Verdict.FAIL
    assert "12 of 31 worker ports are free" in finding.evidence


@pytest.mark.usefixtures("left_over")
def test_a_port_that_an_earlier_life_of_this_node_holds_is_a_warning(settings: Settings) -> None:
    finding = found(settings)
    assert finding.verdict is Verdict.WARN
    assert "left by an earlier life of this node" in finding.evidence


def test_processes_of_an_earlier_life_are_seen_and_nobody_elses(
    settings: Settings, left_over: int
) -> None:
    assert left_over
    own = ports.stale_ray(Context(HEAD, settings))
    assert own.verdict is Verdict.PASS
    assert own.evidence.endswith("before Ray starts they are ended")
    other = read_settings({"ROLLCALL_NODE_NAME": f"other-{os.getpid()}"})
    nothing = ports.stale_ray(Context(HEAD, other)).evidence
    assert nothing.startswith("no earlier Ray of this node is left")


def test_a_ray_that_no_variable_names_is_seen_by_its_daemon(tmp_path: Path) -> None:
    daemon = tmp_path / "raylet"
    shutil.copy(shutil.which("sleep") or "", daemon)
    with subprocess.Popen([str(daemon), "60"], env={}) as running:
        other = read_settings({"ROLLCALL_NODE_NAME": f"other-{os.getpid()}"})
        finding = ports.stale_ray(Context(HEAD, other))
        running.kill()
    assert finding.verdict is Verdict.PASS
    assert "another Ray runs on this machine (raylet, pid" in finding.evidence
    assert str(running.pid) in finding.evidence


def ends_with(settings: Settings) -> int:
    return run_checks(
        HEAD, settings, [one for one in ports.CHECKS if "ports" in one.name]
    ).exit_code


def test_only_a_port_that_may_become_free_is_worth_another_try(
    settings: Settings, port_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ends_with(settings) == 0
    with socket.create_server(("127.0.0.1", settings.ray_port)):
        assert ends_with(settings) == 75
    with other_node(f"beside-{port_block}", port_block, port_block + 39):
        assert ends_with(settings) == 76, "it lives, and has the same settings"

    def refused(port: int, address: str = "") -> OSError | None:
        denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return denied if port == settings.dashboard_port else port_block_of.why_not(port, address)

    monkeypatch.setattr(ports, "why_not", refused)
    finding = found(settings)
    assert finding.evidence == f"{settings.dashboard_port}: Permission denied"
    assert finding.remedy.startswith("set ROLLCALL_DASHBOARD_PORT, or give user ")
    with socket.create_server(("127.0.0.1", settings.ray_port)):
        assert ends_with(settings) == 76, "the other port may become free, this one may not"


def test_a_port_that_needs_a_right_is_no_taken_one() -> None:
    """As a user without rights sees it: the kernel's own answer, where there is such a user."""

    def looks() -> None:
        error = port_block_of.why_not(81)
        finding = ports._judge_refused({81: error or OSError()}, {81: "ROLLCALL_CONTROL_PORT"})
        raise ValueError(f"{finding.evidence} -> {finding.remedy}")

    first = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()
    if int(first) <= 81:
        pytest.skip("every user may listen on every port here")
    said = as_nobody(looks)
    assert said.startswith(
        "ValueError: 81: Permission denied -> set ROLLCALL_CONTROL_PORT to ports "
    )
    assert "above 1023, or give user " in said


HELD = """
import sys
from entrypoint.net import node_claims
held = node_claims.of(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])).hold()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def other_node(name: str, first: int, last: int) -> Iterator[None]:
    """Another node on this machine that has not started its Ray yet."""
    argv = [sys.executable, "-c", HELD, name, str(first), str(last)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        other.stdout.readline()
        yield
        other.stdin.close()


@pytest.mark.parametrize(("offset", "clashes"), [(0, True), (39, True), (-20, True), (40, False)])
def test_another_node_on_this_machine_with_some_of_the_worker_ports_is_named(
    settings: Settings, port_block: int, offset: int, clashes: bool
) -> None:
    first, last = port_block + offset, port_block + offset + 39
    with other_node(f"beside-{port_block}", first, last):
        finding = found(settings)
    assert (finding.verdict is Verdict.FAIL) == clashes
    if clashes:
        named = f"are also those of another Rollcall node on this machine: beside-{port_block} "
        assert f"{named}({first}-{last})" in finding.evidence
        own, free = str(finding.remedy).split(": ")
        assert own == "give each of them its own ROLLCALL_WORKER_PORTS"
        begin, end = re.findall(r"\d+", free)
        assert port_range(f"{begin}-{end}").port_count == settings.worker_ports.port_count
        assert int(begin) > last or int(end) < first
    assert found(settings).verdict is Verdict.PASS, "its claim ends with it"


def test_one_remedy_names_the_worker_ports_of_another_node_and_its_other_ports(
    settings: Settings, port_block: int
) -> None:
    with (
        other_node(f"beside-{port_block}", port_block, port_block + 39),
        socket.create_server(("127.0.0.1", settings.control_port)),
    ):
        remedy = str(found(settings).remedy)
    named = "ROLLCALL_CONTROL_PORT and ROLLCALL_WORKER_PORTS: ROLLCALL_CONTROL_PORT="
    assert remedy.startswith(f"give each of them its own {named}")
    assert remedy.endswith(" are free")


def test_the_nodes_own_claim_is_no_clash(settings: Settings) -> None:
    own = node_claims.of(settings.node_name, *settings.worker_ports)
    with own.hold() or nullcontext():
        assert own.hold() is None, "it is held once"
        assert found(settings).verdict is Verdict.PASS


def lent(tmp_path: Path, reserved: str, **environ: str) -> Finding | None:
    ipv4 = tmp_path / "sys/net/ipv4"
    ipv4.mkdir(parents=True)
    (ipv4 / "ip_local_port_range").write_text("32768\t60999\n")
    (ipv4 / "ip_local_reserved_ports").write_text(f"{reserved}\n")
    given = read_settings({"ROLLCALL_WORKER_PORTS": "20000-20039", **environ})
    variables = dict.fromkeys(
        range(given.worker_ports.first, given.worker_ports.last + 1), "WORKER"
    )
    return ports.lent({**variables, given.control_port: "CONTROL"}, tmp_path)


@pytest.mark.parametrize(
    ("reserved", "environ", "spans", "sysctl"),
    [
        ("", {"ROLLCALL_WORKER_PORTS": "40000-40099"}, "40000-40099 (WORKER)", "40000-40099"),
        ("", {"ROLLCALL_WORKER_PORTS": "32700-32800"}, "32768-32800 (WORKER)", "32768-32800"),
        ("", {"ROLLCALL_CONTROL_PORT": "50000"}, "50000 (CONTROL)", "50000"),
        (
            "8080,40000-40049",
            {"ROLLCALL_WORKER_PORTS": "40000-40099"},
            "40050-40099 (WORKER)",
            "8080,40000-40049,40050-40099",
        ),
    ],
)
def test_ports_that_the_kernel_lends_to_connections_are_told_with_the_sysctl(
    tmp_path: Path, reserved: str, environ: dict[str, str], spans: str, sysctl: str
) -> None:
    finding = lent(tmp_path, reserved, **environ)
    assert finding is not None
    assert finding.verdict is Verdict.WARN
    assert finding.evidence.startswith(f"{spans} lie inside net.ipv4.ip_local_port_range, 32768-")
    assert f"`sysctl -w net.ipv4.ip_local_reserved_ports={sysctl}`" in finding.remedy
    assert finding.remedy.endswith("to ports below 32768")


@pytest.mark.parametrize("reserved", ["", "30000-61000"])
def test_ports_that_the_kernel_lends_to_nobody_are_not_told(tmp_path: Path, reserved: str) -> None:
    ports = "40000-40099" if reserved else "20000-20099"
    assert lent(tmp_path, reserved, ROLLCALL_WORKER_PORTS=ports) is None


def test_a_machine_that_does_not_say_its_range_is_not_judged(tmp_path: Path) -> None:
    assert ports.lent({50000: "CONTROL"}, tmp_path) is None


def test_a_port_of_no_node_is_not_said_to_be_of_one(
    settings: Settings, port_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both() -> Finding:
        with (
            socket.create_server(("127.0.0.1", port_block + 40)),
            socket.create_server(("127.0.0.1", port_block + 42)),
        ):
            monkeypatch.setattr(port_holders, "holders", lambda: holders)
            return found(settings)

    holders = {port_block + 40: os.getpid(), port_block + 42: 1}
    monkeypatch.setattr(process, "of_living_nodes", lambda: {os.getpid()})
    finding = both()
    assert f": {port_block + 40} of another Rollcall node on this machine" in finding.evidence
    assert finding.remedy.startswith("end what listens there, or set ROLLCALL_CONTROL_PORT and")
