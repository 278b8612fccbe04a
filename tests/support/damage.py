"""What storage, or another version, can make of a file of the run directory: bytes and shapes."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import strategies as st

ANY_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
ODD = (b"", b"5", b"{}", b"[]", b'"x"', b"null", b"\xff\xfe", bytes(64), b"[" * 5_000)
ODD_TEXTS = ("7", "\ud800", "x" * 300, "../x")
ODD_VALUES: tuple[Any, ...] = (10**400, -1, 1.5, float("nan"), True, None, [], {}, *ODD_TEXTS)


def damaged(row: Mapping[str, Any]) -> st.SearchStrategy[bytes]:
    """Of a file, or a line, that holds this object: its bytes changed, or its shape."""
    whole = json.dumps(row).encode()
    return st.one_of(
        st.sampled_from(ODD),
        st.binary(max_size=40),
        st.integers(0, len(whole) - 1).map(lambda end: whole[:end]),
        st.integers(0, 8 * len(whole) - 1).map(lambda bit: flipped(whole, bit)),
        ANY_JSON.map(lambda value: json.dumps(value).encode()),
        st.builds(_replaced, st.just(row), st.sampled_from(list(_paths(row))), _VALUES),
        st.sampled_from(list(_paths(row))).map(lambda path: _without(row, path)),
    )


_VALUES = st.sampled_from(ODD_VALUES) | ANY_JSON


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _paths(value: Any) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, inner in items:
        yield (key,)
        if isinstance(inner, Mapping | list):
            yield from ((key, *path) for path in _paths(inner))


def _replaced(row: Mapping[str, Any], path: tuple[Any, ...], value: Any) -> bytes:
    changed = copy.deepcopy(dict(row))
    _place(changed, path)[path[-1]] = value
    return json.dumps(changed).encode()


def _without(row: Mapping[str, Any], path: tuple[Any, ...]) -> bytes:
    changed = copy.deepcopy(dict(row))
    del _place(changed, path)[path[-1]]
    return json.dumps(changed).encode()


def _place(row: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        row = row[key]
    return row
