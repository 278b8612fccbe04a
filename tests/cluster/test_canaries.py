"""Every secret of a run is a canary, which nobody else has seen after three faults."""

from __future__ import annotations

import json
import shlex
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from contract.redaction import MASK
from entrypoint.processes.process import kill
from entrypoint.run import token as run_token
from tests.cluster.leaking_job import ERROR
from tests.support.hook_server import Hook, hook_server
from tests.support.node_cluster import HEAD, Cluster
from tests.support.other_user import as_nobody
from tests.support.repository import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

JOB = Path(__file__).with_name("leaking_job.py")
WORKER = 1
BY_VARIABLE = {
    "WANDB_API_KEY": "0a1b2c3d4e5f60718293a4b5c6d7e8f9000000w1",
    "HF_TOKEN": "hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567",
    "AWS_SECRET_ACCESS_KEY": "aws/canary+3f9d0b7c2e815a64d0c9b8a7f6e5",
    "AWS_SESSION_TOKEN": "aws-session-canary-51c2e9",
    "SMTP_PASS": "smtp-canary-77ab1",
    "ROLLCALL_TOKEN": "token-canary-2b7e151628aed2a6",
    "ROLLCALL_SERVICE_KEY": "service-canary-abf7158809cf4f3c",
    "HTTPS_PROXY": "http://me:proxy-canary-762e@127.0.0.1:3128",
}
BY_OPTION = {
    "-p": "short-canary-9a31",
    "--password": "password-canary-4411",
    "--creds": "creds-canary-8e02",
    "--auth": "auth-canary-71d0",
    "-u": "me:user-canary-0b3c",
    "--out": "s3://AKIAIOSFODNN7EXAMPL0:s3-canary-66f1@bucket/path",
}
OF_ENVIRONMENT = "harmless-canary-e7a05d"
"""Of `env_vars`, by a name that says nothing: nothing but modes keeps it from others."""
STARTING = "--serialized-runtime-env-context="
"""Ray starts a worker with its variables on the command line, as SECURITY.md says."""


Ended = tuple[Cluster, set[str]]


def secrets(hook: Hook) -> dict[str, str]:
    """Return what must be seen nowhere: name → canary."""
    within = {
        "HTTPS_PROXY": "proxy-canary-762e",
        "-u": "user-canary-0b3c",
        "--out": "s3-canary-66f1",
    }
    address = {"ROLLCALL_WEBHOOK": hook.url.rpartition("/")[2]}
    return {**BY_VARIABLE, **BY_OPTION, **within, **address, "env_vars": OF_ENVIRONMENT}


def seen(text: str, canaries: Mapping[str, str], where: object) -> Iterator[str]:
    yield from (f"{where} shows {name}" for name, canary in canaries.items() if canary in text)


@pytest.fixture(scope="module")
def hook() -> Iterator[Hook]:
    with hook_server() as made:
        yield made


TITLE_SECONDS = 2.0
"""In which a worker of Ray, on a busy machine, clears the words behind its title."""


class Arguments:
    """Notes which canaries stand in arguments of processes, all the time."""

    def __init__(self, cluster: Cluster, canaries: Mapping[str, str]) -> None:
        self.found: set[str] = set()
        self._cluster, self._canaries = cluster, canaries
        self._over = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            for process in psutil.process_iter():
                with suppress(psutil.Error):  # it has ended
                    found = self._shown(process)
                    until = time.monotonic() + TITLE_SECONDS
                    while found and self._has_title(process) and time.monotonic() < until:
                        found &= self._shown(process)
                    self.found |= found

    def _shown(self, process: psutil.Process) -> set[str]:
        words = process.cmdline()
        # The job's own words are the user's, and `ps` shows them, also of the shell that starts it.
        own = any(JOB.name in word for word in words)
        told = {} if own else self._canaries
        rest = " ".join(word for word in words if not word.startswith(STARTING))
        return set(seen(rest, told, f"argument of {rest[:60]}"))

    def _has_title(self, process: psutil.Process) -> bool:
        """Whether Ray has just written a title over the words that the worker was started with.

        It clears the rest of them a moment later.
        """
        time.sleep(0.05)
        return process.cmdline()[:1] != [] and process.cmdline()[0].startswith("ray::")


