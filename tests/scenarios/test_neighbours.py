"""Two nodes of one name on one machine: what works for a living one is nobody else's to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.files.child_variables import NODE_MARK, NODE_OWNER
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.config.read import read_settings
from entrypoint.config.role import Head, Worker
from entrypoint.node import ray_command_line, ray_node
from entrypoint.preflight import ports
from entrypoint.preflight.check import Context
from entrypoint.preflight.verdict import Finding, Verdict
from entrypoint.processes import process, services
from entrypoint.processes.inbox import Inbox
from entrypoint.processes.services import Services
from tests.support.waiting import eventually

HEAD = Head(1, 1, "a test")
WORKER = Worker("head", "a test")
LISTENER = "import socket, sys, time; s = socket.create_server(('', int(sys.argv[1]))); {}"
NODE = """
import os, sys, time
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.node import ray_command_line, ray_node
from entrypoint.processes.inbox import Inbox
from entrypoint.processes.services import Services
from entrypoint.config.read import read_settings

settings = read_settings(os.environ)
ray_command_line.ray_command = lambda: (sys.argv[1],)
env = ray_node.environment(settings, "a token")
me = NodeInfo(node="n", address="127.0.0.1", versions={})
ray = ray_node.RayNode(settings, (), me, "t", Inbox())
with Services(settings, is_head=True, env=env, tell=print):
    while "started" not in ray._process.tail() or not (running := ray.running):
        time.sleep(0.02)
    print("at work", flush=True)
    time.sleep(60)
