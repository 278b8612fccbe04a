"""The registry of recipes, a line each: the name, and the facts that settings are checked by.

A recipe's folder, `entrypoint/job/recipes/NAME/`, has all else (`entrypoint.job.recipes.base`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contract.launch.shell_wrapping import unwrapped, without_client


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeTraits:
    own_trainer: bool = False
    """It runs a trainer of this product, in the image's Python, by that trainer's flags."""
    wandb_flag: bool = False
    """Its flag asks for the W&B key, and takes any word for it if WANDB_API_KEY has the key."""
    uploads: bool = False
    """The head uploads its checkpoints to a store (ROLLCALL_STORAGE=s3://…)."""
    reads_command: bool = False
    """It reads the words of its program: what a shell or a client has around them is left out."""
    bare_workers: bool = False
    """Its workers import nothing but Ray before they register with Ray."""
    keeps_to_nodes: bool = False
    """It starts processes only on the nodes that the head names, and leaves spares alone."""
    may_lack_a_job: bool = False
    """Nobody need have named it: without a job, nothing was asked for."""


RECIPES: Mapping[str, RecipeTraits] = {
    "builtin": RecipeTraits(
        own_trainer=True,
        wandb_flag=True,
        uploads=True,
        bare_workers=True,
        keeps_to_nodes=True,
        may_lack_a_job=True,
    ),
    "command": RecipeTraits(),
    "openrlhf": RecipeTraits(wandb_flag=True, reads_command=True),
    "search-r1": RecipeTraits(reads_command=True),
    "supervised": RecipeTraits(own_trainer=True, wandb_flag=True, keeps_to_nodes=True),
    "torchrun": RecipeTraits(reads_command=True, keeps_to_nodes=True),
    "trl": RecipeTraits(reads_command=True, keeps_to_nodes=True),
    "verl": RecipeTraits(reads_command=True),
    "verl-sft": RecipeTraits(reads_command=True, keeps_to_nodes=True),
}
BUILTIN, SUPERVISED = "builtin", "supervised"
"""The default, and the recipe of `rollcall sft`, `rm` and `dpo`."""
ANY = "command"
"""The recipe of a program that no other one knows."""


def command_of(recipe: str, words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a job's words as its recipe reads them, and those around them without an effect."""
    if RECIPES[recipe].own_trainer:
        return tuple(words), ()
    found = unwrapped(words) if RECIPES[recipe].reads_command else without_client(words)
    return tuple(found.words), found.dropped
