"""A program that knows nothing of Rollcall: its steps are in its log, its checkpoints on disk."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract import lease
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.job import log_progress
from entrypoint.job.failures.hang import HangWatch
from entrypoint.job.log_progress import LogProgress
from entrypoint.job.ray_jobs import JobInfo
from entrypoint.job.recipes import base as recipes
from entrypoint.run.curves import Curves
from entrypoint.run.flight_record import record as report
from entrypoint.run.journal import Journal
from entrypoint.run.lease import Lease
from tests.support.world import DIED, FINISHED, Act, World

pytestmark = pytest.mark.usefixtures("no_pauses")
PATTERN = r"step (?P<step>\d+)/(?P<total_steps>[\d,]+).*?(?:reward (?P<reward>\S+))?$"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def reader(
    root: Path,
    before: Progress | None = None,
    claim: lease.Claim | None = None,
    **environ: str,
) -> LogProgress:
    given = {
        "ROLLCALL_RECIPE": "command",
        "ROLLCALL_RUN_DIR": str(root),
        "ROLLCALL_STEP_PATTERN": PATTERN,
        **environ,
    }
    journal = Journal(RunFiles(root).journal, "head", claim=claim)
    journal.attempt = 3
    settings = read_settings(given, ["true"])
    return LogProgress(recipes.load(settings.recipe), settings, journal, before, clock=Clock())


def later(steps: LogProgress, seconds: float) -> None:
    clock = steps.clock
    assert isinstance(clock, Clock)
    clock.now += seconds


def progress(root: Path) -> Progress | None:
    return Progress.read(RunFiles(root).progress)


def metrics(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in RunFiles(root).metrics.read_text().splitlines()]


def test_a_long_evaluation_or_checkpoint_between_two_steps_is_no_hang(tmp_path: Path) -> None:
    """An evaluation of two hours shows signs of life, and a write of 25 minutes is announced."""
    steps = reader(tmp_path)
    watch = HangWatch(None, clock=steps.clock, tells_phases=False)

    def hung(line: str, seconds: float) -> str | None:
        steps.read(line)
        steps.publish()
        assert watch.look(progress(tmp_path), steps.phase) is None
        later(steps, seconds)
        return watch.look(progress(tmp_path), steps.phase)

    watch.look(None, None)
    for number in (1, 2, 3):
        assert hung(f"step {number}/99", 5) is None
    for batch in range(12):
        assert hung(f"100%|##| 9/9 rollcall: in evaluation {batch + 1}", 599) is None
    assert hung("rollcall: in save 3", 1500) is None
    assert hung("step 4/99", 5) is None
    assert steps.phase is None
    assert "nothing after the last step for 11 min 40 s" in str(hung("step 5/99", 700))
    assert "nothing after 'save' of step 5" in str(hung("rollcall: in save 5", 40_000))


def test_the_first_write_of_a_checkpoint_hangs_after_half_an_hour(tmp_path: Path) -> None:
    steps = reader(tmp_path)
    watch = HangWatch(None, clock=steps.clock, tells_phases=False)
    watch.look(None, None)
    for line in ("step 1/99", "step 2/99", "rollcall: in save 2"):
        steps.read(line)
        steps.publish()
        assert watch.look(progress(tmp_path), steps.phase) is None
        later(steps, 5)
    later(steps, 1700)
    assert watch.look(progress(tmp_path), steps.phase) is None
    later(steps, 100)
    told = watch.look(progress(tmp_path), steps.phase)
    assert told == "nothing after 'save' of step 2 for 30 min 5 s"


def test_the_groups_of_the_pattern_become_progress(tmp_path: Path) -> None:
    before = Progress(step=30, total_steps=90, reward_first=0.25, eval_before=0.1)
    steps = reader(tmp_path, before)
    steps.read("\x1b[36m(rank 1, ip=10.0.0.2)\x1b[0m step 31/1,000 loss 2.1 reward 0.5")
    steps.publish()
    assert progress(tmp_path).step == 31, "the first step shows where the job resumed"  # type: ignore[union-attr]
    later(steps, 8)
    steps.read("a line of something else")
    steps.read("[default0]:step 35/1,000 reward nan")
    steps.publish()
    found = progress(tmp_path)
    assert found is not None
    assert (found.step, found.total_steps, found.attempt) == (35, 1000, 3)
    assert (found.reward, found.reward_first, found.eval_before) == (0.5, 0.25, 0.1)
    assert (found.step_seconds, found.eta_seconds) == (2.0, 965 * 2.0)


def test_a_bar_at_zero_is_no_step_of_a_job_that_resumes(tmp_path: Path) -> None:
    steps = reader(tmp_path)
    steps.read("step 0/100")
    steps.publish()
    assert progress(tmp_path) is None
    steps.read("step 51/100")
    steps.publish()
    assert progress(tmp_path) is not None


def test_the_builtin_trainer_alone_writes_its_progress(tmp_path: Path) -> None:
    """A cluster that waits for jobs may have a pattern for its other jobs."""
    other = reader(tmp_path)
    steps = LogProgress(recipes.load("builtin"), other.settings, other.journal, None)
    steps.read("step 1/10")
    steps.publish()
    assert progress(tmp_path) is None


def test_the_newest_checkpoint_is_a_part_of_progress(tmp_path: Path) -> None:
    steps = reader(tmp_path, ROLLCALL_CHECKPOINTS="out/checkpoint-{step}/done")
    steps.read("step 1/10")
    steps.publish()
    (tmp_path / "out/checkpoint-2").mkdir(parents=True)
    (tmp_path / "out/checkpoint-2/done").touch()
    steps.read("step 2/10")
    steps.publish()
    assert progress(tmp_path).checkpoint is None, "storage is not listed at every step"  # type: ignore[union-attr]
    later(steps, log_progress.LOOK_SECONDS)
    steps.read("step 3/10")
    steps.publish()
    assert progress(tmp_path).checkpoint == 2  # type: ignore[union-attr]
    (tmp_path / "out/checkpoint-3").mkdir()
    (tmp_path / "out/checkpoint-3/done").touch()
    steps.publish(last=True)
    assert progress(tmp_path).checkpoint == 3  # type: ignore[union-attr]


def test_storage_that_fails_for_a_while_loses_no_step(tmp_path: Path) -> None:
    steps = reader(tmp_path / "gone")
    steps.read("step 1/10")
    steps.publish()
    (tmp_path / "gone").mkdir()
    steps.publish()
    assert progress(tmp_path / "gone") is not None


def test_storage_that_is_replaced_for_a_while_loses_no_row_and_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an empty mount over the run directory: the head's lease is not there."""
    monkeypatch.setattr(lease, "RESTORE_SECONDS", 0.1)
    run, away = tmp_path / "run", tmp_path / "away"
    RunFiles(run).leases.mkdir(parents=True)
    held = Lease(RunFiles(run).leases).acquire()
    steps = reader(run, claim=held.claim)
    silent = reader(run, claim=held.claim)
    silent.read("nothing that tells a step")
    steps.read("step 1/40 reward 0.25")
    steps.publish()
    run.rename(away)
    run.mkdir()
    steps.read("step 2/40 reward 0.5")
    later(silent, 3600)
    for one in (steps, silent):
        one.publish(last=True)
    assert not RunFiles(run).metrics.exists()
    run.rename(tmp_path / "empty")
    away.rename(run)
    for one in (steps, silent):
        one.publish(last=True)
    assert [row["step"] for row in metrics(run)] == [1, 2]
    assert [event["kind"] for event in silent.journal.events("step-pattern")] == ["step-pattern"]
    held.release()


