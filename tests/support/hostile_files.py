"""Models, checkpoints and data that would run code of theirs, which leaves a mark."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

CONFIG = (
    "from transformers import Qwen2Config\nclass Config(Qwen2Config):\n    model_type = 'own'\n"
)
MODEL = """from transformers import Qwen2ForCausalLM, Qwen2ForSequenceClassification, Qwen2Model
from .own_config import Config
class Whole(Qwen2ForCausalLM):
    config_class = Config
class Scorer(Qwen2ForSequenceClassification):
    config_class = Config
class Backbone(Qwen2Model):
    config_class = Config
"""
TOKENIZER = """from transformers import PreTrainedTokenizerFast
class Tokenizer(PreTrainedTokenizerFast):
    pass
"""
CODE = {"own_config.py": CONFIG, "own_model.py": MODEL, "own_tokenizer.py": TOKENIZER}
MODELS = {
    "AutoModelForCausalLM": "own_model.Whole",
    "AutoModelForSequenceClassification": "own_model.Scorer",
    "AutoModel": "own_model.Backbone",
}


@dataclass(frozen=True)
class Mark:
    """A file to which code that runs adds a line."""

    path: Path

    def ran(self) -> list[str]:
        """Return what has run since the last call."""
        lines = self.path.read_text().split() if self.path.exists() else []
        self.path.unlink(missing_ok=True)
        return lines


class Bomb:
    """A pickle of it leaves a mark when it is read."""

    def __init__(self, mark: Mark) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        text = f"open({str(self._mark.path)!r}, 'a').write('pickle\\n')"
        return exec, (text,)


def bomb(mark: Mark) -> bytes:
    return pickle.dumps(Bomb(mark))


def arm(mark: Mark, model: Path, out: Path, *, of_tokenizer: bool = True) -> Path:
    """Write the model again, as one that is known by code of its own alone."""
    shutil.copytree(model, out)
    for name, text in CODE.items():
        (out / name).write_text(f"open({str(mark.path)!r}, 'a').write('{name}\\n')\n{text}")
    config = json.loads((out / "config.json").read_text())
    auto_map = {"AutoConfig": "own_config.Config", **MODELS}
    (out / "config.json").write_text(
        json.dumps({**config, "model_type": "own", "auto_map": auto_map})
    )
    if of_tokenizer:
        own = json.loads((out / "tokenizer_config.json").read_text())
        own |= {
            "tokenizer_class": "Tokenizer",
            "auto_map": {"AutoTokenizer": [None, "own_tokenizer.Tokenizer"]},
        }
        (out / "tokenizer_config.json").write_text(json.dumps(own))
    return out


def with_pickled_weights(mark: Mark, model: Path, out: Path) -> Path:
    """Write the model again with weights that run code."""
    shutil.copytree(model, out, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save({"model.norm.weight": Bomb(mark)}, out / "pytorch_model.bin")
    return out


def array(mark: Mark) -> bytes:
    """Return a file of numpy with an object, which numpy would unpickle."""
    content = io.BytesIO()
    np.save(content, np.array([Bomb(mark)], dtype=object), allow_pickle=True)
    return content.getvalue()


def data_set(mark: Mark, kind: str, out: Path) -> Path:
    """Write a directory of data whose reader might run code: a script, a pickle, an archive."""
    out.mkdir()
    if kind == "script":
        script = f"open({str(mark.path)!r}, 'a').write('script\\n')\n"
        (out / f"{out.name}.py").write_text(script)
        (out / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    elif kind == "pickle":
        (out / "train.pkl").write_bytes(bomb(mark))
    elif kind == "card":
        card = "---\nconfigs:\n- config_name: default\n  data_files: train.pkl\n---\n"
        (out / "README.md").write_text(card)
        (out / "train.pkl").write_bytes(bomb(mark))
    else:
        with tarfile.open(out / "train.tar", "w") as archive:
            for name in ("a.prompt.pickle", "a.answer.pyd", "a.more.pth"):
                member = tarfile.TarInfo(name)
                member.size = len(content := bomb(mark))
                archive.addfile(member, io.BytesIO(content))
    return out
