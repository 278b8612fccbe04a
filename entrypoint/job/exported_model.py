"""Makes RUN/hf a link to the trained model that a framework has left elsewhere."""

from __future__ import annotations

import logging

from contract import lease
from contract.journal import EXPORT
from entrypoint.config.settings import Settings
from entrypoint.job import checkpoint_files
from entrypoint.job.recipes import base as recipes
from entrypoint.job.run_context import RunContext
from entrypoint.run import errors

log = logging.getLogger(__name__)


def show(run: RunContext) -> None:
    """Link the model of a job that has finished, and record it.

    If the storage takes no link, a warning says so: the model is where it was. Raises
    SupersededError.
    """
    try:
        lease.check(run.journal.claim)
        model = run.recipe.exported(run.settings)
        if model is not None and run.files.link_exported(model):
            run.journal.record(EXPORT, f"{run.files.exported} is the trained model, {model}")
    except OSError as error:
        log.warning("%s is not a link to the model: %s", run.files.exported, errors.describe(error))


def lost(settings: Settings) -> str:
    """Return what is wrong with the model of a run that has finished; "" if it is there.

    It is not asked of a run whose model is in the store, or of a recipe that does not know.
    """
    recipe = recipes.load(settings.recipe)
    place = recipe.model_place(settings)
    if settings.store or place is None or checkpoint_files.is_model(place):
        return ""
    return f"its model in {place} is gone, or not whole: it is written again"
