"""A shell script is read as the shell would, and nothing of it runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trainer.config.translate.rows import UNSET, needs_variable
from trainer.config.translate.shell import read


def commands(text: str, **variables: str) -> list[list[str]]:
    return read(text, variables).commands


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a --x 1 \\\n  --y 2", ["a", "--x", "1", "--y", "2"]),
        ("a --x 1 \\  \n  --y 2", ["a", "--x", "1", "--y", "2"]),  # spaces behind the backslash
        ("a\n--x 1\n-- b", ["a", "--x", "1", "--", "b"]),  # a guide without backslashes
        ("a 'b c' \"d e\" f\\ g", ["a", "b c", "d e", "f g"]),
        ("a x=\"['$HOME','b']\"", ["a", f"x=['{UNSET}{{HOME}}','b']"]),
        ("a '$HOME'", ["a", "$HOME"]),
        ("A=1; a $A ${A} ${B:-2} ${A:-3}", ["a", "1", "1", "2", "1"]),
        ("A='x y'; a $A \"$A\"", ["a", "x", "y", "x y"]),
        ('A=(--x 1\n  # no\n  --y 2)\na ${A[@]} "${A[@]}"', ["a"] + ["--x", "1", "--y", "2"] * 2),
        ("a b # c d", ["a", "b"]),
        ("a \\\n  --x 1\n  --y 2", ["--y", "2"]),  # one backslash is missing: bash ends the command
        ("a b#c", ["a", "b#c"]),
        ("a 1>x 2>&1 b &>> y", ["a", "b"]),
        ("a --use {token} <address>", ["a", "--use", "{token}", "<address>"]),
        ("$ a b", ["a", "b"]),
        ("a $@ b", ["a", "b"]),
        ("cat <<EOF\nnone of it\nEOF\n", ["cat"]),
        ("read -r -d '' X <<EOF\n--x 1 \\\n--y\nEOF\na $X", ["a", "--x", "1", "--y"]),
        ("A=$((1024 * 2)); a x=$((A + 2)) $(( $A / (5 - 2) )) -$((-7 % 4))",
         ["a", "x=2050", "682", "--3"]),
        ("a x.y=$((b + 1))", ["a", f"x.y={UNSET}((b + 1))"]),
        ("a $((1 / 0)) $((2 ** 3))", ["a", f"{UNSET}((1 / 0))", "8"]),
        ("A=1; a ${B:-$A} ${B:-${C:-2}} \"${B:-x $A}\"", ["a", "1", "2", "x 1"]),
        ("a ${@:2} ${B##*/}", ["a", f"{UNSET}{{B##*/}}"]),
    ],
)  # fmt: skip
def test_words_of_the_last_command(text: str, words: list[str]) -> None:
    assert commands(text)[-1] == words


def test_a_variable_that_is_exported_no_more_is_left_out() -> None:
    assert read("export A=1 B=2; export -n A; a", {}).exported == {"B": "2"}


@pytest.mark.parametrize(
    "text",
    [
        'A="--x 1"; A+=" --y 2"; a $A',
        'A=(--x 1); A+=(--y "2 3"); A+=(--z)\na "${A[@]}"',
        'export A=1; A+=2; B+=3; A+=$B; a "$A" $B',
        'A=; a ${A:-4} "${A-5}" x${A:-6}y',
        "a ${A:=4} $A ${A:-5}",
        "A=${A:-4}; A=${A:-5}; a $A",
        "A=(); A+=(--x ${B:-4}); a ${A[@]}",
        "A=3; a $((${A:-4} * 2)) $((${B:-4} * ${A} + $A)) x$(( ${B:-2}*(1+${B:-2}) ))",
    ],
)
def test_additions_and_defaults_are_those_of_bash(text: str) -> None:
    script = f"a() {{ printf '%s\\0' \"$@\"; }}\n{text}"
    bash = ["bash", "--norc", "-c", script]
    said = subprocess.run(bash, env={}, capture_output=True, check=True, text=True).stdout
    assert commands(text)[-1] == ["a", *said.split("\0")[:-1]]


def test_operators_end_a_command() -> None:
    assert commands("a | b && c; d & e || f") == [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]


def test_a_variable_from_outside_counts_more() -> None:
    assert commands("N=1\na $N $M", N="2", M="3") == [["a", "2", "3"]]


def test_exports_are_kept_by_name() -> None:
    script = read("export A=1 B='x y'\nC=2\na", {})
    assert script.exported == {"A": "1", "B": "x y"}


def test_what_only_the_shell_can_find_stays_a_variable() -> None:
    for before in ("", "D=1\n"):
        assert commands(f'{before}D=$(cd "$X" && pwd)\na "$D/b" $(date)') == [
            ["a", f"{UNSET}{{D}}/b", f"{UNSET}(date)"]
        ]
    assert commands("D=1; D+=$(date); a $D") == [["a", f"{UNSET}{{D}}"]]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (f"{UNSET}{{N}}", "N"),
        (f"{UNSET}((1024 * N + M))", "N"),
        (f"{UNSET}((1 / 0))", ""),
        ("N", ""),
    ],
)
def test_the_variable_that_a_value_lacks(value: str, name: str) -> None:
    assert needs_variable(value) == name


def test_nothing_runs(tmp_path: Path) -> None:
    commands(f"touch {tmp_path}/a; A=$(touch {tmp_path}/b) `touch {tmp_path}/c`")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("a --x 1 \\ \n  --y 2", "line 1: spaces follow the backslash"),
        ("a\n--x 1", "lines that begin with a flag are taken as a part of the command above"),
        ("a \\\n  # b \\\n  --x 1", "line 3: --x is no part of the command above"),
        ("a \\\n  # b \\\n  c.d=1", "line 3: c.d=1 is no part of the command above"),
    ],
)
def test_what_bash_reads_otherwise_than_it_was_meant_is_noted(text: str, note: str) -> None:
    assert [one for one in read(text, {}).notes if one.startswith(note)]


def test_an_array_that_the_script_does_not_tell_is_given_as_words() -> None:
    text = 'if python x; then A=(--x 1); else A=(--y "2 3"); fi; a "${A[@]}"'
    assert "A" in read(text, {}).missing(commands(text)[-1])
    assert commands(text, A='--y "2 3"')[-1] == ["a", "--y", "2 3"]


def test_scripts_beside_it_are_a_part_of_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("env.sh").write_text("N=${N:-3}")
    Path("inner.sh").write_text("a $1 $N $M")
    text = "source env.sh\nexport M=4\nbash inner.sh 2\nb $N"
    assert commands(text) == [["a", "2", f"{UNSET}{{N}}", "4"], ["b", "3"]]
    assert commands(text, N="5") == [["a", "2", "5", "4"], ["b", "5"]]
    assert commands("export N=1; bash none.sh") == [["bash", "none.sh"]]
    Path("self.sh").write_text("a; bash self.sh")
    assert commands("bash self.sh") == [["a"]] * 5 + [["bash", "self.sh"]]
