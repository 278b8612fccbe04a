"""The wheel, installed alone and away from the repository."""

from __future__ import annotations

import os
import subprocess
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from entrypoint.commands.init_platforms import PLATFORMS
from tests.support import own_venv
from tests.support.repository import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / ".release/.done").exists(), reason="needs make .release/.done"),
]
PACKAGES = ("contract", "entrypoint", "env", "rollcall", "trainer")
MODULE = "rollcall_torch.py"
OF_THE_IMAGE = "entrypoint/run/ray.sh"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
DATA = '{"question": "1 + 1", "answer": "2"}\n{"question": "1 + 2", "answer": "3"}\n'


def build(place: Path) -> Path:
    """Return the wheel of this tree."""
    environ = {**os.environ, "DIST": str(place)}
    subprocess.run([ROOT / "release/dist.sh"], env=environ, check=True, capture_output=True)
    (wheel,) = place.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel without extras."""
    return own_venv.install(wheel, tmp_path_factory.mktemp("alone"))


def run(program: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {
        "PATH": f"{program.parent}:/usr/bin:/bin",
        "HOME": str(cwd),
        "ROLLCALL_RUN_DIR": str(cwd / "run"),
    }
    return subprocess.run([program, *words], cwd=cwd, env=environ, capture_output=True, text=True)


def tracked() -> Iterator[str]:
    command = ["git", "ls-files", "--", *PACKAGES, MODULE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    yield from done.stdout.splitlines()


def test_the_wheel_has_every_file_of_the_packages_and_the_platforms_files(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in tracked() if (ROOT / name).exists()} - {*names} == {OF_THE_IMAGE}
    below = f"rollcall_rlhf-{VERSION}.data/data/share/rollcall/compose/"
    sources = {file.source for platform in PLATFORMS.values() for file in platform.files}
    assert {f"{below}{source}" for source in sources} <= {*names}
    assert f"rollcall_rlhf-{VERSION}.dist-info/licenses/LICENSE" in names
    assert {name.split("/")[0].removesuffix(".data") for name in names} == {
        *PACKAGES,
        MODULE,
        f"rollcall_rlhf-{VERSION}",
        f"rollcall_rlhf-{VERSION}.dist-info",
    }


def test_the_same_files_give_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    again = build(tmp_path)
    assert again.read_bytes() == wheel.read_bytes()
    (sdist,) = tmp_path.glob("*.tar.gz")
    assert sdist.read_bytes() == wheel.with_name(sdist.name).read_bytes()


def test_the_version_is_that_of_pyproject(alone: Path, tmp_path: Path) -> None:
    assert run(alone / "rollcall", "--version", cwd=tmp_path).stdout == f"rollcall {VERSION}\n"


@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_init_writes_can_be_planned_beside_modules_of_the_user(
    platform: str, alone: Path, tmp_path: Path
) -> None:
    (tmp_path / "d.jsonl").write_text(DATA)
    words = ["init", "--yes", "--dir", "run", "--data", "../d.jsonl", "--platform", platform]
    columns = ["--input-key", "question", "--label-key", "answer"]
    if platform != "none":
        columns += ["--shared", str(tmp_path)]
    done = run(alone / "rollcall", *words, *columns, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    place = tmp_path / "run"
    (place / "trainer.py").write_text("raise SystemExit('the trainer of the user')")
    (place / "env").mkdir(exist_ok=True)
    (place / "env/__init__.py").write_text("raise SystemExit('the env of the user')")
    planned = run(alone / "rollcall", "plan", "--config", "run.yaml", cwd=place)
    assert planned.returncode == 0, planned.stdout + planned.stderr
    assert "of the user" not in planned.stdout + planned.stderr
    assert "`pip install 'rollcall-rlhf[eval]'`" in planned.stdout + planned.stderr


def test_the_reward_function_is_tried_without_torch(wheel: Path, tmp_path: Path) -> None:
    programs = own_venv.install(wheel, tmp_path / "venv", ("eval",))
    assert run(programs / "python", "-c", "import torch", cwd=tmp_path).returncode == 1
    (tmp_path / "d.jsonl").write_text(DATA)
    words = ["init", "--yes", "--dir", ".", "--data", "d.jsonl", "--platform", "none"]
    done = run(programs / "rollcall", *words, "--label-key", "answer", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    planned = run(programs / "rollcall", "plan", "--config", "run.yaml", cwd=tmp_path)
    assert planned.returncode == 0, planned.stdout + planned.stderr
    assert "'2' → 1" in planned.stdout
    assert "'3' → 1" in planned.stdout


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("up -- python train.py", 64, "`pip install 'rollcall-rlhf[node]'`"),
        ("demo", 64, "`pip install 'rollcall-rlhf[trainer]'`"),
        ("prepare arithmetic --out made", 64, "`pip install 'rollcall-rlhf[trainer]'`"),
        ("serve-reward --model made", 64, "`pip install 'rollcall-rlhf[trainer]'`"),
        ("open .", 64, "`pip install 'rollcall-rlhf[page]'`"),
        ("report made", 64, "made does not exist"),
        ("status", 64, "no run is found"),
        ("list", 64, "no run is found"),
        ("submit -- python train.py", 64, "no run is found"),
    ],
)
def test_a_command_that_needs_an_extra_names_it(
    command: str, code: int, said: str, alone: Path, tmp_path: Path
) -> None:
    done = run(alone / "rollcall", *command.split(), cwd=tmp_path)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_python_interface_needs_no_extra_before_it_trains(alone: Path, tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text("raise SystemExit('the env of the user')")
    program = "from rollcall import Client, train; print(Client.__name__, callable(train))"
    done = run(alone / "python", "-c", program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "Client True\n"), done.stderr
