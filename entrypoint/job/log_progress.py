"""Reads the steps of a job from its log (ROLLCALL_STEP_PATTERN), and writes them as its progress.

All that looks at progress.json then works for any program: status, hang watch, restart budget,
report. What the log tells of the metrics gets a row in metrics.jsonl.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import regex

from contract.launch.log_lines import FINISHED, PART
from contract.metrics import names as metric_names
from contract.progress import Phase, Progress
from contract.run_dir import RunFiles
from entrypoint.config.job_parsers import COUNTS, MEASURES
from entrypoint.config.settings import Settings
from entrypoint.job import told_numbers
from entrypoint.job.failures.evidence_log import LONGEST_LINE, plain, spoken
from entrypoint.job.job_end import JobEnd
from entrypoint.job.logged_metrics import LoggedMetrics
from entrypoint.job.recipes.base import Recipe
from entrypoint.run.journal import Journal

UNMATCHED_SECONDS = 600.0
"""A log that has no step for so long is a warning."""
LOOK_SECONDS = 10.0
"""Shortest pause between two looks for checkpoints, which list a directory of shared storage."""
LONGEST_SEARCHED = 10 * LONGEST_LINE
"""Characters of a line in which the pattern is searched."""
LONGEST_TOLD = 2**15
"""Characters of a line of which all numbers are read."""
SEARCH_SECONDS = 0.1
"""Limit of one search: a pattern such as `(.*)*x` takes years for one line."""
RELAY_SECONDS = 2.0
"""Ray may lose what a process has printed so shortly before the job's end."""
MEASURED = {
    "train/reward": "reward",
    "train/kl": "kl",
    "train/loss": "loss",
    "eval/accuracy": "eval",
}
"""Name of a metric in a row → the measure of a step that it is."""
MOST_LATE = 20
"""After so many searches in a row that exceed the limit, the pattern is given up."""


