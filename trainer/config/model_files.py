"""Checks whether a model can be loaded, by the files of its directory.

It does not import transformers, which takes seconds before a node can do anything else. A directory
is looked at before anything starts, a model of the hub after its download. Other faults are found
by the process that loads the model (`trainer.models.hub`).
"""

from __future__ import annotations

import json
import re
import zipfile
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from operator import itemgetter
from pathlib import Path
from typing import Any

from contract.files.hf_cache import cached
from contract.files.os_errors import NOT_THERE, can_be_path, with_errno, with_path
from contract.options import MISTYPED, nearest
from env import model_code
from env.images import git_lfs
from trainer.config.vocabulary import unreadable_tokens

SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "*.tiktoken",
)
"""Files with the vocabulary of a tokeniser; one is enough."""
TOKENIZER_TEXTS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
TEMPLATES = ("chat_template.jinja", "chat_template.json")
MODULE = re.compile(r"\w{1,100}", re.ASCII)
SEEING = ("qwen2_5_vl",)
"""Types of models that are trained on images."""
PROCESSOR = "preprocessor_config.json"
IMAGES = ("vision_config", "mm_vision_tower", "image_token_id", "image_token_index")
"""Keys of config.json that only models of images and text have."""


def sees_images(model: str) -> bool | None:
    """Return whether a model takes images; None if it is not on this disk yet."""
    for directory in (Path(model), cached(model)):
        try:
            return _json_object(directory / "config.json").get("model_type") in SEEING
        except (ValueError, OSError):
            continue
    return None


LONGEST_HEADER = 100_000_000
"""Bytes of a header; safetensors allows no longer one."""


def shape_of(directory: Path) -> dict[str, Any]:
    """Return a language model's sizes by transformers' names; empty if it is not on this disk."""
    try:
        config = _json_object(directory / "config.json")
    except (ValueError, OSError):  # `faults` says so
        return {}
    text: dict[str, Any] = config.get("text_config", config)
    return text


def known_shape(model: str) -> dict[str, Any]:
    """Return the same of a directory, or of a model of the hub that is in the cache here."""
    return shape_of(Path(model)) or shape_of(cached(model))


def parts_of_names(directory: Path) -> frozenset[str]:
    """Return all parts of the names of a model's tensors, such as q_proj; empty if unknown.

    Only headers are read.
    """
    whole, index = directory / SAFETENSORS, directory / f"{SAFETENSORS}.index.json"
    try:
        if whole.is_file():
            with whole.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                names = json.loads(file.read(min(size, LONGEST_HEADER)))
        else:
            names = _json_object(index)["weight_map"]
    except (OSError, ValueError, KeyError):  # `faults` says it
        return frozenset()
    return frozenset(part for name in names for part in name.split("."))


def misspelt(model: str) -> str:
    """Return a clause if a name on the hub is like that of a directory here; "" if it is not."""
    path = Path(model)
    if path.exists() or cached(model).exists() or not path.parent.name:
        return ""
    beside = [one.parent.name for one in path.parent.glob("*/config.json")]
    near = nearest(path.name, beside, cutoff=MISTYPED)
    return f"it is looked for on the hub; here there is {path.parent / near}" if near else ""


def faults(
    directory: Path,
    *,
    tokenizer: bool,
    images: bool = False,
    trained: bool = False,
    weights: bool = True,
) -> Iterator[str]:
    """Yield a sentence for each file that is missing or damaged, with the file's name.

    `tokenizer`: whether the model's own tokeniser is needed. `images`: whether a model that takes
    images may stand here. `trained`: whether its weights are to change. `weights`: whether they are
    there. Raises OSError if the disk fails.
    """
    if pointer := next(filter(_is_pointer, sorted(directory.iterdir())), None):
        yield f"{pointer} {git_lfs.SAID}"
        return
    path = directory / "config.json"
    try:
        config = _json_object(path)
    except ValueError as error:
        yield f"{error}. Download or export the model again"
    else:
        yield from _type_faults(path, config, images=images)
        if trained and (kind := _quantised(config)):
            yield (
                f"{path}: its weights are quantised ({kind}), and such weights cannot be trained. "
                "Give the model in bf16 or fp32"
            )
    if weights:
        yield from _weight_faults(directory)
    if tokenizer:
        yield from _tokenizer_faults(directory)
        if said := unreadable_tokens(directory, directory):
            yield said


