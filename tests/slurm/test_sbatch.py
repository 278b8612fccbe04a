"""compose/slurm/rollcall.sbatch on three nodes of a real Slurm, with a tiny training."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from contract.manifest import checkpoint_path, fault_of
from contract.run_dir import RunFiles
from tests.support.slurm_site import NODES, SCRIPT, SlurmSite
from tests.support.tiny_job import tiny_job
from tests.support.watch import Watch, assert_no_step_is_lost_or_done_twice

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(480)]

BOOT_SECONDS = 150.0
"""At most, from `sbatch` to the first step; on a busy machine, too."""
STOP_SECONDS = 120.0
"""At most, from a signal until all nodes are free; Slurm looks at time limits each 30 s."""
ENDLESS = 100_000
HEAD = "n1"
"""The first node of a job on all nodes."""
OWN_DISK = "/tmp"
"""Where each node of the site has a file system of its own, which ends with its power."""
TOKEN = "a-token-that-all-nodes-are-given"
STORE = {
    "AWS_ENDPOINT_URL": "http://controller:9000",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "an-id",
    "AWS_SECRET_ACCESS_KEY": "a-secret-key-of-a-test",
}
"""How the nodes reach the store, whose server is moto's."""
MAKE_BUCKET = "import boto3; boto3.client('s3').create_bucket(Bucket='runs')"
PACED = """
import pathlib, time

def reward_func(queries, prompts, labels):
    if not pathlib.Path({hurry!r}).exists():
        time.sleep(3)
    return [float(len(query) % 3) for query in queries]
"""
"""Rewards that keep 60 steps from their end for three minutes, until a file is there."""


class Job(Watch):
    """A job of the shipped file, and the run that belongs to its id."""

    def __init__(self, site: SlurmSite, words: Sequence[str], env: Mapping[str, str]) -> None:
        self._site = site
        self._shared = env["SHARED"]
        self.number = site.answer("sbatch", "--parsable", *words, **env)
        super().__init__(self.run_on(HEAD), self.report_of_slurm)

    def run_on(self, node: str) -> RunFiles:
        """The run as that node sees it, until its power is off."""
        return RunFiles(self._site.disk(node, f"{self._shared}/rollcall/{self.number}"))

    @property
    def log(self) -> str:
        return (self._site.root / f"rollcall-{self.number}.log").read_text()

    @property
    def says(self) -> dict[str, str]:
        return self._site.job(self.number)

    def is_over(self) -> bool:
        return self._site.is_over(self.number)

    def comes_back(self) -> None:
        """Waits until the requeued job trains again; fails if a finished step was lost."""
        self.until(lambda: self.says["Restarts"] == "1", "requeue", within=STOP_SECONDS)
        attempts, before = self.events("resume")[-1]["attempt"], self.step
        self._site.begin_now(self.number)
        self.resumes(attempts, within=BOOT_SECONDS)
        steps = [(event["attempt"], event["details"]["step"]) for event in self.events("step")]
        assert max(step for attempt, step in steps if attempt <= attempts) == before
        assert min(step for attempt, step in steps if attempt > attempts) == before + 1
        assert_no_step_is_lost_or_done_twice(self.run)

    def report_of_slurm(self) -> str:
        return f"{self.says}\n{self._site.logs()}"


Submit = Callable[..., Job]


@pytest.fixture
def submit(site: SlurmSite, tmp_path: Path) -> Iterator[Submit]:
    """Submits a job with options of `sbatch`, which trains `steps` steps; it ends with the test."""
    jobs: list[Job] = []

    def submit(
        *options: str,
        steps: int = ENDLESS,
        reward: str = "arithmetic",
        more: Sequence[str] = (),
        **given: str,
    ) -> Job:
        flags = [*tiny_job(site.root / tmp_path.name, steps, reward), *more]
        env = {"RUNTIME": "none", "VENV": sys.prefix, "SHARED": str(site.root), **given}
        jobs.append(Job(site, ("--gpus-per-node=0", *options, str(SCRIPT), *flags), env))
        return jobs[-1]

    yield submit
    for job in jobs:
        site.cancel(job.number)


