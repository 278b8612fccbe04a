"""The token for Ray's own commands in the shells of a node's container."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from entrypoint.config.read import read_settings
from entrypoint.run import token as run_token


@pytest.fixture
def shells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "rollcall-token"
    monkeypatch.setattr(run_token, "SHELLS", str(path))
    return path


def test_a_node_writes_its_token_where_the_image_has_rays_commands_look(shells: Path) -> None:
    settings = read_settings({"RAY_AUTH_TOKEN_PATH": str(shells)})
    for token in ("the-first-of-all-tokens", "another-token-of-a-later-head"):
        run_token.show_to_shells(settings, token)
        assert shells.read_text() == token
    assert shells.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in shells.parent.iterdir()] == [shells.name]


@pytest.mark.parametrize("path", ["", "/run/secrets/of-the-user"])
def test_nothing_is_written_outside_of_the_image_or_over_a_users_file(
    shells: Path, path: str
) -> None:
    run_token.show_to_shells(read_settings({"RAY_AUTH_TOKEN_PATH": path}), "a-token-of-16-chars")
    assert not shells.exists()


def test_a_place_that_cannot_be_written_is_a_warning(
    shells: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run_token, "SHELLS", "/none/rollcall-token")
    settings = read_settings({"RAY_AUTH_TOKEN_PATH": "/none/rollcall-token"})
    run_token.show_to_shells(settings, "a-token-of-16-chars")
    assert "Ray's own commands have no token here: /none/rollcall-token" in caplog.text


def test_a_program_without_a_node_has_no_variables_of_a_token_that_is_not_there(
    shells: Path,
) -> None:
    image = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(shells), "HOME": "/"}
    assert run_token.without_shells(image) == {"HOME": "/"}
    assert run_token.without_shells(image | {"RAY_AUTH_TOKEN_PATH": "/mine"})["RAY_AUTH_MODE"]
    shells.write_text("a-token-of-16-chars")
    assert run_token.without_shells(image) == image


def test_a_program_in_the_image_can_start_a_ray_of_its_own() -> None:
    image = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": run_token.SHELLS}
    if Path(run_token.SHELLS).exists():
        pytest.skip(f"{run_token.SHELLS} is there: a node runs on this machine")
    done = subprocess.run(
        [sys.executable, "-m", "entrypoint", "sh", "-c", "echo mode=$RAY_AUTH_MODE"],
        env={"PATH": os.environ["PATH"], **image},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "mode=\n"