def test_a_pattern_that_never_matches_is_a_warning_that_quotes_a_line(tmp_path: Path) -> None:
    steps = reader(tmp_path)
    later(steps, 5000)
    steps.publish()
    steps.read("{'loss': 2.3, 'epoch': 0.1}")
    steps.read("  ")
    later(steps, log_progress.UNMATCHED_SECONDS - 1)
    steps.publish()
    assert list(steps.journal.events()) == [], "the log has been there for less than ten minutes"
    later(steps, 2)
    steps.publish()
    steps.publish()
    (event,) = steps.journal.events("step-pattern")
    assert "no line of the job's log for 10 minutes" in event["sentence"]
    assert event["sentence"].endswith("A line of the log is: {'loss': 2.3, 'epoch': 0.1}")


def test_a_recipes_own_pattern_that_never_matches_names_the_recipe(tmp_path: Path) -> None:
    steps = reader(tmp_path, ROLLCALL_RECIPE="verl", ROLLCALL_STEP_PATTERN="")
    steps.read("Loading checkpoint shards")
    later(steps, log_progress.UNMATCHED_SECONDS + 1)
    steps.publish()
    (event,) = steps.journal.events("step-pattern")
    assert event["sentence"].startswith("the recipe verl's own pattern of a step has matched no")
    assert "Set ROLLCALL_STEP_PATTERN if its steps look otherwise." in event["sentence"]