"""
"""All of a node that outlives its entrypoint: Ray, which is played by a program that holds one of
its ports, and a service."""


class Machine:
    """Where one node is at work, and another one of the same name is to start."""

    def __init__(self, root: Path, first: int) -> None:
        self.environ = {
            "ROLLCALL_RUN_DIR": str(root),
            "ROLLCALL_RECIPE": "command",
            "ROLLCALL_JOB": "true",
            "ROLLCALL_NODE_NAME": f"half-{os.getpid()}-{first}",
            "ROLLCALL_RAY_TEMP_DIR": f"/tmp/rollcall-half-{os.getpid()}",
            "ROLLCALL_WORKER_PORTS": f"{first}-{first + 39}",
            "ROLLCALL_RAY_PORT": str(first + 40),
            "ROLLCALL_DASHBOARD_PORT": str(first + 41),
            "ROLLCALL_CONTROL_PORT": str(first + 42),
            "ROLLCALL_REWARD_URL": "http://127.0.0.1:9/get_reward",
            "ROLLCALL_REWARD_COMMAND": "sleep 60",
        }
        self.settings = read_settings(self.environ)
        self.ray = root / "ray"
        listener = LISTENER.format("print('started', flush=True); time.sleep(60)")
        self.ray.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{listener}" {first}\n')
        self.ray.chmod(0o755)
        self.first = subprocess.Popen(
            [sys.executable, "-c", NODE, str(self.ray)],
            env=os.environ | self.environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.first.stdout is not None
        assert self.first.stdout.readline() == "at work\n"
        eventually(lambda: len(self.left()) == 2)  # one just started may show no environment

    def left(self) -> list[int]:
        """What runs of the nodes of this name, beside their entrypoints."""
        marks = (self.settings.node_mark, services.mark(self.settings))
        return sorted(one.pid for mark in marks for one in process.find_marked(mark))

    def start_second(self) -> None:
        """As far as it would end what an earlier life has left."""
        with Services(self.settings, is_head=False, env={}, tell=print), self._ray():
            pass

    def _ray(self) -> ray_node.RayNode:
        me = NodeInfo(node="n", address="127.0.0.1", versions={})
        return ray_node.RayNode(self.settings, (), me, "t", Inbox())

    def kill_first(self) -> None:
        self.first.kill()
        self.first.wait()

    def close(self) -> None:
        self.kill_first()
        marks = (self.settings.node_mark, services.mark(self.settings))
        process.kill(one for mark in marks for one in process.find_marked(mark))
        assert self.first.stdout is not None
        self.first.stdout.close()


@pytest.fixture
def machine(tmp_path: Path, port_block: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    machine = Machine(tmp_path, port_block)
    monkeypatch.setattr(ray_command_line, "ray_command", lambda: (str(machine.ray),))
    yield machine
    machine.close()


def found(machine: Machine, role: Head | Worker = HEAD) -> Finding:
    return ports.stale_ray(Context(role, machine.settings))


def test_a_second_node_is_told_of_the_living_one_and_what_to_set(machine: Machine) -> None:
    finding = found(machine)
    assert finding.verdict is Verdict.FAIL
    assert finding.evidence == f"another Rollcall node runs here (pid {machine.first.pid})"
    assert finding.remedy == "give this one its own ROLLCALL_NODE_NAME and ROLLCALL_RAY_TEMP_DIR"


def test_a_look_at_a_living_node_takes_nothing_of_it_for_left_over(machine: Machine) -> None:
    look = Context(WORKER, machine.settings, running_pid=ports.living(machine.settings))
    running = f"this node runs here (pid {machine.first.pid})"
    finding = ports.stale_ray(look)
    assert (finding.verdict, finding.evidence) == (Verdict.WARN, running)
    taken = ports.ports(look)
    assert taken.verdict is Verdict.WARN
    assert taken.evidence.endswith(f"all of this node, which runs here (pid {machine.first.pid})")
    assert not taken.ends_with_start
    own, _ = look.own_processes()
    assert own > {machine.first.pid}
    machine.kill_first()
    assert ports.living(machine.settings) is None
    later = Context(WORKER, machine.settings)
    assert "of an earlier Ray of this node" in ports.stale_ray(later).evidence
    assert ports.ports(later).evidence.endswith("all left by an earlier life of this node")


def test_doctor_beside_a_living_node_finds_no_fault_with_it(machine: Machine) -> None:
    at_work = machine.left()
    role = {"RAY_WORKER": "1", "ROLLCALL_HEAD_ADDRESS": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-m", "entrypoint", "doctor", "--json"],
        env=os.environ | machine.environ | role,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    checks = {check["name"]: check["verdict"] for check in json.loads(done.stdout)["checks"]}
    assert (checks["host.stale_ray"], checks["host.ports"]) == ("warn", "warn")
    assert machine.left() == at_work


def test_what_works_for_a_living_node_outlives_the_start_of_a_second_one(machine: Machine) -> None:
    at_work = machine.left()
    assert len(at_work) == 2
    machine.start_second()
    assert machine.left() == at_work


def test_what_a_killed_node_has_left_is_ended_by_the_next(machine: Machine) -> None:
    machine.first.kill()
    os.waitid(os.P_PID, machine.first.pid, os.WEXITED | os.WNOWAIT)  # not reaped: a zombie
    assert len(machine.left()) == 2
    finding = found(machine)
    assert finding.verdict is Verdict.PASS
    assert "earlier Ray of this node" in finding.evidence
    machine.start_second()
    assert machine.left() == []


def test_a_port_of_a_living_node_is_not_taken_for_free_by_a_worker_of_its_name(
    machine: Machine,
) -> None:
    finding = ports.ports(Context(WORKER, machine.settings))
    assert finding.verdict is Verdict.FAIL
    assert finding.evidence.endswith(": of another Rollcall node on this machine")
    proposed = "ROLLCALL_WORKER_PORTS: ROLLCALL_WORKER_PORTS="
    assert finding.remedy.startswith(f"give each node its own {proposed}")
    assert not finding.passes
    machine.kill_first()
    left = ports.ports(Context(WORKER, machine.settings))
    assert left.verdict is Verdict.WARN
    assert left.ends_with_start  # so that `rollcall status` does not warn of it for ever


def test_a_second_node_ends_with_76_and_so_nothing_of_the_first(machine: Machine) -> None:
    at_work = machine.left()
    role = {"RAY_WORKER": "1", "ROLLCALL_HEAD_ADDRESS": "127.0.0.1"}
    second = subprocess.run(
        [sys.executable, "-m", "entrypoint"],
        env=os.environ | machine.environ | role | {"ROLLCALL_PREFLIGHT_SKIP": "host.ports"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == 76, second.stdout
    told = f"another Rollcall node runs here (pid {machine.first.pid}) → give this one its own"
    assert told in second.stdout
    assert machine.left() == at_work


def test_a_number_that_came_again_is_another_process() -> None:
    number, _, started = str(process.identity(os.getpid())).partition(":")
    assert number == str(os.getpid())
    other = {NODE_MARK: f"again-{number}", NODE_OWNER: f"1:{int(started) + 1}"}
    with subprocess.Popen(["sleep", "60"], env=os.environ | other) as left:
        try:
            eventually(lambda: bool(process.find_marked(f"again-{number}")))
            assert [one.pid for one in process.find_ours_or_orphaned(f"again-{number}")] == [
                left.pid
            ]
            assert process.other_owner(f"again-{number}") is None
        finally:
            left.kill()


def test_a_process_is_called_alike_in_its_container_and_outside_of_it() -> None:
    alone = ("unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")
    code = (
        "from entrypoint.processes import process; print(process.identity(), flush=True); input()"
    )
    with subprocess.Popen(
        [*alone, sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as inside:
        assert inside.stdin is not None
        assert inside.stdout is not None
        if not (name := inside.stdout.readline().strip()):
            pytest.skip("no namespaces here")
        assert name.startswith("1:")
        assert name in process.other_identities()
        inside.stdin.close()
