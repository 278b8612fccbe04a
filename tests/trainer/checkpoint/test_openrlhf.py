"""A run goes on from what OpenRLHF has left: written here by DeepSpeed, in its layout."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, get_scheduler

from contract.exit_codes import ExitCode
from contract.manifest import checkpoint_path, newest_checkpoint
from tests.support.tiny_run import Tiny, events, train
from trainer.checkpoint import openrlhf
from trainer.checkpoint.resume import ResumeError
from trainer.cluster import rendezvous
from trainer.config.config import Config
from trainer.import_openrlhf import TRUST, convert, main
from trainer.types import UnreadableCheckpointError

Tensors = dict[str, torch.Tensor]
UPDATES = 3
CLIENT = {"episode": 1, "global_step": 6, "total_consumed_prompts": 26, "data_loader_state_dict": 0}
UNDECAYED = ("bias", "layer_norm.weight", "layernorm.weight", "norm.weight", "ln_f.weight")


class TheirCritic(nn.Module):
    """Names as in OpenRLHF's critics: the backbone is `model`, its head `score`."""

    def __init__(self, source: Path) -> None:
        super().__init__()
        self.model = AutoModel.from_pretrained(source, dtype=torch.float32)
        self.score = nn.Linear(self.model.config.hidden_size, 1, bias=False)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.score(self.model(tokens).last_hidden_state)