def test_a_submitted_job_has_its_pattern_from_a_head_that_names_its_recipe(tmp_path: Path) -> None:
    steps = reader(tmp_path, ROLLCALL_RECIPE="verl", ROLLCALL_STEP_PATTERN="")
    steps.settings = replace(steps.settings, waits_for_jobs=True)
    steps.read("Loading checkpoint shards")
    later(steps, log_progress.UNMATCHED_SECONDS + 1)
    steps.publish()
    (event,) = steps.journal.events("step-pattern")
    said = "Set ROLLCALL_STEP_PATTERN and ROLLCALL_RECIPE=verl on the head if its steps look"
    assert said in event["sentence"]


def test_a_pattern_that_never_ends_holds_up_nothing_and_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_progress, "SEARCH_SECONDS", 0.02)
    steps = reader(tmp_path, ROLLCALL_STEP_PATTERN=r"(?P<step>\d+) (?:x+x+)+y")
    steps.read("1 xxy")
    hard = f"2 {'x' * 3000}"
    for _ in range(log_progress.MOST_LATE - 1):
        steps.read(hard)
    steps.read("a line without a step")
    steps.publish()
    assert list(steps.journal.events()) == []
    for _ in range(log_progress.MOST_LATE):
        steps.read(hard)
    steps.publish()
    steps.publish()
    (event,) = steps.journal.events("step-pattern")
    assert "takes more than 0.02 s" in event["sentence"]
    steps.read("3 xxy")
    steps.publish(last=True)
    assert progress(tmp_path).step == 1  # type: ignore[union-attr]


def test_a_pattern_that_has_matched_gives_no_warning(tmp_path: Path) -> None:
    steps = reader(tmp_path)
    steps.read("step 0/10")
    later(steps, 10 * log_progress.UNMATCHED_SECONDS)
    steps.publish()
    assert list(steps.journal.events()) == []


@pytest.mark.parametrize(
    ("pattern", "line", "step"),
    [
        (
            r"^ *\d+%.* (?P<step>\d+)/(?P<total_steps>\d+) \[",
            " 12%|█▏  | 12/100 [00:03<00:22, 4.0it/s]",
            12,
        ),
        (r"'step': (?P<step>\d+)", "{'loss': 0.3, 'step': 40}", 40),
        (
            r"step:(?P<step>\d+) - .*critic/rewards/mean:(?P<reward>[-\d.]+)",
            "step:7 - global_seqlen/min:1 - critic/rewards/mean:0.12 - x:1",
            7,
        ),
        (
            r"iteration\s+(?P<step>\d+)/\s*(?P<total_steps>\d+)",
            " iteration     1500/  20000 |",
            1500,
        ),
    ],
)
def test_patterns_of_known_programs(tmp_path: Path, pattern: str, line: str, step: int) -> None:
    steps = reader(tmp_path, ROLLCALL_STEP_PATTERN=pattern)
    steps.read(line)
    steps.publish()
    assert progress(tmp_path).step == step  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("recipe", "line"),
    [
        ("trl", " 10%|#  | rollcall: step 3/40 reward 0.5 kl 0.01"),
        ("verl", "step:3 - critic/rewards/mean:np.float64(0.5) - timing_s/step:9.5"),
        ("search-r1", "step:3 - critic/rewards/mean:0.500 - timing_s/step:9.500"),
        ("openrlhf", "INFO ppo_trainer.py:1] ✨ Global step 3: {'reward': 0.5, 'kl': 0.1}"),
    ],
)
def test_patterns_of_the_recipes(tmp_path: Path, recipe: str, line: str) -> None:
    steps = reader(tmp_path, ROLLCALL_RECIPE=recipe, ROLLCALL_STEP_PATTERN="")
    steps.read(line)
    steps.publish()
    found = progress(tmp_path)
    assert found is not None
    assert (found.step, found.reward) == (3, 0.5)


