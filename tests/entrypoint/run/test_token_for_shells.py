"""The token for Ray's own commands in the shells of a node's container."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from contract.files import private_dir
from entrypoint.config.read import read_settings
from entrypoint.run import token as run_token
from tests.support.repository import ROOT

TOKEN = "a-token-of-16-chars"


@pytest.fixture
def shells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (path := tmp_path / "shells").mkdir()
    monkeypatch.setattr(run_token, "SHELLS", path / "rollcall-token")
    monkeypatch.setattr(run_token, "RAY_OF_IMAGE", tmp_path)
    return path / "rollcall-token"


def test_a_node_writes_its_token_for_the_images_ray_and_deletes_it_at_its_end(shells: Path) -> None:
    for token in ("the-first-of-all-tokens", "another-token-of-a-later-head"):
        run_token.show_to_shells(token)
        assert shells.read_text() == token
    assert shells.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in shells.parent.iterdir()] == [shells.name]
    run_token.hide_from_shells("the-first-of-all-tokens")  # of a node that shares this /tmp
    assert shells.exists()
    run_token.hide_from_shells("another-token-of-a-later-head")
    assert not shells.exists()
    run_token.hide_from_shells("another-token-of-a-later-head")
    with run_token.shown_to_shells(TOKEN):
        assert shells.exists()
    assert not shells.exists()


def test_nothing_is_written_or_deleted_outside_of_the_image(
    shells: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_token, "RAY_OF_IMAGE", Path("/none"))
    run_token.show_to_shells(TOKEN)
    assert not shells.exists()
    shells.write_text(TOKEN)
    run_token.hide_from_shells(TOKEN)
    assert shells.exists()


def test_a_place_that_cannot_be_written_is_a_warning(
    shells: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run_token, "SHELLS", Path("/none/rollcall-token"))
    run_token.show_to_shells(TOKEN)
    assert "Ray's own commands have no token here: /none/rollcall-token" in caplog.text


SHOWN = "mode=$RAY_AUTH_MODE path=$RAY_AUTH_TOKEN_PATH tmp=$RAY_TMPDIR"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The image's `ray` before one that shows its arguments and variables; and a token file."""
    for name, text in (
        ("bin/ray", (ROOT / "entrypoint/run/ray.sh").read_text()),
        (
            "venv/ray",
            "#!/bin/sh\necho mode=$RAY_AUTH_MODE path=$RAY_AUTH_TOKEN_PATH tmp=$RAY_TMPDIR $*\n",
        ),
        ("venv/python", ""),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace(str(run_token.SHELLS), str(tmp_path / "token")))
        path.chmod(0o755)
    (tmp_path / "token").write_text(TOKEN)
    return tmp_path


def said(image: Path, **env: str) -> str:
    path = f"{image}/bin:{image}/venv:{os.environ['PATH']}"
    argv = [str(image / "bin" / "ray"), "status", "a b"]
    done = subprocess.run(
        argv, env={"PATH": path, **env}, capture_output=True, text=True, timeout=20, check=True
    )
    return done.stdout.strip()


def test_the_images_ray_takes_the_nodes_token(image: Path) -> None:
    assert said(image, TMPDIR="/none") == f"mode=token path={image}/token tmp= status a b"


@pytest.mark.parametrize(
    "given", [("ROLLCALL_RAY_TEMP_DIR", "own"), ("RAY_TMPDIR", ""), ("TMPDIR", "")]
)
def test_the_images_ray_finds_the_nodes_ray(image: Path, given: tuple[str, str]) -> None:
    with TemporaryDirectory() as short:
        variables = {given[0]: str(Path(short, given[1]))}
        home = read_settings(variables).ray_home
        private_dir.make(home)
        assert f" tmp={home} " in said(image, **variables)


@pytest.mark.parametrize("name", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"])
def test_the_images_ray_leaves_a_users_own_choice_alone(image: Path, name: str) -> None:
    assert str(image / "token") not in said(image, **{name: "mine"})


def test_the_images_ray_is_rays_own_if_no_node_of_this_user_runs(image: Path) -> None:
    (image / "token").unlink()
    assert said(image, TMPDIR="/none") == "mode= path= tmp= status a b"
    (image / "token").write_text(TOKEN)
    if os.geteuid() == 0:
        os.chown(image / "token", 12345, 12345)
        assert said(image, TMPDIR="/none") == "mode= path= tmp= status a b"
