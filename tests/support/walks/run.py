"""One small cluster in which everything happens that the walks follow, recorded.

A head and a worker wait for jobs. A job is submitted, trains and evaluates. It loses a rank, and
then its driver; at last the head gets SIGTERM. A webhook takes the run's events.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from contract.journal import read_events
from contract.launch.programs import Program
from contract.run_dir import RunFiles
from entrypoint.processes.programs import program
from tests.support.hook_server import hook_server
from tests.support.node_cluster import HEAD, Cluster, command_line, signalled
from tests.support.repository import ROOT
from tests.support.tiny_job import tiny_job

RECORDER = Path(__file__).with_name("recorder.py")
WORKER = 1
SECONDS = 400
"""For each thing to happen, on a busy machine."""


@contextmanager
def recorded(root: Path) -> Iterator[Path]:
    """Variables that make all children record; yields the directory of their records."""
    log, site = root / "log", root / "site"
    log.mkdir()
    site.mkdir()
    shutil.copy(RECORDER, site / "sitecustomize.py")
    path = os.pathsep.join([str(site), str(ROOT)])
    os.environ.update(PYTHONPATH=path, WALK_ROOT=str(ROOT), WALK_LOG=str(log))
    yield log


def submitted(cluster: Cluster, flags: Sequence[str]) -> RunFiles:
    env = cluster.environment(HEAD)
    url = f"http://{env['ROLLCALL_NODE_ADDRESS']}:{env['ROLLCALL_CONTROL_PORT']}"
    done = subprocess.run(
        program(Program.ROLLCALL, "submit", "--no-wait", "--", *flags),
        env=os.environ | {"ROLLCALL_URL": url, "ROLLCALL_TOKEN": cluster.run.token.read_text()},
        capture_output=True,
        text=True,
        check=True,
    )
    return RunFiles(cluster.run.jobs / done.stdout.strip())


def run(root: Path, hook: str) -> None:
    cluster = Cluster(
        root / "cluster",
        workers=1,
        job=(),
        ROLLCALL_RECIPE="builtin",
        ROLLCALL_WAIT_FOR_JOBS="1",
        ROLLCALL_WEBHOOK=hook,
    )
    cluster.plain = True
    usual = tiny_job(root, 1, reward=str(reward(root)))
    with_chat_template(root / "model" / "tokenizer_config.json")
    flags = [
        *usual[: usual.index("--advantage_estimator")],
        *("--eval_dataset", str(root / "prompts.jsonl"), "--eval_steps", "5"),
        *("--advantage_estimator", "group_norm", "--n_samples_per_prompt", "2"),
        *("--init_kl_coef", "0.01", "--actor_num_nodes", "2", "--ref_num_nodes", "2"),
        *("--max_steps", "1000000", "--apply_chat_template"),
    ]
    try:
        subprocess.run(
            program(Program.ROLLCALL, "plan", "--json", "--", *flags),
            env=cluster.environment(HEAD) | {"ROLLCALL_WAIT_FOR_JOBS": "0"},
            check=True,
        )
        cluster.start(HEAD, WORKER)
        cluster.until_said(HEAD, "the cluster takes jobs", within=SECONDS)
        cluster.until_said(WORKER, "joined the Ray cluster", within=SECONDS)
        job = submitted(cluster, flags)
        trains(cluster, job)
        ranks = [p for node in (HEAD, WORKER) for p in titled(cluster, node, "ray::policy")]
        signalled(ranks[:1], signal.SIGKILL)
        cluster.until(lambda: has(job, "rank-replaced"), "repair", within=SECONDS)
        trains(cluster, job)
        signalled(titled(cluster, HEAD, "-m trainer "), signal.SIGKILL)
        cluster.until(lambda: attempts(job) > 1, "another attempt", within=SECONDS)
        trains(cluster, job)
        cluster.terminate(HEAD)
        cluster.exit_codes(within=SECONDS)
    finally:
        cluster.close()


def with_chat_template(config: Path) -> None:
    """Give a tokeniser a template that shows what the messages say."""
    shown = "{% for one in messages %}{{ one['content'] }}{% endfor %}"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": shown}))


def reward(root: Path) -> Path:
    """A user's reward function."""
    file = root / "reward.py"
    file.write_text(
        "def reward_func(queries, prompts, labels):\n"
        "    return [float(q.endswith(label)) for q, label in zip(queries, labels)]\n"
    )
    return file


def titled(cluster: Cluster, node: int, title: str) -> list[psutil.Process]:
    return [p for p in cluster.processes(node) if title in " ".join(command_line(p))]


def trains(cluster: Cluster, job: RunFiles) -> None:
    """Wait for three more steps."""
    before = steps(job)
    cluster.until(lambda: steps(job) >= before + 3, "three steps", within=SECONDS)


def steps(job: RunFiles) -> int:
    return len(job.metrics.read_text().splitlines()) if job.metrics.exists() else 0


def has(job: RunFiles, kind: str) -> bool:
    return any(event["kind"] == kind for event in read_events(job.journal))


def attempts(job: RunFiles) -> int:
    return sum(event["kind"] == "attempt" for event in read_events(job.journal))


def record() -> Path:
    """Run the cluster; return the directory of the records, one for each process."""
    root = Path(tempfile.mkdtemp())
    with recorded(root) as log, hook_server() as hook:
        run(root, hook.url)
    return log