def assert_finished_on_three_nodes(job: Job, steps: int) -> None:
    job.until(job.is_over, "end", within=BOOT_SECONDS)
    assert (job.says["JobState"], job.says["ExitCode"]) == ("COMPLETED", "0:0"), job.report()
    result = json.loads(job.run.result.read_text())
    assert (result["outcome"], result["steps"]) == ("finished", steps)
    assert {len(event["details"]["present"]) for event in job.events("roll")} == {2}


@dataclass(frozen=True, slots=True)
class Pace:
    """Rewards of PACED, and the file that ends their pauses."""

    reward: str
    hurry: Path


@pytest.fixture
def pace(site: SlurmSite, tmp_path: Path) -> Pace:
    directory = site.root / tmp_path.name
    directory.mkdir()
    hurry, reward = directory / "hurry", directory / "paced.py"
    reward.write_text(PACED.format(hurry=str(hurry)))
    return Pace(str(reward), hurry)


def preempt(site: SlurmSite) -> None:
    """Take a node from the job that runs, for a second."""
    urgent = ("--partition=urgent", "--nodes=1", "--exclusive", "--nodelist=n2")
    number = site.answer("sbatch", "--parsable", *urgent, "--wrap=sleep 1")
    site.until(lambda: site.is_over(number), "end of the urgent job", within=STOP_SECONDS)


@pytest.mark.faults
def test_a_preempted_job_comes_back_under_its_id_and_trains_to_the_end(
    site: SlurmSite, submit: Submit, pace: Pace
) -> None:
    job = submit("--nodes=3", steps=60, reward=pace.reward)
    job.until(lambda: job.step >= 3, "third step", within=BOOT_SECONDS)
    preempt(site)
    job.comes_back()
    pace.hurry.touch()
    assert_finished_on_three_nodes(job, 60)


@pytest.mark.faults
def test_a_preempted_job_whose_nodes_share_no_storage_comes_back_from_its_heads_disk(
    site: SlurmSite, submit: Submit, pace: Pace
) -> None:
    apart = {"SHARED": OWN_DISK, "ROLLCALL_STORAGE": "head", "ROLLCALL_TOKEN": TOKEN}
    job = submit("--nodes=3", steps=60, reward=pace.reward, **apart)
    job.until(lambda: job.step >= 3, "third step", within=BOOT_SECONDS)
    preempt(site)
    job.comes_back()
    pace.hurry.touch()
    assert_finished_on_three_nodes(job, 60)
    assert fault_of(checkpoint_path(job.run.checkpoints, 60)) is None
    for worker in ("n2", "n3"):
        theirs = job.run_on(worker)
        assert theirs.root.is_dir()
        assert not theirs.journal.exists()
        assert not theirs.checkpoints.exists()


@pytest.fixture
def store(site: SlurmSite) -> Iterator[Mapping[str, str]]:
    """Variables of a job whose nodes share nothing but a store, which is on none of them."""
    server = ("-H", "controller", "-p", "9000")
    with site.running(f"{sys.prefix}/bin/moto_server", *server):

        def has_a_bucket() -> bool:
            return site.run(sys.executable, "-c", MAKE_BUCKET, **STORE).returncode == 0

        site.until(has_a_bucket, "store", within=STOP_SECONDS)
        where = {"SHARED": OWN_DISK, "ROLLCALL_STORAGE": "s3://runs/one"}
        yield {**STORE, **where, "ROLLCALL_TOKEN": TOKEN}


