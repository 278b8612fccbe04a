"""Progress of another version; the phase of a step on disk: in place, cheap, none if torn."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from contract.progress import PHASE_BYTES, Phase, PhaseFile, Progress, RunResult, held_out
from contract.run_dir import RunFiles


def test_progress_of_another_version_is_read_as_far_as_it_is_known() -> None:
    row = {"step": 3, "of_a_later_version": 1, "kl": "high", "eta_seconds": float("nan")}
    found = Progress.of(row | {"loss": 0.5})
    assert found is not None
    assert (found.step, found.loss, found.kl, found.eta_seconds) == (3, 0.5, None, 0.0)
    assert Progress.of({"loss": 0.5}) is None


def test_every_field_of_a_progress_is_read() -> None:
    written = Progress(step=3, kl=0.5, eval_is_reward=True)
    known = {name: one for name, one in written.as_dict().items() if one is not None}
    found = Progress.of(written.as_dict())
    assert found is not None
    assert known.items() <= found.as_dict().items()


def test_a_phase_that_is_too_long_for_its_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bytes, where 128 is the most"):
        PhaseFile(tmp_path / ".phase").write(Phase(1, 2, "x" * 128))


def test_a_held_out_reward_of_any_range_is_no_share() -> None:
    assert held_out(0.54, 1.0) == ["accuracy", "54.0%", "100.0%"]
    assert held_out(0.54, 3.5) == ["reward", "0.540", "3.500"]
    assert held_out(-1.324) == ["reward", "-1.324"]
    assert held_out(0.54, is_reward=True) == ["reward", "0.540"]
    told = Progress.of({"step": 1, "eval_is_reward": True})
    damaged = Progress.of({"step": 1, "eval_is_reward": "no"})
    assert (told and told.eval_is_reward, damaged and damaged.eval_is_reward) == (True, False)


@pytest.mark.parametrize(
    ("eval_step", "after"), [(0, None), (2, 0.37), (None, 0.37)], ids=["before", "after", "unknown"]
)
def test_an_evaluation_before_the_first_step_is_none_after_it(
    eval_step: int | None, after: float | None, tmp_path: Path
) -> None:
    told = Progress(step=2, eval=0.37, eval_before=0.37, eval_step=eval_step)
    run = RunFiles(tmp_path)
    RunResult(
        outcome="stopped", exit_code=ExitCode.STOPPED, attempts=1, progress=told, seconds=1
    ).write(run)
    row = json.loads(run.result.read_text())
    assert (row["eval_before"], row["eval_after"]) == (0.37, after)


def test_a_phase_is_written_over_in_place_and_a_torn_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / ".phase"
    assert Phase.read(path) is None
    file = PhaseFile(path)
    for step in (9, 10, 123_456):
        file.write(Phase(3, step, "checkpoint"))
        assert Phase.read(path) == Phase(3, step, "checkpoint")
        assert path.stat().st_size == PHASE_BYTES
    file.close()
    path.write_text(path.read_text()[:20])
    assert Phase.read(path) is None


def test_a_phase_costs_no_more_than_a_tenth_of_a_millisecond(tmp_path: Path) -> None:
    file = PhaseFile(tmp_path / ".phase")
    rounds = []
    for _ in range(10):  # others run meanwhile: in the best of them this one was not interrupted
        began = time.perf_counter()
        for step in range(20):
            file.write(Phase(1, step, "generate"))
        rounds.append((time.perf_counter() - began) / 20)
    assert min(rounds) < 1e-4
    file.close()
