"""What was mistyped is named before anything else, with the nearest right word."""

from __future__ import annotations

import os

import pytest

from env.http.arguments import Parser, sub_command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("arithmatic", "tool: argument TASK: arithmatic is unknown: did you mean arithmetic?"),
        ("zzz", "tool: argument TASK: zzz is unknown: give one of arithmetic, index"),
        ("index --index 3", "tool index: the following arguments are required: --out"),
        ("index --oot x", "tool: unknown argument --oot: did you mean --out?"),
        ("index --kind=bm52 --out x", "tool index: argument --kind: bm52 is unknown: did you mean"),
        ("index --out x --zzz", "tool: unknown argument --zzz"),
    ],
)
def test_a_mistyped_word_is_named_with_the_nearest(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = Parser(prog="tool")
    tasks = parser.add_subparsers(required=True, metavar="TASK")
    sub_command(tasks, "arithmetic", "sums")
    index = sub_command(tasks, "index", "an index")
    index.add_argument("--out", required=True)
    index.add_argument("--index-size", type=int)
    index.add_argument("--kind", choices=("bm25", "dense"))
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words.split())
    assert ended.value.code == os.EX_USAGE
    assert capsys.readouterr().err.startswith(said)
