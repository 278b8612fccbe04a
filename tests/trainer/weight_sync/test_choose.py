"""Which way weights go, for which layout, and who has which number in the group on that way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract.options import ConfigError
from contract.resources import NodeResources
from tests.support.tiny_run import Tiny
from trainer.cluster.bin_packing import pack
from trainer.config import layout
from trainer.config.config import Config
from trainer.training import run
from trainer.weight_sync import backends, choose
from trainer.weight_sync.messages import GroupRank, GroupRendezvous, Member

CPUS = [NodeResources(name="here", cpus=8)]
GPUS = [NodeResources(name="here", cpus=8, gpus=8)]
TOGETHER = {"colocate_all_models": True}


def chosen(config: Config, offers: list[NodeResources]) -> choose.Choice:
    found = pack(layout.of(config), offers)
    assert not found.shortfalls
    return choose.choose_backend(run.choose_engine(config, found), found)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: True)


@pytest.mark.parametrize(
    ("flags", "offers", "backend"),
    [
        ({}, GPUS, "nccl"),
        ({}, CPUS, "shared_memory"),
        (TOGETHER, GPUS, "ipc"),
        (TOGETHER, CPUS, "shared_memory"),
        ({**TOGETHER, "async_train": True}, GPUS, "nccl"),
        ({**TOGETHER, "vllm_num_engines": 2}, GPUS, "ipc"),
        ({"rollout_engine": "hf"}, GPUS, "shared_memory"),
        ({"vllm_sync_backend": "nccl"}, GPUS, "nccl"),
        ({**TOGETHER, "vllm_sync_backend": "ipc"}, GPUS, "ipc"),
        ({**TOGETHER, "vllm_sync_backend": "shared_memory"}, GPUS, "shared_memory"),
        ({"vllm_sync_backend": "gloo"}, GPUS, "shared_memory"),
    ],
)
def test_the_way_follows_from_the_gpus_and_who_shares_them(
    tiny: Tiny, run_dir: Path, flags: dict[str, Any], offers: list[NodeResources], backend: str
) -> None:
    assert chosen(tiny.config(run_dir, **flags), offers) == choose.Choice(backend)


def test_engines_on_the_gpus_of_a_frozen_model_are_sent_their_weights(
    tiny: Tiny, run_dir: Path
) -> None:
    config = tiny.config(run_dir, init_kl_coef=0.1, advantage_estimator="gae")
    three = [NodeResources(name=name, cpus=8, gpus=1) for name in ("a", "b", "c")]
    assert pack(layout.of(config), three).note
    assert chosen(config, three) == choose.Choice("nccl")


@pytest.mark.parametrize(
    ("flags", "offers", "said"),
    [
        (
            {**TOGETHER, "vllm_sync_backend": "nccl"},
            GPUS,
            "weights go over by CUDA IPC: NCCL takes no two processes of one GPU, and policy and "
            "engines share theirs",
        ),
        (
            {"vllm_sync_backend": "nccl", "rollout_engine": "vllm"},
            CPUS,
            "weights go over through shared memory: --vllm_sync_backend nccl needs GPUs",
        ),
        (
            {"vllm_sync_backend": "nccl", "rollout_engine": "hf"},
            GPUS,
            "weights go over through shared memory: engines of transformers know no other way",
        ),
    ],
)
def test_a_way_that_cannot_be_is_replaced_by_one_that_can_and_the_run_says_why(
    tiny: Tiny, run_dir: Path, flags: dict[str, Any], offers: list[NodeResources], said: str
) -> None:
    assert str(chosen(tiny.config(run_dir, **flags), offers)) == said


@pytest.mark.parametrize("flags", [{}, {**TOGETHER, "async_train": True}])
def test_memory_that_is_not_shared_cannot_be_read(
    tiny: Tiny, run_dir: Path, flags: dict[str, Any]
) -> None:
    said = r"--vllm_sync_backend: .* they share none \(given: ipc\)\. Give nccl or auto, or --coloc"
    with pytest.raises(ConfigError, match=said):
        tiny.config(run_dir, vllm_sync_backend="ipc", **flags)


def test_a_way_that_nobody_knows_is_refused_with_those_that_there_are(
    tiny: Tiny, run_dir: Path
) -> None:
    said = r"must be one of auto, nccl, ipc, shared_memory \(given: mpi\)"
    with pytest.raises(ConfigError, match=said):
        tiny.config(run_dir, vllm_sync_backend="mpi")


def test_every_rank_of_every_engine_has_a_number_of_its_own_after_the_policy_s() -> None:
    meeting = GroupRendezvous("10.0.0.1", 29500, (Member("a", 4), Member("b", 1), Member("c", 2)))
    assert meeting.world == 8
    assert meeting.ranks() == [GroupRank("10.0.0.1", 29500, first, 8) for first in (1, 5, 6)]


@pytest.mark.parametrize(
    ("late", "blamed"),
    [
        ({}, {}),
        ({1: False}, {1: ""}),
        ({0: True, 1: False}, {0: "was left waiting by engine-1", 1: ""}),
        (
            {0: False, 1: True, 2: False},
            {0: "", 1: "was left waiting by engine-0, engine-2", 2: ""},
        ),
        ({0: True, 1: True}, {0: "", 1: ""}),
    ],
)
def test_who_still_answers_is_not_to_blame_while_another_is_silent(
    late: dict[int, bool], blamed: dict[int, str]
) -> None:
    assert backends.blamed(late) == blamed
