"""What a run is: `RUN/run.json`, written at its first start, and how a later command differs."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from contract.files import stored_json
from contract.journal import timestamp
from contract.manifest import kept_run_id
from contract.redaction import redact_all
from contract.run_dir import RunFiles, write_atomically
from entrypoint.config.settings import Settings
from entrypoint.job import command_identity
from entrypoint.job.recipes import base as recipes
from entrypoint.machine.inventory import versions
from entrypoint.run import run_began
from entrypoint.run.journal import Journal

log = logging.getLogger(__name__)


def identify(settings: Settings, run: RunFiles) -> Mapping[str, Any]:
    """Return what the run was begun with; write run.json at the run's first start."""
    row = _begun(run)
    if row is None:
        recipe, command = recipes.load(settings.recipe), _shown(settings)
        flags = redact_all(dict(recipe.flags(settings)), settings.secrets)
        words = [f"--{name}={flags[name]}" for name in flags]
        row = {
            "run_id": kept_run_id(run) or uuid.uuid4().hex,
            "recipe": settings.recipe,
            "fingerprint": command_identity.fingerprint(settings),
            "command": command,
            "flags": flags or _options(command),
            "model": recipe.model_name(words) or recipe.model_name(command),
            "versions": versions(settings),
            "created": timestamp(run_began.seconds(run.root)),
        }
        _write(run, {**row, "name": settings.name})
    elif settings.name not in ("", row.get("name")):
        _write(run, {**row, "name": settings.name})  # a start with another name gives it
    return row


def _write(run: RunFiles, row: Mapping[str, Any]) -> None:
    write_atomically(run.run, json.dumps(row, indent=1) + "\n")


def _begun(run: RunFiles) -> dict[str, Any] | None:
    """Return run.json as the first head wrote it; None if it is missing or damaged."""
    try:
        row = stored_json.json_object(run.run)
    except FileNotFoundError:
        return None
    if row is not None and "fingerprint" not in row and "recipe" in row:
        return None  # a trainer without a head has begun it
    if row is None or not isinstance(row.get("fingerprint"), str):
        log.warning("%s is damaged: it is replaced, as if the run began now", run.run)
        return None
    return row


def _shown(settings: Settings) -> list[str]:
    """Return the job's words with secrets masked."""
    words: list[str] = redact_all(list(settings.job), settings.secrets)
    return words


def record_difference(settings: Settings, begun: Mapping[str, Any], journal: Journal) -> None:
    """Record in the journal how this command differs from the one that began the run, if it does.

    `begun`: what `identify` returned.
    """
    fingerprint = command_identity.fingerprint(settings)
    if command_identity.is_same(begun["fingerprint"], fingerprint):
        return
    before, now = begun.get("command"), _shown(settings)
    changed: Mapping[str, str] = {}
    if command_identity.has_same_words(begun["fingerprint"], fingerprint):
        differs = ["the file of --config has other content"]
    elif begun.get("recipe") != settings.recipe:
        differs = [f"the recipe was {begun.get('recipe')} and is {settings.recipe}"]
    elif not isinstance(before, list) or not all(isinstance(word, str) for word in before):
        differs = ["its run.json does not say in what: it is of an earlier version, or damaged"]
    else:
        changed = differences(before, now)
        differs = list(changed.values()) or ["a secret, or the order of its words, is another"]
    sentence = f"this run was begun with another command: {'; '.join(differs)}"
    recipe = recipes.load(settings.recipe)
    journal.record("command", f"{sentence}. {recipe.effect(tuple(changed))}", differs=differs)


def differences(before: Sequence[str], now: Sequence[str]) -> dict[str, str]:
    """Pure: map the name of each option that differs to a sentence. "": words before any option."""
    old, new = _options(before), _options(now)
    sentences = {}
    if (first := old.pop("", "")) != (is_now := new.pop("", "")):
        sentences[""] = f"its first words were {first or 'none'} and are {is_now or 'none'}"
    for name in dict.fromkeys((*old, *new)):
        if name not in old:
            sentences[name] = f"--{name} {new[name]}".rstrip() + " is new"
        elif name not in new:
            sentences[name] = f"--{name} {old[name]}".rstrip() + " is not given any more"
        elif old[name] != new[name]:
            sentences[name] = f"--{name} was {old[name] or 'bare'} and is {new[name] or 'bare'}"
    return sentences


def _options(words: Sequence[str]) -> dict[str, str]:
    """Map the name of each option to all its values."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            found.setdefault(name, [])
            found[name] += [value] if equals else []
        else:
            found.setdefault(name, []).append(word)
    return {name: " ".join(values) for name, values in found.items()}