def write(
    model: nn.Module, folder: Path, stage: int, bf16: bool, client: dict[str, Any]
) -> tuple[Tensors, Tensors]:
    """Train with DeepSpeed as OpenRLHF sets it up, save. Returns fp32 weights, first moments."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    rendezvous.alone()
    named = list(model.named_parameters())
    order = [
        [(n, p) for n, p in named if any(u in n for u in UNDECAYED) is undecayed]
        for undecayed in (False, True)
    ]
    groups = [{"params": [p for _, p in group]} for group in order]
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        model_parameters=groups,
        lr_scheduler=lambda adam: get_scheduler("linear", adam, 2, 20),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": stage},
            "bf16": {"enabled": bf16},
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
            "zero_force_ds_cpu_optimizer": False,
        },
    )
    for update in range(UPDATES):
        out = engine(torch.arange(update, update + 8).view(2, 4))
        engine.backward(getattr(out, "logits", out).float().square().mean())
        engine.step()
    engine.save_checkpoint(str(folder), tag="global_step6", client_state=client)
    if stage == 3:
        return (
            {name: safe_get_full_fp32_param(p).clone() for name, p in named},
            {name: safe_get_full_optimizer_state(p, "exp_avg").clone() for name, p in named},
        )
    return held_by(engine.optimizer, order, stage)


def held_by(
    optimizer: Any, order: Sequence[Sequence[tuple[str, torch.Tensor]]], stage: int
) -> tuple[Tensors, Tensors]:
    """What one rank's optimizer has of each parameter; DeepSpeed lays a group's end to end."""
    states = getattr(optimizer, "optimizer", optimizer).state
    weights, moments = {}, {}
    for number, group in enumerate(order):
        if stage:
            flat = optimizer.single_partition_of_fp32_groups[number]
            sizes = [p.numel() for _, p in group]
            parts = [flat, states[flat]["exp_avg"]]
            cut = [part[: sum(sizes)].detach().clone().split(sizes) for part in parts]
        else:
            masters = getattr(optimizer, "fp32_groups", [[p for _, p in one] for one in order])
            cut = [
                [master.detach().clone() for master in masters[number]],
                [states[master]["exp_avg"].clone() for master in masters[number]],
            ]
        for (name, p), weight, moment in zip(group, *cut, strict=True):
            weights[name], moments[name] = weight.view(p.shape), moment.view(p.shape)
    return weights, moments


@pytest.mark.parametrize(
    ("stage", "bf16"), [(0, False), (0, True), (1, True), (2, True), (3, False), (3, True)]
)
def test_weights_moments_and_position_are_those_of_deepspeeds_files(
    tiny: Tiny, tmp_path: Path, stage: int, bf16: bool
) -> None:
    from trainer.checkpoint import openrlhf_deepspeed

    theirs = {
        "policy": AutoModelForCausalLM.from_pretrained(tiny.model, dtype=torch.float32),
        "critic": TheirCritic(tiny.model),
    }
    for role, model in theirs.items():
        client = CLIENT if role == "policy" else {}
        weights, moments = write(model, tmp_path / openrlhf.FOLDERS[role], stage, bf16, client)
        found = openrlhf.find(tmp_path, [role])
        state, position = openrlhf_deepspeed.load(found[role], role)
        assert position == (openrlhf.OpenRLHFProgress(6, 26) if role == "policy" else None)
        assert state.scheduler == {"last_epoch": UPDATES}
        for name, value in weights.items():
            ours = name
            if role == "critic":
                ours = name.replace("model.", "backbone.", 1).replace("score", "value_head")
            torch.testing.assert_close(state.model[ours], value, rtol=0, atol=0)
            torch.testing.assert_close(state.adam[ours]["exp_avg"], moments[name], rtol=0, atol=0)
            # Its optimizer of bf16 without ZeRO begins with an update of zeros.
            assert state.adam[ours]["step"].item() == UPDATES + (stage == 0 and bf16)


def test_a_run_goes_on_where_openrlhfs_was(tiny: Tiny, run_dir: Path, tmp_path: Path) -> None:
    config = theirs_to_resume(tiny, run_dir, tmp_path)
    assert convert(tmp_path / "theirs", config) == checkpoint_path(config.checkpoints, 6)
    state = train(config)
    assert state.step == 7
    (restored,) = events(config, "restore")
    assert restored["details"]["step"] == 6
    assert events(config, "resume")[0]["details"]["step"] == 6
    assert (state.prompts["epoch"], state.prompts["position"]) == (1, 2 + 4)  # 24 in an epoch
    saved = torch.load(checkpoint_path(config.checkpoints, 7) / "policy.pt", weights_only=True)
    made = {float(held["step"]) for held in saved["adam"].values()}
    assert made == {UPDATES + config.updates_per_step}


def theirs_to_resume(tiny: Tiny, run_dir: Path, tmp_path: Path) -> Config:
    model = AutoModelForCausalLM.from_pretrained(tiny.model, dtype=torch.float32)
    write(model, tmp_path / "theirs" / "_actor", 2, True, CLIENT)
    return tiny.config(
        run_dir,
        load_checkpoint=True,
        advantage_estimator="group_norm",
        max_steps=7,
    )


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda d: (d / "latest").unlink(), "has no file latest.*holds global_step6.*Write the"),
        (lambda d: (d / "latest").write_text("global_step8"), "global_step8 is missing"),
        (lambda d: (d / "global_step6/mp_rank_00_model_states.pt").unlink(), "no .*model_states"),
        (
            lambda d: next((d / "global_step6").glob("*optim_states.pt")).unlink(),
            "can't find .*optim_states.pt",
        ),
        (
            lambda d: (d / "global_step6/mp_rank_00_model_states.pt").write_bytes(b"torn"),
            "/_actor/global_step6/mp_rank_00_model_states.pt: ",
        ),
    ],
)
def test_what_is_missing_is_named(
    tiny: Tiny, run_dir: Path, tmp_path: Path, damage: Callable[[Path], Any], said: str
) -> None:
    config = theirs_to_resume(tiny, run_dir, tmp_path)
    damage(tmp_path / "theirs" / "_actor")
    with pytest.raises((openrlhf.IncompleteError, UnreadableCheckpointError), match=said):
        convert(tmp_path / "theirs", config)
    assert newest_checkpoint(config.checkpoints) is None


@pytest.mark.parametrize("of", ["model", "optim"])
@pytest.mark.parametrize("content", [b"torn", b"", b"PK\x03\x04 torn", b"pickled"])
def test_the_damaged_one_of_several_files_is_named(
    tiny: Tiny, run_dir: Path, tmp_path: Path, of: str, content: bytes
) -> None:
    config = theirs_to_resume(tiny, run_dir, tmp_path)
    files = sorted((tmp_path / "theirs" / "_actor" / "global_step6").glob(f"*{of}_states.pt"))
    second = files[0].with_name(files[0].name.replace("rank_0", "rank_1"))
    second.write_bytes(content)
    if content == b"pickled":
        torch.save({"of": "another program"}, second)
    with pytest.raises(UnreadableCheckpointError, match=f"^{re.escape(str(second))}: "):
        convert(tmp_path / "theirs", config)


def test_a_run_over_openrlhfs_files_names_the_converter(tiny: Tiny, run_dir: Path) -> None:
    (run_dir / "checkpoints" / "_actor").mkdir(parents=True)
    with pytest.raises(ResumeError, match=r"--ckpt_path: .*python -m trainer.import_openrlhf"):
        train(tiny.config(run_dir, load_checkpoint=True))


def test_a_run_that_has_a_checkpoint_takes_no_other(
    tiny: Tiny, run_dir: Path, tmp_path: Path
) -> None:
    config = theirs_to_resume(tiny, run_dir, tmp_path)
    convert(tmp_path / "theirs", config)
    with pytest.raises(openrlhf.IncompleteError, match="a checkpoint of step 6 already"):
        convert(tmp_path / "theirs", config)


def test_the_converter_is_a_program(
    tiny: Tiny, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--help"]) == 0
    assert main([]) == main([str(tmp_path), TRUST, "--wrong"]) == ExitCode.USAGE
    assert "unknown flag" in capsys.readouterr().err


def test_actor_and_critic_of_different_steps_are_refused(tmp_path: Path) -> None:
    for folder, step in (("_actor", 6), ("_critic", 4)):
        directory = tmp_path / folder / f"global_step{step}"
        directory.mkdir(parents=True)
        (directory / "mp_rank_00_model_states.pt").touch()
        (tmp_path / folder / "latest").write_text(directory.name)
    with pytest.raises(ValueError, match="different steps"):
        openrlhf.find(tmp_path, ["policy", "critic"])
