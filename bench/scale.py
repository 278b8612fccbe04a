"""Time and memory of a policy's update against ranks, ZeRO stages, sequence length and vocabulary.

Value: an update by two ranks over Ray, with one thread each, against the same update in one process
with two threads and neither Ray nor ranks. `to_a_bare_pair` is a stricter ratio: two processes at
once that learn from what each of the ranks takes, with nothing to share, so that what is above 1 is
Ray, the passing on of samples and the sum of the gradients. The sides take turns update by update,
as a machine drifts; each ratio is the median of the turns' ratios. Ray's processes are stopped
while the others compute, so that what it does in the background is counted where it belongs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.result import report
from bench.sides import models
from env.http.arguments import positive

TARGET = 1.05
TURNS, WARM = 3, 1
"""Of a round; before the first."""
UPDATES = 2
"""Timed of each case."""
MICRO = 4
TURNS_SECONDS, CASES_SECONDS = 150.0, 240.0
"""After so long no further turn is begun, no further case: a slow machine shows fewer of them."""


@dataclass(frozen=True, slots=True)
class Case:
    ranks: int = 2
    stage: int = 0
    samples: int = 16
    length: int = 256
    vocabulary: int = 8_192


COMPARED = Case(samples=64)
"""An eighth of the tokens of a guide's update, 128 samples of about 1,000: what ranks and Ray cost
an update does not grow with them, so it is a larger part here than there."""
BASE = Case()
CASES = (
    *(replace(BASE, ranks=ranks) for ranks in (1, 2, 4)),
    *(replace(BASE, stage=stage) for stage in (1, 2, 3)),
    *(replace(BASE, length=length) for length in (128, 512)),
    replace(BASE, vocabulary=32_768),
)
ENDING_SECONDS = 30.0
Row = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--bare", nargs=3, metavar=("MODEL", "RANK", "RANKS"))
    arguments = parser.parse_args()
    if arguments.bare:
        model, rank, ranks = arguments.bare
        bare(Path(model), int(rank), int(ranks))
        return 0
    with tempfile.TemporaryDirectory(prefix="rc-scale-", dir="/tmp") as directory:
        return compare(Path(directory), arguments.rounds)


def compare(root: Path, rounds: int) -> int:
    from trainer.cluster import placement

    began = time.monotonic()
    # A thread for each rank: more threads than cores would wait for each other.
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_TMPDIR": str(root)}
    placement.join(layout_of(max(case.ranks for case in CASES)))
    turns = taken_in_turns(root, rounds * TURNS, until=began + TURNS_SECONDS)
    rows = []
    for case in CASES:
        if time.monotonic() < began + CASES_SECONDS:
            rows.append({**asdict(case), **measured(root, case)})
            print(rows[-1], flush=True)
    one_process, pair = (
        statistics.median(row["over_ray"] / row[side] for row in turns)
        for side in ("one_process", "bare_pair")
    )
    ok = report(
        "scale",
        one_process,
        unit="ratio",
        target=TARGET,
        better="lower",
        detail={
            "to_one_process": round(one_process, 4),
            "to_a_bare_pair": round(pair, 4),
            "seconds": turns,
            "compared": asdict(COMPARED),
            "cases": rows,
            "cases_left_out": len(CASES) - len(rows),
            "parameters": parameters(model_for(root, COMPARED)),
            "cores": os.cpu_count(),
        },
    )
    return 0 if ok else 1


def taken_in_turns(root: Path, turns: int, until: float) -> list[Row]:
    """Seconds of the same update on every side, turn by turn; each turn begins with another.

    At least one, and no more of them after `until`.
    """
    model = model_for(root, COMPARED)
    rows: list[Row] = []
    with OverRay(model, COMPARED) as ranks, Bare(model, 1) as one, Bare(model, 2) as pair:
        sides = {"over_ray": ranks.update, "one_process": one.update, "bare_pair": pair.update}
        others = ray_processes([*one.processes, *pair.processes])
        for turn in range(WARM + turns):
            if turn > WARM and time.monotonic() > until:
                break
            first = turn % len(sides)
            row = {}
            for name in [*sides, *sides][first : first + len(sides)]:
                with contextlib.nullcontext() if name == "over_ray" else stopped(others):
                    row[name] = round(seconds_of(sides[name], turn), 3)
            print(row, flush=True)
            rows.append(row)
    return rows[WARM:]


def seconds_of(update: Callable[[int], object], step: int) -> float:
    began = time.perf_counter()
    update(step)
    return time.perf_counter() - began


def ray_processes(other: Sequence[subprocess.Popen[str]]) -> list[Any]:
    """What this process has started, and not `other`."""
    import psutil

    known = {process.pid for process in other}
    return [one for one in psutil.Process().children(recursive=True) if one.pid not in known]


@contextlib.contextmanager
def stopped(processes: Sequence[Any]) -> Iterator[None]:
    try:
        for one in processes:
            one.send_signal(signal.SIGSTOP)
        yield
    finally:
        for one in processes:
            one.send_signal(signal.SIGCONT)


class OverRay:
    """Ranks of a policy, as the trainer starts them."""

    def __init__(self, model: Path, case: Case) -> None:
        from trainer.algorithms.objectives import PolicyObjective
        from trainer.cluster import placement
        from trainer.cluster.ray_worker_group import RayLauncher

        self._placed = placement.reserve(layout_of(case.ranks))
        self._policy = RayLauncher(self._placed, timeout=60).launch_ranks(
            "policy",
            "trainer.workers.policy:PolicyActor",
            case.ranks,
            settings_for(model, case),
            PolicyObjective(),
        )
        self._samples = experience(case)

    def __enter__(self) -> OverRay:
        return self

    def update(self, step: int) -> list[Row]:
        from tests.support.ragged import learn_together

        return learn_together(self._policy, self._samples, step)

    def __exit__(self, *_: object) -> None:
        """Waits until its processes have ended and their names are free for the next."""
        import psutil
        import ray
        from ray.util.placement_group import remove_placement_group

        started = psutil.Process().children(recursive=True)
        ranks = [one for one in started if "policy-" in " ".join(one.cmdline())]
        self._policy.kill(range(len(self._policy)))
        remove_placement_group(self._placed.group)
        psutil.wait_procs(ranks, timeout=ENDING_SECONDS)
        until = time.monotonic() + ENDING_SECONDS
        while ray.util.list_named_actors() and time.monotonic() < until:
            time.sleep(0.1)


class Bare:
    """As many processes as `ranks` that share the cores and nothing else."""

    def __init__(self, model: Path, ranks: int) -> None:
        command = [sys.executable, "-m", "bench.scale", "--bare", str(model)]
        environment = os.environ | {"OMP_NUM_THREADS": str(COMPARED.ranks // ranks)}
        self.processes = [
            subprocess.Popen(
                [*command, str(rank), str(ranks)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]

    def __enter__(self) -> Bare:
        self._wait()
        return self

    def update(self, step: int) -> None:
        for process in self.processes:
            assert process.stdin
            process.stdin.write(f"{step}\n")
            process.stdin.flush()
        self._wait()

    def _wait(self) -> None:
        """For a line of each."""
        for process in self.processes:
            assert process.stdout
            if not process.stdout.readline():
                raise SystemExit(f"{process.args!r} ended with {process.wait()}")

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.communicate()  # closes what it reads its steps from


def bare(model: Path, rank: int, ranks: int) -> None:
    """An update with the samples that `rank` takes, and no other rank, for each line that comes."""
    from tests.support.ragged import learn, part_of
    from trainer.algorithms.objectives import PolicyObjective
    from trainer.types import Rank
    from trainer.workers.policy import PolicyActor

    whole = experience(COMPARED)
    own = whole.rows(part_of(whole.sequences, Rank(rank, ranks)).rows)
    settings = settings_for(model, COMPARED)
    settings = replace(settings, train=replace(settings.train, train_batch_size=len(own.sequences)))
    actor = PolicyActor(settings, PolicyObjective())
    print("ready", flush=True)
    for line in sys.stdin:
        learn(actor, own, int(line))
        print(line, end="", flush=True)


def measured(root: Path, case: Case) -> Row:
    """Seconds of an update over Ray, and GB of the fullest rank."""
    from trainer.algorithms import batching

    with OverRay(model_for(root, case), case) as ranks:
        ranks.update(0)
        seconds = [seconds_of(ranks.update, step) for step in range(1, UPDATES + 1)]
        memory = batching.combine_metrics(ranks.update(UPDATES + 1))["policy_update_memory_gb"]
    return {"seconds": round(statistics.median(seconds), 3), "memory_gb": round(memory, 3)}


def layout_of(ranks: int) -> Any:
    from trainer.config.layout import Layout, ResourcePool, Role, RoleProcesses

    group = RoleProcesses(role=Role.POLICY, nodes=1, per_node=ranks)
    return Layout((ResourcePool(groups=(group,)),))


def settings_for(model: Path, case: Case) -> Any:
    from trainer.config.options.parallelism import Sharding

    sharding = Sharding(zero_stage=case.stage)
    settings = models.learner(model, samples=case.samples, longest=case.length, sharding=sharding)
    return replace(settings, train=replace(settings.train, micro_train_batch_size=MICRO))


def model_for(root: Path, case: Case) -> Path:
    """Of the vocabulary, with a body of four million parameters."""
    path = root / f"model-{case.vocabulary}"
    if path.exists():
        return path
    return models.write(
        path,
        vocab_size=case.vocabulary,
        hidden_size=256,
        intermediate_size=1_024,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    )


def parameters(model: Path) -> int:
    from trainer.cluster.model_size import read_size

    size = read_size(str(model))
    assert size
    return size.parameters


def experience(case: Case) -> Any:
    """Samples of equal length, so that ranks have equal work."""
    import numpy as np

    from tests.support.ragged import sequences_of
    from trainer.types import Experience

    random = np.random.default_rng(0)
    shape = (case.samples, case.length)
    action_mask = np.broadcast_to(np.arange(case.length) >= case.length // 4, shape)
    advantages = random.normal(size=int(action_mask.sum())).astype(np.float32)
    tokens = random.integers(0, case.vocabulary, shape)
    return Experience(
        sequences=sequences_of(tokens, [case.length] * case.samples, action_mask),
        old_log_probs=None,
        advantages=advantages,
        returns=advantages,
    )


if __name__ == "__main__":
    sys.exit(main())
