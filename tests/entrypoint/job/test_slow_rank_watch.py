"""The file of the ranks' times as the head follows it, which the trainer grows and makes anew."""

from __future__ import annotations

from pathlib import Path

from contract.launch.rank_times import RankTime, as_row
from contract.metrics.json_lines import JsonLines
from entrypoint.cluster.slow_ranks import WINDOWS
from entrypoint.job.slow_rank_watch import SlowRankWatch

NODES = {f"10.0.0.{number}": f"worker-{number}" for number in range(4)}


class Trainer:
    """Writes steps of four ranks, as the trainer's recorder does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.step = 0
        self.begin()

    def begin(self) -> None:
        self._lines = JsonLines(self.path, self.step)

    def steps(self, count: int, *, slow: int | None = None) -> None:
        for _ in range(count):
            self.step += 1
            times = [
                RankTime(rank, f"10.0.0.{rank}", "H100", "", 2.0 if rank == slow else 1.0, 1.0)
                for rank in range(4)
            ]
            self._lines.log(self.step, as_row({"policy": times}))


def watched(tmp_path: Path) -> tuple[Trainer, SlowRankWatch]:
    path = tmp_path / "rank-times.jsonl"
    return Trainer(path), SlowRankWatch(path, NODES.__getitem__)


def test_a_rank_is_told_once_when_it_is_slow_and_once_when_it_is_well(tmp_path: Path) -> None:
    trainer, watch = watched(tmp_path)
    assert watch.look() == []
    trainer.steps(WINDOWS[0])
    assert watch.look() == []
    told = []
    for _ in range(4 * WINDOWS[0]):
        trainer.steps(1, slow=2)
        told += watch.look()
    (slow,) = told
    assert slow.sentence.startswith("policy-2 on worker-2 computes 2.00 times as long as its peers")
    assert [one.node for one in watch.slow] == ["worker-2"]
    assert {one.rank: round(one.times) for one in watch.speeds} == {0: 1, 1: 1, 2: 2, 3: 1}
    told = []
    for _ in range(3 * WINDOWS[0]):
        trainer.steps(1)
        told += watch.look()
    (well,) = told
    assert well.sentence == "policy-2 on worker-2 is as fast as its peers again"
    assert watch.slow == []


def test_a_file_that_a_new_attempt_cuts_off_is_followed_further(tmp_path: Path) -> None:
    trainer, watch = watched(tmp_path)
    trainer.steps(WINDOWS[0] - 2, slow=1)
    assert watch.look() == []
    trainer.step -= 6  # they are repeated
    trainer.begin()
    trainer.steps(2, slow=1)
    (slow,) = watch.look()
    assert slow.speed.rank == 1


def test_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    trainer, watch = watched(tmp_path)
    trainer.steps(WINDOWS[0], slow=1)
    whole = trainer.path.read_bytes()
    trainer.path.write_bytes(b'{"step": 1}\nnot JSON\n' + whole + b'{"step": 99, "at": 1e12')
    (slow,) = watch.look()
    assert slow.speed.rank == 1
