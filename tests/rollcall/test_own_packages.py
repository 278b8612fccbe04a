"""A user's `trainer.py` and `env` hide nothing of Rollcall's, and are not hidden."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollcall.own_packages import ROOT, hiding

ENV = "class MyEnv:\n    pass\n\nGAMES = 3\n"
SCRIPT = "{first}\n{second}\nprint(MyEnv.__name__, GAMES, RewardRequest.__module__)\n"
OURS, USERS = "from rollcall import RewardRequest, train", "from env import GAMES, MyEnv"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "env.py").write_text(ENV)
    (tmp_path / "trainer.py").write_text(
        "raise SystemExit('the training script ran as a module')\n"
    )
    return tmp_path


def ran(directory: Path, *words: str, **variables: str) -> str:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=directory,
        env=kept | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("first", "second"), [(OURS, USERS), (USERS, OURS)])
def test_a_program_has_its_own_env_and_ours(directory: Path, first: str, second: str) -> None:
    (directory / "program.py").write_text(SCRIPT.format(first=first, second=second))
    assert ran(directory, "program.py") == "MyEnv 3 env.types\n"


def test_a_program_may_be_named_trainer(directory: Path) -> None:
    program = "print('once')\nfrom rollcall import Client, train\nimport trainer\n"
    program += "SIZE = 5\nfrom trainer import SIZE, metrics\nprint(SIZE, metrics.__name__)\n"
    (directory / "trainer.py").write_text(program)
    assert ran(directory, "trainer.py") == "once\n5 trainer.metrics\n"


def test_a_users_package_keeps_its_submodules_and_their_relative_imports(directory: Path) -> None:
    (directory / "env.py").unlink()
    package = directory / "env"
    package.mkdir()
    (package / "__init__.py").write_text("from .wrappers import wrap\n")
    (package / "wrappers.py").write_text("from env.sizes import SIZE\ndef wrap(): return SIZE\n")
    (package / "sizes.py").write_text("SIZE = 7\n")
    for lines in ((OURS, "from env import wrap"), ("from env.wrappers import wrap", OURS)):
        (directory / "program.py").write_text("\n".join([*lines, "print(wrap())"]))
        assert ran(directory, "program.py") == "7\n"


def test_a_name_that_neither_has_is_an_import_error(directory: Path) -> None:
    program = f"{OURS}\ntry:\n    from env import Nothing\nexcept ImportError as error:\n"
    (directory / "program.py").write_text(program + "    print('Nothing' in str(error))\n")
    assert ran(directory, "program.py") == "True\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("prepare --help", "prompts with a tiny model"),
        ("sft --help", "--pretrain"),
        ("plan --json", '"role": "head"'),
    ],
)
def test_commands_work_beside_such_files_on_pythonpath_too(
    directory: Path, words: str, said: str
) -> None:
    for variables in ({}, {"PYTHONPATH": str(directory)}):
        assert said in ran(directory, "-m", "rollcall", *words.split(), **variables)


def test_a_virtual_environment_named_env_hides_nothing(directory: Path) -> None:
    assert hiding([str(directory)]) == [directory / "env.py", directory / "trainer.py"]
    (directory / "env.py").unlink()
    (directory / "trainer.py").unlink()
    (directory / "env" / "bin").mkdir(parents=True)
    assert hiding([str(directory), str(ROOT)]) == []