@dataclass(slots=True)
class LogProgress:
    """The steps of one attempt. `read` may run in another thread than the rest."""

    recipe: Recipe
    settings: Settings
    journal: Journal
    before: Progress | None
    """The progress of earlier attempts."""
    clock: Callable[[], float] = time.monotonic
    added: int = field(init=False, default=0)
    """Steps before those that the log counts."""
    phase: Phase | None = field(init=False, default=None)
    """The newest sign of life between two steps."""
    ended: bool = field(init=False, default=False)
    """The framework's own last line is the newest sign of the training."""
    total_steps: int = field(init=False, default=0)
    _told_total: int | None = field(init=False, default=None)
    """The newest number of all steps that the log has told; 0: none."""
    epoch_steps: int = field(init=False, default=0)
    """Steps of one pass over the data, as the log tells them; 0: it does not."""
    metrics: LoggedMetrics | None = field(init=False)
    """None for a trainer that writes its own."""
    _pattern: Any = field(init=False)
    """Of the library `regex`, whose searches have a time limit and leave other threads running."""
    _opening: Progress | None = None
    """The first step of the attempt."""
    _newest: Progress | None = None
    _logged: Progress | None = None
    """The highest step of the dicts of numbers in the log."""
    _is_reported: bool = False
    """The job itself reports its steps in progress.json."""
    _written: Progress | None = None
    _first: tuple[int, float] | None = None
    """The first step that this attempt told, and when."""
    _stride: int = 1
    """The most steps between two that were told one after the other."""
    _reached: bool = False
    """As in JobEnd."""
    _relayed: bool = False
    """The newest step was told by a process whose output Ray relays."""
    _line: str = ""
    """The newest line that has text."""
    _heard_at: float | None = None
    """When the first line came."""
    _matched: bool = False
    _late: int = 0
    """Searches in a row that have exceeded the time limit."""
    _checkpoint: int | None = None
    _looked_at: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        given = self.recipe.step_pattern(self.settings)
        self._pattern = regex.compile(given.pattern) if given else None
        files, claim = RunFiles(self.settings.run_dir), self.journal.claim
        own = self.recipe.writes_metrics
        self.metrics = None if own else LoggedMetrics(files.metrics, claim, self.clock)

    @property
    def step(self) -> int | None:
        """The newest step in the lines that are read, published or not; None before the first."""
        newest = self._newest or self._logged
        return newest.step if newest else None

    def end(self, progress: Progress | None, events: frozenset[str]) -> JobEnd:
        """Return what is known of the attempt's end. `progress`: the run's newest."""
        newest = self._newest or progress or Progress(step=0)
        return JobEnd(
            step=newest.step,
            total_steps=self.total_steps or newest.total_steps,
            before=self.added,
            epoch_steps=self.epoch_steps,
            told=self._newest is not None,
            reached=self._reached,
            lost=self._lost(newest),
            ended=self.ended,
            events=events,
        )

    def _lost(self, newest: Progress) -> int:
        """Return how many steps' lines Ray may not have relayed when the job ended."""
        if not self._relayed:
            return 0
        seconds = newest.step_seconds or 0.0
        return math.ceil(RELAY_SECONDS / seconds) if seconds else newest.total_steps

    def read(self, line: str) -> None:
        self.ended = self.ended or line.rstrip().endswith(FINISHED)
        groups = self._read_step(line) if self._pattern is not None else {}
        may_tell = bool(groups) or "}" in line or "step:" in line
        if self.metrics is None or not may_tell:
            return
        _, text, _ = spoken(line[:LONGEST_TOLD])
        told = self.recipe.metrics_in(text, groups)
        if self._pattern_is_silent and not groups:
            self._read_logged(told)
        if told and (step := self._step_of(told, groups)) is not None:
            self.metrics.read(step, told)

    @property
    def _pattern_is_silent(self) -> bool:
        """Nothing else tells the job's steps: no pattern of the user, and no line of the recipe's.

        A name such as `step` may be that of something else, so that these count for more.
        """
        return self.settings.step_pattern is None and self._newest is None

    def _read_logged(self, told: Mapping[str, float]) -> None:
        """Take the step of a dict of numbers. It only grows: several ranks may print theirs."""
        step, row = metric_names.step_of(told), metric_names.row_of(told)
        newest = self._logged.step if self._logged else self.added
        if not step or not row or step + self.added <= newest:
            return
        total = metric_names.total_of(told)
        if total and total == self._told_total:  # a count of the steps so far would grow
            self.total_steps = total + self.added
        self._told_total = total
        values = {MEASURED[name]: row[name] for name in row if name in MEASURED}
        self._logged = replace(self._progress({"step": step, **values}), is_logged=True)
        self._opening = self._opening or self._logged

    def _step_of(self, told: Mapping[str, float], groups: Mapping[str, float]) -> int | None:
        """Return the step of the numbers of a line: its own, else the newest; None: not known."""
        own = groups.get("step", metric_names.step_of(told))
        return self.step if own is None else int(own) + self.added

    def _read_step(self, line: str) -> dict[str, float]:
        """Return the numbers of a line that tells a step; {} if it tells none."""
        _, text, _ = spoken(line[:LONGEST_SEARCHED])
        if not text.strip():
            return {}
        self._line = text[:LONGEST_LINE]
        self._heard_at = self.clock() if self._heard_at is None else self._heard_at
        if sign := PART.search(self._line):
            step = self._newest.step if self._newest else 0
            self.phase = Phase(self.journal.attempt or 0, step, sign["part"], int(sign["count"]))
        if match := self._search(text):
            groups = match.groupdict()
            values = numbers(groups)
            self._matched = self._matched or "step" in values
            self.ended = groups.get("ended") is not None
            if total := values.get("total_steps"):
                self.total_steps = int(total) + self.added
            self.epoch_steps = int(values.get("epoch_steps", self.epoch_steps))
            if values.get("step"):  # a bar at 0 of 100 is there before anything is resumed
                self.phase = None
                before, self._newest = self._newest, self._progress(values)
                self._stride = max(self._stride, self._newest.step - before.step if before else 1)
                left = self._newest.total_steps - self._newest.step
                self._reached = self._reached or left <= self._stride
                self._relayed = text != plain(line[:LONGEST_SEARCHED]).rstrip()
                self._opening = self._opening or self._newest
                return values
        return {}

    def _search(self, text: str) -> Any:
        """Return the match in the text; None without one, or if the search takes too long."""
        try:
            match = self._pattern.search(text, timeout=SEARCH_SECONDS)
        except TimeoutError:
            self._late += 1
            if self._late == MOST_LATE:
                self._pattern = None
            return None
        self._late = 0
        return match

    def see(self, progress: Progress | None) -> None:
        """Take the numbers that the job itself reports in progress.json, if its log has no step."""
        if self.metrics is None or progress is None or self._newest or progress == self.before:
            return
        if progress.is_logged:  # it is that of `publish`
            return
        self._is_reported = True
        told = {
            name: value for name, value in progress.as_dict().items() if value and name in MEASURES
        }
        if told:
            self.metrics.read(progress.step, told_numbers.of_groups(told))

    def publish(self, *, last: bool = False) -> None:
        """Write the newest progress and metrics, if they are new. `last`: the attempt has ended.

        Raises SupersededError if a later head owns the run.
        """
        with suppress(OSError):  # storage is away: said later
            self._warn()
        if self.metrics:
            self.metrics.write()
        # The first step shows whether the job resumed where it had to, so it is written, too.
        told = self._newest or (None if self._is_reported else self._logged)
        newest = told if self._written or last or told is None else self._opening
        if newest is None or (newest is self._written and not last):
            return
        now = self.clock()
        if last or now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._checkpoint = self.recipe.latest(self.settings)
        with suppress(OSError):  # the next one is tried again
            progress = replace(newest, checkpoint=self._checkpoint)
            progress.write(self.settings.run_dir / "progress.json", self.journal.claim)
            self._written = newest

    def _progress(self, values: Mapping[str, float]) -> Progress:
        step, now = int(values["step"]) + self.added, self.clock()
        before = self._newest or self._logged or self.before or Progress(step=0)
        if self._first is None or step < self._first[0]:
            self._first = step, now
        first, since = self._first
        seconds = values.get("step_seconds", (now - since) / (step - first) if step > first else 0)
        total = self.total_steps or before.total_steps
        left = max(0, total - step) * seconds
        reward = values.get("reward", before.reward)
        return Progress(
            step=step,
            total_steps=total,
            samples=int(values.get("samples", before.samples)),
            attempt=self.journal.attempt or 0,
            reward=reward,
            reward_first=reward if before.reward_first is None else before.reward_first,
            kl=values.get("kl", before.kl),
            loss=values.get("loss", before.loss),
            eval=values.get("eval", before.eval),
            eval_before=before.eval_before,
            eval_step=step if "eval" in values else before.eval_step,
            eval_is_reward=before.eval_is_reward,
            tokens_per_second=values.get("tokens_per_second", before.tokens_per_second),
            step_seconds=seconds,
            eta_seconds=values.get("eta_seconds", left),
        )

    def _warn(self) -> None:
        if self._late == MOST_LATE:
            sentence = (
                f"ROLLCALL_STEP_PATTERN takes more than {SEARCH_SECONDS:g} s for a line of the "
                f"job's log, {MOST_LATE} times in a row, and is not searched any more in this "
                "attempt: give a pattern without nested repetitions. A line of the log is: "
            )
            self.journal.record("step-pattern", f"{sentence}{self._line}", line=self._line)
            self._late, self._matched = 0, True  # said once
        if self._matched or self._logged or self._heard_at is None:
            return
        if self.clock() - self._heard_at > UNMATCHED_SECONDS:
            recipe = self.settings.recipe
            name = f"the recipe {recipe}'s own pattern of a step"
            waits = self.settings.waits_for_jobs
            on_head = f" and ROLLCALL_RECIPE={recipe} on the head" if waits else ""
            remedy = f" Set ROLLCALL_STEP_PATTERN{on_head} if its steps look otherwise."
            if self.settings.step_pattern is not None:
                name, remedy = "ROLLCALL_STEP_PATTERN", ""
            sentence = (
                f"{name} has matched no line of the job's log for "
                f"{UNMATCHED_SECONDS / 60:.0f} minutes, so that the job shows no steps.{remedy} A "
                f"line of the log is: {self._line}"
            )
            self.journal.record("step-pattern", sentence, line=self._line)
            self._matched = True  # said once


def numbers(groups: Mapping[str, str | None]) -> dict[str, float]:
    """Pure: return the groups that are finite numbers, a count as a whole one."""
    found = {}
    for name, text in groups.items():
        with suppress(ValueError, OverflowError):
            value = float((text or "").replace(",", ""))
            if value - value == 0:  # neither infinite nor NaN
                found[name] = max(0, int(value)) if name in COUNTS else value
    return found
