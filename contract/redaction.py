"""Masks secrets in messages, in the journal and on pages."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, AnyStr, NamedTuple

MASK = "********"
NAMED_SECRET = "SECRET"
"""Stands for a secret in a command that a person is to copy; it is not masked itself."""
NAMES = (
    r"(?<!rollcall_tls_)key|token|secret|password|passwd|passphrase|webhook(?:_url)?"
    r"|(?<![A-Za-z])(?:(?:ssh)?pass|passcode|pat|jwt|creds?|credentials?|auth)|(?<=[_-])pwd"
    r"|api[_-]?keys|(?:api|auth|access|hf)[_-]tokens"
)
"""Matches the end of a secret's name. A word such as `compass` or `compat` is none, and
ROLLCALL_TLS_KEY is a file's path."""
SECRET_NAME = re.compile(rf"(?:{NAMES}|OTLP_(?:[A-Z]+_)?HEADERS)$", re.IGNORECASE)
OPTION = rf"[\w.+/-]*(?:{NAMES}|use_wandb)"
LABEL = (
    rf"[\w.+/-]*(?:(?<=[_.-])(?:{NAMES})|password|passwd|passphrase|apikey"
    r"|(?<![\w.+/-])(?:credentials|api[_-]keys|(?-i:AUTH|JWT|PAT|SECRET|TOKEN)))"
)
"""Name of a header, or of a value in YAML. `token: …` alone may be prose."""
SHORT = "(?-i:[pu])"
"""Letters of options that mean a password, or a user with one, to many programs."""
QUOTE = r"""\\*["']"""
"""Backslashes precede the quote if the text is part of a JSON text."""
MASKED = re.compile(rf"(?:{QUOTE})?{re.escape(MASK)}")
"""Matches a value that is masked already."""
SECRET_OPTION = re.compile(
    rf"""
      (?<![\w.+/-])-(?:{OPTION}|(?P<short>{SHORT}))\s+(?!\s|(?:{QUOTE})?-)  # --token abc
    | (?<!\\)(?P<open>{QUOTE}){OPTION}\s*=             # '--token=a b'
    | (?<![\w.+/-]){OPTION}\s*=\s*(?!\s)               # token=abc
    | (?<![\w.+/-])(?P<colon>{LABEL}):[ ]*(?![\s=:])   # X-Api-Key: abc, and YAML's
    | (?<!\\)(?P<name>{QUOTE})(?:
          -(?:{OPTION}|(?P<listed>{SHORT}))(?P=name)\s*,\s*(?!{QUOTE}-)  # '--token', 'abc': a list
        | {OPTION}(?P=name)\s*:\s*                     # "token": "abc"
      )(?P<quote>{QUOTE})
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Matches the text before a secret."""
OTHER_SHORT = re.compile(
    r"\b(?:cp|grep|install|mkdir|patch|ps|pytest|rsync|salloc|sbatch|srun|touch)\b[^;&|]*\Z"
)
"""Matches the text before a short option of a program to which it means something else."""
LOOKED_BACK = 80
"""Characters before a short option in which its program is looked for."""
PORT_OR_PATH = re.compile(r"[\d.:,-]+(?:/(?:tcp|udp))?|(?:~|\.\.?)?/.*|[\w.-]+/.*")
"""Matches a value of a short option that is no password."""
SHORT_OPTION = re.compile(r"""(?<![\w.+/-])-[pu](?=\s|\\*["'])""")
SINGLE_QUOTED = re.compile(r"""[^']*(?:'(?:\\*"'\\*"|\\+')'[^']*)*'""")
"""Matches a shell's text after its first single quote: no escapes, '"'"' for a quote in it."""
PUNCTUATION = re.compile(r"""(?!\\[ ])[\\"',;)\]}]*(?:\s|\Z)""")
"""Matches what ends a word without being part of it."""
SHORTEST_SECRET = 6
"""Shorter secrets, such as `true`, are not masked: they occur inside other words."""
URL_PASSWORD = re.compile(r"(?<=://)([^/\s:@]*:)([^/\s@]+)(@)")
URL_USER = re.compile(r"(https?://)([^/\s:@?#,;\"'<>]+)(:?@)", re.IGNORECASE)
"""Matches a user without a password: mostly a token, and with SSH a name such as `git`."""
ISSUED = re.compile(
    r"""
      (?<![A-Za-z0-9])(?:
          hf_[A-Za-z0-9]{30,}                                   # Hugging Face
        | wandb_v1_[A-Za-z0-9_]{30,}                            # Weights & Biases
        | gh[opsur]_[A-Za-z0-9]{36,} | github_pat_[A-Za-z0-9_]{22,} | glpat-[A-Za-z0-9_-]{20,}
        | sk-[A-Za-z0-9_-]{20,} | xox[abprs]-[A-Za-z0-9-]{10,} | AKIA[A-Z0-9]{16}
        | rollcall-(?:page|submit|service|node)-[0-9a-f]{48}
      )(?![A-Za-z0-9])
    | (?<=hooks\.slack\.com/)[\w/-]+
    | (?<=[Bb]earer[ ])[A-Za-z0-9._~+/-]{16,}=*
    | (?<=[Bb]earer[ ])(?=[A-Za-z._~+/-]*[0-9])[A-Za-z0-9._~+/-]{6,}=*
    | (?<=[?&]sig=)[^&\s"']+ | (?<=[?&]X-Amz-Signature=)[0-9a-f]+
    """,
    re.VERBOSE,
)
"""Matches a secret by how its issuer writes it, whatever name precedes it."""
SAID = re.compile(
    r"""
      (authorization\\*["']?[ ]?[:=][ ]?\\*["']?
        (?: (?:bearer|basic|digest|token|key)\\?[ ]+ | (?=[^\s"']*[0-9])(?=[^\s"']{6}) ))
      ([^\s"'\\,;]{4,})
    | (\bwandb[ ]login[ ](?:--?\w[\w=-]*[ ](?:https?://\S+[ ])?)*)((?=[A-Za-z_-]*[0-9])\w[\w-]{5,})
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Matches what says that a secret follows, and the secret."""
ISSUED_PARTS = (
    *("hf_", "wandb_v1_", "gho_", "ghp_", "ghs_", "ghu_", "ghr_", "github_pat_", "glpat-", "sk-"),
    *("xox", "AKIA", "rollcall-page-", "rollcall-submit-", "rollcall-service-", "rollcall-node-"),
)
"""How the secrets begin that ISSUED matches at the begin of a word."""
OPTION_END = re.compile(rf"""(?:{NAMES}|use_wandb)(?=(\s(?!\s*=))|\s*=|:|\\*["'])""")
"""Matches, in lower case, where the name of a secret option ends. The group matches if only space
follows: then the name has a hyphen, or the next word is not a secret."""
LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
END_OF_LINE = re.compile(r"\r\n|\r|\n")
USER = re.compile(r"[^/\s@]*@")
WORD = re.compile(r"[A-Za-z0-9]")
UNWRITTEN = "a1b2c3d4"
"""Stands for the value of an option that ends the text."""
PROSE = re.compile(r"[,;]?[ ]+[A-Za-z]")
"""Matches what follows a word that is no value."""
RANDOM = re.compile(r"(?=[^A-Za-z]*[A-Za-z])(?=[^0-9]*[0-9])[!-~]{16,}")
"""Matches a value that is a secret and no word: nobody would miss it elsewhere."""
COLUMNS = (
    *("answer", "audio", "chosen", "column", "completion", "content", "context", "conversation"),
    *("feature", "field", "ground_truth", "group", "history", "id", "image", "index", "input"),
    *("instruction", "label", "message", "metric", "output", "prompt", "query", "question"),
    *("reference", "rejected", "response", "reward", "reward_fn", "role", "sample", "score"),
    *("sort", "source", "split", "system", "target", "text", "tool", "video"),
)
"""Names of data set columns: `--chosen_key` names a column and is not a secret."""
SPECIAL_TOKENS = (
    *("audio", "bos", "cls", "end", "eos", "eot", "image", "mask", "pad", "placeholder", "sep"),
    *("special", "start", "step", "stop", "think", "unk", "video", "vision"),
)
"""Names of a tokenizer's special tokens: `--eos_token` is not a secret."""
NOT_SECRET_OPTION = re.compile(
    rf"(?:^|[\W_])(?:(?:{'|'.join(COLUMNS)})s?[_-]key|(?:{'|'.join(SPECIAL_TOKENS)})[_-]token)$",
    re.IGNORECASE,
)
PLACEHOLDER = re.compile(
    r"""
      \$\{?[A-Z][A-Z0-9_]{2,}\}?                            # $HF_TOKEN: a shell's variable
    | (?:[A-Z]+_)*(?:KEY|TOKEN|SECRET|PASSWORD|PASSPHRASE)  # what a command says for the reader's
    | <[A-Za-z][A-Za-z _-]{2,}>? | \.{3} | … | (?i:yes|no|true|false|none|null)
    """,
    re.VERBOSE,
)
"""Matches a value that stands for a secret and is none: masked, no command could be copied."""


def secret_texts(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the secret values in `environ`, judged by the names of their variables."""
    return frozenset(environ[name].strip() for name in _secret_names(frozenset(environ)))


@lru_cache(maxsize=16)
def _secret_names(names: frozenset[str]) -> tuple[str, ...]:
    """Return the names of secrets: the same few sets are asked for at every journal event."""
    return tuple(name for name in names if SECRET_NAME.search(name))


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` with `secrets`, URL passwords and values of key and token options masked.

    A URL's user without a password counts as a password, except with SSH.

    A token that says by its form what it is, such as `hf_…`, is masked, too.
    """
    said = SAID.sub(_without_said, _without_options(text))
    issued = ISSUED.sub(lambda found: _mask_of(found[0]), said)
    return redact_known(issued, secrets)


def redact_here(text: str, words: Sequence[str] = ()) -> str:
    """Return `text` as `redact` does, with the secrets of this environment and of a command."""
    return redact(text, secret_texts(os.environ) | named_secrets(shlex.join(words)))


def _without_said(found: re.Match[str]) -> str:
    before, value = found.group(1, 2) if found[1] else found.group(3, 4)
    return f"{before}{_mask_of(value)}"


def to_copy(shown: Any) -> Any:
    """Return a redacted text, or words, that people copy: NAMED_SECRET stands for each secret."""
    if isinstance(shown, str):
        return shown.replace(MASK, NAMED_SECRET)
    return [to_copy(one) for one in shown]


def _mask_of(value: str) -> str:
    return value if is_placeholder(value) else MASK


def shell_line(
    words: Sequence[str], environ: Mapping[str, str], directory: str, given: Iterable[str] = ()
) -> str:
    """Return a line that runs a command in a directory; NAMED_SECRET stands for each secret.

    `given`: names of the variables in `environ` that the line sets.
    """
    secrets = secret_texts(environ)
    variables = [f"{name}={shlex.quote(redact(environ[name], secrets))}" for name in given]
    line = " ".join([*variables, shlex.join(redact_all([*words], secrets))])
    return str(to_copy(f"cd {shlex.quote(directory)} && {line}"))


def redact_lines(text: str, secrets: Collection[str] = ()) -> str:
    """Return `text` with each line masked as `redact` masks it, 20 times as fast.

    A pass over the text finds the lines that may have a secret. Lines end as `LINE` says.
    """
    made, done = [], 0
    for at in sorted(_suspects(text, secrets)):
        if at >= done:
            begin, end = _line_around(text, at)
            made += [text[done:begin], redact(text[begin:end], secrets)]
            done = end
    return "".join([*made, text[done:]])


def _suspects(text: str, secrets: Iterable[str]) -> Iterator[int]:
    """Yield a place in each line that `redact` may change, and in a few others."""
    for known in secrets:
        if len(known) >= SHORTEST_SECRET:
            yield from _places(text, known)
    for part in ISSUED_PARTS:
        yield from (at for at in _places(text, part) if not WORD.match(text, max(0, at - 1), at))
    yield from _places(text, "hooks.slack.com/")
    yield from (at for at in _places(text, "://") if USER.match(text, at + 3))
    lower = text.lower()
    if len(lower) != len(text) or "ſ" in text:  # then the places differ, or `re` takes it for an s
        yield from (line.start() for line in LINE.finditer(text) if line[0])
        return
    yield from _places(text, "sig=")
    yield from _places(text, "X-Amz-Signature=")
    for part in ("bearer ", "authorization", "wandb login "):
        yield from _places(lower, part)
    yield from (found.start() for found in SHORT_OPTION.finditer(text))
    for found in OPTION_END.finditer(lower):
        if found[1] is None or "-" in lower[1 + lower.rfind(" ", 0, found.start()) : found.end()]:
            yield found.start()


def begins_value(text: str) -> int | None:
    """Return where a secret option begins whose value may go on after the text; None: nowhere."""
    for quote in ("", "'", '"'):
        more = f"{quote}{UNWRITTEN}"
        for value in _secret_values(text + more):
            if value.end == len(text + more):
                return value.option
    return None


def _places(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + len(part))


def _line_around(text: str, at: int) -> tuple[int, int]:
    """Return where the line begins and ends that has the character at `at`."""
    begin = 1 + text.rfind("\n", 0, at)
    begin = max(begin, 1 + text.rfind("\r", begin, at))
    found = END_OF_LINE.search(text, at)
    return begin, found.end() if found else len(text)


def named_secrets(text: str) -> frozenset[str]:
    """Return the random values of key and token options in `text`.

    Another text may have such a value without its name.
    """
    values = (text[one.begin : one.end].strip("\\\"'") for one in _secret_values(text))
    return frozenset(value for value in values if RANDOM.fullmatch(value))


def redact_known(text: str, secrets: Iterable[str]) -> str:
    """Return `text` with `secrets` and URL passwords masked, and else unchanged.

    For texts that are not command lines, such as programs, where `key=` is not a secret's name.
    """
    for known in sorted(secrets, key=len, reverse=True):
        if len(known) >= SHORTEST_SECRET:
            text = text.replace(known, MASK)
    for kind in (URL_PASSWORD, URL_USER):
        text = kind.sub(lambda found: f"{found[1]}{_mask_of(found[2])}{found[3]}", text)
    return text


def cut_between(text: AnyStr, at: int, secrets: Collection[AnyStr]) -> int:
    """Return the last place up to `at` that lies within none of the secrets.

    A secret that begins before `at` counts, even if its rest has not been written yet.
    """
    while within := max((_overlap(text[:at], secret) for secret in secrets), default=0):
        at -= within
    return at


def _overlap(text: AnyStr, secret: AnyStr) -> int:
    """Return how many characters at the end of the text may begin the secret."""
    lengths = range(min(len(secret) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(secret[:length])), 0)


def _without_options(text: str) -> str:
    shown, begin = [], 0
    for _, at, end, quote in _secret_values(text):
        shown += [text[begin:at], MASK, quote]
        begin = end
    return "".join([*shown, text[begin:]])


class Value(NamedTuple):
    """Where a secret option and its value are in a text."""

    option: int
    begin: int
    end: int
    quote: str
    """What ends the value, besides."""


def _secret_values(text: str) -> Iterator[Value]:
    at = 0
    while match := SECRET_OPTION.search(text, at):
        at = match.end()
        if NOT_SECRET_OPTION.search(match[0].rstrip(" \t\r\n=,:\"'\\")):
            at -= len(match["quote"] or "")
            continue
        if masked := MASKED.match(text, at):
            at = masked.end()
            continue
        quote = match["quote"] or match["open"] or ""
        end = _quoted_end(text, at, quote) if quote else _word_end(text, at)
        short = match["short"] or match["listed"]
        if short and not is_short_secret(short, text[at:end], text[: match.start()]):
            continue
        if match["colon"] and not _is_labelled(match["colon"], text[at:end], text[end:]):
            continue
        if is_placeholder(text[at:end]):
            at = end
            continue
        if end > at + len(quote):
            yield Value(match.start(), at, end, quote)
            at = end


def _is_labelled(label: str, value: str, behind: str) -> bool:
    """Return whether a value behind a colon is a secret, and not a number or a word of prose."""
    value = value.strip("\\\"'")
    if len(value) < SHORTEST_SECRET or not (value[0].isalnum() or label.isupper()):
        return False
    if any(map(str.isdigit, value)):
        return any(map(str.isalpha, value))
    return label.isupper() and not PROSE.match(behind)


def is_placeholder(value: str) -> bool:
    """Return whether the value of a secret option only names a secret, such as `$HF_TOKEN`."""
    return PLACEHOLDER.fullmatch(value.strip("\\\"'")) is not None


def is_short_secret(letter: str, value: str, before: str) -> bool:
    """Return whether the value of `-p` or `-u` is a password, or a user with one (`me:abc`).

    `before`: the command up to the option.
    """
    value = value.strip("\\\"'")
    if PORT_OR_PATH.fullmatch(value) or OTHER_SHORT.search(before[-LOOKED_BACK:]):
        return False
    return letter == "p" or ":" in value


def _quoted_end(text: str, at: int, quote: str) -> int:
    """Return the end of the text that `quote` began before `at`; the line's end if it is open.

    The text may be a shell's or a list's, which differ in escapes: the later end counts.
    """
    single = SINGLE_QUOTED.match(text, at) if quote == "'" else None
    ends = [single.end()] if single else []
    slashes = len(quote) - 1
    for found in re.compile(rf"(\\*){quote[-1]}").finditer(text, at):
        if len(found[1]) % (2 * slashes + 2) == slashes:  # else the quote is escaped
            ends.append(found.end())
            break
    return max(ends, default=at + len(text[at:].partition("\n")[0]))


def _word_end(text: str, at: int) -> int:
    """Return the end of a shell's word, which may have quoted parts."""
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
    """Return a JSON value with every text in it redacted.

    A list may be a command line: the word after an option with a secret's name is masked, too.
    """
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, Mapping):
        return {
            key: _after(str(key), item) or redact_all(item, secrets) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        masked = (_after_option(value, at) for at in range(len(value)))
        return [mask or redact_all(item, secrets) for mask, item in zip(masked, value, strict=True)]
    return value


def _after_option(words: Sequence[Any], at: int) -> str | None:
    """Return MASK if the word at `at` is the value of the secret option before it."""
    before, word = words[at - 1] if at else None, words[at]
    if not isinstance(before, str) or before[:1] != "-":
        return None
    if isinstance(word, str) and word[:1] == "-":
        return None
    if before in ("-p", "-u") and isinstance(word, str):
        program = " ".join(str(one) for one in words[: at - 1])
        return MASK if is_short_secret(before[1], word, f"{program} ") else None
    return _after(before, word)


def _after(name: str, value: Any) -> str | None:
    if not isinstance(value, str) or not value or is_placeholder(value):
        return None
    named = re.fullmatch(OPTION, name, re.IGNORECASE) and not NOT_SECRET_OPTION.search(name)
    return MASK if named else None
