"""The secrets in a command's environment and in a run, to mask them in what it shows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from contract.options import ConfigError
from contract.redaction import named_secrets, secret_texts
from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.config.uses import Use
from entrypoint.run import token as run_token


def of(run: RunFiles, environ: Mapping[str, str]) -> frozenset[str]:
    """Return what is secret in this environment, and the run's token and its keys."""
    found = set(secret_texts(environ))
    found.update(*(named_secrets(text) for text in environ.values()))
    with suppress(ConfigError):  # who needs the settings says what is wrong
        found |= read_settings(environ, use=Use.ASK).secrets
    root = run.root.resolve()  # a relative path may hide the directories above it
    roots = (root, *root.parents[:2])  # of a job: RUN/jobs/ID
    for path in (RunFiles(root).token for root in roots):
        try:
            found.add(path.read_text(errors="replace").strip())
        except OSError:
            continue
    tokens = [secret for secret in found if len(secret) >= 16]
    keys = {key for token in tokens for key in run_token.keys(token)}
    return frozenset(found | keys)
