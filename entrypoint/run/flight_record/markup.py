"""Makes HTML in which a text is never code: what is no `Html` is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

VOID = ("meta",)


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: object) -> Html:
    """Pure: return an element. An attribute's `_` becomes `-`, a last one is left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{joined(children)}</{name}>")


def joined(children: Iterable[str]) -> Html:
    return Html("".join(one if isinstance(one, Html) else escape(one) for one in children))
