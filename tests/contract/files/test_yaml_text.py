"""YAML that nobody meant: each kind is named, and none takes a program down."""

from __future__ import annotations

import pytest

from contract.files.yaml_text import NotYamlError, composed, parsed

BOMB = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]\n" for n in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [1", "is not YAML in line 1"),
        ("a: 1\nb: !!python/object:os.system x", "is not YAML in line 2"),
        ("[" * 3000, "is nested too deeply"),
        ("a: 1\n'b': \"\\ud800\"", "has an incomplete Unicode character in line 2"),
        ("a: &a [*a]", "has an alias inside of what it names"),
        (BOMB, "has aliases that repeat too much"),
        ("a: 2026-99-99T00:00:00", "has a value that cannot be: month must be in 1..12"),
    ],
)
def test_what_cannot_be_used_is_named(text: str, told: str) -> None:
    with pytest.raises(NotYamlError) as caught:
        parsed(text)
    assert str(caught.value) == told


def test_yaml_and_json_are_parsed_with_aliases_of_use() -> None:
    assert parsed('{"a": [1, null, "é"]}') == {"a": [1, None, "é"]}
    assert parsed("a: &a {b: 1}\nc: *a\n") == {"a": {"b": 1}, "c": {"b": 1}}
    assert parsed("") is None
    assert composed("") is None
