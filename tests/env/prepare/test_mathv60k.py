"""MathV60K: archives are extracted safely, paths rewritten, and what broke off goes on."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from env.data.prompts import ReadSettings, images_of, load_prompts
from env.images.rows import ImageColumn
from env.prepare import archive
from env.prepare.__main__ import main
from env.prepare.mathv60k import ARCHIVE, ROWS

ELSEWHERE = "/share/someone/data/mathv60k"


def message(image: str) -> str:
    parts = [{"type": "image", "image": image}, {"type": "text", "text": "How many?"}]
    return json.dumps([{"role": "user", "content": parts}])


def source(root: Path, files: Mapping[str, bytes], *more: tarfile.TarInfo) -> Path:
    """Three rows, and an archive with these files."""
    root.mkdir(exist_ok=True)
    names = ["TabMWP/1.png", "UniGeo/1.png", "UniGeo/none.png"]
    rows = [
        {"message": message(f"{ELSEWHERE}/mathv60k_img/{name}"), "answer": str(number), "id": name}
        for number, name in enumerate(names)
    ]
    (root / ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    with tarfile.open(root / ARCHIVE, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"mathv60k_img/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for link in more:
            tar.addfile(link)
    return root


IMAGES = {"TabMWP/1.png": b"one", "UniGeo/1.png": b"two", "notes.txt": b"no image"}


def run(root: Path, *more: str) -> int:
    return main(["mathv60k", "--source", str(root / "source"), "--out", str(root / "out"), *more])


def rows(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "out" / ROWS).read_text().splitlines()]


def test_rows_name_the_extracted_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source(tmp_path / "source", IMAGES)
    assert run(tmp_path) == 0
    assert "2 rows; 1 name images that the archive lacks" in capsys.readouterr().out
    assert [row["id"] for row in rows(tmp_path)] == ["TabMWP/1.png", "UniGeo/1.png"]
    prompts = load_prompts(
        tmp_path / "out" / ROWS,
        ReadSettings("message", "answer", render=json.dumps, images=ImageColumn()),
    )
    paths = [Path(image) for prompt in prompts for image in images_of(prompt)]
    assert [path.read_bytes() for path in paths] == [b"one", b"two"]
    assert not (tmp_path / "out" / "mathv60k_img" / "notes.txt").exists()
    assert run(tmp_path) == 0
    assert "already there" in capsys.readouterr().out


def test_what_broke_off_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = source(tmp_path / "source", {n: bytes(100_000) for n in IMAGES} | {"z.png": b"last"})
    whole = (root / ARCHIVE).read_bytes()
    (root / ARCHIVE).write_bytes(whole[: len(whole) * 2 // 3])
    assert run(tmp_path) == 64
    said = capsys.readouterr().err
    assert "damaged or cut off after" in said
    assert "Traceback" not in said
    assert not (tmp_path / "out" / ROWS).exists()
    first = tmp_path / "out" / "mathv60k_img" / "TabMWP" / "1.png"
    written_at = first.stat().st_mtime_ns
    (root / ARCHIVE).write_bytes(whole)
    assert run(tmp_path) == 0
    assert first.stat().st_mtime_ns == written_at
    assert len(rows(tmp_path)) == 2


@pytest.mark.parametrize("more", [(), ("--force",)], ids=["again", "by force"])
def test_an_image_that_is_missing_or_damaged_is_extracted_again(
    tmp_path: Path, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    source(tmp_path / "source", IMAGES)
    assert run(tmp_path) == 0
    images = tmp_path / "out" / "mathv60k_img"
    (images / "TabMWP/1.png").unlink()
    (images / "UniGeo/1.png").write_bytes(b"tw?")
    assert run(tmp_path, *more) == 0
    assert (images / "TabMWP/1.png").read_bytes() == b"one"
    assert (images / "UniGeo/1.png").read_bytes() == b"two"
    capsys.readouterr()
    assert run(tmp_path) == 0
    assert "already there" in capsys.readouterr().out


BROKEN = [
    ("[1]", "holds no messages"),
    (
        '[{"role": "user", "content": [{"type": "image", "image": {}}]}]',
        "an image that is not a path",
    ),
    ("[" * 100_000, "holds no messages"),
    ('[{"content": "no role"}]', "holds no messages"),
    ('[{"role": "user", "content": null}]', "holds no messages"),
    ('[{"role": "user", "content": "\\ud83d"}]', "is not Unicode: \\ud83d is incomplete"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN)
def test_a_row_without_messages_or_paths_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    root = source(tmp_path / "source", IMAGES)
    (root / ROWS).write_text(json.dumps({"message": text}) + "\n")
    assert run(tmp_path) == 64
    said = capsys.readouterr().err
    assert f"{ROWS}:1: 'message' " in said
    assert message in said


def test_only_the_rows_that_are_asked_for_are_written(tmp_path: Path) -> None:
    source(tmp_path / "source", IMAGES)
    assert run(tmp_path, "--max-samples", "1") == 0
    assert len(rows(tmp_path)) == 1


def link(name: str, to: str = "/etc/passwd") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, to
    return member


@pytest.mark.parametrize(
    "member",
    [link("mathv60k_img/a.png"), tarfile.TarInfo("../out.png"), tarfile.TarInfo("/tmp/a.png")],
    ids=["link", "up", "absolute"],
)
def test_an_archive_that_would_write_elsewhere_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], member: tarfile.TarInfo
) -> None:
    source(tmp_path / "source", {}, member)
    assert run(tmp_path) == 64
    assert "is a link, or leads out of the directory" in capsys.readouterr().err
    assert not (tmp_path / "out.png").exists()


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_damaged_archive_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pack: Callable[[bytes], bytes]
) -> None:
    path = source(tmp_path / "source", {}) / ARCHIVE
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("mathv60k_img/TabMWP/1.png")
        member.size = 300_000
        tar.addfile(member, io.BytesIO(random.Random(0).randbytes(member.size)))
    content = bytearray(pack(path.read_bytes()))
    content[len(content) // 2] ^= 1  # an image stays as long as it is: checksums alone tell
    path.write_bytes(content)
    assert run(tmp_path) == 64
    assert f"{ARCHIVE}: damaged or cut off" in capsys.readouterr().err


def test_an_archive_that_would_fill_the_disk_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source(tmp_path / "source", IMAGES)
    monkeypatch.setattr(archive, "TOTAL_BYTES", 5)
    assert run(tmp_path) == 64
    assert "its images have over" in capsys.readouterr().err
    monkeypatch.setattr(archive, "FILE_BYTES", 2)
    assert run(tmp_path) == 64
    assert "images of at most" in capsys.readouterr().err


def test_a_source_without_the_files_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "source").mkdir()
    assert run(tmp_path) == 64
    assert f"has no {ROWS}" in capsys.readouterr().err