def code_faults(directory: Path, *, trusted: bool) -> Iterator[str]:
    """Yield a sentence for a model that can be loaded only by code of its own, which may not run.

    `trusted`: whether it may. Raises OSError if the disk fails.
    """
    path = directory / "config.json"
    try:
        kind = _json_object(path).get("model_type")
    except ValueError:  # `faults` says so
        return
    code = model_code.code_of(directory)
    if code and not trusted and isinstance(kind, str) and not _is_known(kind):
        yield f"{_unknown(path, kind)}: {model_code.refusal(code)}"


def _unknown(path: Path, kind: str) -> str:
    return f"{path}: the model_type {kind!r} is none that transformers has here"


def _is_pointer(path: Path) -> bool:
    try:
        with with_path(path):
            return path.is_file() and git_lfs.is_pointer(path)
    except NOT_THERE:  # the checks of its kind name it
        return False


def has_chat_template(directory: Path) -> bool:
    """Return whether the tokeniser of a model on this disk has a chat template."""
    if any((directory / name).is_file() for name in TEMPLATES):
        return True
    try:
        return bool(_json_object(directory / "tokenizer_config.json").get("chat_template"))
    except (ValueError, OSError):
        return False


def template_fault(model: str, *, found: bool) -> Iterator[str]:
    """Yield why prompts of this model cannot be chats, unless a template was `found`."""
    if not found:
        yield (
            f"--apply_chat_template: the tokeniser of {model} has no chat template. Leave the flag "
            "out, give --input_template, or add a chat_template to the tokeniser"
        )


def _json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in the file. Raises ValueError, with its name, if there is none."""
    try:
        with with_path(path):
            content = json.loads(path.read_bytes().decode())
    except NOT_THERE as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"{path} is damaged: {error.msg} at {where}") from None
    except RecursionError:
        raise ValueError(f"{path} is damaged: it is nested too deep") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it holds no JSON object")
    return content


def _type_faults(path: Path, config: Mapping[str, Any], *, images: bool) -> Iterator[str]:
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind:
        yield f"{path} has no model_type. Give a model in Hugging Face's layout"
    elif not _is_known(kind) and not model_code.code_of(path.parent):
        yield f"{_unknown(path, kind)}. Correct it, or give a model whose type transformers has"
    key = next((key for key in IMAGES if config.get(key) is not None), None)
    if images and kind in SEEING:
        try:
            _json_object(path.with_name(PROCESSOR))
        except ValueError as error:
            yield f"{error}. It says how images are prepared: download or export it again"
    elif key:
        these = f"of those, {', '.join(SEEING)} is trained" if images else "this takes only text"
        yield (
            f"{path}: a model of images and text (it has {key}), and {these}. Give one of them, or "
            "a text model"
        )


def _quantised(config: Mapping[str, Any]) -> str:
    """Return how the weights are quantised; "" if they are not, or if transformers unpacks them."""
    given = config.get("quantization_config")
    if not isinstance(given, dict) or given.get("quant_method") == "mxfp4":
        return ""
    return str(given.get("quant_method", "quantization_config"))


def _is_known(model_type: str) -> bool:
    """Return whether transformers has the type, or does not list its types."""
    found = PathFinder.find_spec("transformers")
    if found is None or not found.submodule_search_locations:
        return True
    models = Path(found.submodule_search_locations[0]) / "models"
    names = _model_types(models / "auto" / "auto_mappings.py")
    # A few types are not in that table, but have a module of their name.
    module = model_type.replace("-", "_")
    has_module = MODULE.fullmatch(module) is not None and (models / module).is_dir()
    return not names or model_type in names or has_module


@cache
def _model_types(table: Path) -> frozenset[str]:
    """Return the names in transformers' table of types, a module without imports."""
    loader = SourceFileLoader("rollcall_model_types", str(table))
    spec = spec_from_loader(loader.name, loader)
    if spec is None or not table.is_file():
        return frozenset()
    module = module_from_spec(spec)
    loader.exec_module(module)
    return frozenset(getattr(module, "CONFIG_MAPPING_NAMES", ()))


