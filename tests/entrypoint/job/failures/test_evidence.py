"""What the journal gives as the reason of a driver that ends with a code of its own."""

from __future__ import annotations

from pathlib import Path

from contract.run_dir import ExitCode
from entrypoint.job.failures import log_patterns
from entrypoint.job.ray_jobs import JobInfo
from tests.support.world import World, ends


def test_the_reason_of_a_wrong_use_is_the_trainers_and_not_what_ray_relays_after_it(
    tmp_path: Path,
) -> None:
    says = (
        "the saved cursor belongs to other prompts than a.jsonl",
        "\x1b[36m(PolicyActor pid=7)\x1b[0m FutureWarning: it was moved",
    )
    job = JobInfo("FAILED", "last available logs:\n" + "\n".join(says), driver_exit_code=64)
    world = World(tmp_path, ends(job, says=says))
    assert world.lives().exit_code is ExitCode.USAGE
    assert world.sentences("failure") == [f"usage: {says[0]}"]


def test_a_line_without_a_space_is_judged_at_once_however_long_it_is() -> None:
    """Its search took minutes, in which the head answered nobody."""
    assert log_patterns.own_error("a" * 10**6) == "a" * log_patterns.LONGEST_LINE
