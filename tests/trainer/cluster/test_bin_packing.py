"""A layout on the nodes of a cluster: as the guides' tables say, exact, and honest where not."""

from __future__ import annotations

import itertools
import shlex
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.resources import NodeResources
from tests.support.repository import DATA
from tests.support.tiny_run import Tiny, to_argv
from trainer.cluster.bin_packing import Assignment, pack
from trainer.config import layout
from trainer.config.config import Config
from trainer.config.layout import Layout, ResourcePool, Role, RoleProcesses
from trainer.config.parse import parse

GUIDES = DATA / "guides.toml"
COMMANDS = {one["name"]: one["argv"] for one in tomllib.loads(GUIDES.read_text())["command"]}


def guide(name: str, tiny: Tiny, run_dir: Path, *more: str) -> Config:
    """The guide's command, its reward model in the cluster as the guide has it."""
    here = to_argv(
        {
            "pretrain": tiny.model,
            "prompt_data": tiny.prompts,
            "remote_rm_url": "x",
            "run_dir": run_dir,
        }
    )
    return replace(parse([*shlex.split(COMMANDS[name]), "--", *here, *more]), remote_rm_url="")


def gpus(*counts: int) -> list[NodeResources]:
    return [NodeResources(name=f"n{n}", gpus=count, cpus=64) for n, count in enumerate(counts, 1)]


def nodes(found: Assignment) -> dict[str, tuple[str, ...]]:
    assert found.shortfalls == ()
    return {role: found.nodes[pool] for pool in found.nodes for role in pool.split("+")}


def test_the_guide_s_four_nodes_hold_a_model_each(tiny: Tiny, run_dir: Path) -> None:
    config = guide("four nodes, 70B", tiny, run_dir)
    found = pack(layout.of(config), gpus(8, 8, 8, 8))
    assert nodes(found) == {
        "reference": ("n1",),
        "engine": ("n1",),
        "reward": ("n2",),
        "critic": ("n3",),
        "policy": ("n4",),
    }
    assert found.note.startswith("no 8 GPUs are left for the engines: they share the 8 of the refe")


def test_with_room_the_guide_s_engines_have_gpus_of_their_own(tiny: Tiny, run_dir: Path) -> None:
    found = pack(layout.of(guide("four nodes, 70B", tiny, run_dir)), gpus(8, 8, 8, 8, 8))
    assert nodes(found)["engine"] == ("n5", "n5")
    assert found.note == ""


def test_the_guide_s_eight_nodes_hold_two_a_model(tiny: Tiny, run_dir: Path) -> None:
    config = guide("eight GPUs for each of two nodes a model", tiny, run_dir)
    found = pack(layout.of(config), gpus(*[8] * 8))
    assert nodes(found) == {
        "reference": ("n1", "n2"),
        "engine": ("n1", "n2"),
        "reward": ("n3", "n4"),
        "critic": ("n5", "n6"),
        "policy": ("n7", "n8"),
    }
    assert sum(pool.slots for pool in found.layout.pools) == 64


def test_the_guide_s_hybrid_has_all_models_on_sixteen_gpus(tiny: Tiny, run_dir: Path) -> None:
    config = guide("all models on the same GPUs", tiny, run_dir)
    found = pack(layout.of(config), gpus(8, 8))
    assert set(nodes(found).values()) == {("n1", "n2")}
    (pool,) = found.layout.pools
    assert [len(pool.slots_of(role)) for role in ("policy", "critic", "engine")] == [16, 16, 4]


def test_the_slurm_guide_s_two_nodes_hold_two_pairs_and_four_engines(
    tiny: Tiny, run_dir: Path
) -> None:
    found = nodes(pack(layout.of(guide("Slurm, PPO", tiny, run_dir)), gpus(8, 8)))
    assert found["policy"] == found["reference"] == ("n1",)
    assert found["critic"] == found["reward"] == ("n1",)
    assert found["engine"] == ("n2",) * 4


def test_the_slurm_guide_s_v100s_hold_the_reference_and_nothing_else(
    tiny: Tiny, run_dir: Path
) -> None:
    flags = {"ref_num_gpus_per_node": 8, "ref_resources": '{"v100": 1}'}
    a100 = {"actor_num_gpus_per_node": 6, "critic_num_gpus_per_node": 1}
    config = tiny.config(run_dir, **flags, **a100)
    offers = [
        NodeResources(name="A", gpus=8, resources={"v100": 8}),
        NodeResources(name="B", gpus=8, resources={"h100": 8}),
    ]
    found = nodes(pack(layout.of(config), offers))
    assert found.pop("reference") == ("A",)
    assert set(found.values()) == {("B",)}


