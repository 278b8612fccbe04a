"""The files of compose/ and the pages of docs/platforms fit the program, and one another."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from contract.exit_codes import ExitCode
from entrypoint.config.settings import declared, variable_names
from entrypoint.machine.interfaces import matcher
from tests.support.compose_files import COMPOSE, PAGES, SKY, jobs, json_of, planned, yaml_of
from tests.support.env_files import ENV_FILES, variables_of
from tests.support.job_flags import assert_flags_are_the_trainers
from tests.support.repository import DATA, ROOT
from tests.support.run_lines import options_of_line, run_lines

CHART = COMPOSE / "kubernetes" / "chart"
MONITORING = COMPOSE / "monitoring"
"""Its own page is docs/monitoring.md (tests/test_monitoring_files.py)."""
FILES = sorted(
    path for path in COMPOSE.rglob("*") if path.is_file() and not path.is_relative_to(MONITORING)
)
IMAGE = "registry.example.com/team/rollcall"
HOPELESS = {ExitCode.USAGE, ExitCode.JOB_FAILED, ExitCode.NOT_ALLOWED}
"""Exit codes after which no platform may try again: the same would happen."""


@pytest.mark.parametrize("path", [*FILES, *sorted(PAGES.glob("*.md"))], ids=lambda path: path.name)
def test_every_variable_of_rollcall_that_a_file_names_is_a_setting(path: Path) -> None:
    named = set(re.findall(r"\b(?:ROLLCALL_[A-Z_]*[A-Z]|EXPECTED_WORKERS)\b", path.read_text()))
    of_jobs = {"ROLLCALL_ATTEMPT", "ROLLCALL_RESUME_FROM"}
    assert named - set(variable_names()) - of_jobs == set()


# ---- the network's settings


@pytest.mark.parametrize("path", ENV_FILES, ids=lambda path: path.name)
def test_an_env_file_means_the_same_to_docker_and_to_a_shell(path: Path) -> None:
    script = f"set -o allexport; source {shlex.quote(str(path))}; env --null"
    done = subprocess.run(
        ["env", "-i", "bash", "-c", script], capture_output=True, text=True, check=True
    )
    of_the_shell = dict(line.split("=", 1) for line in done.stdout.rstrip("\0").split("\0"))
    given = variables_of(path)
    assert given
    assert given.items() <= of_the_shell.items()


@pytest.mark.parametrize("path", ENV_FILES, ids=lambda path: path.name)
def test_an_env_file_says_what_each_variable_is_for(path: Path) -> None:
    assert path.read_text().startswith("#")
    assert f"compose/env/{path.name}" in path.read_text()


LEFT_OUT = {
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    *("HF_HOME", "TRANSFORMERS_CACHE"),
}
"""Of the variables of verl's guide to AMD; the file says why."""


