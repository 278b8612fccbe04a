"""What an exception of a user's code tells: its line, and whether another try can help."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from env.rewards.python_file import RewardFileError, load_callable, load_module
from env.user_code import Cause, Raised, SignatureError, check_signature, same_fault


def raised(call: Callable[..., Any], *arguments: object) -> Raised:
    try:
        call(*arguments)
    except BaseException as error:
        return Raised.of(error, call)
    pytest.fail("nothing was raised")


def of_file(directory: Path, source: str) -> Raised:
    """What the function `f` of a file raises."""
    path = directory / "mine.py"
    path.write_text(source)
    return raised(load_callable(path, "f", "()"))


def test_the_line_is_the_innermost_of_the_users_own_code(tmp_path: Path) -> None:
    source = "import json\n\ndef f():\n    return inner()\n\ndef inner():\n    json.loads('{')\n"
    found = of_file(tmp_path, source)
    assert (found.name, found.cause) == ("JSONDecodeError", Cause.BUG)
    assert found.place == f"{tmp_path / 'mine.py'}:7"
    assert str(found).endswith("mine.py:7)")


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("1 + 'a'", Cause.BUG),
        ("nothing", Cause.BUG),
        ("raise SystemExit(0)", Cause.BUG),
        ("open('/nowhere/data.json')", Cause.BUG),
        ("raise ConnectionError('refused')", Cause.OUTAGE),
        ("raise TimeoutError", Cause.OUTAGE),
        ("import httpx; raise httpx.ReadTimeout('late')", Cause.OUTAGE),
        (
            "try:\n        raise OSError(5, 'I/O')\n    except OSError:\n        {}['a']",
            Cause.OUTAGE,
        ),
        ("raise RuntimeError('who knows')", Cause.OTHER),
    ],
)
def test_another_try_helps_after_an_outage_and_not_after_a_bug(
    tmp_path: Path, body: str, cause: Cause
) -> None:
    assert of_file(tmp_path, f"def f():\n    {body}\n").cause is cause


def test_a_missing_gpu_is_no_bug() -> None:
    """This machine's torch has no CUDA: its own error is raised."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    found = raised(torch.zeros(1).cuda)
    assert found.cause is Cause.OUTAGE


def test_exceptions_are_one_fault_if_class_and_line_are_the_same(tmp_path: Path) -> None:
    first = of_file(tmp_path, "def f():\n    raise KeyError('a')\n")
    same = of_file(tmp_path, "def f():\n    raise KeyError('b')\n")
    other = of_file(tmp_path, "def f():\n\n    raise KeyError('a')\n")
    assert same_fault([first, same]) == first
    assert same_fault([first, other]) is None
    assert same_fault([first, None]) is None
    assert same_fault([]) is None


def test_a_signature_names_what_is_wanted_and_what_is_there() -> None:
    def needs(completions: Any, label: Any) -> None: ...

    def takes(completions: Any) -> None: ...

    given: dict[str, Any] = {"completions": [], "answer": []}
    with pytest.raises(SignatureError, match="needs `label`, and is called with `completions`, `a"):
        check_signature(needs, (), given)
    with pytest.raises(SignatureError, match=r"does not take `answer`: add \*\*kwargs"):
        check_signature(takes, (), given)

    def misspelt(completions: Any, answr: list[str]) -> None: ...

    said = r"misspelt\(completions, answr\) needs `answr`, .*\. Did you mean answer\?"
    with pytest.raises(SignatureError, match=said):
        check_signature(misspelt, (), given)
    with pytest.raises(SignatureError, match="is called with 3 arguments: too many"):
        check_signature(takes, (1, 2, 3), {})
    with pytest.raises(SignatureError, match="is called with 1 argument: missing"):
        check_signature(needs, ([],), {})
    check_signature(print, (1,), {})
    assert raised(lambda: check_signature(takes, (), given)).cause is Cause.BUG


@pytest.mark.parametrize(
    ("source", "line", "said"),
    [
        ("x = 1\nimport nowhere_to_be_found\n", 2, "ModuleNotFoundError on import"),
        ("x = 1\n\ny = = 2\n", 3, "SyntaxError on import"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit on import: 3"),
    ],
)
def test_a_file_that_cannot_be_imported_names_its_line(
    tmp_path: Path, source: str, line: int, said: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    with pytest.raises(RewardFileError) as caught:
        load_module(path)
    assert f"{path}:{line}: {said}" in str(caught.value)
    assert caught.value.raised is not None
    assert caught.value.raised.line == line


def test_a_wrong_name_is_answered_with_the_near_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def accuracy(completions, **kwargs): ...\n\ndef other(): ...\n")
    for name, said in (
        ("acuracy", "did you mean accuracy?"),
        ("xyz", "it defines accuracy, other"),
    ):
        with pytest.raises(RewardFileError, match=said.replace("?", r"\?")):
            load_callable(path, name, "(completions, **columns)")


def test_an_answer_of_a_server_that_is_an_error_is_an_outage() -> None:
    """httpx raises its own class for 503, behind which is no OSError."""

    def asked() -> None:
        request = httpx.Request("GET", "http://judge")
        httpx.Response(503, request=request).raise_for_status()

    assert raised(asked).cause is Cause.OUTAGE
