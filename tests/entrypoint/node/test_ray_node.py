"""A Ray node's command line, environment and address, and the nodes that Ray says are alive."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from contract.launch.programs import Program
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.machine.inventory import inventory
from entrypoint.net.wait import NotYetError
from entrypoint.node import ray_command_line, ray_node
from entrypoint.node.ray_state import Alive, alive_nodes

ADDRESS = "10.0.0.2"


def settings(**environ: str) -> Settings:
    return read_settings({"ROLLCALL_WORKER_PORTS": "10002-10999", **environ})


def arguments(**environ: str) -> list[str]:
    return ray_command_line.common_arguments(settings(**environ), ADDRESS, gpus=0)


def environment(**environ: str) -> dict[str, str]:
    return ray_node.environment(settings(**environ), "the-token")


def test_a_dead_dns_server_holds_no_process_for_long_unless_the_user_says_so() -> None:
    assert environment()["RES_OPTIONS"] == "timeout:1 attempts:2"
    assert environment(RES_OPTIONS="rotate")["RES_OPTIONS"] == "rotate"


def test_ray_gives_its_dashboard_as_long_as_this_node_waits_for_it_and_ends_without_it() -> None:
    assert "--include-dashboard=true" in ray_command_line.head_arguments(settings(), ADDRESS)
    module = "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT"
    for name in (module, "RAY_DASHBOARD_STARTUP_TIMEOUT_S"):
        assert float(environment()[name]) == ray_node.READY_TIMEOUT_SECONDS
        assert environment(**{name: "20"})[name] == "20"


def test_every_port_is_fixed_and_no_two_are_the_same() -> None:
    given = [*ray_command_line.head_arguments(settings(), ADDRESS), *arguments()]
    ports = [word.partition("=")[2] for word in given if "-port=" in word]
    ports += [text for name, text in environment().items() if name.endswith("_METRIC_PORT")]
    assert len(ports) == 13
    assert len(set(ports)) == len(ports)
    assert {"6379", "8265"} < set(ports)


def test_a_worker_is_told_the_heads_address_with_brackets_where_it_is_ipv6() -> None:
    assert ray_command_line.worker_arguments(settings(), "10.0.0.1") == ["--address=10.0.0.1:6379"]
    assert ray_command_line.worker_arguments(settings(), "fd00::1") == ["--address=[fd00::1]:6379"]


@pytest.mark.parametrize(
    ("address", "listens_on"),
    [(ADDRESS, "0.0.0.0"), ("fd00::1", "::"), ("::1", "::1"), ("127.0.0.2", "127.0.0.2")],
)
def test_the_dashboard_listens_with_the_heads_address_family_or_at_its_loopback_alone(
    address: str, listens_on: str
) -> None:
    given = ray_command_line.head_arguments(settings(), address)
    assert f"--dashboard-host={listens_on}" in given


def test_gpus_are_always_said_and_other_resources_where_given() -> None:
    assert "--num-gpus=0" in arguments()
    given = arguments(ROLLCALL_NUM_CPUS="2", ROLLCALL_RESOURCES='{"v100": 8}')
    assert "--num-cpus=2" in given
    assert '--resources={"v100": 8}' in given or '--resources={"v100": 8.0}' in given


def test_ray_is_offered_the_cpus_of_the_affinity_mask_as_the_inventory_says() -> None:
    """Ray counts all CPUs of the machine, whatever the mask of `taskset` or Slurm leaves."""
    mask = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mask)})
    try:
        assert "--num-cpus=1" in arguments()
        assert inventory(settings())["cpus"] == 1
    finally:
        os.sched_setaffinity(0, mask)


@pytest.mark.parametrize(
    ("debug_ray", "flag", "variables"),
    [
        ("0", False, {}),
        ("1", True, {"RAY_DEBUG": "legacy"}),
        ("post-mortem", False, {"RAY_DEBUG_POST_MORTEM": "1"}),
    ],
)
def test_each_debugger_reaches_ray_alone(
    debug_ray: str, flag: bool, variables: dict[str, str]
) -> None:
    assert ("--ray-debugger-external" in arguments(DEBUG_RAY=debug_ray)) is flag
    given = environment(DEBUG_RAY=debug_ray)
    assert {name: v for name, v in given.items() if name.startswith("RAY_DEBUG")} == variables


def test_ray_asks_for_the_token_and_knows_it() -> None:
    given = environment()
    assert (given["RAY_AUTH_MODE"], given["RAY_AUTH_TOKEN"]) == ("token", "the-token")


def test_a_silent_node_is_dead_for_ray_after_the_nodes_timeout() -> None:
    given = environment(ROLLCALL_NODE_TIMEOUT="15s")
    period = int(given["RAY_health_check_period_ms"]) / 1000
    timeout = int(given["RAY_health_check_timeout_ms"]) / 1000
    assert int(given["RAY_health_check_failure_threshold"]) * (period + timeout) == 15


def test_ray_gives_up_sooner_on_a_worker_of_builtin_that_is_killed_as_it_starts() -> None:
    name = "RAY_worker_register_timeout_seconds"
    assert environment()[name] == "30"
    assert environment(**{name: "60"})[name] == "60"
    assert name not in environment(ROLLCALL_RECIPE="command", ROLLCALL_JOB="true")
    assert name not in environment(ROLLCALL_WAIT_FOR_JOBS="1")  # its jobs may be commands


def test_a_node_holds_standby_ranks_for_a_tenth_of_its_memory_unless_the_user_says_no() -> None:
    name, gib = "RAY_preload_python_modules", 2**30
    assert environment()[name] == Program.STANDBY_IMPORTS
    assert ray_command_line.standby_arguments(settings(), 64 * gib) == [
        "--labels=rollcall/standby-ranks=17"
    ]
    for small in (0, 3 * gib):
        assert ray_command_line.standby_arguments(settings(), small) == []
    for off in (
        {"ROLLCALL_STANDBY_RANKS": "0"},
        {"ROLLCALL_RECIPE": "command", "ROLLCALL_JOB": "true"},
        {"ROLLCALL_WAIT_FOR_JOBS": "1"},
    ):
        assert name not in environment(**off)
        assert ray_command_line.standby_arguments(settings(**off), 64 * gib) == []


def test_what_the_user_set_for_ray_and_nccl_is_kept() -> None:
    given = environment(RAY_health_check_period_ms="5000", NCCL_DEBUG="INFO")
    assert given["RAY_health_check_period_ms"] == "5000"
    assert given["NCCL_DEBUG"] == "INFO"


def test_the_driver_runs_on_the_head_whatever_the_user_set() -> None:
    """Its output and its processes are looked for there."""
    asked = "RAY_JOB_ALLOW_DRIVER_ON_WORKER_NODES"
    assert environment(**{asked: "1"})[asked] == "0"


def test_a_wandb_key_from_a_file_reaches_the_job(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("9f86d081884c7d659a2f\n")
    assert environment(WANDB_API_KEY_FILE=str(file))["WANDB_API_KEY"] == "9f86d081884c7d659a2f"
    assert "WANDB_API_KEY" not in environment()


def test_the_note_of_an_earlier_cluster_is_removed(tmp_path: Path) -> None:
    """With it Ray's head does not start anew beside a node that still speaks to the old one."""
    given = settings(ROLLCALL_RAY_TEMP_DIR=f"/tmp/rollcall-note-{os.getpid()}")
    given.ray_dir.mkdir(parents=True)
    try:
        note = given.ray_dir / "ray_current_cluster"
        note.write_text("127.0.0.2:6379")
        ray_node.forget_cluster(given)
        assert not note.exists()
        ray_node.forget_cluster(given)
    finally:
        shutil.rmtree(given.ray_home)