def test_the_mi300_file_and_its_page_have_every_variable_of_verls_guide() -> None:
    guide = (DATA / "guide_scripts" / "verl-amd-slurm.sh").read_text()
    named = set(re.findall(r"^[^#\n]*?(?:export|-e) ([A-Z_]+)=", guide, re.MULTILINE))
    path = COMPOSE / "env" / "mi300.env"
    assert set(variables_of(path)) == named - LEFT_OUT
    assert [name for name in LEFT_OUT if name not in path.read_text()] == []
    page = (ROOT / "docs" / "platforms" / "amd.md").read_text()
    others = {"PYTHONUNBUFFERED", "HOST_UID", "HOST_GID"}
    assert [name for name in named | others if f"`{name}`" not in page] == []
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| `?([^|`]+?)`? \|", page, re.MULTILINE))
    given = {name: text for name, text in variables_of(path).items() if name != "NCCL_IB_HCA"}
    assert given.items() <= rows.items()


# ---- Docker and podman


def interpolated(value: str, given: Mapping[str, str]) -> str:
    """The value as Compose reads it: `${NAME:-default}` and `${NAME:?message}`."""

    def of(match: re.Match[str]) -> str:
        return given.get(match["name"]) or match["default"] or ""

    return re.sub(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*)|:\?[^}]*)?\}", of, value)


def options_of_service(name: str, given: Mapping[str, str]) -> set[tuple[str, str]]:
    service = yaml.safe_load(interpolated((COMPOSE / name).read_text(), given))["services"]["node"]
    options = {("network", service["network_mode"]), ("shm-size", service["shm_size"])}
    options |= {("ulimit", f"{name}={value}") for name, value in service["ulimits"].items()}
    options |= {("cap-add", capability) for capability in service["cap_add"]}
    options |= {("cap-drop", capability) for capability in service["cap_drop"]}
    options |= {("user", service["user"]), ("read-only", str(service["read_only"]).lower())}
    options |= {("volume", volume) for volume in service["volumes"]}
    options |= {("env-file", f"compose/{file}") for file in service["env_file"]}
    options |= {("security-opt", option) for option in service.get("security_opt", [])}
    options |= {("group-add", group) for group in service.get("group_add", [])}
    devices = {device.split(":")[0] for device in service["devices"]} - {"/dev/null"}
    options |= {("device", device) for device in devices}
    options |= {
        ("env", f"{name}={value}") for name, value in service["environment"].items() if value
    }
    for reserved in service.get("deploy", {}).get("resources", {}).get("reservations", {}).values():
        assert reserved == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
        options.add(("gpus", "all"))
    return options


@pytest.mark.parametrize(("name", "line"), run_lines())
def test_a_run_line_says_the_same_as_the_compose_file(name: str, line: str, tmp_path: Path) -> None:
    program, run, *words = shlex.split(line)
    assert (program in ("docker", "podman"), run) == (True, "run")
    options, (image, *job) = options_of_line(words)
    assert image == f"{IMAGE}:{name}"
    assert_flags_are_the_trainers(job, tmp_path)
    if program == "podman":
        options.remove(("security-opt", "label=disable"))
        if ("device", "nvidia.com/gpu=all") in options:
            options = options - {("device", "nvidia.com/gpu=all")} | {("gpus", "all")}
    (user,) = (value for option, value in options if option == "user")
    assert user == {"docker": "$(id -u):$(id -g)", "podman": "0:0"}[program]
    given = {"RUN_DIR": "/shared/run", "EXPECTED_WORKERS": "2", "RUN_AS": user}
    if ("device", "/dev/infiniband") in options:
        given["RDMA"] = "/dev/infiniband"
    (network,) = (value for option, value in options if option == "env-file")
    given["NETWORK"] = Path(network).stem
    assert (ROOT / network).is_file()
    assert options == options_of_service(f"{name}.yaml", given)


@pytest.mark.parametrize("name", ["cpu", "cuda", "rocm"])
def test_a_compose_file_gives_a_node_no_right_that_it_does_not_need(name: str) -> None:
    services = yaml_of(f"{name}.yaml")["services"]
    node = services["head"] if name == "cpu" else services["node"]
    assert interpolated(node["user"], {}) == "1000:1000"
    assert (node["read_only"], node["cap_drop"]) == (True, ["ALL"])
    assert set(node.get("cap_add", [])) <= {"SYS_PTRACE"}
    assert "no-new-privileges" in node["security_opt"]
    assert "/tmp" in node["volumes"]


def test_there_are_lines_for_both_programs_and_both_makers_of_gpus() -> None:
    kinds = {(name, shlex.split(line)[0]) for name, line in run_lines()}
    assert kinds == set(itertools.product(("cuda", "rocm"), ("docker", "podman")))


def test_no_bridge_of_containers_or_virtual_machines_carries_the_job() -> None:
    """Such a bridge has the same address on each machine: NCCL would connect to itself."""
    carries = matcher(variables_of(COMPOSE / "env" / "tcp.env")["NCCL_SOCKET_IFNAME"])
    bridges = ("lo", "docker0", "br-1f", "podman0", "cni-podman0", "cni0", "veth1", "virbr0")
    assert [name for name in bridges if carries(name)] == []
    assert all(map(carries, ("eth0", "enp1s0f0", "bond0", "ib0")))


def test_the_two_compose_files_give_a_node_the_same_variables() -> None:
    cuda, rocm = (yaml_of(f"{name}.yaml")["services"]["node"] for name in ("cuda", "rocm"))
    assert cuda["environment"] == rocm["environment"]
    assert cuda["volumes"] == rocm["volumes"]


OF_THE_IMAGE_OR_ELSEWHERE = {
    *("ROLLCALL_RUN_DIR", "ROLLCALL_RAY_TEMP_DIR", "ROLLCALL_PREEMPT_FILE", "ROLLCALL_IMAGE"),
    *("HEAD_POD_ID", "ROLLCALL_RAY_ADDRESS"),
}
"""Paths in the container, what the image says, RunPod, and a Ray that is there already."""


def test_a_compose_file_gives_the_node_every_variable_that_the_shell_may_have() -> None:
    """Compose passes no other variable: `export ROLLCALL_RECIPE=verl` would say nothing."""
    passed = yaml_of("cuda.yaml")["services"]["node"]["environment"]
    declared_names = {one.name for one in declared().values()}
    assert declared_names - OF_THE_IMAGE_OR_ELSEWHERE <= passed.keys()
    for name in declared_names & passed.keys():
        assert passed[name] == f"${{{name}:-}}"


OUR_PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if not page.match("from-*.md")]
"""A page on another trainer names the variables that are read there."""


@pytest.mark.parametrize("page", OUR_PAGES, ids=lambda path: path.name)
def test_a_compose_file_gives_the_node_the_variables_of_trackers_traces_and_judges(
    page: Path,
) -> None:
    """The variables that a page names. rollcall.sbatch passes on these, too (test_sbatch_file)."""
    named = set(re.findall(r"`((?:OPENAI|MLFLOW|SWANLAB|OTEL)_[A-Z_]*[A-Z])\b", page.read_text()))
    assert named - yaml_of("cuda.yaml")["services"]["node"]["environment"].keys() == set()


