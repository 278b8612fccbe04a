"""Pages are for readers whose first language is another: no sentence has more than 20 words.

A name in code font is one word, and so is a list of such names. Each cell of a table is a text.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.repository import ROOT

MOST = 20  # words
FENCED = re.compile(r"^```.*?^```$|<!--.*?-->", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)|\n(?=\||#)")
CELL = re.compile(r"(?<!\\)\|")
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
NAMES = re.compile(r"CODE(?:(?:,| and|, and| or|;) CODE)+")
END = re.compile(r"(?<=[.!?])(?:\*\*)?\s+|(?<=:)\s+(?=[A-Z\"*])")


def pages() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "README.md", "CONTRIBUTING.md", "docs/*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.split()


def sentences(page: str) -> list[str]:
    """Return the sentences of a page's paragraphs, items and cells."""
    blocks = BLOCK.split(FENCED.sub("\n\n", page))
    texts = [text for block in blocks for text in (CELL.split(block) if "|" in block else [block])]
    plain = [LINK.sub(r"\1", CODE.sub("CODE", " ".join(text.split()))) for text in texts]
    return [one for text in plain for one in END.split(NAMES.sub("CODE", text))]


def words(sentence: str) -> int:
    return sum(any(map(str.isalnum, word)) for word in sentence.split())


@pytest.mark.parametrize("page", pages())
def test_no_sentence_of_the_page_is_long(page: str) -> None:
    found = sentences((ROOT / Path(page)).read_text())
    assert found
    assert [(words(one), one) for one in found if words(one) > MOST] == []


def test_a_long_sentence_is_found_in_a_paragraph_an_item_and_a_cell() -> None:
    long = "word " * (MOST + 1)
    page = f"# A\n\n{long}\n\n- `a`, `b` {long}\n- {long[5:]}\n\n| a | {long} |\n|---|---|\n"
    assert [words(one) for one in sentences(page) if words(one) > MOST] == [21, 22, 21]