def test_a_bar_of_another_task_is_no_step(tmp_path: Path) -> None:
    bar = r"^ *\d+%.* (?P<step>\d+)/(?P<total_steps>\d+) \["
    steps = reader(tmp_path, ROLLCALL_STEP_PATTERN=bar)
    steps.read("Map: 100%|██████████| 1000/1000 [00:00<00:00, 9000 examples/s]")
    steps.publish()
    assert progress(tmp_path) is None


def says(info: JobInfo, steps: Sequence[int], *, saves: Sequence[int] = ()) -> Act:
    """A job that prints these steps, one each tenth of a second, and ends."""

    def act(world: World) -> JobInfo:
        total = max(steps) if info is FINISHED else 100
        for step in steps:
            world.jobs.tell(f"step {step}/{total}")
            if step in saves:
                (world.run.root / f"c-{step}").mkdir()
                (world.run.root / f"c-{step}" / "model").write_text("x")
            time.sleep(0.1)
        time.sleep(0.6)
        return info

    return act


def fails(steps: Sequence[int], log: str) -> Act:
    """A job that prints these steps at once, and its last words."""

    def act(world: World) -> JobInfo:
        for line in (*(f"step {step}/100" for step in steps), *log.strip().splitlines()):
            world.jobs.tell(line)
        return JobInfo("FAILED", log.strip().splitlines()[-1], driver_exit_code=1)

    return act


def goes_on(steps: Sequence[int]) -> Act:
    """A job that prints these steps, and does not end by itself."""

    def act(world: World) -> JobInfo:
        says(DIED, steps)(world)
        assert world.jobs.stopped.wait(20), "nobody ended it"
        return DIED

    return act


def understood(root: Path, *acts: Act, **env: str) -> World:
    settings = {"ROLLCALL_STEP_PATTERN": PATTERN, "ROLLCALL_CHECKPOINTS": "c-{step}", **env}
    return World(root, *acts, workers=0, minimum=0, **settings)


def test_a_run_whose_steps_are_in_its_log_is_resumed_renews_its_budget_and_is_reported(
    tmp_path: Path,
) -> None:
    acts = (
        says(DIED, range(1, 5), saves=[3]),
        says(DIED, range(4, 8), saves=[6]),
        says(FINISHED, range(7, 10)),
    )
    world = understood(tmp_path, *acts, ROLLCALL_MAX_RESTARTS="1")
    assert world.lives().name == "finished"
    assert [env.get("ROLLCALL_RESUME_FROM") for env in world.jobs.submitted] == [None, "3", "6"]
    result = json.loads(world.run.progress.read_text())
    assert (result["step"], result["checkpoint"], result["attempt"]) == (9, 6, 3)
    record = report.from_journal(world.journal.events())
    assert record.steps == 9
    assert [one.steps_lost for one in record.failures] == [1, 1]


IN_OWN_CODE = """
Traceback (most recent call last):
  File "/job/bad.py", line 3, in <module>
    raise KeyError("reward_model")
KeyError: 'reward_model'
"""


