"""The files that a job names are gone while the head runs: waited for, and never without an end."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from contract.exit_codes import ExitCode
from contract.journal import EXPORT
from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.config.role import Head
from entrypoint.job.failures.outcome import Outcome
from entrypoint.job.ray_jobs import JobInfo
from entrypoint.job.recipes.base import FilesGoneError
from entrypoint.job.recipes.builtin.recipe import RECIPE
from entrypoint.node import head
from entrypoint.node.ray_head import HeadRay
from entrypoint.processes.inbox import Inbox
from tests.support.hurried import hurried
from tests.support.waiting import eventually
from tests.support.world import DIED, FINISHED, Act, World, ends

pytestmark = pytest.mark.usefixtures("no_pauses")

WRONG_USE = JobInfo("FAILED", "--prompt_data: no such file", driver_exit_code=ExitCode.USAGE)


class Mount:
    """Storage with all that the job names; its files are not there while it is away."""

    def __init__(self, root: Path) -> None:
        self.root, self._elsewhere = root / "data", root / "elsewhere"
        model = self.root / "model"
        model.mkdir(parents=True)
        (model / "config.json").write_text("{}")
        self.prompts, self.reward = self.root / "prompts.jsonl", self.root / "reward.py"
        self.prompts.write_text('{"input": "1+1="}\n')
        self.reward.touch()
        self.flags = self.root / "flags.toml"
        self.flags.write_text(f"pretrain = '{model}'\nremote_rm_url = '{self.reward}'\n")

    @property
    def job(self) -> list[str]:
        return ["--config", str(self.flags), "--prompt_data", str(self.prompts)]

    def lose(self) -> None:
        self.root.rename(self._elsewhere)

    def come_back(self) -> None:
        self._elsewhere.rename(self.root)


@pytest.fixture
def mount(tmp_path: Path) -> Mount:
    return Mount(tmp_path)


def training(mount: Mount, *acts: Act, **env: str) -> World:
    """A head of the builtin trainer, alone."""
    root = mount.root.parent / "run"
    root.mkdir()
    world = World(root, *acts, workers=0, minimum=0, **env)
    given = {name: str(world.settings.environ[name]) for name in ("ROLLCALL_RAY_TEMP_DIR",)}
    settings = hurried({"ROLLCALL_RUN_DIR": str(root), **given, **env}, mount.job)
    world.context.settings = world.rendezvous.job = settings
    world.context.recipe = RECIPE
    registry = world.control._registry
    registry.me = replace(registry.me, inventory={"cpus": 8})
    return world


def once_missed(world: World, call: Callable[[], None]) -> None:
    """Call `call` when the head has noticed that files are gone."""

    def watch() -> None:
        eventually(lambda: bool(world.sentences("files")), seconds=60)
        call()

    threading.Thread(target=watch, daemon=True).start()


def finishes(*, at_step: int) -> Act:
    """A job that writes its model at this step, and ends."""

    def act(world: World) -> JobInfo:
        world.journal.record(EXPORT, "the model is written")
        return ends(FINISHED, at_step=at_step)(world)

    return act


def loses(mount: Mount, info: JobInfo, *, for_good: bool = False) -> Act:
    """A job that ends so at step 3, as the mount is lost."""

    def act(world: World) -> JobInfo:
        mount.lose()
        if not for_good:
            once_missed(world, mount.come_back)
        return ends(info, at_step=3)(world)

    return act


@pytest.mark.parametrize(
    ("info", "failure", "decision"),
    [
        (DIED, "unknown: RuntimeError: broken", "the job died: "),
        (WRONG_USE, "storage: --config: cannot be read: No such file", "storage failed: "),
    ],
    ids=["it dies of something else", "it dies of it"],
)
def test_data_that_is_gone_between_two_attempts_is_waited_for(
    mount: Mount, info: JobInfo, failure: str, decision: str
) -> None:
    world = training(mount, loses(mount, info), finishes(at_step=9))
    assert world.lives() == Outcome("finished", ExitCode.FINISHED, "the job has finished")
    assert world.sentences("failure")[0].startswith(failure)
    assert world.sentences("decision")[0].startswith(decision)
    gone, back = world.sentences("files")
    assert str(mount.flags) in gone
    assert back == "the job's files are there again"
    assert len(world.jobs.submitted) == 2


def test_data_that_is_still_being_written_is_waited_for(mount: Mount) -> None:
    """The node starts, as every node does while another program brings the data."""
    prompts = mount.root / "prompts.jsonl"
    whole = prompts.read_bytes()
    prompts.write_bytes(whole + whole.splitlines()[0][:-5])
    world = training(mount, finishes(at_step=9))
    assert RECIPE.faults(world.context.settings) == ()

    def finish_writing() -> None:
        prompts.write_bytes(whole)

    once_missed(world, finish_writing)
    assert world.lives().exit_code is ExitCode.FINISHED
    gone, back = world.sentences("files")
    assert gone.startswith("--prompt_data: is still being written: its last row is incomplete")
    assert str(prompts) in gone
    assert back == "the job's files are there again"
    assert world.kinds().count("attempt") == 1


@pytest.mark.parametrize("name", ["prompts.jsonl", "reward.py", "model"])
def test_each_file_that_is_gone_is_named(mount: Mount, name: str) -> None:
    settings = read_settings({}, mount.job)
    RECIPE.look_for_files(settings)
    (mount.root / name).rename(mount.root / "moved")
    with pytest.raises(FilesGoneError, match=str(mount.root / name)):
        RECIPE.look_for_files(settings)


def test_a_path_that_cannot_be_looked_at_is_a_fault_of_its_flag(mount: Mount) -> None:
    settings = read_settings({}, [*mount.job, "--eval_dataset", f"/{'x' * 300}.jsonl"])
    faults = RECIPE.faults(settings)
    assert [one for one in faults if one.startswith("--eval_dataset: File name too long")]


def test_data_that_never_comes_back_ends_the_run_with_73(mount: Mount) -> None:
    lost = loses(mount, WRONG_USE, for_good=True)
    world = training(mount, lost, ROLLCALL_REWARD_TIMEOUT="0.3s")
    outcome = world.lives()
    assert outcome.exit_code is ExitCode.RUN_DIR
    assert str(mount.flags) in outcome.sentence


def test_wrong_use_while_all_files_are_there_ends_at_once(mount: Mount) -> None:
    world = training(mount, ends(WRONG_USE))
    assert world.lives().exit_code is ExitCode.USAGE
    assert world.sentences("failure") == ["usage: --prompt_data: no such file"]


def edits(mount: Mount, info: JobInfo) -> Act:
    """A job that ends so at step 3; meanwhile the user prepares the flags of the next run."""

    def act(world: World) -> JobInfo:
        mount.flags.write_text(mount.flags.read_text() + "no_such_flag = 1\n")
        end = finishes(at_step=3) if info is FINISHED else ends(info, at_step=3)
        return end(world)

    return act


def test_a_job_that_has_finished_is_finished_whatever_was_made_of_its_flags_file(
    mount: Mount,
) -> None:
    assert training(mount, edits(mount, FINISHED)).lives().name == "finished"


@pytest.mark.parametrize("info", [DIED, WRONG_USE], ids=["it died", "it was used wrongly"])
def test_an_attempt_whose_flags_file_has_a_fault_by_now_is_not_made(
    mount: Mount, info: JobInfo
) -> None:
    outcome = training(mount, edits(mount, info)).lives()
    assert outcome.exit_code is ExitCode.USAGE
    assert info is WRONG_USE or "no_such_flag" in outcome.sentence


def test_files_that_are_lost_between_the_roll_and_the_attempt_are_waited_for(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = training(mount, finishes(at_step=9))
    asked: list[object] = []

    def loses_them(*arguments: object) -> None:
        if not asked:
            mount.lose()
            once_missed(world, mount.come_back)
        asked.append(arguments)

    monkeypatch.setattr(type(world.rendezvous.collective), "ask", loses_them)
    assert world.lives().exit_code is ExitCode.FINISHED
    assert world.sentences("files")[-1] == "the job's files are there again"
    assert world.kinds().count("attempt") == 1


def test_an_attempt_that_can_never_start_ends_the_run_with_73(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a checkpoint could not be chosen on storage that takes no write."""
    asked = 0

    def cannot(*_: object) -> NoReturn:
        nonlocal asked
        asked += 1
        assert asked < 1000, "the head does not end"
        raise FilesGoneError("the checkpoint of step 3 cannot be chosen")

    monkeypatch.setattr(type(RECIPE), "command", cannot)
    outcome = training(mount, ROLLCALL_REWARD_TIMEOUT="0.3s").lives()
    assert outcome.exit_code is ExitCode.RUN_DIR
    assert outcome.sentence == "the checkpoint of step 3 cannot be chosen"
    assert 1 < asked < 20


