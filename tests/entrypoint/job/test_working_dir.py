"""A local working directory as an archive, made by the program that makes it."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from entrypoint.job.working_dir import PackError, pack


def test_a_file_name_that_is_not_utf_8_is_named_with_a_remedy(tmp_path: Path) -> None:
    given, into = tmp_path / "given", tmp_path / "into"
    for directory in (given / "sub", into):
        directory.mkdir(parents=True)
    name = os.path.join(os.fsencode(given), b"sub", b"caf\xe9.py")  # noqa: PTH118 - bytes
    with open(name, "w"):  # noqa: PTH123
        pass
    with pytest.raises(PackError, match=r"b'sub/caf\\xe9.py' is not UTF-8: rename it") as caught:
        pack({"working_dir": str(given)}, into)
    assert "\n" not in str(caught.value)
    (given / ".rayignore").write_text("sub/\n")
    package = pack({"working_dir": str(given)}, into)
    assert ".rollcall" in zipfile.ZipFile(package).namelist()