# ---- jobs


@pytest.mark.parametrize("name", ["dstack", *SKY, "aws", "chart", "head", "instant-cluster"])
def test_a_files_job_has_flags_of_the_trainer(name: str, tmp_path: Path) -> None:
    assert_flags_are_the_trainers(jobs()[name], tmp_path)


def test_the_managed_job_is_the_task_on_spot_machines() -> None:
    task, managed = (yaml_of(f"skypilot/{name}.yaml") for name in SKY)
    only = {"use_spot", "job_recovery"}
    assert set(managed["resources"]) - set(task["resources"]) == only
    for name in only:
        del managed["resources"][name]
    assert managed == task


def test_skypilots_pods_are_root_who_may_read_stacks_and_pin_memory() -> None:
    """SkyPilot's own template installs packages with apt-get, by root or sudo."""
    config = yaml_of("skypilot/task.yaml")["config"]
    (container,) = config["kubernetes"]["pod_config"]["spec"]["containers"]
    rights = {"runAsUser": 0, "capabilities": {"add": ["SYS_PTRACE", "IPC_LOCK"]}}
    assert container == {"securityContext": rights}
    assert {"--user=0:0", "--cap-add=SYS_PTRACE"} <= set(config["docker"]["run_options"])


# ---- what an exit code leads to


def test_hopeless_ends_are_not_tried_again_and_others_are() -> None:
    recovered = yaml_of("skypilot/managed.yaml")["resources"]["job_recovery"]
    # SkyPilot recovers from these without a limit; an unfit machine may be the file's own fault.
    assert recovered["recover_on_exit_codes"] == [ExitCode.STOPPED]
    assert 1 < recovered["max_restarts_on_errors"] < 10
    # dstack does not look at exit codes, and its limit begins anew with each start.
    retried = yaml_of("dstack/task.dstack.yml")["retry"]["on_events"]
    assert retried == ["no-capacity", "interruption"]
    rules = json_of("aws-batch/job-definition.json")["retryStrategy"]["evaluateOnExit"]
    ends = {rule["onExitCode"] for rule in rules if rule["action"] == "EXIT"}
    assert ends == {str(int(code)) for code in HOPELESS}
    assert rules[-1] == {"onExitCode": "*", "action": "RETRY"}


def test_dstack_takes_from_the_users_shell_only_what_the_guide_takes() -> None:
    """dstack refuses a task if such a variable is not set."""
    named = [one for one in yaml_of("dstack/task.dstack.yml")["env"] if "=" not in one]
    assert named == ["WANDB_API_KEY"]


# ---- RunPod


POD_FIELDS = {
    "category": str,
    "containerDiskInGb": int,
    "dockerStartCmd": list,
    "env": dict,
    "imageName": str,
    "isPublic": bool,
    "isServerless": bool,
    "name": str,
    "ports": list,
    "readme": str,
    "volumeInGb": int,
    "volumeMountPath": str,
}
"""Fields of `TemplateCreateInput` in RunPod's REST API, version 1."""
POD = {"RUNPOD_POD_ID": "abc123", "RUNPOD_GPU_COUNT": "8"}


@pytest.mark.parametrize("name", ["head", "worker", "instant-cluster"])
def test_a_template_has_fields_of_runpods_api(name: str) -> None:
    template = json_of(f"runpod/{name}.json")
    assert {field: type(value) for field, value in template.items()} == POD_FIELDS
    assert all(isinstance(value, str) for value in template["env"].values())
    assert template["env"]["ROLLCALL_RUN_DIR"].startswith(template["volumeMountPath"] + "/")
    exposed = [] if name == "worker" else ["8267/http"]
    assert template["ports"] == exposed


