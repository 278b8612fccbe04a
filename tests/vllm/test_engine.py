"""vLLM itself, built for the CPU, on a model of some thousand parameters."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.exit_codes import ExitCode
from env.episodes.types import Context
from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from tests.support.local_workers import LocalWorkerGroup
from tests.support.ragged import padded, scores
from tests.support.tiny_run import Tiny, metric_rows, to_argv, train
from tests.support.vllm import LONG, SAMPLING, requests, settings, worst
from trainer.config.config import Config
from trainer.config.schema import flags_of
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.rollout.kept_weights import KeptWeights
from trainer.types import (
    BrokenGroupError,
    Completion,
    EngineFailedError,
    FinishedRollout,
    Key,
    PartialRollout,
    Request,
    Sequences,
    TrainingError,
)
from trainer.weight_sync import shared_memory, update
from trainer.weight_sync.messages import GroupRank
from trainer.workers.policy import PolicyActor

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(480)]

TOLERANCE = 1e-4
"""Nats, of one token's log-probability in fp32: other kernels, other orders of summation. What is
seen here is 5e-7."""
REFUSED = r"vLLM 0.29.0 cannot run .*OddForCausalLM.*--rollout_engine hf"


@pytest.fixture(scope="module")
def model(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Heads of 32: vLLM's attention has no smaller ones."""
    path = tmp_path_factory.mktemp("vllm") / "model"
    shape = TinyModel(hidden_size=64, layers=2, heads=2, max_length=256)
    write_model(shape, "0123456789+=", path)
    return replace(tiny, model=path)


@pytest.fixture(scope="module")
def engine(model: Tiny) -> object:
    from trainer.rollout.vllm_engine import VLLMEngine

    return VLLMEngine(settings(model))


@pytest.fixture(scope="module")
def policy(model: Tiny) -> PolicyActor:
    from tests.support.learners import policy as build

    return build(model)


def moved(policy: PolicyActor, step: int) -> None:
    """Another policy than before, by far more than the tolerance."""
    import torch

    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for parameter in policy._model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)


def test_engine_and_trainer_agree_and_weights_and_versions_advance(
    engine: HFEngine, policy: PolicyActor
) -> None:
    before = engine.generate(requests(1, 2, 3), SAMPLING)
    assert {completion.version for completion in before} == {0}
    assert worst(policy, before) < TOLERANCE
    for version in (1, 2):
        moved(policy, version)
        assert worst(policy, before) > 100 * TOLERANCE
        update.update_weights(
            LocalWorkerGroup([policy]), EnginePool(LocalWorkerGroup([engine])), version, wake=True
        )
        after = engine.generate(requests(1, 2, 3), SAMPLING)
        assert {completion.version for completion in after} == {version}
        assert worst(policy, after) < TOLERANCE
        before = after


def test_a_request_without_a_seed_is_greedy_beside_sampled_ones(engine: HFEngine) -> None:
    cold = engine.generate(requests(1), replace(SAMPLING, temperature=0))
    mixed = engine.generate(requests(5, None), SAMPLING)
    assert [one.text for one in mixed[1::2]] == [one.text for one in cold]
    assert [one.text for one in mixed[::2]] != [one.text for one in cold]
    partial = PartialRollout((0, 0), "12+30=", None)
    (ended,) = engine.write([partial], SAMPLING, 60).ended
    assert ended.completion.text == cold[1].text


def test_remax_trains_with_vllm(model: Tiny, run_dir: Path) -> None:
    flags = {"advantage_estimator": "remax", "init_kl_coef": 0, "max_steps": 2, "max_len": 128}
    config = model.config(run_dir, **flags, rollout_engine="vllm")
    vllm = replace(config.vllm, sync_backend="shared_memory", enforce_eager=True)
    train(replace(config, vllm=vllm))
    rows = metric_rows(config)
    assert len([row for row in rows if row.get("train/greedy_length")]) == 2


