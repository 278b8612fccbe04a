"""Programs that are started by name exist under that name."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

from contract.launch.programs import Program
from tests.support.repository import ROOT


@pytest.mark.parametrize("name", Program)
def test_a_program_is_there(name: Program) -> None:
    spec = find_spec(name)
    assert spec is not None
    if spec.submodule_search_locations is not None:
        spec = find_spec(f"{name}.__main__")
        assert spec is not None
    assert spec.origin is not None


def test_the_entrypoint_names_no_module_of_the_trainer_or_of_env_in_a_string() -> None:
    """Import directions hold for strings, too: names of programs are in `Program`."""
    places = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in (ROOT / "entrypoint").rglob("*.py")
        for match in re.finditer(r"""["'](?:trainer|env)(?:\.[a-z_]+)+["']""", path.read_text())
        if find_spec_of(match[0].strip("\"'"))
    }
    assert places == set()


def find_spec_of(name: str) -> bool:
    """Whether the name is that of a module: verl has keys such as trainer.nnodes."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