@pytest.mark.faults
def test_a_new_job_on_nodes_with_empty_disks_goes_on_from_the_store_where_the_first_was_stopped(
    site: SlurmSite, submit: Submit, pace: Pace, store: Mapping[str, str]
) -> None:
    first = submit("--nodes=3", steps=60, reward=pace.reward, **store)
    first.until(lambda: first.step >= 3, "third step", within=BOOT_SECONDS)
    head = {"ROLLCALL_HEAD_ADDRESS": HEAD, "ROLLCALL_TOKEN": TOKEN}
    site.answer(f"{sys.prefix}/bin/rollcall", "stop", **head)
    first.until(first.is_over, "end", within=STOP_SECONDS)
    finished = first.step
    site.reboot()
    pace.hurry.touch()
    second = submit("--nodes=3", steps=60, reward=pace.reward, **store)
    assert_finished_on_three_nodes(second, 60)
    assert not second.run_on(HEAD).root.with_name(first.number).exists()
    assert second.events("resume")[-1]["details"]["step"] == finished
    assert [event["details"]["step"] for event in second.events("step")] == [*range(1, 61)]
    assert fault_of(checkpoint_path(second.run.checkpoints, 60)) is None


@pytest.mark.faults
def test_a_job_whose_nodes_all_die_with_their_disks_comes_back_from_the_store(
    site: SlurmSite, submit: Submit, pace: Pace, store: Mapping[str, str]
) -> None:
    often = ("--save_steps", "2")
    job = submit("--nodes=3", steps=60, reward=pace.reward, more=often, **store)
    job.until(lambda: len(job.events("upload")) >= 2, "second upload", within=BOOT_SECONDS)
    uploaded = job.events("upload")[-1]["details"]["step"]
    for node in NODES:
        site.power_off(node)
    job.until(lambda: job.says["Restarts"] == "1", "requeue", within=STOP_SECONDS)
    for node in NODES:
        site.power_on(node)
    job.run = job.run_on(HEAD)
    pace.hurry.touch()
    site.begin_now(job.number)
    assert_finished_on_three_nodes(job, 60)
    assert job.events("resume")[-1]["details"]["step"] >= uploaded
    assert_no_step_is_lost_or_done_twice(job.run)


@pytest.mark.faults
def test_a_job_whose_node_dies_comes_back_when_the_node_does(
    site: SlurmSite, submit: Submit
) -> None:
    job = submit("--nodes=3")
    job.until(lambda: job.step >= 3, "third step", within=BOOT_SECONDS)
    site.power_off("n3")
    job.until(lambda: job.says["Restarts"] == "1", "requeue", within=STOP_SECONDS)
    site.power_on("n3")
    job.comes_back()


@pytest.mark.faults
def test_before_the_time_limit_the_job_saves_and_comes_back_until_it_is_cancelled(
    site: SlurmSite, submit: Submit
) -> None:
    job = submit("--nodes=3", "--time=60")
    job.until(lambda: job.step >= 3, "third step", within=BOOT_SECONDS)
    site.answer("scontrol", "update", f"JobId={job.number}", "TimeLimit=4")
    job.until(lambda: "goes back into the queue" in job.log, "signal", within=STOP_SECONDS)
    site.answer("scontrol", "update", f"JobId={job.number}", "TimeLimit=60")
    job.comes_back()
    site.cancel(job.number)
    assert (job.says["JobState"], job.says["Restarts"]) == ("CANCELLED", "1")


def test_a_heterogeneous_job_is_one_cluster(submit: Submit) -> None:
    second = (":", "--nodes=2", "--ntasks-per-node=1", "--exclusive")
    assert_finished_on_three_nodes(submit("--nodes=1", *second, steps=4), 4)


@pytest.mark.parametrize(
    ("options", "start", "words"),
    [
        ((), "", "`srun` did not start this command"),
        (("--ntasks-per-node=2",), "srun", "give srun as many tasks as nodes"),
    ],
    ids=["without srun", "two tasks a node"],
)
def test_what_would_start_a_wrong_cluster_is_refused_in_words(
    site: SlurmSite, options: tuple[str, ...], start: str, words: str
) -> None:
    command = f"{start} {sys.prefix}/bin/rollcall plan"
    many = ("--nodes=2", "--output=refused-%j.log", *options)
    done = site.run("sbatch", "--wait", "--parsable", *many, f"--wrap={command}")
    log = (site.root / f"refused-{done.stdout.strip()}.log").read_text()
    assert done.returncode == ExitCode.USAGE, log
    assert words in log
