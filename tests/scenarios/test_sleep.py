"""Engines that sleep while the models train: when, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from env.types import RewardFunction, RewardRequest, Score
from tests.support.local_workers import LocalLauncher, LocalWorkerGroup
from tests.support.tiny_run import Tiny, metric_rows, of_the_samples
from trainer.cluster.stop import StopRequest
from trainer.cluster.worker_group import Pending, WorkerGroup
from trainer.config.config import Config
from trainer.rollout import prompts as data
from trainer.training import loop
from trainer.training.inputs import TrainingInputs
from trainer.workers import groups

ON_THE_GPU = ("log_probs", "values", "update", "snapshot", "hold", "export", "restore")
"""Calls of the policy and the critic that bring the model to its GPU."""


class Watched(LocalWorkerGroup[Any]):
    """A group that notes what it is asked for, but for what its memory was."""

    def __init__(self, role: str, workers: list[Any], calls: list[str]) -> None:
        super().__init__(workers)
        self._role, self._calls = role, calls

    def send(self, worker: int, method: Any, *args: Any, **kwargs: Any) -> Pending[Any]:
        which = f" {args[0]}" if method.__name__ == "wake" else ""
        if method.__name__ != "peaks":
            self._calls.append(f"{self._role} {method.__name__}{which}")
        return super().send(worker, method, *args, **kwargs)


class WatchingLauncher(LocalLauncher):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def launch(self, role: str, actor: str, count: int, *args: Any) -> WorkerGroup[Any]:
        self.calls.append(f"{role} starts")
        return self._watched(role, super().launch(role, actor, count, *args))

    def launch_ranks(self, role: str, actor: str, count: int, *args: Any) -> WorkerGroup[Any]:
        return self._watched(role, super().launch_ranks(role, actor, count, *args))

    def _watched(self, role: str, group: WorkerGroup[Any]) -> WorkerGroup[Any]:
        assert isinstance(group, LocalWorkerGroup)
        return Watched(role, group._workers, self.calls)


def length(requests: Sequence[RewardRequest]) -> list[Score]:
    return [Score.of(len(request.response)) for request in requests]


def calls_of(config: Config, reward: RewardFunction) -> list[str]:
    config.files.root.mkdir(parents=True)
    prompts = data.load(config)
    launcher = WatchingLauncher()
    workers = groups.assemble(config, config.total_steps(len(prompts.stream)), launcher)
    loop.train(config, workers, TrainingInputs(prompts, reward), StopRequest())
    return launcher.calls


def test_engines_sleep_from_the_last_rollout_to_the_next_weights_and_wake_in_two_parts(
    tiny: Tiny, run_dir: Path
) -> None:
    flags: dict[str, Any] = {"max_steps": 2, "advantage_estimator": "group_norm"}
    asleep = tiny.config(run_dir / "asleep", vllm_enable_sleep=True, **flags)
    awake = tiny.config(run_dir / "awake", **flags)
    calls = calls_of(asleep, length)
    first = calls.index("engine generate")
    second = calls.index("engine generate", first + 1)
    assert calls[first:second] == [
        "engine generate",
        "engine sleep",
        "policy log_probs",
        "reference log_probs",
        "policy statistics",
        "policy update",
        "engine node",
        "policy node",
        "policy offer",
        "engine wake weights",
        "engine begin",
        "policy stage",
        "engine load",
        "engine commit",
        "policy withdraw",
        "engine wake cache",
    ]
    assert not [call for call in calls_of(awake, length) if "sleep" in call or "wake" in call]
    learned = [
        [
            of_the_samples({n: v for n, v in row.items() if n.startswith("train/")})
            for row in metric_rows(config)
        ]
        for config in (asleep, awake)
    ]
    assert learned[0] == learned[1]
    assert learned[0][0]["train/grad_norm"] > 0


def test_no_model_needs_its_gpu_while_engines_write(tiny: Tiny, run_dir: Path) -> None:
    """Copies for checkpoints, evaluations and exports of the best and the last policy included."""
    config = tiny.config(
        run_dir,
        vllm_enable_sleep=True,
        max_steps=2,
        save_steps=1,
        save_hf_ckpt=True,
        eval_dataset=tiny.held_out,
        eval_steps=1,
        best_metric_key="eval/pass1",
    )
    calls = calls_of(config, length)
    awake, seen, written = False, set(), 0
    for role, method, *which in map(str.split, calls):
        if role == "engine":
            awake = which == ["cache"] or (awake and method != "sleep")
            assert awake or method != "generate"
            written += method == "generate"
        elif method in ON_THE_GPU:
            assert not awake, method
            seen.add(method)
    assert written == 2 + 3  # two steps; evaluations before, after the first and at the end
    assert {"snapshot", "hold", "export"} <= seen


def test_engines_are_asleep_before_another_model_loads(tiny: Tiny, run_dir: Path) -> None:
    class Noting(WatchingLauncher):
        """Notes the bytes of the engines' weights when another role starts."""

        def __init__(self) -> None:
            super().__init__()
            self.engines: list[Any] = []
            self.held: list[int] = []

        def launch(self, role: str, actor: str, count: int, *args: Any) -> WorkerGroup[Any]:
            for engine in self.engines:
                self.held += [p.untyped_storage().nbytes() for p in engine._model.parameters()]
            group = super().launch(role, actor, count, *args)
            if role == "engine":
                assert isinstance(group, LocalWorkerGroup)
                self.engines = group._workers
            return group

    launcher = Noting()
    config = tiny.config(run_dir, vllm_enable_sleep=True)
    run_dir.mkdir()
    groups.assemble(config, 4, launcher)
    assert launcher.calls[0] == "engine starts"
    assert {"policy starts", "critic starts", "reference starts"} <= {*launcher.calls}
    assert launcher.held
    assert not any(launcher.held)
