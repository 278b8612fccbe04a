"""Whether a run has nothing left to do, told by its files: then nothing is started. Torch-free."""

from __future__ import annotations

from contract import lease
from contract.files import stored_json
from contract.launch.model_digests import ModelDigests, OtherModelError
from contract.lease import SupersededError
from contract.manifest import lineage_of, newest_checkpoint
from contract.progress import Progress
from trainer.config import model_files, planned_steps
from trainer.config.config import Config


def of(config: Config) -> Progress | None:
    """Return the progress of a run that has all steps, their evaluation and their models.

    None if that is not sure, or an attempt would be refused: then the attempt says it. Raises
    OSError.
    """
    told = Progress.read(config.files.progress)
    if told is None or not told.step or config.load_step or config.hub_model_id:
        return None
    steps, _ = planned_steps.of(config)
    evaluated = config.eval_dataset is None or told.eval_step == told.step
    if steps is None or steps > told.step or not evaluated or not _ended(config, told.step):
        return None
    try:
        saved = compare_models(config)
    except (OtherModelError, SupersededError):
        return None
    return told if saved == told.step and _is_exported(config) else None


def compare_models(config: Config) -> int | None:
    """Return the step of the newest checkpoint, None if there is none.

    Raises OtherModelError if a model has other weights than the run was begun with.
    """
    lease.check(lease.mine())
    files, told = config.files, Progress.read(config.files.progress)
    ours = lineage_of(files)
    saved = newest_checkpoint(config.checkpoints, checksums=False, lineage=ours)
    ModelDigests(files).compare(config.models, begun=bool(saved or (told and told.step)))
    return saved


def _ended(config: Config, step: int) -> bool:
    """Return whether the newest attempt has ended after this step, with its models exported."""
    try:
        row = stored_json.json_object(config.files.result) or {}
    except FileNotFoundError:
        return False
    return row.get("outcome") == "finished" and row.get("steps") == step


def _is_exported(config: Config) -> bool:
    critic = config.has_critic and config.save_value_network
    return all(
        model.is_dir()
        and not any(model_files.faults(model, tokenizer=True, images=True, trained=True))
        for model in (config.exported, *([config.exported_critic] if critic else []))
    )