def _weight_faults(directory: Path) -> Iterator[str]:
    """Yield faults of the weights. transformers reads the first of these files that exists."""
    for name, check in ((SAFETENSORS, _safetensors_fault), (PICKLED, _pickled_fault)):
        whole, index = directory / name, directory / f"{name}.index.json"
        files: Mapping[Path, Collection[str]]
        if whole.is_file():
            files = {whole: ()}
        elif index.is_file():
            try:
                files = _shards(index)
            except ValueError as error:
                yield f"{error}. Download or export the model again"
                return
        else:
            continue
        for path, tensors in files.items():
            if problem := check(path, tensors):
                yield f"{path} {problem}. Download or export the model again"
        return
    yield (
        f"{directory} has no weights: neither {SAFETENSORS}, nor {SAFETENSORS}.index.json, nor "
        f"{PICKLED}. Download or export the model again"
    )


def _shards(index: Path) -> Mapping[Path, Collection[str]]:
    """Return the files that an index names, with their tensors. Raises ValueError if damaged."""
    named = _json_object(index).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise ValueError(f"{index} is damaged: it has no weight_map")
    parent = index.parent
    if not all(isinstance(name, str) and can_be_path(parent / name) for name in named.values()):
        raise ValueError(f"{index} is damaged: its weight_map names no files")
    files: dict[Path, list[str]] = defaultdict(list)
    for tensor, name in sorted(named.items(), key=itemgetter(1)):
        files[parent / name].append(tensor)
    return files


def _safetensors_fault(path: Path, tensors: Collection[str]) -> str | None:
    """Return a fault of the file. The library compares header and length, and reads no tensor.

    `tensors`: what the index says that it has.
    """
    if not path.is_file():
        return "is missing, and the index names it"
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError:  # the trainer lacks more then, and says so itself
        return None
    try:
        with with_path(path), path.open("rb"):  # the library has one error for all of these
            pass
        with with_errno(path), safe_open(path, framework="np") as file:
            lacking = sorted({*tensors} - {*file.keys()})
            some = ", ".join(lacking[:3]) + (", …" if len(lacking) > 3 else "")
            return f"lacks {len(lacking)} tensors that the index names: {some}" if lacking else None
    except SafetensorError as error:
        return f"is damaged or cut off: {error} (it has {path.stat().st_size} bytes)"
    except NOT_THERE as error:
        return f"cannot be read: {error.strerror}"


def _pickled_fault(path: Path, tensors: Collection[str]) -> str | None:
    """Return a fault of the file: torch writes a zip archive, or in old versions a bare pickle."""
    if not path.is_file():
        return "is missing, and the index names it"
    with with_path(path), path.open("rb") as file:
        start = file.read(4)
    if not start:
        return "is empty"
    if start.startswith(b"PK") and not zipfile.is_zipfile(path):
        return f"is cut off (it has {path.stat().st_size} bytes)"
    return None


def _tokenizer_faults(directory: Path) -> Iterator[str]:
    if not any(any(directory.glob(name)) for name in VOCABULARIES):
        yield (
            f"{directory} has no tokeniser: none of {', '.join(VOCABULARIES)}. Copy the files of "
            "the tokeniser that the model was trained with there"
        )
    for name in TOKENIZER_TEXTS:
        if (directory / name).is_file():
            try:
                _json_object(directory / name)
            except ValueError as error:
                yield f"{error}. Download or export the tokeniser again"
