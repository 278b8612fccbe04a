"""The GPUs that train_ppo_ray reserves, as its own code counts them, and the roll's layouts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from entrypoint.job.recipes.openrlhf import layout
from entrypoint.job.recipes.openrlhf.command_line import OpenRLHFCommand, parse
from tests.support.openrlhf_parser import parsed, reserved, value

EACH_8 = "--vllm.num_engines 2 --vllm.tensor_parallel_size 4 --reward.model_name_or_path r"
RULED = "--reward.remote_url u --vllm.num_engines 8"
GRPO = "--algo.advantage.estimator group_norm --rollout.n_samples_per_prompt 4"


def command(words: str) -> OpenRLHFCommand:
    return parse(words.split())


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        (EACH_8, 40),
        (f"{EACH_8} --train.colocate_actor_ref", 32),
        (f"{EACH_8} --train.colocate_actor_ref --train.colocate_critic_reward", 24),
        (f"{EACH_8} --algo.kl.init_coef 0", 32),
        (f"{EACH_8} --actor.num_nodes 2 --critic.num_gpus_per_node 1", 41),
        (f"{EACH_8} {GRPO} --train.colocate_critic_reward", 32),
        (f"{EACH_8} --train.colocate_all", 8),
        (f"{EACH_8} --train.colocate_all --train.async_enable", 16),
        (f"{EACH_8} --train.colocate_all --train.colocate_critic_reward", 16),
        (f"{RULED} {GRPO}", 24),
        (f"{RULED} {GRPO} --train.colocate_all", 8),
        ("--train.agent_func_path a.py --vllm.num_engines 4 --actor.model_name_or_path m", 28),
    ],
)
def test_as_many_gpus_are_wanted_as_openrlhf_reserves(words: str, gpus: int) -> None:
    assert sum(layout.demand(command(words)).values()) == reserved(words.split()) == gpus


def test_too_few_gpus_are_said_with_those_of_each_model() -> None:
    (lacking,) = layout.lacking(command(EACH_8), [8, 8])
    wants = "OpenRLHF wants 40 GPUs (actor 8, ref 8, critic 8, reward 8, engines 8)"
    assert lacking.startswith(f"{wants}; the nodes offer 8, 8. It would wait for ever")


@pytest.mark.parametrize(
    ("words", "gpus", "shape", "engines"),
    [
        (GRPO, (8, 8, 8), (3, 8), 24),
        (f"{GRPO} --train.colocate_all --vllm.tensor_parallel_size 2", (8, 8), (2, 8), 8),
        (f"{GRPO} --train.colocate_all --actor.num_gpus_per_node 8", (8, 8, 4), (2, 8), 16),
        (f"{GRPO} --train.colocate_all --actor.num_nodes 1", (4, 8), (1, 8), 8),
        (f"{GRPO} --train.colocate_all --vllm.num_engines 4 --ref.num_nodes 0", (2, 2), (2, 2), 4),
    ],
)
def test_all_gpus_are_shared_and_openrlhf_takes_the_numbers(
    words: str, gpus: Sequence[int], shape: tuple[int, int], engines: int
) -> None:
    words = f"{words} --reward.remote_url u"
    chosen = layout.placed(command(words), gpus).command
    assert layout.lacking(chosen, gpus) == []
    row = parsed("train_ppo_ray", chosen.flag_words)
    for model in ("actor", "ref"):
        numbers = (value(row, f"{model}.num_nodes"), value(row, f"{model}.num_gpus_per_node"))
        assert numbers == shape
    assert (value(row, "vllm.num_engines"), value(row, "train.colocate_all")) == (engines, True)
    assert reserved(chosen.flag_words) == shape[0] * shape[1] <= sum(gpus)


def test_engines_get_the_gpus_that_the_models_leave() -> None:
    words = f"{GRPO} --reward.remote_url u --train.colocate_actor_ref --vllm.tensor_parallel_size 4"
    chosen = layout.placed(command(words), [8, 8, 4]).command
    assert chosen.value("vllm.num_engines") == "3"
    assert reserved(chosen.flag_words) == 20
    asynchronous = layout.placed(command(f"{words} --train.async_enable"), [8, 8])
    assert asynchronous.command.value("vllm.num_engines") == "2"


def test_actor_and_reference_share_gpus_only_if_the_layout_fits_so() -> None:
    chosen = layout.placed(command(EACH_8), [8, 8, 8, 8])
    assert reserved(chosen.command.flag_words) == 32
    assert chosen.warnings[0].startswith("OpenRLHF wants 40 GPUs and the nodes have 32, so actor")
    for gpus in ([8] * 5, [8] * 3):
        assert layout.placed(command(EACH_8), gpus).command == command(EACH_8)
    other = command(f"{EACH_8} --actor.num_gpus_per_node 4")
    assert layout.placed(other, [8, 8, 8, 8]).command == other


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "--train.colocate_all --ref.num_nodes 2 --ref.num_gpus_per_node 4 --vllm.num_engines 8",
            "actor 1×8 and ref 2×4 (nodes × GPUs) share GPUs, so they must be the same",
        ),
        (
            "--train.colocate_critic_reward --critic.num_nodes 2",
            "critic 2×8 and reward 1×8 (nodes × GPUs) share GPUs, so they must be the same",
        ),
        (
            "--train.colocate_all --vllm.num_engines 3 --vllm.tensor_parallel_size 2",
            "3 engines of 2 GPUs share the actor's 8 GPUs, so they must be as many: give",
        ),
    ],
)
def test_numbers_that_openrlhf_refuses_are_refused_before(words: str, sentence: str) -> None:
    words = f"{words} --reward.model_name_or_path r"
    assert layout.lacking(command(words), [8] * 9)[0].startswith(sentence)
    with pytest.raises(AssertionError, match="must be"):
        reserved(words.split())