def test_a_mount_that_answers_with_an_error_is_waited_for(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a file system whose server has gone: Transport endpoint is not connected."""
    look = Path.stat

    def stat(path: Path, *, follow_symlinks: bool = True) -> object:
        if path.is_relative_to(mount.root):
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected", str(path))
        return look(path, follow_symlinks=follow_symlinks)

    def loses_connection(world: World) -> JobInfo:
        monkeypatch.setattr(Path, "stat", stat)
        once_missed(world, lambda: monkeypatch.setattr(Path, "stat", look))
        return ends(DIED, at_step=3)(world)

    world = training(mount, loses_connection, finishes(at_step=9))
    assert world.lives().exit_code is ExitCode.FINISHED
    assert "Transport endpoint is not connected" in world.sentences("files")[0]


def raises(*_: object) -> NoReturn:
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize("question", ["placed", "command", "service_outage"])
def test_an_error_of_a_recipe_ends_the_run_with_an_outcome(
    mount: Mount, question: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(type(RECIPE), question, raises)
    outcome = training(mount, ends(FINISHED)).lives()
    assert (outcome.name, outcome.exit_code) == ("failed", ExitCode.JOB_FAILED)
    assert outcome.sentence == "the head failed: ZeroDivisionError('division by zero')"
    assert "in raises" in caplog.text  # for who has to find it


def test_a_head_that_fails_before_it_supervises_tells_its_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.setattr(HeadRay, "__enter__", lambda self: self)
    monkeypatch.setattr(HeadRay, "wait_ready", raises)
    settings = read_settings(
        {
            "ROLLCALL_RUN_DIR": str(tmp_path),
            "ROLLCALL_RECIPE": "command",
            "ROLLCALL_CONTROL_PORT": str(free_port),
        },
        ["true"],
    )
    assert head.serve(settings, Head(0, 0, "a test"), {}, Inbox()) == ExitCode.JOB_FAILED
    assert json.loads(RunFiles(tmp_path).result.read_text())["outcome"] == "failed"
