"""compose/slurm/rollcall.sbatch with programs in place of Slurm and the container runtimes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.support.env_files import ENV_FILES, variables_of
from tests.support.repository import ROOT
from tests.support.run_lines import options_of_line

SCRIPT = ROOT / "compose" / "slurm" / "rollcall.sbatch"
ARGUMENTS = ["--pretrain", "a model", "--ref_resources", '{"older": 1}']

SRUN = """#!/bin/bash
# One task on this machine, as on each node.
[ "$1" = --help ] && { echo "      --container-image=[USER@]IMAGE  [pyxis] the image"; exit; }
printf '%s\\n' "$@" > "$RECORD/srun"
while [ "${1#--}" != "$1" ]; do shift; done
exec env SLURM_STEP_ID=0 SLURM_NODEID=0 "$@"
"""
RECORDER = """#!/bin/bash
name=$(basename "$0")
[ "$name" = "$RUNTIME" ] && [ "$1" = rm ] && exit 0
printf '%s\\n' "$@" > "$RECORD/$name"
env --null > "$RECORD/$name.env"
exit "${EXIT_CODE:-0}"
"""
SCONTROL = """#!/bin/bash
# Says when the job was preempted; records other commands.
[ "$1" = show ] && { echo "JobId=7 JobState=RUNNING PreemptTime=${PREEMPT_TIME:-None}"; exit; }
printf '%s\\n' "$@" > "$RECORD/scontrol"
"""
SAVER = """#!/bin/bash
trap 'exit 143' USR1
touch "$RECORD/begun"
while true; do sleep 0.05; done
"""


@dataclass(frozen=True, slots=True)
class Job:
    """A directory with programs of Slurm's names, and what they were called with."""

    directory: Path

    @property
    def record(self) -> Path:
        return self.directory / "record"

    def program(self, name: str, text: str = RECORDER) -> None:
        path = self.directory / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def environment(self, **given: str) -> dict[str, str]:
        bare = {"PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}", "HOME": "/nonexistent"}
        slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3"}
        venv = {"VENV": str(self.directory), "SHARED": str(self.directory)}
        return bare | slurm | venv | {"RECORD": str(self.record)} | given

    def run(self, **given: str) -> int:
        done = subprocess.run(
            ["bash", SCRIPT, *ARGUMENTS], env=self.environment(**given), timeout=30, check=False
        )
        return done.returncode

    def words(self, name: str) -> list[str]:
        return (self.record / name).read_text().splitlines()

    def variables(self, name: str) -> dict[str, str]:
        pairs = (self.record / f"{name}.env").read_text().rstrip("\0").split("\0")
        return dict(pair.split("=", 1) for pair in pairs)

    def called(self, name: str) -> bool:
        return (self.record / name).exists()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = Job(tmp_path)
    job.record.mkdir()
    job.program("srun", SRUN)
    job.program("scontrol", SCONTROL)
    for name in ("rollcall", "podman", "docker", "apptainer"):
        job.program(name)
    return job


@pytest.mark.parametrize("runtime", ["pyxis", "none"])
def test_the_flags_reach_the_node_as_they_were_given(job: Job, runtime: str) -> None:
    assert job.run(RUNTIME=runtime) == 0
    assert job.words("rollcall") == ARGUMENTS
    variables = job.variables("rollcall")
    assert variables["ROLLCALL_RUN_DIR"] == str(job.directory / "rollcall" / "7")
    assert (job.directory / "rollcall" / "7").is_dir()


def test_one_task_on_each_node_whatever_the_job_asked_for(job: Job) -> None:
    job.run(RUNTIME="none", SLURM_NTASKS="6", SLURM_NTASKS_PER_NODE="2")
    words = job.words("srun")
    assert {"--nodes=3", "--ntasks=3", "--ntasks-per-node=1"} <= set(words)


def test_a_heterogeneous_job_is_one_step_over_all_its_components(job: Job) -> None:
    job.run(RUNTIME="none", SLURM_HET_SIZE="2")
    words = job.words("srun")
    assert "--het-group=0-1" in words
    assert not [word for word in words if word.startswith("--nodes")]


def test_pyxis_has_the_image_and_the_shared_directory(job: Job) -> None:
    job.run(RUNTIME="pyxis")
    words, shared = job.words("srun"), job.directory
    assert f"--container-image={shared}/rollcall.sqsh" in words
    assert f"--container-mounts={shared}:{shared}" in words


