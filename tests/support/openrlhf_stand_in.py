"""A stand-in for OpenRLHF's train_ppo_ray: its flags, its log and its files, without models.

On a cluster it starts Ray as OpenRLHF does, reserves the actor's GPUs, and trains in an actor
PPOTrainer. In the first attempt it dies at step 8, when the actor's checkpoint is written and the
critic's not.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.openrlhf_checkpoints import checkpoint


class PPOTrainer:
    def fit(self, given: Mapping[str, Any], attempt: str) -> None:
        directory, step = given["ckpt.path"], 0
        if given["ckpt.load_enable"] and (directory / "_actor").exists():
            tags = [(directory / role / "latest").read_text() for role in ("_actor", "_critic")]
            assert tags[0] == tags[1], "OpenRLHF would go on with a critic of another step"
            step = int(tags[0].removeprefix("global_step"))
        while step < given["train.steps"]:
            step += 1
            time.sleep(0.2)
            status = {"kl": 0.01, "timing/step_total": 0.2, "rollout/reward_mean": step / 100}
            print(f"INFO 11-24 ppo_trainer.py:560] ✨ Global step {step}: {status}", flush=True)
            if step % given["ckpt.save_steps"] == 0:
                checkpoint(directory, step, "_actor")
                if step == 8 and attempt == "1":
                    os._exit(1)
                checkpoint(directory, step, "_critic")
        given["ckpt.output_dir"].mkdir(parents=True)
        (given["ckpt.output_dir"] / "config.json").write_text("{}")


def on_ray(given: Mapping[str, Any], attempt: str) -> None:
    import ray
    from ray.util.placement_group import placement_group

    ray.init(runtime_env={"env_vars": {"NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "WARN")}})
    count = given["actor.num_nodes"] * given["actor.num_gpus_per_node"]
    group = placement_group([{"GPU": 1, "CPU": 1}] * count, strategy="PACK")
    ray.get(group.ready())
    trainer = ray.remote(PPOTrainer).options(num_cpus=0).remote()
    ray.get(trainer.fit.remote(given, attempt))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("ckpt.path", "ckpt.output_dir"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("ckpt.save_steps", "train.steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for model in ("actor", "ref", "critic", "reward"):
        for part in ("num_nodes", "num_gpus_per_node"):
            parser.add_argument(f"--{model}.{part}", type=int)
    parser.add_argument("--vllm.num_engines", type=int)
    parser.add_argument("--vllm.gpu_memory_utilization", type=float)
    for name in ("ckpt.load_enable", "train.colocate_all", "vllm.enable_sleep", "ds.enable_sleep"):
        parser.add_argument(f"--{name}", action="store_true")
    given, attempt = vars(parser.parse_args()), os.environ["ROLLCALL_ATTEMPT"]
    if "RAY_ADDRESS" in os.environ:
        on_ray(given, attempt)
    else:
        PPOTrainer().fit(given, attempt)


if __name__ == "__main__":
    main()
