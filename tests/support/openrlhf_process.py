"""A process with OpenRLHF's own code: its checkpoints over DeepSpeed on a CPU, its trainers' steps.

`python openrlhf_process.py DIRECTORY` prints a row of JSON. What the code imports and never reaches
here is empty (flash-attention, PEFT, vLLM). CUDA's synchronization is replaced by a barrier.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("flash_attn", "peft", "pylatexenc", "torchdata", "vllm")
PATH = [str(ROOT), str(ROOT / ".oracles"), str(ROOT / "tests/oracles/peers")]


def after_a_crash(directory: Path) -> dict[str, Any]:
    """Save actor and critic, but the critic's last one; return what each resumes from, and why."""
    from entrypoint.job.recipes.openrlhf import checkpoints

    strategy, engine = _strategy_and_engine()
    places = [directory / "_actor", directory / "_critic"]

    def save(place: Path, tag: str) -> None:
        step = int(tag.rsplit("step", 1)[-1])
        client = {"episode": 0, "global_step": step, "total_consumed_prompts": 8 * step}
        strategy.save_ckpt(engine, str(place), tag, 3, 1000, client)

    def loaded() -> list[int]:
        return [strategy.load_ckpt(engine, str(place))[1]["global_step"] for place in places]

    for step in (2, 4):
        for place in places:
            save(place, f"global_step{step}")
    save(places[0], "best_global_step6")
    before = loaded()
    found = checkpoints.newest(places)
    assert found is not None
    ranks = checkpoints.zero_ranks(found)
    checkpoints.choose(found)
    return {"before": before, "step": found.step, "ranks": ranks, "after": loaded()}


def _strategy_and_engine() -> tuple[Any, Any]:
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
    import deepspeed
    import torch
    from openrlhf.utils.deepspeed import deepspeed as strategies

    from trainer.cluster import rendezvous

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    rendezvous.alone()
    strategies.torch_dist_barrier_and_cuda_sync = torch.distributed.barrier
    model = torch.nn.Linear(4, 2)
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": 2},
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
            "zero_force_ds_cpu_optimizer": False,
        },
    )
    return object.__new__(strategies.DeepspeedStrategy), engine


def told(program: str, rank: int) -> str:
    """Return what a rank prints after a step, when `tell_steps` has changed its trainer."""
    from trainer.cluster.launch.openrlhf_steps import TRAINERS

    module, name = TRAINERS[program]
    trainer = object.__new__(getattr(import_module(module), name))
    trainer.strategy = SimpleNamespace(is_rank_0=lambda: rank == 0)
    trainer._wandb = trainer._tensorboard = trainer.eval_dataloader = None
    trainer.num_update_steps_per_epoch = never = float("inf")
    args = SimpleNamespace(
        logger=SimpleNamespace(logging_steps=1),
        eval=SimpleNamespace(steps=never),
        ckpt=SimpleNamespace(save_steps=never),
    )
    with contextlib.redirect_stdout(io.StringIO()) as output:
        trainer.save_logs_and_checkpoints(args, 7, None, {"loss": 1.0}, {"consumed_samples": 56})
    return output.getvalue()


def main() -> None:
    sys.path[:0] = PATH
    from absent import empty_modules

    with empty_modules(*PACKAGES), contextlib.redirect_stdout(sys.stderr):
        from trainer.cluster.launch.openrlhf_steps import TRAINERS, tell_steps

        for program in TRAINERS:
            tell_steps(program)
        steps = {program: [told(program, rank) for rank in (0, 1)] for program in TRAINERS}
        row = {"steps": steps, "crash": after_a_crash(Path(sys.argv[1]))}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
