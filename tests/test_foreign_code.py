"""The source has no call that runs what a model, a checkpoint or a data set brings along."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("contract", "entrypoint", "env", "rollcall", "trainer")
UNPICKLERS = {"joblib", "dill", "cloudpickle", "shelve", "marshal", "jsonpickle", "_pickle"}
READERS = {"load", "loads", "Unpickler"}
SAFE: dict[str, tuple[str, object]] = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "numpy.load": ("allow_pickle", False),
    "np.lib.format.read_array": ("allow_pickle", False),
    "load_state_dict": ("weights_only", True),  # of transformers, where it has a keyword
}
NEVER = {
    *("torch.jit.load", "torch.hub.load", "torch.package.PackageImporter", "yaml.unsafe_load"),
    *("yaml.full_load", "pd.read_pickle", "pandas.read_pickle"),
}
WITHOUT_CODE = {"GenerationConfig", "Qwen2VLImageProcessorPil"}
"""Classes of transformers that load no code of a model."""
ALLOWED = {
    ("trainer/checkpoint/openrlhf_deepspeed.py", "torch.load"): "behind --trust_pickles",
    ("trainer/weight_sync/vllm_receiver.py", "pickle.loads"): "from a worker of the same run",
    ("trainer/workers/pass_check.py", "pickle.loads"): "from a rank of the same run",
    ("env/retrieval/encoder.py", "from_pretrained"): "passes its own trust_remote_code",
    ("trainer/models/pretrained.py", "from_pretrained"): "passes its own trust_remote_code",
}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def keyword(call: ast.Call, name: str) -> object:
    found = next((k.value for k in call.keywords if k.arg == name), None)
    return found.value if isinstance(found, ast.Constant) else None


def faults(tree: ast.AST) -> Iterator[str]:
    """Yield the names of calls and imports that may run code of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module if isinstance(node, ast.ImportFrom) else ""
            named = {(module or alias.name).partition(".")[0] for alias in node.names}
            yield from named & UNPICKLERS
            if module == "pickle":
                yield from (f"pickle.{a.name}" for a in node.names if a.name in READERS)
        elif isinstance(node, ast.Call):
            yield from _of_call(node, dotted(node.func))


def _of_call(call: ast.Call, name: str) -> Iterator[str]:
    owner, _, method = name.rpartition(".")
    flag, wanted = SAFE.get(name, ("", None))
    unpickles = owner == "pickle" and method in READERS
    if name in NEVER or unpickles or keyword(call, flag) is not wanted:
        yield name
    elif method == "from_pretrained" and owner.rpartition(".")[2] not in WITHOUT_CODE:
        yield method
    elif keyword(call, "trust_remote_code") is True:
        yield "trust_remote_code"


def in_source() -> set[tuple[str, str]]:
    return {
        (str(path.relative_to(ROOT)), fault)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for fault in faults(ast.parse(path.read_text()))
    }


def test_nothing_reads_a_pickle_or_runs_a_models_code_beyond_the_places_with_a_reason() -> None:
    assert in_source() == {*ALLOWED}


@pytest.mark.parametrize(
    "line",
    [
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=given)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "pickle.load(file)",
        "pickle.Unpickler(file)",
        "from pickle import loads",
        "import dill",
        "from joblib import load",
        "transformers.AutoModel.from_pretrained(name)",
        "kind.from_pretrained(name, trust_remote_code=False)",
        "LLM(model=name, trust_remote_code=True)",
    ],
)
def test_the_scan_finds(line: str) -> None:
    assert list(faults(ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    ["torch.load(path, weights_only=True)", "from pickle import UnpicklingError", "json.load(f)"],
)
def test_the_scan_leaves(line: str) -> None:
    assert not list(faults(ast.parse(line)))
