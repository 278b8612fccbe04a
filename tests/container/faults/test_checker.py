"""The checker finds what must not happen, in journals that say so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.manifest import MANIFEST, checkpoint_path, write_manifest
from contract.progress import Progress
from contract.run_dir import RunFiles
from tests.container.faults import checker
from tests.container.faults.checker import Damage


class Told:
    """Builds a journal as heads and drivers write it, a second apart."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.epoch, self.attempt = 0, 0

    def __call__(self, kind: str, *, attempt: int | None = None, **details: Any) -> Told:
        count = len(self.events)
        self.events.append(
            {
                "at": f"2026-01-01T00:{count // 60:02}:{count % 60:02}.000+00:00",
                "epoch": self.epoch,
                "attempt": attempt or self.attempt or None,
                "kind": kind,
                "sentence": kind,
                "details": details,
            }
        )
        return self

    def head(self) -> Told:
        self.epoch += 1
        return self("start")

    def goes(self, start: int, *steps: int) -> Told:
        self.attempt += 1
        self("attempt", resume_from=start)("resume", step=start)
        for step in steps:
            self("step", step=step)
        return self

    def fails(self, failure: str = "unknown") -> Told:
        return self("failure", failure=failure)("decision", answer="resume")


@pytest.fixture
def told() -> Told:
    """A head, and an attempt that makes two steps and saves the second."""
    return Told().head().goes(0, 1, 2)("checkpoint", step=2)


def test_a_run_that_outlives_a_failure_and_a_head_is_without_fault(told: Told) -> None:
    told("step", step=3).fails().goes(2, 3, 4)("checkpoint", step=4)
    told.head().goes(4, 5)("outcome")
    for rule in (checker.steps, checker.heads, checker.endings):
        assert list(rule(told.events)) == []
    assert list(checker.budget(told.events, 0)) == []
    assert list(checker.loaded(told.events, ())) == []


def test_a_step_that_is_skipped_is_found(told: Told) -> None:
    told("step", step=4)
    assert list(checker.steps(told.events)) == ["attempt 1 makes step 4 after step 2"]


def test_a_step_that_is_made_twice_is_found(told: Told) -> None:
    told("step", step=2)
    assert list(checker.steps(told.events)) == ["attempt 1 makes step 2 after step 2"]


def test_a_start_from_a_step_that_was_never_saved_is_found(told: Told) -> None:
    told("step", step=3).fails().goes(3, 4)
    (sentence,) = checker.steps(told.events)
    assert sentence == "attempt 2 resumes from step 3, which was never saved"


def test_a_step_that_was_only_held_in_memory_may_be_gone_on_from(told: Told) -> None:
    told("step", step=3).fails()
    told.attempt += 1
    told("attempt")("restore", step=3)("resume", step=3)("step", step=4)
    assert list(checker.steps(told.events)) == []
    told("restore", step=9)
    (sentence,) = checker.steps(told.events)
    assert sentence == "attempt 2 restores step 9, which was never finished"


def test_a_step_that_is_found_to_be_held_is_the_next_one_after_the_last_that_was_told(
    told: Told,
) -> None:
    told.fails()
    told.attempt += 1
    told("attempt")("step-found", step=3)("restore", step=3)("resume", step=3)("step", step=4)
    assert list(checker.steps(told.events)) == []
    told.fails()("step-found", step=6)
    (sentence,) = checker.steps(told.events)
    assert sentence == "attempt 2 finds step 6 finished, and the last one was 4"


def test_a_step_that_was_lost_with_a_rank_may_be_made_again_once_that_is_said(told: Told) -> None:
    told("step", step=3)("rank-replaced", step=2)("step", step=3)("step", step=4)
    assert list(checker.steps(told.events)) == []
    told("rank-replaced", step=5)("step", step=6)
    (sentence,) = checker.steps(told.events)
    assert sentence == "attempt 1 goes back to step 5, which was never finished"


def test_an_attempt_that_goes_on_beside_the_next_one_is_found(told: Told) -> None:
    told.fails().goes(2, 3)("step", step=3, attempt=1)
    (sentence,) = checker.steps(told.events)
    assert sentence == "attempt 1 makes step 3 after attempt 2 has begun"


def test_a_step_of_an_attempt_that_does_not_say_where_it_starts_is_found() -> None:
    told = Told().head()
    told.attempt = 1
    told("attempt")("step", step=1)
    (sentence,) = checker.steps(told.events)
    assert "without saying where it starts" in sentence


def test_a_head_that_writes_after_a_later_one_is_found(told: Told) -> None:
    told.head()
    told.epoch = 1
    told("step", step=3)
    assert list(checker.heads(told.events)) == ["lease 1 writes 'step' under lease 2"]


def test_what_froze_before_a_later_head_came_may_be_written_once_more_and_counts_for_nothing(
    told: Told,
) -> None:
    before = told.events[-1]["at"]
    told.head().goes(2, 3)
    told.epoch, told.attempt = 1, 1
    told("step", step=3).events[-1]["at"] = before
    assert list(checker.heads(told.events)) == []
    assert list(checker.steps(told.events)) != []
    assert list(checker.steps(checker.in_force(told.events))) == []


def test_two_heads_with_one_number_are_found(told: Told) -> None:
    told("start")
    assert list(checker.heads(told.events)) == ["a head starts with lease 1 after lease 1"]


def test_a_line_of_nobody_is_found(told: Told) -> None:
    told.events[-1]["epoch"] = None
    assert list(checker.heads(told.events)) == ["nobody's: 'checkpoint'"]