def test_weights_from_another_node_are_the_same_weights(
    engine: HFEngine, policy: PolicyActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved(policy, 3)
    monkeypatch.setattr(engine, "node", lambda: "elsewhere")
    update.update_weights(LocalWorkerGroup([policy]), EnginePool(LocalWorkerGroup([engine])), 3)
    assert worst(policy, engine.generate(requests(1), SAMPLING)) < TOLERANCE


def test_weights_come_in_parts_also_after_an_update_that_broke_off(
    model: Tiny, policy: PolicyActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.rollout.vllm_engine import VLLMEngine

    engine: Any = VLLMEngine(settings(model))
    monkeypatch.setattr(shared_memory, "BUCKET_BYTES", 40_000)
    first, *others = policy.offer()
    assert others
    engine.begin()
    engine.load(policy.stage(first))
    moved(policy, 4)
    update.update_weights(LocalWorkerGroup([policy]), EnginePool(LocalWorkerGroup([engine])), 4)
    assert worst(policy, engine.generate(requests(1), SAMPLING)) < TOLERANCE


def test_vllm_s_own_end_of_nccl_is_told_where_to_come_and_says_what_it_lacks(model: Tiny) -> None:
    """A GPU: it says so for each group that it is asked into, and goes on."""
    from trainer.rollout.vllm_engine import VLLMEngine

    engine = VLLMEngine(settings(model, sync_backend="nccl"))
    assert engine.member() == engine.member()
    assert engine.member().ranks == 1
    before = engine.generate(requests(1), SAMPLING)
    for port in (29500, 29501):
        said = rf"127.0.0.1, port {port}: .*no.* available|127.0.0.1, port {port}: .*CUDA"
        with pytest.raises(BrokenGroupError, match=said):
            engine.join(GroupRank("127.0.0.1", port, first=1, world=2))
    after = engine.generate(requests(1), SAMPLING)
    assert [list(c.tokens) for c in after] == [list(c.tokens) for c in before]


def test_a_completion_follows_its_seed_whatever_is_written_beside_it(engine: HFEngine) -> None:
    together = engine.generate(requests(2**63 + 1, 5), SAMPLING)
    alone = [
        completion
        for request in requests(2**63 + 1, 5)
        for seed in request.seeds
        for completion in engine.generate([Request(request.text, (seed,))], SAMPLING)
    ]
    assert [list(c.tokens) for c in together] == [list(c.tokens) for c in alone]
    of_one_prompt = together[:2]
    assert len({tuple(completion.tokens) for completion in of_one_prompt}) == 2


def test_vllm_builds_an_output_for_each_completion_and_not_for_each_token(
    engine: HFEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine import output_processor

    built = []
    real = output_processor.RequestOutput

    def counted(**fields: Any) -> Any:
        built.append(fields["request_id"])
        return real(**fields)

    monkeypatch.setattr(output_processor, "RequestOutput", counted)
    completions = engine.generate(requests(1, 2), SAMPLING)
    assert sum(len(one.tokens) for one in completions) > 2 * len(completions)
    assert len(built) == len(completions)


@pytest.mark.parametrize("error", [RuntimeError, AssertionError, TimeoutError])
def test_an_error_of_vllm_is_the_engine_s_end_and_not_the_run_s(
    engine: HFEngine, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """vLLM raises such ones if a GPU lacks memory at a wake-up: another engine takes its place."""

    def fails(*_: Any, **__: Any) -> None:
        raise error("not enough memory to wake up")

    llm = getattr(engine, "_llm")  # noqa: B009
    calls: dict[str, Callable[[], None]] = {
        "wake_up": lambda: engine.wake("weights"),
        "sleep": engine.sleep,
        "start_weight_update": engine.begin,
    }
    for method, call in calls.items():
        monkeypatch.setattr(llm, method, fails)
        with pytest.raises(EngineFailedError, match="vLLM ended: not enough memory to wake up"):
            call()


def test_no_sample_leaves_vllm_whose_memory_changed_a_bit_of_its_weights(
    engine: Any, policy: PolicyActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(engine, "_kept", KeptWeights(1, engine._prints))
    pools = LocalWorkerGroup([policy]), EnginePool(LocalWorkerGroup([engine]))
    update.update_weights(*pools, 3)
    assert engine.generate(requests(0), SAMPLING)

    def flip(worker: Any) -> None:
        weight = next(worker.get_model().parameters())
        words = weight.data.view(torch.int32)
        words[3, 5] ^= 1 << 12

    engine._llm.collective_rpc(flip)
    with pytest.raises(EngineFailedError, match="memory changed a bit of the weights of step 3"):
        engine.generate(requests(0), SAMPLING)
    update.update_weights(*pools, 4)
    assert engine.generate(requests(0), SAMPLING)


def test_actions_are_the_written_tokens_up_to_the_first_end(engine: HFEngine) -> None:
    written = engine.generate([Request("1+1=", tuple(range(32)))], SAMPLING)
    stop = engine._texts.tokenizer.eos_token_id
    assert {completion.finished for completion in written} == {True, False}
    for completion in written:
        assert not completion.action_mask[:4].any()
        assert completion.action_mask[4:].all()
        assert not completion.log_probs[:4].any()
        ends = np.flatnonzero(completion.tokens[4:] == stop)
        assert list(ends) == ([completion.length - 1] if completion.finished else [])
        assert completion.finished or completion.length == 20


def test_greedy_completions_are_those_of_transformers(
    engine: HFEngine, policy: PolicyActor, model: Tiny
) -> None:
    plain = HFEngine(settings(model))
    update.update_weights(
        LocalWorkerGroup([policy]), EnginePool(LocalWorkerGroup([plain, engine])), 4
    )
    ours, theirs = (
        [(c.text, c.finished) for c in one.generate(requests(0), replace(SAMPLING, temperature=0))]
        for one in (plain, engine)
    )
    assert ours == theirs


@pytest.fixture
def engine_a_step_ahead(model: Tiny, monkeypatch: pytest.MonkeyPatch) -> object:
    """As on GPUs: vLLM begins a step before it reads the last one's tokens."""
    from vllm.platforms.cpu import CpuPlatform

    from trainer.rollout.vllm_engine import VLLMEngine

    settle = CpuPlatform.check_and_update_config

    def keep(config: Any) -> None:
        chosen = config.scheduler_config.async_scheduling
        settle(config)
        config.scheduler_config.async_scheduling = chosen

    monkeypatch.setattr(CpuPlatform, "check_and_update_config", staticmethod(keep))
    engine: Any = VLLMEngine(settings(model))
    assert engine._llm.llm_engine.engine_core.engine_core.async_scheduling
    return engine


@pytest.mark.parametrize("name", ["engine", "engine_a_step_ahead"])
def test_a_draft_goes_on_through_an_evaluation_and_new_weights(
    name: str, policy: PolicyActor, request: pytest.FixtureRequest
) -> None:
    """What the engine says of a token is what the policy says whose version the token carries."""
    engine = request.getfixturevalue(name)
    partials = [
        PartialRollout((n, 0), text, n) for n, text in enumerate(("1+1=", "12+30=", "7=", LONG))
    ]
    ended: dict[Key, Completion] = {}

    def write(given: list[PartialRollout], calls: int) -> None:
        for call in range(calls):
            told = engine.write(given if call == 0 else [], SAMPLING, 0.0)
            ended.update({one.key: one.completion for one in told.ended})

    def difference(version: int) -> float:
        sequences = Sequences.collate(list(ended.values()))
        assert sequences.rollout_log_probs is not None
        ours = scores(policy, sequences) - padded(sequences.rollout_log_probs, sequences)
        of_version = [
            ours[row, : len(c.tokens)][c.versions == version]
            for row, c in enumerate(ended.values())
        ]
        return float(np.abs(np.concatenate(of_version)).max())

    update.update_weights(LocalWorkerGroup([policy]), EnginePool(LocalWorkerGroup([engine])), 5)
    write(partials, calls=4)
    engine.generate(requests(1), replace(SAMPLING, temperature=0))
    before = {partial.key: partial.tokens.tolist() for partial in engine.partials()}
    assert before
    moved(policy, 6)
    update.update_weights(LocalWorkerGroup([policy]), EnginePool(LocalWorkerGroup([engine])), 6)
    write([], calls=40)
    assert sorted(ended) == [partial.key for partial in partials]
    for key, tokens in before.items():
        completion = ended[key]
        assert completion.tokens[completion.action_mask][: len(tokens)].tolist() == tokens
        assert set(completion.versions[completion.action_mask]) == {5, 6}
        assert completion.version == 5
    assert difference(6) < TOLERANCE < difference(5)


def test_a_model_that_vllm_does_not_know_is_refused_with_what_to_do(
    model: Tiny, tmp_path: Path
) -> None:
    from trainer.rollout.vllm_engine import VLLMEngine

    shutil.copytree(model.model, tmp_path / "odd")
    config = json.loads((tmp_path / "odd/config.json").read_text())
    odd = config | {"architectures": ["OddForCausalLM"]}
    (tmp_path / "odd/config.json").write_text(json.dumps(odd))
    with pytest.raises(TrainingError, match=REFUSED):
        VLLMEngine(settings(replace(model, model=tmp_path / "odd")))


@pytest.mark.faults
def test_a_run_with_two_engines_learns_on_policy(model: Tiny, run_dir: Path) -> None:
    """The program as in a job, on a Ray of its own: what is corrected is rounding."""
    flags = {
        "advantage_estimator": "group_norm",
        "rollout_engine": "vllm",
        "vllm_num_engines": 2,
        "enforce_eager": True,
        "prompt_max_len": 16,
        "rollout_batch_size": 16,
        "n_samples_per_prompt": 4,
        "train_batch_size": 64,
        "micro_train_batch_size": 64,
        "is_correction_level": "token",
        "actor_learning_rate": 1e-2,
        "lr_scheduler": "constant",
        "init_kl_coef": 0,
        "max_steps": 15,
        "remote_rm_url": write_bandit(run_dir.parent),
    }
    config, table = model.config(run_dir, **flags), flags_of(Config)
    names = ("pretrain", "prompt_data", "run_dir", "input_key", "label_key", "generate_max_len")
    argv = to_argv({name: table[name].value_in(config) for name in names} | flags)
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as ray_directory:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "WANDB_"))}
        ended = subprocess.run(
            [sys.executable, "-m", "trainer", *argv],
            env=inherited | {"RAY_TMPDIR": ray_directory, "OMP_NUM_THREADS": "1", "LD_PRELOAD": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    assert ended.returncode == ExitCode.FINISHED, ended.stdout[-5000:]
    rows = metric_rows(config)
    assert len(rows) == 15
    for row in rows:
        assert row["train/ratio"] == pytest.approx(1, abs=1e-3)
        assert row["train/vllm_kl"] == pytest.approx(0, abs=1e-3)
        assert row["train/is_filter_ratio"] == 0
    assert rows[0]["train/reward"] < 0.2
    assert rows[-1]["train/reward"] > 0.5


def write_bandit(directory: Path) -> Path:
    file = directory / "bandit.py"
    file.write_text(
        "def reward_func(queries, prompts, labels):\n"
        "    answers = [q[len(p):] for q, p in zip(queries, prompts)]\n"
        "    return {'rewards': [a.count('1') / max(1, len(a)) for a in answers]}\n"
    )
    return file


def test_a_reply_to_a_context_has_its_own_limit_and_stop_strings(engine: HFEngine) -> None:
    sampling = replace(SAMPLING, temperature=1.0)
    seeds = tuple(range(30))
    all_written = engine.generate([Request("12+30=", seeds)], sampling)
    seed, whole = max(enumerate(all_written), key=lambda one: one[1].length)
    assert whole.length > 6
    tokens = tuple(whole.tokens[~whole.action_mask].tolist())
    stop = whole.text[4:6]

    def written(context: Context) -> Completion:
        partial = [PartialRollout((9, 0), "", seed, context=context)]
        ended: list[FinishedRollout] = []
        while not ended:
            ended, partial = engine.write(partial, sampling, 0.01).ended, []
        return ended[0].completion

    assert written(Context(tokens, 20)).tokens.tolist() == whole.tokens.tolist()
    assert written(Context(tokens, 3)).length == 3
    stopped = written(Context(tokens, 20, ("never", stop)))
    assert stopped.text == whole.text[: whole.text.index(stop) + 2]
    assert stopped.finished
    assert len(stopped.tokens) == len(stopped.versions) == len(stopped.log_probs)
    (at_once,) = engine.generate([Request("", (seed,), Context(tokens, 20, (stop,)))], sampling)
    assert at_once.text == stopped.text
