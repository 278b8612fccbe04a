"""What a node needs of the CPUs' memory: to load the models, and for copies of their state."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract.launch.standby_ranks import RANK_BYTES
from contract.resources import NodeResources
from tests.support.tiny_run import Tiny
from trainer.cluster import host_memory, memory_estimate, resource_plan
from trainer.cluster.bin_packing import pack
from trainer.cluster.host_memory import NodeMemory
from trainer.cluster.model_size import ModelSize
from trainer.config import layout
from trainer.config.config import Config

GB = 10**9
PARAMETERS = 7_500_000_000
Made = Callable[..., Config]


def nodes(count: int, memory: int = 0) -> list[NodeResources]:
    return [
        NodeResources(name=f"n{place}", gpus=8, gpu_memory=80 * GB, memory=memory * GB)
        for place in range(count)
    ]


@pytest.fixture
def made(tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """A policy of 7.5 billion parameters on eight GPUs of each node, and nothing else."""
    size = ModelSize(PARAMETERS, hidden=1, layers=1, intermediate=4)
    monkeypatch.setattr(memory_estimate, "known_size", lambda model: size)

    def config(count: int = 1, **flags: Any) -> Config:
        plain = {
            "bf16": True,
            "init_kl_coef": 0,
            "actor_num_nodes": count,
            "actor_num_gpus_per_node": 8,
            "advantage_estimator": "rloo",
            "colocate_all_models": True,
            "vllm_num_engines": 8 * count,
        }
        return tiny.config(run_dir, **(plain | flags))

    return config


def needs(config: Config, offers: list[NodeResources]) -> NodeMemory:
    found = host_memory.of_nodes(config, pack(layout.of(config), offers), offers)
    assert found.keys() == {offer.name for offer in offers}
    first, *others = found.values()
    assert all(other == first for other in others)
    return first


@pytest.mark.parametrize(
    ("flags", "read", "files"),
    [
        ({"zero_stage": 0}, 8 * 4, 0),
        ({"zero_stage": 1}, 0, 2),
        ({"zero_stage": 2}, 0, 2),
        ({"zero_stage": 3}, 4, 0),
        ({"zero_stage": 2, "bf16": False}, 8 * 4, 0),
        ({"zero_stage": 2, "enable_ema": True}, 8 * 4, 0),
        ({"zero_stage": 2, "init_kl_coef": 0.1}, 0, 2),
    ],
    ids=["stage 0", "stage 1", "stage 2", "stage 3", "fp32", "average", "reference"],
)
def test_ranks_of_a_node_share_what_they_read_in_the_type_of_the_files(
    made: Made, flags: dict[str, Any], read: int, files: int
) -> None:
    found = needs(made(**flags), nodes(1))
    assert (found.read, found.files) == (read * PARAMETERS, files * PARAMETERS)


@pytest.mark.parametrize(
    ("count", "flags", "copies", "replicas"),
    [
        (1, {}, 1, 0),
        (2, {}, 3, 2),
        (2, {"peer_snapshot": "off"}, 1, 0),
        (2, {"disable_ds_ckpt": True}, 2, 2),
        (1, {"disable_ds_ckpt": True}, 0, 0),
    ],
)
def test_copies_for_checkpoints_and_snapshots_are_counted(
    made: Made, count: int, flags: dict[str, Any], copies: int, replicas: int
) -> None:
    found = needs(made(count, zero_stage=2, **flags), nodes(count))
    of_a_node = 12 * PARAMETERS // count
    assert found.copies == pytest.approx(copies * of_a_node, rel=1e-6)
    assert found.replicas == pytest.approx(replicas * of_a_node, rel=1e-6)


def test_snapshots_beyond_their_limit_are_off_and_not_counted(made: Made) -> None:
    held = 4 * 12 * PARAMETERS // 2 / GB
    for limit, copies in ((held + 1, 3), (held - 1, 1)):
        config = made(2, zero_stage=2, peer_snapshot_memory=limit)
        assert needs(config, nodes(2)).copies == pytest.approx(copies * 6 * PARAMETERS, rel=1e-6)
    assert needs(made(2, zero_stage=2), nodes(2, int(2 * held) - 2)).replicas == 0


def of_two_nodes(config: Config) -> list[NodeMemory]:
    return [*host_memory.of_nodes(config, pack(layout.of(config), nodes(2)), nodes(2)).values()]


def test_engines_that_read_weights_from_shared_memory_have_them_on_each_node(made: Made) -> None:
    for flags, size in (
        ({"vllm_sync_backend": "shared_memory"}, 2 * PARAMETERS),
        ({"rollout_engine": "hf"}, 2 * PARAMETERS),
        ({}, 0),
    ):
        assert [one.published for one in of_two_nodes(made(2, **flags))] == [size, size]


@pytest.mark.parametrize(
    ("flags", "bytes_each"),
    [({}, 0), ({"save_hf_ckpt": True}, 2), ({"save_hf_ckpt": True, "enable_ema": True}, 4)],
)
def test_the_model_of_a_checkpoint_is_copied_on_the_first_node(
    made: Made, flags: dict[str, Any], bytes_each: int
) -> None:
    found = of_two_nodes(made(2, **flags))
    assert [one.exported for one in found] == [bytes_each * PARAMETERS, 0]


def test_samples_of_the_longest_length_are_counted_for_each_step_under_way(made: Made) -> None:
    lengths = {"prompt_max_len": 1_000, "generate_max_len": 7_000, "rollout_batch_size": 512}
    apart = {"colocate_all_models": None, "actor_num_gpus_per_node": 4, "vllm_num_engines": 4}
    tokens = 512 * 2 * 8_000
    assert needs(made(**lengths), nodes(1)).samples == tokens * (13 + 9 + 4)
    ahead = needs(made(**lengths, **apart, async_train=True, max_staleness=2), nodes(1))
    assert ahead.samples == tokens * (3 * 13 + 9 + 4)
    assert ahead.training == ahead.moved + ahead.copies + ahead.samples


def test_standby_ranks_are_counted_up_to_a_tenth_of_the_node(made: Made) -> None:
    processes = 8 + 8  # of the policy, and engines
    for memory, held in ((0, 0), (20, 5), (1000, processes)):
        assert needs(made(), nodes(1, memory)).standby == held * RANK_BYTES


def lacking(config: Config, offers: list[NodeResources]) -> str | None:
    row = resource_plan.row(config, offers)["host"]
    said: str | None = row["lacking"]
    return said


def test_a_node_that_cannot_load_the_model_is_named_with_what_would_do(made: Made) -> None:
    config = made(zero_stage=0)
    assert lacking(config, nodes(1, 320)) is None
    said = lacking(config, nodes(1, 200))
    assert said is not None
    assert said.startswith(
        "n0 needs 223.5 GiB of the CPUs' memory to load the models, and has 186."
    )
    assert "--zero_stage 1" in said
    assert "--zero_stage 3" in said
    assert "5 ranks of each model on a node, on more nodes" in said
    (memory,) = re.findall(r"nodes with (\S+) GiB", said)
    assert lacking(config, nodes(1, int(float(memory) * 2**30 / GB) + 1)) is None
    for stage in (1, 3):
        assert lacking(made(zero_stage=stage), nodes(1, 200)) is None


def test_what_would_not_suffice_is_not_offered(made: Made) -> None:
    said = lacking(made(zero_stage=0), nodes(1, 110))
    assert said is not None
    assert "--zero_stage" not in said, "one copy of the state alone has 90 GB"
    said = lacking(made(2, zero_stage=2, peer_snapshot_memory=1000.0), nodes(2, 200))
    assert said is not None
    assert "while it trains" in said
    assert "--peer_snapshot off" in said
    assert "--zero_stage 3" not in said


def test_without_gpus_or_sizes_nothing_is_said(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    config = made()
    assert resource_plan.row(config, [NodeResources(name="here", cpus=64)])["host"] is None
    monkeypatch.setattr(memory_estimate, "known_size", lambda model: None)
    assert resource_plan.row(config, nodes(1))["host"] is None
