from __future__ import annotations

from typing import Any

import pytest
from transformers import Trainer


@pytest.fixture
def trainers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The trainers of TRL that have trained."""
    trainers: list[Any] = []
    train = Trainer.train

    def recorded(trainer: Trainer, **given: Any) -> object:
        trainers.append(trainer)
        return train(trainer, **given)

    monkeypatch.setattr(Trainer, "train", recorded)
    return trainers