def test_apptainer_runs_the_program_of_the_image(job: Job) -> None:
    job.run(RUNTIME="apptainer", IMAGE="/shared/rollcall.sif")
    words = job.words("apptainer")
    assert words[0] == "exec"
    assert words[words.index("/shared/rollcall.sif") :] == [
        "/shared/rollcall.sif",
        "rollcall",
        *ARGUMENTS,
    ]


STORE = {
    "ROLLCALL_STORAGE": "s3://bucket/run",
    "AWS_ACCESS_KEY_ID": "an-id",
    "AWS_ENDPOINT_URL": "http://store:9000",
    "AWS_ENDPOINT_URL_S3": "http://store:9000",
    "AWS_DEFAULT_REGION": "us-east-1",
}
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "a-secret-key-of-a-test",
    "AWS_SESSION_TOKEN": "a-session-of-a-test",
    "AZURE_STORAGE_ACCOUNT_KEY": "another-key-of-a-test",
    "HF_TOKEN": "a-token-of-the-hub",
    "OPENAI_API_KEY": "a-key-of-a-judge",
    "ROLLCALL_TOKEN": "a-token-of-a-test",
    "WANDB_API_KEY": "a-key-of-the-log",
    "https_proxy": "http://user:a-password@proxy:3128",
}
RUNTIMES = {"pyxis": "rollcall", "none": "rollcall"} | {
    name: name for name in ("apptainer", "podman", "docker")
}
"""The program that the node becomes."""


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_node_has_the_variables_of_the_store_and_no_command_line_has_a_secret(
    job: Job, runtime: str, capfd: pytest.CaptureFixture[str]
) -> None:
    program = RUNTIMES[runtime]
    assert job.run(RUNTIME=runtime, **STORE, **SECRETS) == 0
    assert job.variables(program).items() >= {**STORE, **SECRETS}.items()
    words = job.words(program)
    shown = "".join((*words, *job.words("srun"), *capfd.readouterr()))
    assert [name for name, value in SECRETS.items() if value in shown] == []
    if runtime in ("podman", "docker"):
        passed = {value for option, value in itertools.pairwise(words) if option == "--env"}
        assert {*STORE, *SECRETS} <= passed


@pytest.mark.parametrize("runtime", ["podman", "docker"])
def test_a_container_is_given_what_the_compose_file_gives(job: Job, runtime: str) -> None:
    service = yaml.safe_load((ROOT / "compose" / "cuda.yaml").read_text())["services"]["node"]
    given = dict.fromkeys(service["environment"].keys() - {"HF_HOME"}, "1")
    given |= {"MIOPEN_USER_DB_PATH": "/tmp/x", "TRITON_CACHE_DIR": "/tmp/x", "TRACKIO_DIR": "/x"}
    given |= {"VERL_LOGGING_LEVEL": "DEBUG", "ACCELERATE_LOG_LEVEL": "info", "SGLANG_LOG": "1"}
    given |= {"RES_OPTIONS": "timeout:1", "NVTE_FLASH_ATTN": "1"}
    assert job.run(RUNTIME=runtime, **given) == 0
    words = job.words(runtime)
    passed = {value for option, value in itertools.pairwise(words) if option == "--env"}
    assert given.keys() - passed == set()


