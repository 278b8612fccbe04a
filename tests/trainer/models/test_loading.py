"""Models on one machine share its threads, and the pages of the files that they read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.tiny_run import Tiny
from trainer.models.loading import load_causal_lm, share_threads


def test_models_that_compute_at_the_same_time_share_the_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    shares = []
    try:
        for concurrent_models in (1, 2, 3, 16):
            share_threads(concurrent_models)
            shares.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
    assert shares == [8, 4, 2, 1]


@pytest.mark.parametrize(
    ("flags", "scoring", "training"),
    [
        ({"advantage_estimator": "gae"}, 3, 2),
        ({"advantage_estimator": "gae", "init_kl_coef": 0, "train_batch_size": 8}, 1, 2),
        ({"advantage_estimator": "rloo", "use_kl_loss": True, "train_batch_size": 8}, 1, 1),
    ],
)
def test_who_computes_at_the_same_time_follows_from_the_flags(
    tiny: Tiny, run_dir: Path, flags: dict[str, object], scoring: int, training: int
) -> None:
    config = tiny.config(run_dir, **flags)
    assert (config.concurrent_scoring, config.concurrent_training) == (scoring, training)


def test_weights_that_are_read_in_the_type_of_their_file_stay_pages_of_it(tiny: Tiny) -> None:
    """So the ranks of a node hold them once, however many read them."""
    (file,) = tiny.model.glob("*.safetensors")
    model = load_causal_lm(str(tiny.model), torch.float32)
    mapped = [
        range(*(int(end, 16) for end in line.split()[0].split("-")))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(file.resolve()))
    ]
    assert mapped
    for name, parameter in model.named_parameters():
        assert any(parameter.data_ptr() in place for place in mapped), name
