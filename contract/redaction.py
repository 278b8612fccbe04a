"""What no message, no journal and no page may show, and how it is masked there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MASK = "********"
SECRET_NAME = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)$", re.IGNORECASE)
OPTION = r"[\w.+/-]*(?:key|token|secret|password|passwd|use_wandb)"
QUOTE = r"""\\*["']"""
"""With backslashes where the text is itself part of a JSON text."""
SECRET_OPTION = re.compile(
    rf"""
      (?<![\w.+/-])-{OPTION}\s+(?!\s|(?:{QUOTE})?-)    # --token abc
    | (?<!\\)(?P<open>{QUOTE}){OPTION}\s*=             # '--token=a b'
    | (?<![\w.+/-]){OPTION}\s*=\s*(?!\s)               # token=abc
    | (?<!\\)(?P<name>{QUOTE})(?:
          -{OPTION}(?P=name)\s*,\s*(?!{QUOTE}-)        # '--token', 'abc': a command line as a list
        | {OPTION}(?P=name)\s*:\s*                     # "token": "abc"
      )(?P<quote>{QUOTE})
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""What stands before a secret."""
SINGLE_QUOTED = re.compile(r"""[^']*(?:'(?:\\*"'\\*"|\\+')'[^']*)*'""")
"""After its first quote, as a shell has it: without escapes, and with '"'"' for a quote in it."""
PUNCTUATION = re.compile(r"""(?!\\[ ])[\\"',;)\]}]*(?:\s|\Z)""")
"""What ends a word, and is no part of it."""
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
    text = _without_options(text)
    for known in sorted(secrets, key=len, reverse=True):
        if len(known) >= SHORTEST_SECRET:
            text = text.replace(known, MASK)
    return URL_PASSWORD.sub(rf"\1:{MASK}@", text)


def _without_options(text: str) -> str:
    shown, begin, at = [], 0, 0
    while match := SECRET_OPTION.search(text, at):
        at = match.end()
        if NOT_SECRET_OPTION.search(match[0].rstrip(" \t\r\n=,:\"'\\")):
            at -= len(match["quote"] or "")
            continue
        quote = match["quote"] or match["open"] or ""
        end = _quoted_end(text, at, quote) if quote else _word_end(text, at)
        if end > at + len(quote):
            shown += [text[begin:at], MASK, quote]
            begin = at = end
    return "".join([*shown, text[begin:]])


def _quoted_end(text: str, at: int, quote: str) -> int:
    """The end of what `quote` began before `at`; of the line where nothing ends it.

    Whether a shell or a list has it is not known: the later end counts.
    """
    single = SINGLE_QUOTED.match(text, at) if quote == "'" else None
    ends = [single.end()] if single else []
    slashes = len(quote) - 1
    for found in re.compile(rf"(\\*){quote[-1]}").finditer(text, at):
        if len(found[1]) % (2 * slashes + 2) == slashes:  # else it is escaped
            ends.append(found.end())
            break
    return max(ends, default=at + len(text[at:].partition("\n")[0]))


def _word_end(text: str, at: int) -> int:
    """The end of a shell's word, which may have quoted parts."""
    start = at
    while at < len(text) and not text[at].isspace():
        quote = re.compile(QUOTE if at == start else "[\"']").match(text, at)
        if at > start and PUNCTUATION.match(text, at):
            break
        if quote:
            at = _quoted_end(text, quote.end(), quote[0])
        else:
            at += 2 if text[at] == "\\" else 1
    return min(at, len(text))


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
    before, word = words[at - 1] if at else None, words[at]
    if not isinstance(before, str) or before[:1] != "-":
        return None
    return None if isinstance(word, str) and word[:1] == "-" else _after(before, word)


def _after(name: str, value: Any) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    named = re.fullmatch(OPTION, name, re.IGNORECASE) and not NOT_SECRET_OPTION.search(name)
    return MASK if named else None