@pytest.mark.parametrize(
    ("storage", "restarts", "journal", "warned"),
    [
        ("head", "1", False, True),
        ("head", "1", True, False),
        ("head", "0", False, False),
        ("s3://bucket/run", "1", False, False),
        ("shared", "1", False, False),
    ],
)
def test_a_job_that_starts_again_where_its_run_is_not_says_so(
    job: Job,
    storage: str,
    restarts: str,
    journal: bool,
    warned: bool,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = job.directory / "rollcall" / "7"
    if journal:
        run.mkdir(parents=True)
        (run / "journal.jsonl").touch()
    assert job.run(RUNTIME="none", ROLLCALL_STORAGE=storage, SLURM_RESTART_COUNT=restarts) == 0
    assert (f"has no run in {run}: the run begins at step 0" in capfd.readouterr().err) is warned


@pytest.mark.parametrize("runtime", ["podman", "docker"])
@pytest.mark.parametrize("network", ENV_FILES, ids=lambda path: path.name)
def test_a_container_is_given_the_variables_of_slurm_and_of_the_network(
    job: Job, runtime: str, network: Path
) -> None:
    given = {"ROLLCALL_MIN_WORKERS": "1", "WANDB_API_KEY": "0123456789", "UNRELATED": "1"}
    job.run(RUNTIME=runtime, IMAGE="rollcall:cuda", NETWORK=str(network), **given)
    words = job.words(runtime)
    passed = {value for option, value in itertools.pairwise(words) if option == "--env"}
    expected = {"SLURM_STEP_ID", "SLURM_NODEID", "SLURM_JOB_ID", "ROLLCALL_RUN_DIR", "HF_HOME"}
    assert expected | {"ROLLCALL_MIN_WORKERS", "WANDB_API_KEY"} <= passed
    assert set(variables_of(network)) <= passed
    assert passed & {"UNRELATED", "PATH", "HOME"} == set()
    options, _ = options_of_line(words[1:])
    user = {"docker": f"{os.getuid()}:{os.getgid()}", "podman": "0:0"}[runtime]
    assert {("user", user), ("read-only", "true"), ("cap-drop", "ALL")} <= options
    assert {("security-opt", "no-new-privileges"), ("volume", "/tmp")} <= options
    assert job.variables(runtime).items() >= variables_of(network).items()
    assert words[words.index("rollcall:cuda") + 1 :] == ARGUMENTS


def test_a_node_with_older_gpus_offers_them(job: Job) -> None:
    job.program(
        "nvidia-smi", "#!/bin/sh\nfor n in 0 1; do echo GPU $n: NVIDIA A100-SXM4-80GB; done\n"
    )
    job.run(RUNTIME="none", OLDER="A100")
    assert json.loads(job.variables("rollcall")["ROLLCALL_RESOURCES"]) == {"older": 2}
    job.run(RUNTIME="none", OLDER="V100")
    assert "ROLLCALL_RESOURCES" not in job.variables("rollcall")


def test_amd_gpus_are_named_by_the_variable_that_ray_reads(job: Job) -> None:
    job.run(RUNTIME="none", ROCR_VISIBLE_DEVICES="0,1", CUDA_VISIBLE_DEVICES="0,1")
    variables = job.variables("rollcall")
    assert variables["HIP_VISIBLE_DEVICES"] == "0,1"
    assert {"ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"} & variables.keys() == set()


@pytest.mark.parametrize("code", [0, 64, 70, 143])
def test_the_jobs_exit_code_is_the_runs_and_a_cancelled_job_is_not_requeued(
    job: Job, code: int
) -> None:
    assert job.run(RUNTIME="none", EXIT_CODE=str(code)) == code
    assert not job.called("scontrol")


def test_a_job_that_has_saved_in_the_grace_time_of_a_preemption_is_requeued(job: Job) -> None:
    preempted = "2026-01-01T10:00:00"
    assert job.run(RUNTIME="none", EXIT_CODE="70", PREEMPT_TIME=preempted) == 70
    assert not job.called("scontrol")
    assert job.run(RUNTIME="none", EXIT_CODE="143", PREEMPT_TIME=preempted) == 143
    assert job.words("scontrol") == ["requeue", "7"]


def test_a_slurm_without_pyxis_is_told_what_to_set(
    job: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    job.program("srun", SRUN.replace("--container-image", "--comment"))
    assert job.run() == 64
    assert "no pyxis" in (said := capfd.readouterr().err)
    assert "RUNTIME=apptainer, podman, docker or none" in said
    assert not job.called("srun")
    assert job.run(RUNTIME="none") == 0


def test_an_srun_that_gives_no_help_is_not_judged(job: Job) -> None:
    job.program("srun", SRUN.replace("exit; }", "exit 1; }").replace("--container-image", ""))
    assert job.run(RUNTIME="pyxis") == 0


def test_an_unknown_runtime_is_wrong_usage(job: Job) -> None:
    assert job.run(RUNTIME="singularity") == 64


def test_before_the_time_limit_the_run_saves_and_the_job_is_requeued(job: Job) -> None:
    job.program("rollcall", SAVER)
    process = subprocess.Popen(["bash", SCRIPT], env=job.environment(RUNTIME="none"))
    try:
        deadline = time.monotonic() + 20
        while not job.called("begun"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(20) == 143
    finally:
        process.kill()
    assert job.words("scontrol") == ["requeue", "7"]


def test_the_script_asks_slurm_for_what_it_relies_on() -> None:
    directives = {line for line in SCRIPT.read_text().splitlines() if line.startswith("#SBATCH")}
    assert {
        "#SBATCH --requeue",
        "#SBATCH --signal=B:USR1@180",
        "#SBATCH --open-mode=append",
        "#SBATCH --ntasks-per-node=1",
    } <= directives
