"""bench.gpu trains as `plan` chooses for the GPU, and as its flags say."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import gpu
from trainer.config.config import Config

H100 = ("NVIDIA H100 80GB HBM3", 80 * 10**9)


def planned(directory: Path, *words: str, model: str = "0.5B") -> Config:
    arguments = gpu._parser().parse_args(["--model", model, *words])
    load = replace(gpu.ON_GPU[model], lora=arguments.lora)
    return gpu.planned(directory / "model", load, gpu.flags_of(arguments, on_gpu=True), H100)


def test_its_default_is_what_the_plan_chooses(tmp_path: Path) -> None:
    config = planned(tmp_path)
    assert config.packing_samples
    assert config.mixed_precision
    assert config.train.max_tokens == 32_768
    assert config.longest_sample == 2_048


@pytest.mark.parametrize(
    ("words", "packed", "samples", "tokens"),
    [
        (("--ragged", "--padded", "--micro", "2"), False, 2, None),
        (("--ragged", "--micro", "2"), True, 2, None),
        (("--ragged", "--tokens", "16384", "--liger"), True, 8, 16_384),
    ],
)
def test_a_flag_takes_the_place_of_a_choice(
    tmp_path: Path, words: tuple[str, ...], packed: bool, samples: int, tokens: int | None
) -> None:
    config = planned(tmp_path, *words)
    assert config.packing_samples == packed
    assert (config.train.micro_train_batch_size, config.train.max_tokens) == (samples, tokens)
    assert config.use_liger_kernel == ("--liger" in words)


def test_a_model_without_room_is_refused_before_its_weights_are_written(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="Give --lora, or a smaller --model"):
        planned(tmp_path, model="7B")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["config.json"]
    (tmp_path / "lora").mkdir()
    assert planned(tmp_path / "lora", "--lora", "16", model="7B").lora.rank == 16


def test_padding_is_no_work_of_the_model() -> None:
    even, ragged = gpu.ON_CPU, replace(gpu.ON_CPU, ragged=True)
    assert sorted(ragged.lengths) == [16, 32, 48, 64, 80, 96, 112, 128]
    each, attention = 6 * even.multiplying, 12 * even.layers * even.hidden / 2
    assert even.operations == 8 * (each * 128 + attention * 128**2)
    assert ragged.operations == each * 576 + attention * sum(n**2 for n in range(16, 129, 16))


@pytest.mark.parametrize(
    ("words", "passes", "attention"),
    [
        ((), 1, "samples packed, attention by sdpa, which pads them"),
        (("--ragged", "--padded", "--micro", "2"), 4, "samples padded, attention by sdpa"),
        (("--ragged", "--tokens", "200"), 4, "samples packed, attention by sdpa, which pads them"),
    ],
)
def test_without_a_gpu_a_tiny_model_is_trained(
    words: tuple[str, ...],
    passes: int,
    attention: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.gpu", *words])
    monkeypatch.setattr(gpu, "WARM", 0)
    monkeypatch.setattr(gpu, "UPDATES", 1)
    monkeypatch.setattr(gpu, "peak_of", lambda torch: ("CPU", 0.1, gpu.NO_GPU))
    assert gpu.main() == 0
    row: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert row["ok"] is None
    assert (row["detail"]["passes"], row["detail"]["attention"]) == (passes, attention)
    assert row["detail"]["tokens"] == (576 if "--ragged" in words else 1024)
