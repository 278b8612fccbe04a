"""On GPUs the passes of a run are packed, and take the fastest kernels that are installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contract.resources import NodeResources
from trainer.cluster.auto_layout import kernels
from trainer.cluster.auto_layout.api import complete
from trainer.cluster.model_size import named_size
from trainer.cluster.resource_plan import row
from trainer.config.config import Config
from trainer.config.parse import named_in, parse

SIZE = named_size("Qwen2.5-0.5B")
KERNELS = ("packing_samples", "use_liger_kernel", "attn_implementation")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The packages that are installed."""
    found: set[str] = set()
    monkeypatch.setattr(kernels, "find_spec", lambda name: object() if name in found else None)
    return found


def model(directory: Path, **shape: Any) -> str:
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen2"} | shape))
    return str(directory)


def chosen(model: str, *flags: str, gpu: str = "H100", gpus: int = 1) -> tuple[Config, list[str]]:
    argv = ["--pretrain", model, "--prompt_data", "a/b", "--remote_rm_url", "arithmetic"]
    argv += ["--run_dir", "/run", *flags]
    nodes = [NodeResources(name="n", gpus=gpus, gpu_memory=80 * 10**9, cpus=32, gpu_model=gpu)]
    choice = complete(parse(argv, incomplete=True), named_in(argv), nodes, lambda _: SIZE)
    return parse([*argv, *choice.words]), [*choice.reasons]


def test_samples_are_packed_and_liger_is_taken_where_it_is_installed(
    tmp_path: Path, installed: set[str]
) -> None:
    name = model(tmp_path)
    config, reasons = chosen(name)
    assert (config.packing_samples, config.use_liger_kernel) == (True, False)
    assert any("liger-kernel is not installed here" in reason for reason in reasons)
    installed |= {"liger_kernel", "flash_attn"}
    config, reasons = chosen(name)
    assert (config.packing_samples, config.use_liger_kernel) == (True, True)
    assert config.attn_implementation is None
    assert any(reason.endswith("Liger's kernels are installed") for reason in reasons)
    said = "samples packed, attention by torch's flash kernels, Liger's kernels"
    assert kernels.sentence(config) == said


def test_flags_that_were_given_keep_their_values(tmp_path: Path, installed: set[str]) -> None:
    installed |= {"liger_kernel", "flash_attn"}
    no = ("--packing_samples", "false", "--use_liger_kernel", "false")
    config, reasons = chosen(model(tmp_path), *no)
    assert (config.packing_samples, config.use_liger_kernel) == (False, False)
    assert not any("Liger" in reason or "packed" in reason for reason in reasons)
    assert kernels.sentence(config) == "samples padded, attention by sdpa"


def test_without_gpus_the_defaults_stay(tmp_path: Path, installed: set[str]) -> None:
    installed |= {"liger_kernel"}
    config, _ = chosen(model(tmp_path), gpus=0)
    assert (config.packing_samples, config.use_liger_kernel) == (False, False)
    cpu = [NodeResources(name="n", cpus=8)]
    assert row(config, cpu)["kernels"] is None


def test_gpus_without_bf16_have_packed_samples_and_no_liger(
    tmp_path: Path, installed: set[str]
) -> None:
    installed |= {"liger_kernel"}
    config, _ = chosen(model(tmp_path), gpu="Tesla T4")
    assert (config.packing_samples, config.use_liger_kernel) == (True, False)
    assert kernels.sentence(config) == "samples packed, attention by sdpa"


@pytest.mark.parametrize(
    ("shape", "flags"),
    [
        ({"model_type": "mamba2"}, ()),
        ({"model_type": "qwen2_5_vl", "vision_config": {}}, ("--apply_chat_template",)),
        ({}, ("--attn_implementation", "eager")),
        ({"attn_logit_softcapping": 50.0}, ()),
    ],
)
def test_samples_that_cannot_be_packed_are_padded(
    tmp_path: Path, installed: set[str], shape: dict[str, Any], flags: tuple[str, ...]
) -> None:
    config, reasons = chosen(model(tmp_path, **shape), *flags)
    assert not config.packing_samples
    assert not any("packed" in reason for reason in reasons)
    assert kernels.sentence(config).startswith("samples padded")


def test_flash_attn_is_taken_for_a_soft_cap_that_sdpa_leaves_out(
    tmp_path: Path, installed: set[str]
) -> None:
    name = model(tmp_path, model_type="gemma2", attn_logit_softcapping=50.0)
    installed |= {"flash_attn"}
    config, _ = chosen(name)
    assert (config.attn_implementation, config.packing_samples) == ("flash_attention_2", True)
    assert chosen(name, gpu="Tesla V100")[0].attn_implementation is None
    critic = tmp_path / "critic"
    critic.mkdir()
    config, _ = chosen(name, "--critic_pretrain", model(critic), "--advantage_estimator", "gae")
    assert (config.attn_implementation, config.packing_samples) == (None, False)


def test_the_plan_says_what_computes_the_passes(tmp_path: Path, installed: set[str]) -> None:
    config, _ = chosen(model(tmp_path))
    node = [NodeResources(name="n", gpus=1, gpu_memory=80 * 10**9, cpus=32)]
    assert row(config, node)["kernels"] == "samples packed, attention by torch's flash kernels"
