"""The nodes of the run lines, compose files and templates of docs/platforms come together."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

import pytest

from tests.container.platform_nodes import (
    NO_GPUS,
    Machines,
    Shared,
    blocks_of_the_page,
    compose_here,
    line_here,
    pod,
    shell,
    start_pods,
    typed,
)
from tests.support.env_files import variables_of
from tests.support.podman import IMAGE
from tests.support.repository import ROOT
from tests.support.run_lines import options_of_line, run_lines

pytestmark = [pytest.mark.container, pytest.mark.timeout(300)]

LINES = run_lines()
EACH_LINE = [
    pytest.param(line, id=f"{name}-{number}", marks=[pytest.mark.faults] if number else [])
    for number, (name, line) in enumerate(LINES)
]
JOIN_SECONDS = 150.0
NO_ADAPTERS = "--env=NCCL_IB_HCA="
"""Platforms promise adapters, of which this machine has none."""


def assert_all_join(machines: Machines) -> None:
    """Ends at once if a node ends."""
    rolls = partial(machines.watch.events, "roll")
    machines.watch.until(
        lambda: bool(rolls()) or not all(node.running for node in machines.nodes),
        "roll",
        within=JOIN_SECONDS,
    )
    assert [len(roll["details"]["present"]) for roll in rolls()] == [2], machines.report()


@pytest.mark.parametrize("line", EACH_LINE)
def test_the_nodes_of_a_run_line_come_together(line: str, shared: Shared) -> None:
    options, job = line_here(shlex.split(line)[2:], shared)
    network = dict(options_of_line(shlex.split(line)[2:])[0])["env-file"]
    interface = variables_of(ROOT / network).get("NCCL_SOCKET_IFNAME", "^").partition("^")[0]
    joined = f"interface_name={interface}" if interface else ""
    with Machines(shared) as machines:
        address = machines.head_address
        first = ",".join(filter(None, [f"ip={address}", joined]))
        machines.start(*options, NO_ADAPTERS, IMAGE, *job, network=first)
        others = [option for option in options if option != "--env=EXPECTED_WORKERS=2"]
        join = ("--env=RAY_WORKER=1", f"--env=ROLLCALL_HEAD_ADDRESS={address}")
        for _ in range(2):
            machines.start(*others, *join, NO_ADAPTERS, IMAGE, network=joined)
        assert_all_join(machines)


@pytest.mark.faults
def test_pods_come_together(shared: Shared) -> None:
    with Machines(shared) as machines:
        start_pods(machines)
        assert_all_join(machines)


@pytest.mark.faults
def test_the_nodes_of_an_instant_cluster_come_together(shared: Shared) -> None:
    with Machines(shared) as machines:
        address = machines.head_address
        for rank in range(3):
            of_runpod = {
                "PRIMARY_ADDR": address,
                "MASTER_ADDR": address,
                "NODE_RANK": str(rank),
                "NUM_NODES": "3",
                "NUM_TRAINERS": "0",
                "WORLD_SIZE": "0",
                "NODE_ADDR": f"{address}{rank or ''}",
            }
            options, job = pod("instant-cluster", shared, f"pod{rank}", **NO_GPUS, **of_runpod)
            interface = f"interface_name=ens1,ip={of_runpod['NODE_ADDR']}"
            machines.start(*options, IMAGE, *job, network=interface)
        assert_all_join(machines)


@pytest.mark.faults
@pytest.mark.parametrize("name", ["cuda", "rocm"])
def test_the_machines_of_a_compose_file_come_together(
    name: str, shared: Shared, tmp_path: Path
) -> None:
    head, worker = blocks_of_the_page()
    with Machines(shared) as machines:
        file = compose_here(f"{name}.yaml", tmp_path, machines.name)
        for number, block in enumerate((head, worker, worker)):
            project = f"--project-name {machines.name}-{number}"
            up = typed(block, "up --no-build --detach", file, shared, machines.head_address)
            shell(up.replace("--file", f"{project} --file"), within=60)
            machines.adopt(f"{machines.name}-{number}_node_1")
        assert_all_join(machines)
