"""Pure: a plan without secrets."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from typing import Any

from contract.options import ConfigError
from contract.redaction import named_secrets, redact, secret_texts
from entrypoint.config.partly import SettingsError
from entrypoint.config.settings import Settings

SENTENCES = ("why", "job", "code", "notes", "steps", "layout", "warnings", "faults")
"""Keys of a plan whose texts may repeat what was typed."""


def masked(row: dict[str, Any], settings: Settings | ConfigError) -> dict[str, Any]:
    """Return a plan with the secrets masked that its settings and its job's words have."""
    whole = settings.settings.plain if isinstance(settings, SettingsError) else settings
    if isinstance(whole, Settings):
        words = shlex.join((*whole.around_job, *whole.job))
        secrets = whole.secrets | named_secrets(words)
    else:
        secrets = secret_texts(os.environ)
    return row | {name: _masked(row[name], secrets) for name in SENTENCES}


def _masked(value: Any, secrets: Iterable[str]) -> Any:
    """Return a JSON value with each text redacted; the names in it say nothing of secrets."""
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, dict):
        return {name: _masked(one, secrets) for name, one in value.items()}
    return [_masked(one, secrets) for one in value] if isinstance(value, list) else value
