"""Ranks that share each sample learn what one rank learns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from contract.exit_codes import ExitCode
from contract.manifest import checkpoint_path
from env.registry import reward_function
from tests.support.benches import Benches
from tests.support.mixtures import write_mixture
from tests.support.ragged import together
from tests.support.ranks import ADAPTERS, ROLES, Workbench, experience, saved_in, settings
from tests.support.ray_nodes import short_directory
from tests.support.small_models import write_model
from tests.support.tiny_run import Tiny, metric_rows, to_argv, train
from tests.support.trainer_program import flags_of, start
from trainer.algorithms import batching
from trainer.checkpoint.state import State
from trainer.config.options.parallelism import Sharding
from trainer.config.parse import parse
from trainer.types import FloatArray, Metrics, UnfitModelError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Four heads, of which two share keys and values: each of four ranks needs half of those."""
    root = tmp_path_factory.mktemp("models")
    return {
        "qwen2": write_model("qwen2", root / "qwen2"),
        "qwen3_moe": write_mixture("qwen3_moe", root / "qwen3_moe", heads=4),
        "qwen3": write_model("qwen3", root / "qwen3"),
        "gemma2": write_model("gemma2", root / "gemma2"),
    }


def is_peak(name: str) -> bool:
    return name.endswith(batching.PEAK)


class Lesson:
    """What all ranks together said in a lesson of two steps, and what they saved after it."""

    def __init__(self, benches: Benches, count: int, saved: Path, role: str, made: Any) -> None:
        bench, sharing = benches[count], made.model.sharing
        saved.mkdir(parents=True)
        bench.call_ranks(Workbench.build, role, made).result()
        said = bench.call_ranks(Workbench.lesson, [1, 2]).result()
        bench.call_ranks(Workbench.save, saved).result()
        self.saved: State = saved_in(saved, role)
        for place in range(1, sharing):  # all ranks know the scores of all tokens
            for one, other in zip(said[::sharing], said[place::sharing], strict=True):
                np.testing.assert_array_equal(one.after, other.after)
        self.before = scores([one.before for one in said[::sharing]])
        self.after = scores([one.after for one in said[::sharing]])
        steps = zip(*(one.metrics for one in said), strict=True)
        self.metrics: list[Metrics] = [batching.combine_metrics(step) for step in steps]


@pytest.fixture(scope="module")
def lessons_alone() -> dict[str, Lesson]:
    """What one rank has learned, by model and changes."""
    return {}


def scores(of_parts: list[FloatArray]) -> FloatArray:
    return together(of_parts, experience(0).sequences)


def same(one: Lesson, other: Lesson) -> None:
    np.testing.assert_allclose(one.before, other.before, rtol=0, atol=1e-6)
    np.testing.assert_allclose(one.after, other.after, rtol=0, atol=3e-6)
    for mine, theirs in zip(one.metrics, other.metrics, strict=True):
        assert mine.keys() >= {"grad_norm"} or mine.keys() >= {"critic_grad_norm"}
        # At a value inside the clip, rounding decides which of two equal errors is the larger.
        for name in mine.keys() - {"value_clip_ratio"} - {*filter(is_peak, mine)}:
            assert mine[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-6), name
    assert one.saved.model.keys() == other.saved.model.keys()
    for name, tensor in one.saved.model.items():
        torch.testing.assert_close(tensor, other.saved.model[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "role", "packing", "count"),
    [
        ("qwen2", "policy", False, 4),
        ("qwen2", "critic", True, 4),
        ("qwen3_moe", "critic", False, 2),
        *(
            pytest.param(*case, marks=pytest.mark.faults)
            for case in (("qwen2", "policy", True, 2), ("qwen3_moe", "policy", True, 4))
        ),
    ],
)
def test_ranks_that_share_samples_learn_what_one_rank_learns(
    benches: Benches,
    models: Mapping[str, Path],
    tmp_path: Path,
    kind: str,
    role: str,
    packing: bool,
    count: int,
) -> None:
    made = [
        settings(
            models[kind], Sharding(), packing=packing, sharing=sharing, micro_train_batch_size=3
        )
        for sharing in (1, count)
    ]
    alone = Lesson(benches, 1, tmp_path / "alone", role, made[0])
    same(Lesson(benches, count, tmp_path / "shared", role, made[1]), alone)


WAYS: dict[str, tuple[str, int, Sharding, dict[str, Any]]] = {
    "two groups of two": ("qwen2", 4, Sharding(), {}),
    "two groups of two, experts, stage 2": ("qwen3_moe", 4, Sharding(zero_stage=2), {}),
    "stage 1": ("qwen2", 2, Sharding(zero_stage=1), {}),
    "two groups of two, stage 3": ("qwen3_moe", 4, Sharding(zero_stage=3), {}),
    "stage 3, checkpointing": (
        "qwen2",
        2,
        Sharding(zero_stage=3),
        {"gradient_checkpointing": True},
    ),
    "adapters": ("qwen2", 2, Sharding(), {"lora": ADAPTERS}),
    "adapters, stage 3": ("qwen2", 2, Sharding(zero_stage=3), {"lora": ADAPTERS}),
    "a soft cap of attention": ("gemma2", 2, Sharding(), {}),
    "windows": ("qwen3", 2, Sharding(), {}),
    "windows, padded": ("qwen3", 2, Sharding(), {"packing": False}),
    "a budget of tokens": (
        "qwen2",
        4,
        Sharding(),
        {"use_dynamic_batch": True, "train_max_tokens_per_gpu": 14},
    ),
}


