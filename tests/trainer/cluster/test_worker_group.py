"""How a worker's process makes its worker."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from trainer.cluster.worker_group import build


@pytest.fixture
def search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_worker_is_imported_without_garbage_collections_and_made_with_them(
    search_path: Path,
) -> None:
    (search_path / "collected.py").write_text(
        """
import gc
AT_IMPORT = gc.isenabled()
class Worker:
    def __init__(self, name):
        self.seen = name, AT_IMPORT, gc.isenabled()
"""
    )
    assert build("collected:Worker", ("policy-0",)).seen == ("policy-0", False, True)


def test_a_failed_import_leaves_garbage_collections_on(search_path: Path) -> None:
    (search_path / "unimportable.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        build("unimportable:Worker", ())
    assert gc.isenabled()
