"""What no message, no journal and no page may show, and how it is masked there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MASK = "********"
SECRET_NAME = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)$", re.IGNORECASE)
OPTION = r"[\w.+/-]*(?:key|token|secret|password|passwd|use_wandb)"
QUOTE = r"""\\?["']"""
"""With a backslash where the text is itself part of a JSON text."""
BARE = r"""\S+?(?=[\\"',;)\]}]*(?:\s|\Z))"""
"""A word without the punctuation after it."""
SECRET_OPTION = re.compile(
    rf"""(?<![\w.+/-])(?P<told>
        -{OPTION}\s+                            # --token abc
      | {OPTION}\s*=\s*                         # token=abc
      | (?P<word>{QUOTE})-{OPTION}(?P=word)\s*,\s*  # '--token', 'abc': a command line as a list
      | (?P<name>{QUOTE}){OPTION}(?P=name)\s*:\s*   # "token": "abc"
    )(?!{QUOTE}?-)
    (?P<value>(?P<quote>{QUOTE})[^"']*(?P=quote) | (?(word)(?!)|(?(name)(?!)|{BARE})))""",
    re.IGNORECASE | re.VERBOSE,
)
SHORTEST_SECRET = 6
"""Shorter ones, `true` for one, would be masked in the middle of other words."""
URL_PASSWORD = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")
COLUMNS = (
    *("answer", "audio", "chosen", "column", "completion", "content", "context", "conversation"),
    *("feature", "field", "ground_truth", "group", "history", "id", "image", "index", "input"),
    *("instruction", "label", "message", "metric", "output", "prompt", "query", "question"),
    *("reference", "rejected", "response", "reward", "reward_fn", "role", "sample", "score"),
    *("sort", "source", "split", "system", "target", "text", "tool", "video"),
)
"""What a data set's columns hold: `--chosen_key` names one, and is no secret."""
SPECIAL_TOKENS = (
    *("audio", "bos", "cls", "end", "eos", "eot", "image", "mask", "pad", "placeholder", "sep"),
    *("special", "start", "step", "stop", "think", "unk", "video", "vision"),
)
"""Of a tokenizer: `--eos_token` is no secret."""
NOT_SECRET_OPTION = re.compile(
    rf"(?:^|[\W_])(?:(?:{'|'.join(COLUMNS)})s?[_-]key|(?:{'|'.join(SPECIAL_TOKENS)})[_-]token)$",
    re.IGNORECASE,
)


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
    if NOT_SECRET_OPTION.search(match["told"].rstrip(" \t\r\n=,:\"'\\")):
        return match[0]
    listed = match["word"] or match["name"]
    quote = match["quote"] if listed else ""
    return f"{match['told']}{quote}{MASK}{quote}"


def redact_all(value: Any, secrets: Iterable[str] = ()) -> Any:
    """`value`, as JSON has it, with every text in it redacted; in a list, as a command line is
    kept, also the word after an option of a secret's name."""
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, Mapping):
        return {
            key: _after(str(key), one) or redact_all(one, secrets) for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        masked = (_after_option(value, at) for at in range(len(value)))
        return [mask or redact_all(one, secrets) for mask, one in zip(masked, value, strict=True)]
    return value


def _after_option(words: Sequence[Any], at: int) -> str | None:
    """MASK where the word at `at` is the value of the secret option before it."""
    before = words[at - 1] if at else None
    return _after(before, words[at]) if isinstance(before, str) and before[:1] == "-" else None


def _after(name: str, value: Any) -> str | None:
    if not isinstance(value, str) or value[:1] in ("", "-"):
        return None
    named = re.fullmatch(OPTION, name, re.IGNORECASE) and not NOT_SECRET_OPTION.search(name)
    return MASK if named else None
