"""What no message, no journal and no page may show, and how it is masked there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "********"
SECRET_NAME = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)$", re.IGNORECASE)
SECRET_OPTION = re.compile(
    r"((?<![\w.+/-])(?:-[\w.+/-]*{0}\s+|[\w.+/-]*{0}\s*=\s*))"
    r"""(?!-)("[^"]*"|'[^']*'|\S+)""".format("(?:key|token|secret|password|passwd|use_wandb)"),
    re.IGNORECASE,
)
SHORTEST_SECRET = 6
"""Shorter ones, `true` for one, would be masked in the middle of other words."""
URL_PASSWORD = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")
NOT_SECRET_OPTION = re.compile(r"(?:input|label|output|metric|prompt|images?)_key", re.IGNORECASE)


def secret_texts(environ: Mapping[str, str]) -> frozenset[str]:
    """The values in `environ` that must not be shown, judged by their variables' names."""
    return frozenset(text.strip() for name, text in environ.items() if SECRET_NAME.search(name))


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` with `secrets`, URL passwords and the values of key and token options masked."""
    for known in sorted(secrets, key=len, reverse=True):
        if len(known) >= SHORTEST_SECRET:
            text = text.replace(known, MASK)
    text = URL_PASSWORD.sub(rf"\1:{MASK}@", text)
    return SECRET_OPTION.sub(_masked_option, text)


def _masked_option(match: re.Match[str]) -> str:
    return match[0] if NOT_SECRET_OPTION.search(match[1]) else match[1] + MASK


def redact_all(value: Any, secrets: Iterable[str] = ()) -> Any:
    """`value`, as JSON has it, with every text in it redacted."""
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, Mapping):
        return {key: redact_all(one, secrets) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [redact_all(one, secrets) for one in value]
    return value