def test_an_attempt_that_ends_without_a_class_is_found(told: Told) -> None:
    told.goes(2, 3)
    assert list(checker.endings(told.events)) == ["attempt 1 ended without a class"]


def test_an_attempt_with_two_classes_is_found(told: Told) -> None:
    told("failure", failure="hang")("failure", failure="unknown")("decision", answer="resume")
    assert list(checker.endings(told.events)) == ["attempt 1 has a second class: unknown"]


def test_a_class_that_is_none_is_found(told: Told) -> None:
    told.fails("bad luck")
    assert list(checker.endings(told.events)) == ["attempt 1: 'bad luck' is not a class"]


def test_a_failure_without_an_answer_is_found(told: Told) -> None:
    told("failure", failure="hang").goes(2, 3)
    assert list(checker.endings(told.events)) == ["the failure of attempt 1 has no answer"]


def test_an_answer_to_no_failure_is_found(told: Told) -> None:
    told("decision", answer="shrink")("decision", answer="resume")
    assert list(checker.endings(told.events)) == ["an answer to no failure: 'decision'"]


def test_an_attempt_that_is_left_out_of_the_count_is_found(told: Told) -> None:
    told.fails()
    told.attempt = 2
    told.goes(2, 3)
    assert list(checker.endings(told.events)) == ["attempt 3 follows attempt 1"]


def test_more_restarts_without_a_step_than_allowed_are_found(told: Told) -> None:
    told.fails().goes(2).fails().goes(2).fails()
    assert list(checker.budget(told.events, 1)) == []
    told.goes(2)
    (sentence,) = checker.budget(told.events, 1)
    assert sentence == "attempt 4 is the 3th in a row without a step"


def test_a_damaged_checkpoint_that_is_loaded_is_found(told: Told) -> None:
    damage = Damage(2, told.events[-1]["at"])
    told.fails().goes(2, 3)
    (sentence,) = checker.loaded(told.events, [damage])
    assert sentence == "attempt 2 loads the damaged checkpoint of step 2"


def test_a_checkpoint_that_was_written_anew_after_its_damage_may_be_loaded(told: Told) -> None:
    damage = Damage(2, told.events[-1]["at"])
    told.fails().goes(0, 1, 2)("checkpoint", step=2).fails().goes(2, 3)
    assert list(checker.loaded(told.events, [damage])) == []


def test_a_checkpoint_that_the_run_has_skipped_and_then_loads_is_found(told: Told) -> None:
    told.fails()("checkpoint-skipped", step=2).goes(2, 3)
    (sentence,) = checker.loaded(told.events, ())
    assert sentence == "attempt 2 loads the skipped checkpoint of step 2"


def shown(step: int, attempt: int = 1) -> Progress:
    return Progress(
        step=step, total_steps=9, samples=0, attempt=attempt, reward=0.0, reward_first=0.0
    )


def test_progress_is_of_the_step_that_was_the_newest_as_it_was_written(told: Told) -> None:
    assert list(checker.progress(told.events, shown(2))) == []
    first = next(event for event in told.events if event["kind"] == "step")
    assert list(checker.progress(told.events, replace(shown(1), at=first["at"]))) == []
    for wrong in (shown(1), shown(3), shown(2, attempt=2), None):
        assert len(list(checker.progress(told.events, wrong))) == 1


@pytest.fixture
def saved(tmp_path: Path) -> RunFiles:
    """A run with the checkpoint of step 2."""
    run = RunFiles(tmp_path)
    directory = checkpoint_path(run.checkpoints, 2)
    directory.mkdir(parents=True)
    (directory / "policy.pt").write_bytes(b"weights")
    write_manifest(directory, 2)
    return run


def test_the_announced_checkpoint_is_there_and_whole(told: Told, saved: RunFiles) -> None:
    assert list(checker.on_disk(saved.checkpoints, told.events)) == []
    directory = checkpoint_path(saved.checkpoints, 2)
    (directory / "policy.pt").write_bytes(b"wEights")
    (sentence,) = checker.on_disk(saved.checkpoints, told.events)
    assert "checksum" in sentence
    now = Damage(2, told.events[-1]["at"])
    assert list(checker.on_disk(saved.checkpoints, told.events, [now])) == []
    told("checkpoint", step=9)
    (sentence,) = checker.on_disk(saved.checkpoints, told.events)
    assert sentence == "the checkpoint of step 9 was announced and is not there"


def test_a_secret_in_a_log_is_found_by_the_files_name() -> None:
    texts = {"logs/head.log": "token=abc", "journal.jsonl": "{}"}
    assert list(checker.told(texts, ["abc"])) == ["logs/head.log has a secret in it"]
    assert list(checker.told(texts, ["", "xyz"])) == []


def test_all_rules_are_asked_of_a_run_on_disk(told: Told, saved: RunFiles) -> None:
    shown(2).write(saved.progress)
    saved.logs.mkdir()
    lines = [json.dumps(event) for event in told.events]
    saved.journal.write_text("\n".join([*lines[:-1], '{"torn', lines[-1]]) + "\n")
    assert checker.faults(saved, max_restarts=3) == []
    (checkpoint_path(saved.checkpoints, 2) / MANIFEST).unlink()
    (saved.logs / "head.log").write_text("secret")
    told.goes(9, 11)
    lines = [json.dumps(event) for event in told.events]
    saved.journal.write_text("\n".join(lines))
    found = checker.faults(saved, max_restarts=0, secrets=["secret"])
    assert len(found) == 6, found
