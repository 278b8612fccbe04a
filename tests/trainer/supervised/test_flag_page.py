from __future__ import annotations

from tests.support.doc_pages import SUPERVISED, with_stages


def test_the_page_has_the_tables_of_the_stages_flags() -> None:
    page = SUPERVISED.read_text()
    assert with_stages(page) == page, "python -m tests.support.doc_pages"
    assert "| `beta` | `model.beta` | 0.1 |" in page
