"""The push of a model: huggingface_hub's own client against a small hub on this machine."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub.constants
import pytest

from tests.support.hub_uploads import TOKEN, HubOfUploads, hub
from trainer.models import hub_push
from trainer.models.hub_push import PushError, Repository

__all__ = ["hub"]


def waits(ticks: int) -> bool:
    return True


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "hf"
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "llama"}')
    (directory / "README.md").write_text("---\ntags: [rollcall]\n---\n# a card\n")
    (directory / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    return directory


@pytest.mark.parametrize("private", [True, False])
def test_a_push_makes_the_repository_and_uploads_every_file(
    hub: HubOfUploads, model: Path, private: bool
) -> None:
    where = hub_push.push(model, Repository("owner/model", private), waits)
    assert where == f"{hub.url}/owner/model"
    assert hub.repositories == {"owner/model": private}
    assert hub.files["owner/model"] == {file.name: file.read_bytes() for file in model.iterdir()}


def test_a_directory_beside_the_model_is_not_pushed(hub: HubOfUploads, model: Path) -> None:
    (model / "ckpt" / "global_step_3").mkdir(parents=True)
    (model / "ckpt" / "global_step_3" / "policy.pt").write_bytes(b"a checkpoint")
    hub_push.push(model, Repository("owner/model"), waits)
    assert set(hub.files["owner/model"]) == {"config.json", "README.md", "model.safetensors"}


def test_a_push_to_a_repository_that_is_there_replaces_its_files(
    hub: HubOfUploads, model: Path
) -> None:
    hub_push.push(model, Repository("owner/model"), waits)
    (model / "config.json").write_text("{}")
    hub_push.push(model, Repository("owner/model"), waits)
    assert hub.files["owner/model"]["config.json"] == b"{}"


def test_a_wrong_token_is_said_and_never_shown(
    hub: HubOfUploads, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "hf_" + "y2" * 20
    monkeypatch.setenv("HF_TOKEN", wrong)
    with pytest.raises(PushError, match="401") as raised:
        hub_push.push(model, Repository("owner/model"), waits)
    assert wrong not in str(raised.value)


def test_a_hub_that_repeats_the_token_in_its_error_does_not_put_it_into_ours(
    hub: HubOfUploads, model: Path
) -> None:
    hub.refuses = 403, f"the token {TOKEN} may not write here"
    with pytest.raises(PushError, match="may not write here") as raised:
        hub_push.push(model, Repository("owner/model"), waits)
    assert TOKEN not in str(raised.value)


def test_a_hub_that_does_not_answer_is_said(
    hub: HubOfUploads, model: Path, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{free_port}")
    with pytest.raises(PushError, match="Connect"):
        hub_push.push(model, Repository("owner/model"), waits)


def test_a_slow_push_shows_signs_of_life_until_it_is_asked_to_stop(
    hub: HubOfUploads, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_push, "TICK_SECONDS", 0.01)
    hub.slow = 5.0
    seen: list[int] = []

    def alive(ticks: int) -> bool:
        seen.append(ticks)
        return ticks < 3

    with pytest.raises(PushError, match="asked to stop"):
        hub_push.push(model, Repository("owner/model"), alive)
    assert seen == [1, 2, 3]


def test_a_push_without_end_is_given_up(
    hub: HubOfUploads, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_push, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(hub_push, "PUSH_SECONDS", 0.02)
    hub.slow = 5.0
    with pytest.raises(PushError, match=r"not there after 0\.02 s"):
        hub_push.push(model, Repository("owner/model"), waits)
