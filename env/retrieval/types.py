"""What a passage, a query and a found document are. No dependency: everyone imports this."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Passage:
    id: str
    contents: str
    """Its title, a line break, its text."""


@dataclass(frozen=True, slots=True)
class Query:
    text: str
    topk: int


@dataclass(frozen=True, slots=True)
class Document:
    """A passage that was found."""

    contents: str
    score: float | None = None
    """None if the server does not say it."""
    id: str = ""

    @property
    def title(self) -> str:
        return self.contents.partition("\n")[0].strip('"')

    @property
    def text(self) -> str:
        return self.contents.partition("\n")[2]