def test_the_ray_of_this_interpreter_is_used() -> None:
    assert ray_command_line.ray_command()[0] == sys.executable


@pytest.mark.parametrize(
    ("variables", "directory"),
    [
        ({}, f"/tmp/rollcall-{os.geteuid()}/ray"),
        ({"TMPDIR": "/scratch"}, f"/scratch/rollcall-{os.geteuid()}/ray"),
        ({"TMPDIR": "/s", "RAY_TMPDIR": "/local"}, f"/local/rollcall-{os.geteuid()}/ray"),
        ({"TMPDIR": "/scratch", "ROLLCALL_RAY_TEMP_DIR": "/tmp/own"}, "/tmp/own/ray"),
    ],
)
def test_ray_is_told_its_directory_where_the_driver_s_output_is_looked_for(
    variables: dict[str, str], directory: str
) -> None:
    settings = read_settings({"ROLLCALL_RECIPE": "command", **variables}, ["true"])
    assert settings.ray_dir == Path(directory)
    arguments = ray_command_line.common_arguments(settings, "127.0.0.2", 0)
    assert f"--temp-dir={directory}" in arguments


def test_all_living_nodes_are_counted_however_many_and_none_of_the_dead(dashboard: str) -> None:
    alive = alive_nodes(dashboard, "right")
    assert len(alive) == 150
    assert alive[0] == Alive("96", "w-150", "10.0.0.150")


def test_who_cannot_ask_does_not_know_yet(dashboard: str) -> None:
    with pytest.raises(NotYetError, match="401"):
        alive_nodes(dashboard, "wrong")


def test_rays_agents_log_no_variables_of_jobs_unless_a_debugger_or_the_user_asks_for_more() -> None:
    assert environment()["RAY_LOGGER_LEVEL"] == "warning"
    assert "RAY_LOGGER_LEVEL" not in environment(DEBUG_RAY="1")
    assert environment(RAY_LOGGER_LEVEL="info")["RAY_LOGGER_LEVEL"] == "info"
