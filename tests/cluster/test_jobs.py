"""A real node that waits for jobs, and the real command from outside of the cluster."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from contract.launch.programs import Program
from contract.run_dir import RunFiles
from entrypoint.processes.programs import beside_interpreter, program
from rollcall import AsyncClient, Client, Job, NoAnswerError
from tests.support.node_cluster import HEAD, JOB, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

STEPS = ("--", sys.executable, str(JOB))
"""A job that makes steps until it is stopped, or finds RUN/finish."""
ROLL_SECONDS = 40


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("jobs")
    env = {"ROLLCALL_WAIT_FOR_JOBS": "1", "ROLLCALL_MAX_RESTARTS": "0"}
    cluster = Cluster(root, workers=0, job=(), **env)
    try:
        cluster.start(HEAD)
        cluster.until_said(HEAD, "the cluster takes jobs", within=300)
        yield cluster
    finally:
        cluster.close()


def outside(cluster: Cluster) -> dict[str, str]:
    """The variables of a laptop: where the head answers, and the token."""
    env = cluster.environment(HEAD)
    token = cluster.run.token.read_text().strip() if cluster.run.token.exists() else "x" * 16
    url = f"http://{env['ROLLCALL_NODE_ADDRESS']}:{env['ROLLCALL_CONTROL_PORT']}"
    return {"PATH": os.environ["PATH"], "ROLLCALL_URL": url, "ROLLCALL_TOKEN": token}


def asked(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        program(Program.ROLLCALL, *words),
        env=outside(cluster),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def jobs(cluster: Cluster) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in json.loads(asked(cluster, "list", "--json").stdout)}


def run_of(cluster: Cluster, job: str) -> RunFiles:
    return RunFiles(cluster.run.jobs / job)


def begins(cluster: Cluster, *options: str) -> str:
    """Submit the job of steps without waiting; return its id."""
    done = asked(cluster, "submit", "--no-wait", *options, *STEPS)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def makes_steps(cluster: Cluster, job: str, *, within: float = 120) -> None:
    progress = run_of(cluster, job).progress
    before = progress.read_text() if progress.exists() else ""
    cluster.until(
        lambda: progress.exists() and progress.read_text() != before,
        f"step of {job}",
        within=within,
    )


def test_a_job_brings_its_directory_and_variables_and_its_output_and_exit_code_come_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    (code / "data").mkdir(parents=True)
    (code / "data" / "large").write_text("not to be brought")
    (code / "helper.py").write_text("WORD = 'from the directory'\n")
    (code / "train.py").write_text(
        "import os, ray, helper\n"
        "print(helper.WORD, os.environ['LEVEL'], os.path.exists('data'))\n"
        "ray.init(log_to_driver=False)\n"
        "@ray.remote\n"
        "def there():\n"
        "    import helper\n"
        "    return helper.WORD, os.environ['LEVEL'], os.environ['ROLLCALL_RUN_DIR']\n"
        "print(ray.get(there.remote()))\n"
    )
    environment = tmp_path / "runtime_env.yaml"
    environment.write_text("excludes: [/data/]\nenv_vars: {LEVEL: '2'}\n")
    options = ("--working-dir", str(code), "--runtime-env", str(environment))
    done = asked(cluster, "submit", *options, "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "from the directory 2 False" in done.stdout
    run = run_of(cluster, "job-1")
    assert f"('from the directory', '2', '{run.root}')" in done.stdout
    assert "job-1 (finished, exit code 0)" in done.stderr
    assert json.loads(run.result.read_text())["outcome"] == "finished"
    kinds = [event["kind"] for event in cluster.events("job-ended")]
    assert kinds == ["job-ended"]


def test_a_job_that_is_used_wrongly_ends_the_command_with_its_exit_code(cluster: Cluster) -> None:
    done = asked(cluster, "submit", "--", sys.executable, "-c", "exit(64)")
    assert done.returncode == 64
    assert jobs(cluster)["job-2"]["state"] == "failed"


def test_a_python_program_submits_watches_and_stops_jobs(cluster: Cluster, tmp_path: Path) -> None:
    known = outside(cluster)
    client = Client(known["ROLLCALL_URL"], known["ROLLCALL_TOKEN"])
    (tmp_path / "hello.py").write_text("print('hello')\nprint('from Python', end='')\n")
    first = client.submit(f"{sys.executable} hello.py", working_dir=tmp_path)
    assert not first.is_over
    ended = client.wait(first.id, timeout=120)
    assert (ended.state, ended.exit_code) == ("finished", 0)
    assert [line for line in client.logs(first.id) if line in ("hello", "from Python")] != []
    assert list(client.logs(first.id, follow=True)) == list(client.logs(first.id))
    told = list(client.events(first.id))
    assert [event.at for event in told] == sorted(event.at for event in told)
    assert "attempt" in {event.kind for event in told}

    async def stopped() -> Job:
        client = AsyncClient(known["ROLLCALL_URL"], known["ROLLCALL_TOKEN"])
        job = await client.submit(list(STEPS[1:]))
        async for event in client.events(job.id, follow=True):
            if event.kind == "attempt":
                break
        await client.stop(job.id)
        assert (await client.runs())[-1].id == job.id
        return await client.wait(job.id, timeout=120)

    assert asyncio.run(stopped()).state == "stopped"
    state = client.status()
    assert (state.present, state.outcome, state.is_over) == (0, None, False)
    with pytest.raises(NoAnswerError, match="no job job-99"):
        client.status("job-99")
    with pytest.raises(NoAnswerError) as refused:
        Client(known["ROLLCALL_URL"], "another-runs-token").runs()
    assert refused.value.exit_code == 77


def test_a_job_waits_for_the_one_before_which_can_be_stopped_alone(cluster: Cluster) -> None:
    first, second = begins(cluster), begins(cluster)
    makes_steps(cluster, first)
    states = {name: row["state"] for name, row in jobs(cluster).items()}
    assert (states[first], states[second]) == ("running", "queued")
    assert f"{first} runs" in asked(cluster, "status").stdout
    assert asked(cluster, "stop", first).returncode == 0
    makes_steps(cluster, second)
    assert jobs(cluster)[first]["exit_code"] == 143
    assert cluster.nodes[HEAD].running


def test_rays_own_commands_work_with_the_variables_of_the_images_shells(cluster: Cluster) -> None:
    shell = {
        "PATH": os.environ["PATH"],
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(cluster.run.token),
        "RAY_TMPDIR": str(cluster.ray_home(HEAD)),
    }
    env = cluster.environment(HEAD)
    dashboard = f"http://{env['ROLLCALL_NODE_ADDRESS']}:{env['ROLLCALL_DASHBOARD_PORT']}"

    def said(*words: str, **more: str) -> str:
        argv = [beside_interpreter("ray"), *words]
        done = subprocess.run(argv, env=shell | more, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "Resources" in said("status")
    # Not at 8265 of localhost, which Ray takes by default; and Ray is new since jobs 2 and 3 ended.
    assert "job-6-1" in said("job", "list", RAY_API_SERVER_ADDRESS=dashboard)


def test_a_command_that_is_interrupted_leaves_its_job_and_a_killed_head_goes_on_with_it(
    cluster: Cluster,
) -> None:
    (job,) = [name for name, row in jobs(cluster).items() if row["state"] == "running"]
    following = subprocess.Popen(
        program(Program.ROLLCALL, "submit", "--", "true"),
        env=outside(cluster),
        cwd="/",
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts the tests in the background has SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert following.stderr is not None
    said = following.stderr.readline()
    said += interrupted(following)
    assert following.returncode == 130
    assert "job-7 goes on" in said
    cluster.kill(HEAD)
    cluster.start(HEAD)
    makes_steps(cluster, job)
    assert json.loads(run_of(cluster, job).progress.read_text())["attempt"] == 2
    (run_of(cluster, job).root / "finish").touch()
    cluster.until(
        lambda: jobs(cluster)["job-7"]["state"] == "finished", "end of all jobs", within=120
    )
    assert jobs(cluster)[job]["state"] == "finished"
    assert asked(cluster, "stop").returncode == 0
    assert cluster.exit_codes(within=60) == {HEAD: 143}


def interrupted(command: subprocess.Popen[str]) -> str:
    """Return what a command says that one Ctrl-C ends."""
    command.send_signal(signal.SIGINT)
    return command.communicate(timeout=60)[1]


@pytest.mark.faults
def test_a_missing_worker_leaves_the_queue_and_is_waited_for_once(tmp_path: Path) -> None:
    env = {"ROLLCALL_WAIT_FOR_JOBS": "1", "ROLLCALL_ROLL_TIMEOUT": f"{ROLL_SECONDS}s"}
    cluster = Cluster(tmp_path, workers=1, job=(), **env)
    try:
        cluster.start(HEAD)
        cluster.until_said(HEAD, "the cluster takes jobs", within=300)
        for _ in range(2):
            assert asked(cluster, "submit", "--no-wait", "--", "true").returncode == 0
        assert cluster.exit_codes(within=ROLL_SECONDS + 120) == {HEAD: 69}
        assert cluster.events("job-ended") == []
        cluster._env["ROLLCALL_MIN_WORKERS"] = "0"
        cluster.start(HEAD)
        cluster.until(lambda: len(cluster.events("job-ended")) == 2, "end of both jobs", within=300)
        first, second = (datetime.fromisoformat(e["at"]) for e in cluster.events("job-ended"))
        assert second - first < timedelta(seconds=ROLL_SECONDS)
    finally:
        cluster.close()