SLOW = (
    *("stage 1", "stage 3, checkpointing", "adapters, stage 3"),
    *("two groups of two, stage 3", "two groups of two, experts, stage 2"),
)


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.faults) if way in SLOW else way for way in WAYS]
)
def test_no_way_to_train_matters_to_ranks_in_groups_of_two(
    benches: Benches,
    models: Mapping[str, Path],
    lessons_alone: dict[str, Lesson],
    tmp_path: Path,
    way: str,
) -> None:
    kind, count, sharding, changes = WAYS[way]
    if (key := f"{kind} {changes}") not in lessons_alone:
        plain = settings(models[kind], Sharding(), sharing=1, **changes)
        lessons_alone[key] = Lesson(benches, 1, tmp_path / "alone", "policy", plain)
    shared = settings(models[kind], sharding, sharing=2, **changes)
    same(Lesson(benches, count, tmp_path / "shared", "policy", shared), lessons_alone[key])


def test_in_bf16_ranks_that_share_samples_score_as_one_does(
    benches: Benches, models: Mapping[str, Path]
) -> None:
    found = []
    for count in (1, 4):
        made = settings(models["qwen2"], Sharding(), mixed_precision=True, sharing=count)
        benches[count].call_ranks(Workbench.build, "reference", made).result()
        found.append(benches[count].call_ranks(Workbench.scores).result()[0])
    np.testing.assert_allclose(found[1], found[0], atol=2e-2)
    assert found[0].any()


@pytest.mark.faults
def test_training_goes_on_at_another_number_of_ranks_that_share(
    benches: Benches, models: Mapping[str, Path], tmp_path: Path
) -> None:
    exported = []
    for name, ways in (("one", [(1, 1), (1, 1), (1, 1)]), ("other", [(4, 2), (2, 1), (4, 4)])):
        for step, (count, sharing) in enumerate(ways, 1):
            made = settings(models["qwen2"], Sharding(zero_stage=count > 1), sharing=sharing)
            bench, saved = benches[count], tmp_path / name / str(step)
            bench.call_ranks(Workbench.build, "policy", made).result()
            if step > 1:
                bench.call_ranks(Workbench.restore, saved.with_name(str(step - 1))).result()
            bench.call_ranks(Workbench.lesson, [step]).result()
            saved.mkdir(parents=True)
            bench.call_ranks(Workbench.save, saved).result()
        bench.call_ranks(Workbench.export, tmp_path / name / "exported").result()
        exported.append(load_file(tmp_path / name / "exported" / "model.safetensors"))
    for key, tensor in exported[0].items():
        torch.testing.assert_close(exported[1][key], tensor, rtol=0, atol=1e-6)


def test_a_model_whose_tokens_meet_outside_attention_is_refused_by_a_trial(
    benches: Benches, tmp_path: Path
) -> None:
    """A convolution mixes the last tokens of a slice with the first of the next."""
    path = write_model("lfm2", tmp_path / "model", initializer_range=1.0)
    made = settings(path, Sharding(), sharing=2)
    bench = benches[2]
    bench.call_ranks(Workbench.forget_architectures).result()
    with pytest.raises(UnfitModelError, match="--ring_attn_size 2: on slices of a sample"):
        bench.call_ranks(Workbench.build, "policy", made).result()


@pytest.mark.faults
def test_a_run_whose_gpus_share_samples_is_the_run_of_one_gpu(
    tiny: Tiny, run_dir: Path, tmp_path: Path
) -> None:
    """Policy, critic and reference, with the KL in the reward: two groups of two ranks."""
    flags = flags_of(tiny, run_dir, max_steps=3, save_steps=3, init_kl_coef=0.1)
    alone = parse(to_argv(flags | {"run_dir": tmp_path / "alone"}))
    train(alone, reward_function("arithmetic"))
    shared = flags | {"ring_attn_size": 2, "use_dynamic_batch": True, "packing_samples": True}
    shared |= {"actor_num_gpus_per_node": 4, "critic_num_gpus_per_node": 2}
    shared |= {"ref_num_gpus_per_node": 2, "vllm_num_engines": 1}
    with short_directory() as directory:
        process = start(shared, directory)
        said, _ = process.communicate(timeout=250)
    assert process.returncode == ExitCode.FINISHED, said
    assert "each sample on 2 ranks" in said
    config = parse(to_argv(shared))
    for role in ROLES:
        learnt, expected = (
            saved_in(checkpoint_path(one.checkpoints, 3), role).model for one in (config, alone)
        )
        for name, value in learnt.items():
            # Over six updates, Adam lets the rounding of small gradients grow.
            torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-5)
    for mine, theirs in zip(metric_rows(config), metric_rows(alone), strict=True):
        for name in ("policy_loss", "critic_loss", "kl", "values", "grad_norm"):
            name = f"train/{name}"
            assert mine[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-5), name
