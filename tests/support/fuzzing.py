"""Hostile input for parsers: what strangers, damaged disks and other programs may send."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.journal_file.lines import event_of, line_of

CORPUS = Path(__file__).parents[1] / "data" / "fuzz"
"""Inputs that a parser once failed on, in a folder for each parser: tried in every run."""
CASES = int(os.environ.get("FUZZ_CASES", "0"))
"""Cases of `make fuzz`, of all parsers together; 0: an ordinary run, the same each time."""
ORDINARY_CASES = 2000
EVENT = {
    **{"at": "2026-01-01T00:00:01.000+00:00", "node": "head", "epoch": 2, "attempt": 1},
    **{"kind": "start", "details": {}},
}
CPU_SECONDS = 10.0
"""Of one input: no honest one needs a tenth of a second."""

TOKENS = (
    *(
        b"\0",
        b"\n",
        b"\r\n",
        b"\t",
        b'"',
        b"'",
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b"=",
        b"-",
    ),
    *(b"null", b"true", b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-0", b"1" * 400, b"0x7f"),
    *(b"\\ud800", b"\xed\xa0\x80", b"\xff", b"\xef\xbb\xbf", "\u202e\u2028é".encode(), b"\x1b[2J"),
    *(b"&a ", b"*a", b"<<: *a", b"!!python/object:os.system ", b"!!binary ", b"? ", b"--- ", b"| "),
    *(
        b"$(id)",
        b"`id`",
        b"${A:-",
        b"<<EOF",
        b"../",
        b"/",
        b"{stage.a.run}",
        b"2026-99-99T00:00:00",
    ),
    *(b"[" * 3000, b'{"a":' * 3000, b"(" * 3000, b"a" * 70_000),
)


@dataclass(frozen=True, slots=True)
class Parser:
    """A parser of input that others make."""

    name: str
    parse: Callable[[bytes], Any]
    errors: tuple[type[Exception], ...]
    """Errors that are an answer to wrong input; any other one is a bug."""
    samples: tuple[bytes, ...]
    """Right input, which is changed in a few places."""

    def __str__(self) -> str:
        return self.name


def scalars() -> st.SearchStrategy[Any]:
    numbers = st.one_of(st.integers(), st.floats(), st.sampled_from([10**400, -1, 0, 2**63]))
    return st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=20))


def documents() -> st.SearchStrategy[bytes]:
    """JSON of any shape, with keys that the parsers know among others."""
    values = st.recursive(
        scalars(),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=12), inner, max_size=4)
        ),
        max_leaves=12,
    )
    return values.map(lambda value: json.dumps(value).encode())


@st.composite
def changed(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """A sample with some places cut, repeated or overwritten, or a value of its JSON replaced."""
    content = draw(st.sampled_from(samples))
    if draw(st.booleans()) and (row := _object_in(content)):
        name = draw(st.sampled_from(sorted(row)))
        row[name] = draw(
            st.one_of(scalars(), st.just([{}]), st.just({"a": [1]}), st.just([[None]]))
        )
        return json.dumps(row).encode()
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.integers(start, min(len(content), start + 20)))
        token = draw(st.one_of(st.sampled_from(TOKENS), st.binary(max_size=8)))
        copies = draw(st.integers(0, 2))
        content = content[:start] + content[start:end] * copies + token + content[end:]
    return content


def _object_in(content: bytes) -> dict[str, Any]:
    try:
        row = json.loads(content)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def kept(parser: Parser) -> list[bytes]:
    """Return the inputs that the parser once failed on."""
    return [path.read_bytes() for path in sorted((CORPUS / parser.name).glob("*.bin"))]


def fuzz(parser: Parser, share: int) -> None:
    """Try the kept inputs, then others. With FUZZ_CASES, keep the smallest that fails.

    `share`: the number of parsers that share the cases.

    Raises what the parser raises beyond its errors.
    """
    for content in kept(parser):
        _try(parser, content)
    failed: list[bytes] = []

    def tried(content: bytes) -> None:
        try:
            _try(parser, content)
        except Exception as error:
            failed.append(content)
            told = "".join(traceback.format_exception(error)).splitlines()
            # Such messages may have what no console and no other process takes.
            raise AssertionError(f"{content[:2000]!r}\n" + "\n".join(map(ascii, told))) from None

    inputs = st.one_of(changed(parser.samples), documents(), st.binary(max_size=200))
    run = settings(
        max_examples=-(-(CASES or ORDINARY_CASES) // share),
        derandomize=not CASES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )(given(inputs)(tried))
    try:
        run()
    except BaseException:
        if CASES and failed:
            name = hashlib.sha256(failed[-1]).hexdigest()[:16]
            (CORPUS / parser.name).mkdir(parents=True, exist_ok=True)
            (CORPUS / parser.name / f"{name}.bin").write_bytes(failed[-1])
        raise


def _try(parser: Parser, content: bytes) -> None:
    with _cpu_limit():
        told = ""
        try:
            parser.parse(content)
        except parser.errors as error:
            told = str(error)
        assert event_of(line_of({**EVENT, "sentence": told})), "the error is lost in the journal"


@contextmanager
def _cpu_limit() -> Iterator[None]:
    """Raise TimeoutError after CPU_SECONDS of this process's own time: a busy machine is no bug."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"more than {CPU_SECONDS:g} s of a CPU for one input")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