def test_every_shortfall_is_said_at_once(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(
        run_dir,
        critic_num_gpus_per_node=8,
        ref_resources='{"v100": 1}',
        actor_num_nodes=2,
        actor_num_gpus_per_node=4,
    )
    assert pack(layout.of(config), gpus(4, 4)).shortfalls == (
        "reference wants 1 GPU and 1 v100 on 1 node; 2 nodes offer 4 (0 v100), 4 (0 v100)",
        "critic wants 8 GPUs on 1 node; 2 nodes offer 4 (0 v100), 4 (0 v100)",
        "each of 1 engines wants 1 GPU on 1 node; beside policy, "
        "2 nodes have 0 (0 v100), 0 (0 v100) left",
    )
    plain = tiny.config(run_dir, critic_num_gpus_per_node=8)
    assert pack(layout.of(plain), gpus(4, 4)).shortfalls == (
        "critic wants 8 GPUs on 1 node; 2 nodes offer 4, 4",
    )
    assert pack(layout.of(plain), gpus(4)).shortfalls[0].endswith("on 1 node; 1 node offers 4")


def test_no_nodes_are_a_shortfall_too(tiny: Tiny, run_dir: Path) -> None:
    said = pack(layout.of(tiny.config(run_dir)), []).shortfalls
    assert len(said) == 4
    assert all("there are no nodes" in one for one in said)


def test_without_gpus_the_same_layouts_lie_on_cpus(tiny: Tiny, run_dir: Path) -> None:
    config = guide("all models on the same GPUs", tiny, run_dir)
    machines = [NodeResources(name=f"n{n}", cpus=2) for n in range(2)]
    found = pack(layout.of(config), machines)
    assert set(nodes(found).values()) == {("n0", "n1")}
    assert (found.on_gpus, found.cpus) == (False, 0.25)
    apart = pack(
        layout.of(tiny.config(run_dir)), [NodeResources(name=f"n{n}", cpus=4) for n in range(3)]
    )
    assert Counter(place for places in apart.nodes.values() for place in places) == {
        "n0": 2,
        "n1": 1,
        "n2": 1,
    }
    assert apart.cpus == 1


@st.composite
def cases(draw: st.DrawFn) -> tuple[Layout, list[NodeResources]]:
    roles = draw(st.lists(st.sampled_from([Role.REFERENCE, Role.CRITIC, Role.POLICY]), unique=True))
    special = st.sampled_from([{}, {}, {"v": 1.0}])
    pools = [
        ResourcePool(
            groups=(
                RoleProcesses(
                    role=role, nodes=draw(st.integers(1, 2)), per_node=draw(st.integers(1, 3))
                ),
            ),
            resources=draw(special),
        )
        for role in roles
    ]
    engines = RoleProcesses(
        role=Role.ENGINE, nodes=draw(st.integers(1, 3)), per_node=draw(st.integers(1, 2))
    )
    pools.append(ResourcePool(groups=(engines,), resources=draw(special)))
    offers = [
        NodeResources(name=f"n{n}", gpus=count, resources={"v": draw(st.integers(0, 3))})
        for n, count in enumerate(draw(st.lists(st.integers(0, 4), min_size=1, max_size=4)))
    ]
    return Layout(tuple(pools)), [*offers, NodeResources(name="last", gpus=1)]


@given(cases())
def test_no_node_is_oversubscribed_and_whatever_fits_is_placed(
    case: tuple[Layout, list[NodeResources]],
) -> None:
    wanted, offers = case
    found = pack(wanted, offers)
    if found.shortfalls:
        assert not by_trying_everything(wanted, offers)
    left = {offer.name: [offer.gpus, offer.resources.get("v", 0)] for offer in offers}
    for pool in found.layout.pools:
        places = found.nodes.get(pool.name, ())
        assert len(places) == pool.nodes or found.shortfalls
        assert len(set(places)) == len(places) or not pool.distinct_nodes
        for place in places:
            left[place][0] -= pool.per_node
            left[place][1] -= pool.per_node * pool.resources.get("v", 0)
    assert all(amount >= 0 for amounts in left.values() for amount in amounts)


def by_trying_everything(wanted: Layout, offers: Sequence[NodeResources]) -> bool:
    """Whether any choice of nodes for all pools fits."""
    ways = [
        itertools.combinations(range(len(offers)), pool.nodes)
        if pool.distinct_nodes
        else itertools.combinations_with_replacement(range(len(offers)), pool.nodes)
        for pool in wanted.pools
    ]
    for choice in itertools.product(*ways):
        slots = [offer.gpus for offer in offers]
        special = [offer.resources.get("v", 0) for offer in offers]
        for pool, places in zip(wanted.pools, choice, strict=True):
            for place in places:
                slots[place] -= pool.per_node
                special[place] -= pool.per_node * pool.resources.get("v", 0)
        if min(slots) >= 0 and min(special) >= 0:
            return True
    return False


def test_a_large_cluster_that_is_one_gpu_short_is_judged_at_once(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(
        run_dir,
        actor_num_nodes=16,
        actor_num_gpus_per_node=8,
        critic_num_nodes=8,
        critic_num_gpus_per_node=5,
        init_kl_coef=0,
        vllm_num_engines=60,
        vllm_tensor_parallel_size=3,
    )
    said = pack(layout.of(config), gpus(*[8] * 49)).shortfalls
    assert len(said) == 1
    assert said[0].startswith("each of 60 engines wants 3 GPUs")


@pytest.mark.parametrize("spare", [0, 1])
def test_a_tight_fit_that_best_fit_misses_is_found(spare: int) -> None:
    """Taking the fullest node first, for the first pool, leaves the second without its own."""

    def one(role: Role, nodes: int, per_node: int, **resources: float) -> ResourcePool:
        group = RoleProcesses(role=role, nodes=nodes, per_node=per_node)
        return ResourcePool(groups=(group,), resources=resources)

    wanted = Layout(
        (
            one(Role.REFERENCE, 1, 2),
            one(Role.POLICY, 1, 2, v=1),
            one(Role.ENGINE, 1, 3 + spare),
        )
    )
    offers = [
        NodeResources(name="a", gpus=2, resources={"v": 2}),
        NodeResources(name="b", gpus=5 + spare),
    ]
    assert nodes(pack(wanted, offers)) == {
        "reference": ("b",),
        "policy": ("a",),
        "engine": ("b",),
    }


@pytest.mark.parametrize(("engines", "fits"), [(2, True), (3, False)])
def test_engines_share_a_frozen_model_s_gpus_only_if_each_has_one(
    tiny: Tiny, run_dir: Path, engines: int, fits: bool
) -> None:
    config = tiny.config(run_dir, ref_num_gpus_per_node=2, vllm_num_engines=engines)
    found = pack(layout.of(config), gpus(4))
    assert (found.shortfalls == ()) == fits