def test_pods_have_the_settings_of_the_global_network_and_a_cluster_has_its_own() -> None:
    shared = variables_of(COMPOSE / "env" / "runpod.env")
    for name in ("head", "worker"):
        assert shared.items() <= json_of(f"runpod/{name}.json")["env"].items()
    cluster = json_of("runpod/instant-cluster.json")["env"]
    assert cluster["NCCL_SOCKET_IFNAME"] == cluster["GLOO_SOCKET_IFNAME"] == "ens1"
    assert "NCCL_IB_DISABLE" not in cluster


def test_the_page_has_every_variable_of_the_guide_and_says_which_has_no_effect() -> None:
    page = (PAGES / "runpod.md").read_text()
    by_hand = {"RAY_WORKER", "HEAD_POD_ID", "EXPECTED_WORKERS", "WANDB_API_KEY", "DEBUG_RAY"}
    named = by_hand | variables_of(COMPOSE / "env" / "runpod.env").keys()
    assert [name for name in sorted(named) if f"`{name}" not in page] == []
    (row,) = (line for line in page.splitlines() if "`FORCE_MODEL_INIT_TO_CUDA`" in line)
    assert "no effect" in row
    assert not any(
        "FORCE_MODEL_INIT_TO_CUDA" in path.read_text()
        for part in ("contract", "entrypoint", "trainer")
        for path in (ROOT / part).rglob("*.py")
    )


def test_the_lines_that_make_the_templates_have_every_variable_that_they_use() -> None:
    (lines,) = re.findall(
        r"^```sh guide=runpod\n(.+?)^```$", (PAGES / "runpod.md").read_text(), re.M | re.S
    )
    assert set(re.findall(r"\$(\w+)", lines)) <= set(re.findall(r"^export (\w+)=", lines, re.M))


def test_the_image_for_runpod_is_root_s_as_a_template_names_no_user() -> None:
    assert "user" not in POD_FIELDS
    page = (PAGES / "runpod.md").read_text()
    builds = re.findall(r"^docker build .+$", page, re.MULTILINE)
    assert [line for line in builds if "--build-arg RUN_AS=0:0 " not in line] == []
    assert "\nARG RUN_AS=1000:1000\n" in (ROOT / "Dockerfile").read_text()


def test_the_templates_make_a_head_and_workers_of_it() -> None:
    head = planned(json_of("runpod/head.json")["env"] | POD)
    assert (head["role"], head["expected_workers"], head["faults"]) == ("head", 2, [])
    environ = json_of("runpod/worker.json")["env"] | POD
    (fault,) = planned(environ)["faults"]
    assert fault["variable"] == "HEAD_POD_ID"
    worker = planned(environ | {"HEAD_POD_ID": "xyz789"})
    assert (worker["role"], worker["head_address"]) == ("worker", "xyz789.runpod.internal")


def test_the_templates_of_an_instant_cluster_leave_the_roles_to_runpod() -> None:
    cluster = {"PRIMARY_ADDR": "10.65.0.2", "NUM_NODES": "2", "NUM_TRAINERS": "8"}
    for rank, role in (("0", "head"), ("1", "worker")):
        own = {"NODE_RANK": rank, "NODE_ADDR": f"10.65.0.{2 + int(rank)}"}
        environ = json_of("runpod/instant-cluster.json")["env"] | POD | cluster | own
        assert planned(environ)["role"] == role


# ---- pages


def test_every_file_has_a_page_and_every_name_on_a_page_is_a_file() -> None:
    text = "\n".join(page.read_text() for page in PAGES.glob("*.md"))
    named = set(re.findall(r"compose/[\w./-]*\w", text))
    assert {name for name in named if not (ROOT / name).exists()} == set()
    outside_of_the_chart = (path for path in FILES if not path.is_relative_to(CHART))
    assert [path for path in outside_of_the_chart if path.name not in text] == []


@pytest.mark.parametrize(
    "page", sorted(set(PAGES.glob("*.md")) - {PAGES / "jobs.md"}), ids=lambda page: page.name
)
def test_a_page_says_how_the_image_is_built_and_reaches_the_nodes(page: Path) -> None:
    text = page.read_text()
    assert re.search(r"(docker|podman) build |index\.md#the-image", text)
    assert re.search(r"(docker|podman) push |index\.md#the-image", text)