@pytest.mark.parametrize(
    ("log", "failure", "why"),
    [
        (IN_OWN_CODE, "code: KeyError: 'reward_model'", "same error twice in a row, at"),
        (
            IN_OWN_CODE.replace("KeyError", "RuntimeError"),
            "code: RuntimeError: 'reward_model'",
            "same error twice in a row, at",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory", "gpu_oom: torch.", "twice in a row without"),
    ],
)
def test_the_last_error_counts_however_fast_the_steps_before_it_were(
    tmp_path: Path, log: str, failure: str, why: str
) -> None:
    """The steps are published twice a second: an error seemed older than five of them."""
    world = understood(tmp_path, *[fails(range(1, 6), log)] * 4)
    outcome = world.lives()
    assert [said.startswith(failure) for said in world.sentences("failure")] == [True, True]
    assert why in outcome.sentence


def test_the_same_line_of_code_ends_the_run_also_after_new_steps(tmp_path: Path) -> None:
    acts = [fails(range(first, first + 5), IN_OWN_CODE) for first in (1, 6, 11)]
    world = understood(tmp_path, *acts)
    assert "same error twice in a row, at /job/bad.py:3" in world.lives().sentence
    assert json.loads(world.run.progress.read_text())["step"] == 10


def test_an_error_that_later_steps_have_outlived_has_not_ended_the_job(tmp_path: Path) -> None:
    log = "torch.OutOfMemoryError: CUDA out of memory\nstep 6/100\nstep 7/100\nbad words"
    world = understood(tmp_path, fails(range(1, 6), log), says(FINISHED, range(8, 10)))
    assert world.lives().name == "finished"
    assert world.sentences("failure")[0].startswith("unknown: ")


def test_a_program_that_does_not_resume_from_its_checkpoint_is_stopped(tmp_path: Path) -> None:
    world = understood(tmp_path, says(DIED, range(1, 5), saves=[3]), goes_on([0, 1, 2]))
    assert world.lives().name == "failed"
    assert "was to go on after step 3, and its first step was step 1" in world.sentences("stop")[0]


def test_steps_of_a_program_that_counts_anew_are_added_to_those_of_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts = (says(DIED, range(1, 5), saves=[3]), says(FINISHED, [1, 2, 3]))
    world = understood(tmp_path, *acts)
    monkeypatch.setattr(type(world.context.recipe), "counts_anew", True)
    assert world.lives().name == "finished"
    result = json.loads(world.run.progress.read_text())
    assert (result["step"], result["total_steps"], result["attempt"]) == (6, 6, 2)
    assert report.from_journal(world.journal.events()).steps == 6


def test_a_program_that_tells_no_step_any_more_hangs(tmp_path: Path) -> None:

    acts = (goes_on(range(1, 4)), says(FINISHED, [4]))
    world = understood(tmp_path, *acts, ROLLCALL_HANG_TIMEOUT="2s")
    world.lives()
    assert world.sentences("failure")[0].startswith("hang: no step for ")


def test_numbers_of_a_log_are_read_as_it_writes_them() -> None:
    texts = {"step": "1,200", "reward": "-1.5e-3", "kl": "nan", "eval": None, "samples": "-4"}
    assert log_progress.numbers(texts) == {"step": 1200, "reward": -1.5e-3, "samples": 0}


def curves(root: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the points of each metric that the page draws."""
    found = Curves(RunFiles(root).metrics).rows()
    return {
        name: [
            (at, value)
            for at, value in zip(found["steps"], values, strict=True)
            if value is not None
        ]
        for name, values in found["series"].items()
        if name != "timing/step"
    }


TRL_LINES = (
    "{'loss': '9', 'lr': 1}",
    " 10%|#  | 1/10 [00:01<00:09] rollcall: step 1/10",
    "{'loss': '2.5', 'grad_norm': '0.5', 'learning_rate': '1e-05', 'reward': '0.25', 'kl': '0'}",
    "rollcall: step 2/10 loss 2.5 reward 0.25",
    "(rank 0, ip=10.0.0.2) 20%|# | {'loss': 2.25, 'rewards/exact/mean': nan, 'epoch': 0.2}",
    "rollcall: step 3/10 loss 2.25 reward 0.25",
    "{'eval_loss': 1.5, 'eval_runtime': 12.5, 'eval_rewards/exact/mean': 0.75}",
)
VERL_LINE = (
    "step:3 - critic/rewards/mean:np.float64(0.5) - actor/lr:1e-06 - actor/kl_loss:0.25 - "
    "timing_s/gen:4.5 - val-core/openai/gsm8k/reward/mean@1:0.125 - training/epoch:0"
)


@pytest.mark.parametrize(
    ("recipe", "lines", "drawn"),
    [
        (
            "trl",
            TRL_LINES,
            {
                "train/loss": [(1, 2.5), (2, 2.25)],
                "train/grad_norm": [(1, 0.5)],
                "train/lr": [(1, 1e-05)],
                "train/reward": [(1, 0.25)],
                "train/kl": [(1, 0.0)],
                "eval/loss": [(3, 1.5)],
                "eval/reward_exact": [(3, 0.75)],
            },
        ),
        (
            "verl",
            (VERL_LINE,),
            {
                "train/reward": [(3, 0.5)],
                "train/lr": [(3, 1e-06)],
                "train/kl_loss": [(3, 0.25)],
                "timing/generate": [(3, 4.5)],
                "eval/openai/gsm8k/reward/mean@1": [(3, 0.125)],
            },
        ),
        (
            "openrlhf",
            ("INFO x.py:1] ✨ Global step 3: {'reward': 0.5, 'kl': 0.1, 'x': 'a, b', 'y': None}",),
            {"train/reward": [(3, 0.5)], "train/kl": [(3, 0.1)]},
        ),
        (
            "command",
            ('{"loss": 2.0, "nothing": 1}', '{"step": 7, "loss": 2.5, "time": 1700000000}'),
            {"train/loss": [(7, 2.5)]},
        ),
    ],
)
def test_the_numbers_of_another_program_are_curves_as_far_as_its_log_tells_their_steps(
    tmp_path: Path, recipe: str, lines: Sequence[str], drawn: Mapping[str, object]
) -> None:
    steps = reader(tmp_path, ROLLCALL_RECIPE=recipe, ROLLCALL_STEP_PATTERN="")
    for line in lines:
        steps.read(line)
    steps.publish()
    assert curves(tmp_path) == drawn


def test_dicts_of_a_program_tell_its_steps_which_decide_nothing(tmp_path: Path) -> None:
    """A name such as `step` may be that of something else: the run does not hang by it."""
    steps = reader(tmp_path, ROLLCALL_STEP_PATTERN="")
    watch = HangWatch(None, clock=steps.clock, tells_phases=False)
    for line in ('{"step": 0, "loss": 4}', '{"step": 7, "loss": 2.5}', '{"step": 6, "loss": 9}'):
        steps.read(line)
        steps.see(progress(tmp_path))
        steps.publish()
    steps.publish(last=True)
    told = progress(tmp_path)
    assert told is not None
    assert (told.step, told.loss, told.attempt, told.is_logged) == (7, 2.5, 3, True)
    later(steps, 86_400)
    assert watch.look(None, steps.phase) is None
    steps.read("a line without a step {'reward': 0.5}")
    steps.publish()
    assert curves(tmp_path)["train/reward"] == [(7, 0.5)]


@pytest.mark.parametrize(
    ("name", "totals", "total"),
    [
        ("total_steps", (80, 80), 80),
        ("max_steps", (80, 80), 80),
        ("total_steps", (80, 160), 0),
    ],
)
def test_a_total_that_a_dict_repeats_is_that_of_the_run(
    tmp_path: Path, name: str, totals: tuple[int, int], total: int
) -> None:
    steps = reader(tmp_path, ROLLCALL_STEP_PATTERN="")
    for step, told in enumerate(totals, 1):
        steps.read(str({"step": step, name: told, "loss": 1.5}))
        steps.publish()
    steps.publish(last=True)
    found = progress(tmp_path)
    assert found is not None
    assert found.total_steps == total


def test_dicts_tell_no_steps_beside_a_pattern_or_a_progress_of_the_program(tmp_path: Path) -> None:
    steps = reader(tmp_path)
    steps.read('{"step": 7, "loss": 2.5}')
    steps.publish(last=True)
    assert progress(tmp_path) is None
    steps = reader(tmp_path, ROLLCALL_STEP_PATTERN="")
    for step in (7, 8):
        steps.read(str({"step": step, "loss": 2.5}))
        steps.publish()
        told = Progress(step=70 + step, checkpoint=70)
        told.write(RunFiles(tmp_path).progress)
        steps.see(told)
    steps.publish(last=True)
    assert progress(tmp_path) == told


def test_a_program_with_steps_in_dicts_alone_is_reported_and_starts_again(tmp_path: Path) -> None:
    def act(ends: JobInfo, steps: range) -> Act:
        def told(world: World) -> JobInfo:
            for step in steps:
                world.jobs.tell(str({"global_step": step, "loss": 1.0}))
            time.sleep(0.6)
            return ends

        return told

    acts = act(DIED, range(1, 5)), act(FINISHED, range(1, 10))
    world = understood(tmp_path, *acts, ROLLCALL_STEP_PATTERN="", ROLLCALL_CHECKPOINTS="")
    assert world.lives().name == "finished"
    record = report.from_journal(world.journal.events())
    assert (record.steps, record.steps_lost) == (9, 4)


def test_groups_of_a_users_pattern_and_a_reported_progress_are_curves(tmp_path: Path) -> None:
    steps = reader(tmp_path)
    steps.read("step 31/1,000 reward 0.5")
    steps.publish()
    assert curves(tmp_path) == {"train/reward": [(31, 0.5)]}
    told = reader(tmp_path / "told", ROLLCALL_STEP_PATTERN="")
    (tmp_path / "told").mkdir()
    for step in (3, 4):
        told.see(Progress(step=step, loss=1.0 / step, eval=0.5))
    told.publish()
    assert curves(tmp_path / "told") == {
        "train/loss": [(3, 0.33333), (4, 0.25)],
        "eval/accuracy": [(3, 0.5), (4, 0.5)],
    }


def test_an_attempt_that_repeats_steps_draws_them_once(tmp_path: Path) -> None:
    for first in (1, 3, 1):
        steps = reader(tmp_path, ROLLCALL_STEP_PATTERN="")
        for step in range(first, 6):
            steps.read(str({"step": step, "loss": float(first)}))
            steps.read(str({"step": step, "loss": 99.0}))  # another rank
        steps.publish()
        points = curves(tmp_path)["train/loss"]
        assert points[-3:] == [(3, float(first)), (4, float(first)), (5, float(first))]
        assert len(points) == 5
    for step in (1, 2):  # a second training of the same program
        steps.read(str({"step": step, "loss": 0.5}))
    steps.publish()
    assert curves(tmp_path)["train/loss"] == [(1, 0.5), (2, 0.5)]


def test_metrics_that_the_program_itself_writes_are_left_alone(tmp_path: Path) -> None:
    RunFiles(tmp_path).metrics.write_text('{"step": 1, "train/loss": 4.0}\n')
    steps = reader(tmp_path, ROLLCALL_STEP_PATTERN="")
    steps.read(str({"step": 2, "loss": 3.0}))
    steps.publish()
    assert curves(tmp_path) == {"train/loss": [(1, 4.0)]}


def test_rows_wait_for_storage_that_fails_for_a_while(tmp_path: Path) -> None:
    steps = reader(tmp_path / "gone", ROLLCALL_STEP_PATTERN="")
    for step in (1, 2):
        steps.read(str({"step": step, "loss": 0.5}))
        steps.publish()
    (tmp_path / "gone").mkdir()
    steps.publish()
    assert curves(tmp_path / "gone") == {"train/loss": [(1, 0.5), (2, 0.5)]}
