"""The reader of scripts against bash itself: the same words, or a reason why not; never others."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.bash_forms import FORMS
from tests.support.bash_grammar import scripts
from tests.support.bash_runs import STUBS, Machine, each
from tests.support.repository import DATA
from trainer.config.translate.__main__ import quoted
from trainer.config.translate.bash.open_text import is_open
from trainer.config.translate.shell import Place, Script, ScriptSyntaxError, read, read_whole

ASSIGNED = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
HELPERS = {"curl", "docker", "git", "mkdir", "module", "nvidia-smi", "pip", "scontrol", "sleep"}
"""Stubs whose words nobody translates."""


@dataclass(frozen=True)
class Case:
    """A script of tests/data/training_scripts, and what is known of it."""

    text: str
    asks: frozenset[str]
    given: Mapping[str, str]
    arguments: tuple[str, ...]


def cases() -> Iterator[tuple[str, Case]]:
    for file in sorted((DATA / "training_scripts").glob("*.txt")):
        for block in re.split(r"(?m)^%% ", file.read_text())[1:]:
            head, _, text = block.partition("\n")
            name, *rest = (part.strip() for part in head.split(" | "))
            said = [part.partition(" ")[::2] for part in rest]
            given = dict(value.split("=", 1) for key, value in said if key == "set")
            asks = frozenset(name for key, value in said if key == "asks" for name in value.split())
            arguments = tuple(value for key, value in said if key == "argument")
            yield f"{file.stem}: {name}", Case(text, asks, given, arguments)


CASES = dict(cases())


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with TemporaryDirectory() as folder:  # pytest's own is closed to other users
        yield Machine(Path(folder))


def programs(script: Script) -> list[list[str]]:
    """Return the commands without the variables that are set for them alone."""
    found = []
    for command in script.commands:
        words = list(command)
        while words and ASSIGNED.fullmatch(words[0]):
            words.pop(0)
        found.append(words)
    return found


def started(script: Script) -> list[list[str]]:
    """Return the commands that a stub would write down, but for helpers."""
    return [words for words in programs(script) if words[0] in STUBS - HELPERS]


def asked(script: Script) -> set[str]:
    return {name for words in started(script) for name in script.missing(words)}


@pytest.mark.parametrize("name", CASES)
def test_a_training_script_gives_the_words_of_bash_or_says_which_variable_it_lacks(
    name: str, machine: Machine
) -> None:
    case = CASES[name]
    place = Place(str(machine.script), str(machine.home))
    arguments = {str(at): value for at, value in enumerate(case.arguments, 1)}
    if case.asks:
        assert asked(read(case.text, arguments, place)) == case.asks
        if not case.given:
            return
    script = read(case.text, {**arguments, **case.given}, place)
    assert asked(script) == set()
    wanted = machine.commands(case.text, case.given, *case.arguments)
    found = [machine.shown(map(quoted, words)) for words in started(script)]
    assert sorted(found) == sorted(words for words in wanted if words[0] not in HELPERS)
    assert found


def test_there_are_scripts_in_the_styles_of_six_projects() -> None:
    assert len(CASES) >= 60


def compared(
    scripts: list[str], environment: Mapping[str, str]
) -> Iterator[tuple[str, list[list[str]], list[list[str]]]]:
    """Yield each script that is read, with the words of `a` here and in bash."""
    lines: list[tuple[str, str]] = []
    for text in scripts:
        try:
            script = read(text, {}, Place("bash", "/"))
        except ScriptSyntaxError:
            continue
        commands = [words for words in programs(script) if words[0] == "a"]
        if not any(script.missing(words) for words in commands):
            shown = [" ".join(map(quoted, words)) for words in commands]
            lines.append((text, ";".join(shown) or ":"))
    here = each([line for _, line in lines], environment)
    there = each([text for text, _ in lines], environment)
    yield from zip([text for text, _ in lines], here, there, strict=True)


def test_with_the_whole_environment_every_form_is_read_as_bash_reads_it_or_is_not_known() -> None:
    given = {"HOME": "/home/me", "A": "from outside", "B": "b c", "LR": "3", "i": "7", "x": "*"}
    lines: list[tuple[str, str]] = []
    for text in FORMS:
        script = read_whole(text, {"PATH": "/usr/bin:/bin", **given}, (), Place("bash", "/"))
        commands = [words for words in programs(script) if words[0] == "a"]
        if not any(is_open(word) for words in commands for word in words):
            lines.append((text, ";".join(map(shlex.join, commands)) or ":"))
    here = each([line for _, line in lines], given)
    there = each([text for text, _ in lines], given)
    names = [text for text, _ in lines]
    wrong = [row for row in zip(names, here, there, strict=True) if row[1] != row[2]]
    assert wrong == []
    assert len(lines) > 0.9 * len(FORMS)


def test_every_form_is_read_as_bash_reads_it() -> None:
    pairs = list(compared(FORMS, {}))
    assert [(text, here) for text, here, there in pairs if here != there] == []
    assert len(pairs) == len(FORMS)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("source ./x.sh; a $A", "A"),
        ("A=1; . x.sh; a $A", "A"),
        ("source x.sh; a ${A:-1}", "A"),
        ('eval "$(cat x)"; a ${A:-1}', "A"),
        ("A=$RANDOM; a $A", "A"),
        ("A=$$; a $A", "A"),
        ("A=$(date); B=$A; a $B", "B"),
        ("read A; a $A", "A"),
        ("read -r A < file; a $A", "A"),
        ("python x | while read l; do A=$l; done; A=$(python y); a $A", "A"),
        ("mapfile -t A < file; a ${A[0]}", "A"),
        ("while python x; do A+=1; done; a $A", "A"),
        ("for f in $(ls); do A=$f; done; a $A", "A"),
        ("select A in x y; do break; done; a $A", "A"),
        ("while getopts b: o; do A=$OPTARG; done <<< x; set -- -b 1; getopts b: o; A=2; a $o", "o"),
        ("coproc A=1; a ${A:-2}", "A"),
        ("A=x; declare -n B=A; a $B", "B"),
        ("declare -i A=1+1; a ${A}", "A"),
        ("A=x; a ${A@Q}", "{A@Q}"),
        ("a *.sh", "(echo *.sh)"),
        ("A=1; a $(python $A)", "(python $A)"),
        ("A=(*.sh); a ${A[0]} ${A[1]}", "A"),
        ("A=($(python x)); a ${A[1]}", "A"),
        ("f() { a $2; }; f $(python x) y", "2"),
        ("set -- $(python x) y; a $2", "2"),
        ("for A in x$(python x) y; do B+=$A; done; a $B", "B"),
        ("f() { A=1; }; if python x; then f() { A=2; }; fi; f; a $A", "A"),
        ("if [ -f x ]; then A=1; fi; a $A", "A"),
        ("if [ -f x ]; then return 2>/dev/null; A=1; fi; a ${A:-2}", "A"),
        ("if python x; then set -- 1; fi; a $1", "1"),
        ("A=1; [ -e x ] && unset A; a ${A:-2}", "A"),
        ("[[ $(uname) == Linux ]] && A=1 || A=2; a $A", "A"),
        ("case $(uname) in Linux) A=1;; esac; a ${A:-2}", "A"),
        ("A=1; shopt -s nocasematch; [[ a == A ]] && A=2; a $A", "A"),
        ("A=(1 2); B=A[1]; a ${!B}", "{!B}"),
        ("[[ ab =~ a(.) ]]; A=${BASH_REMATCH[1]}; a $A", "A"),
        ("a ~root/x", "(~root/x)"),
        ("a <(python x)", "(<(python x))"),
        ("A=$((N / 0)); A=$((1 / 0)); a $A", "A"),
        ("N=8; A=$((N * $(nproc))); a $A", "A"),
        ("A=$(python x || echo 1); a $A", "A"),
        ("for ((i = 0; i < $(nproc); i++)); do A=$i; done; a $A", "A"),
        ("python x && A=1 || A=2; a $A", "A"),
        ("A=([1] = b); a ${A[0]}", "A"),
        ("A=@; a $((A))", "((A))"),
    ],
)
def test_what_the_script_does_not_tell_is_asked_for(text: str, name: str) -> None:
    script = read(text, {})
    words = [one for one in script.commands if one[0] == "a"][-1]
    assert name in script.missing(words)


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.lists(scripts(), min_size=12, max_size=12))
def test_no_script_is_read_otherwise_than_bash_runs_it(texts: list[str]) -> None:
    _hold(texts)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(scripts(), min_size=12, max_size=12))
def test_no_script_of_many_is_read_otherwise_than_bash_runs_it(texts: list[str]) -> None:
    _hold(texts)


def _hold(texts: list[str]) -> None:
    """Check that bash starts no command that is not read, and that the last one is the same.

    A command under a condition that is unknown is read and may not be started.
    """
    for code in ("0", "1"):
        for text, here, there in compared(texts, {"OUT": "5", "U": code}):
            assert all(command in here for command in there), text
            assert there[-1:] in ([], here[-1:]) or there[-1][0] != "end", text
