"""A finished run's model on the hub: what is uploaded, and what the journal says."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.progress import Phase
from tests.support.hub_uploads import TOKEN, HubOfUploads, hub
from tests.support.tiny_run import Tiny, events, train
from trainer.cluster.stop import StopRequest
from trainer.models import hub_push
from trainer.training import run

__all__ = ["hub"]


def test_the_final_model_is_pushed_with_its_card(
    tiny: Tiny, run_dir: Path, hub: HubOfUploads
) -> None:
    config = tiny.config(run_dir, max_steps=1, hub_model_id="owner/sums", hub_private_repo=True)
    run.push(config, train(config), StopRequest())
    pushed = hub.files["owner/sums"]
    assert hub.repositories == {"owner/sums": True}
    assert pushed["model.safetensors"] == (config.exported / "model.safetensors").read_bytes()
    assert "| steps | 1 |" in pushed["README.md"].decode()
    (told,) = events(config, "push")
    assert told["sentence"] == f"The model is on the hub: {hub.url}/owner/sums"


def test_a_push_that_fails_says_how_to_push_by_hand(
    tiny: Tiny, run_dir: Path, hub: HubOfUploads
) -> None:
    config = tiny.config(run_dir, max_steps=1, hub_model_id="owner/sums")
    state = train(config)
    hub.refuses = 500, f"no disk, {TOKEN}"
    run.push(config, state, StopRequest())
    (told,) = events(config, "push-failed")
    assert f"`hf upload owner/sums {config.exported}` pushes it by hand." in told["sentence"]
    assert TOKEN not in config.files.journal.read_text()
    assert (config.exported / "README.md").exists()


def test_a_slow_push_writes_signs_of_life(
    tiny: Tiny, run_dir: Path, hub: HubOfUploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_push, "TICK_SECONDS", 0.02)
    hub.slow = 0.2
    config = tiny.config(run_dir, max_steps=1, hub_model_id="owner/sums")
    run.push(config, train(config), StopRequest())
    phase = Phase.read(config.files.phase)
    assert phase
    assert (phase.step, phase.done) == (1, "push")
    assert phase.count > 1
