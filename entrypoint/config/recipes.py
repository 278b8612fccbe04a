"""The registry of recipes, a line each: the name, and the facts that settings are checked by.

A recipe's folder, `entrypoint/job/recipes/NAME/`, has all else (`entrypoint.job.recipes.base`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeTraits:
    own_trainer: bool = False
    """It runs a trainer of this product, in the image's Python, by that trainer's flags."""
    wandb_flag: bool = False
    """Its flag asks for the W&B key, and takes any word for it if WANDB_API_KEY has the key."""
    uploads: bool = False
    """The head uploads its checkpoints to a store (ROLLCALL_STORAGE=s3://…)."""
    bare_workers: bool = False
    """Its workers import nothing but Ray before they register with Ray."""
    may_lack_a_job: bool = False
    """Nobody need have named it: without a job, nothing was asked for."""


RECIPES: Mapping[str, RecipeTraits] = {
    "builtin": RecipeTraits(
        own_trainer=True, wandb_flag=True, uploads=True, bare_workers=True, may_lack_a_job=True
    ),
    "command": RecipeTraits(),
    "openrlhf": RecipeTraits(wandb_flag=True),
    "search-r1": RecipeTraits(),
    "supervised": RecipeTraits(own_trainer=True, wandb_flag=True),
    "torchrun": RecipeTraits(),
    "trl": RecipeTraits(),
    "verl": RecipeTraits(),
}
BUILTIN, SUPERVISED = "builtin", "supervised"
"""The default, and the recipe of `rollcall sft`, `rm` and `dpo`."""