@pytest.fixture(scope="module")
def ended(hook: Hook, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """A run after three faults, which still goes on; and what its processes' arguments showed."""
    root = tmp_path_factory.mktemp("canaries")
    words = (sys.executable, str(JOB), *(word for pair in BY_OPTION.items() for word in pair))
    variables = {"env_vars": {"HARMLESS_NAME": OF_ENVIRONMENT}}
    given = {
        **BY_VARIABLE,
        "ROLLCALL_WEBHOOK": hook.url,
        "ROLLCALL_RUNTIME_ENV": json.dumps(variables),
        "ROLLCALL_JOB": shlex.join(words),
        "NO_PROXY": "127.0.0.0/8,localhost",
        "PYTHONPATH": str(ROOT),
    }
    cluster = Cluster(root, workers=1, job=(), **given)
    arguments = Arguments(cluster, secrets(hook))
    try:
        with arguments.watched():
            cluster.start(HEAD, WORKER)
            cluster.goes_on(within=300)
            kill(cluster.named(HEAD, JOB.name))
            cluster.resumes(1, within=120)
            (cluster.run.root / ERROR).touch()
            cluster.resumes(2, within=120)
            cluster.kill(WORKER)
            cluster.start(WORKER)
            cluster.resumes(3, within=240)
        yield cluster, arguments.found
    finally:
        cluster.close()


def test_no_process_shows_a_secret(ended: Ended, hook: Hook) -> None:
    cluster, in_arguments = ended
    assert in_arguments == set()
    for number in cluster.nodes:
        for process in cluster.processes(number):
            assert as_nobody(Path(f"/proc/{process.pid}/environ").read_bytes) != ""


def test_no_file_of_the_run_has_a_secret(ended: Ended, hook: Hook) -> None:
    cluster, _ = ended
    found: list[str] = []
    for file in sorted(cluster.layout.root.rglob("*")):
        if file.is_file() and file != cluster.run.token:
            text = file.read_bytes().decode(errors="replace")
            found += seen(text, secrets(hook), file.relative_to(cluster.layout.root))
    assert found == []
    printed = "".join(log.read_text(errors="replace") for log in cluster.run.logs.rglob("*.log"))
    assert f"arguments: -p {MASK} --password {MASK}" in printed
    assert f"SMTP_PASS={MASK} {MASK}" in printed


def test_another_user_reads_nothing_of_ray(ended: Ended) -> None:
    cluster, _ = ended
    for number in cluster.nodes:
        files = [one for one in cluster.ray_home(number).rglob("*") if one.is_file()]
        assert files
        assert [one for one in files if as_nobody(one.read_bytes) == ""] == []


def test_no_page_shows_a_secret(ended: Ended, hook: Hook) -> None:
    cluster, _ = ended
    env = cluster.environment(HEAD)
    base = f"http://{env['ROLLCALL_HEAD_ADDRESS']}:{env['ROLLCALL_CONTROL_PORT']}"
    key = {"Authorization": f"Bearer {run_token.read_only(BY_VARIABLE['ROLLCALL_TOKEN'])}"}
    found: list[str] = []
    with httpx.Client(base_url=base, headers=key, trust_env=False, timeout=10) as http:
        names = http.get("/v1/logs").json()["logs"]
        assert names
        paths = ["/", "/metrics", "/v1/state", "/v1/runs", "/v1/samples", "/v1/jobs"]
        for path in [*paths, *(f"/v1/logs/{name}" for name in names)]:
            found += seen(http.get(path).text, secrets(hook), path)
    assert found == []


def test_neither_webhook_nor_bundle_nor_report_has_a_secret(
    ended: Ended, hook: Hook, tmp_path: Path
) -> None:
    cluster, _ = ended
    found = list(seen(json.dumps(hook.taken), secrets(hook), "webhook"))
    assert hook.taken
    bundle, report = tmp_path / "bundle.tar.gz", tmp_path / "report.html"
    # By another shell, which knows nothing of the run's secrets but its directory.
    for words in (("bundle", "--out", str(bundle)), ("report", "--html", str(report))):
        unset = dict.fromkeys([*BY_VARIABLE, "ROLLCALL_WEBHOOK", "ROLLCALL_RUNTIME_ENV"], "")
        done = cluster.ask(words[0], str(cluster.run.root), *words[1:], ROLLCALL_JOB="", **unset)
        assert done.returncode == 0, done.stderr
        found += seen(done.stdout + done.stderr, secrets(hook), words[0])
    with tarfile.open(bundle) as tar:
        for member in tar:
            if file := tar.extractfile(member):
                text = file.read().decode(errors="replace")
                found += seen(text, secrets(hook), f"bundle/{member.name}")
    found += seen(report.read_text(), secrets(hook), "report")
    assert found == []
