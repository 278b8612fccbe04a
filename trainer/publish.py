"""The policy's newest weights to every rollout engine."""

from __future__ import annotations

from trainer.actors.base import Policy
from trainer.actors.group import Group
from trainer.engines.base import Engine


def weights(policy: Group[Policy], engines: Group[Engine], version: int) -> None:
    """Returns once every engine has them; they travel from actor to actor, not through here."""
    newest = policy.all(Policy.weights)[0]  # sharded ones are gathered by all ranks together
    for loaded in engines.all(Engine.load, newest.handle, version):
        loaded.result()
