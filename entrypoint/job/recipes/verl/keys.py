"""Which keys a verl has: its own configuration files, read as Hydra composes them.

verl's packages have each configuration as one file, `_generated_NAME.yaml`; Search-R1's copy has a
file without parts. What is put together in another way is not judged.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from contract.files import yaml_text
from contract.launch.hydra import MORE, NAME, OPTIONS, PATH
from contract.options import did_you_mean, nearest
from entrypoint.job.recipes.verl.command_line import OVERRIDE

ENGINE = "model_engine"
"""The only choice of parts that has generated files of its own."""
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml takes 12 ms for the configuration of verl, and the loader in Python 90 ms."""
UNREADABLE = (OSError, ValueError, SyntaxError, RecursionError, yaml.YAMLError)
"""What reading a damaged source or configuration raises; a configuration may contain itself."""


def strange(program: Path, package: Path, overrides: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each override that Hydra would refuse, because of its key.

    `program`: the source of the module that runs; `package`: the directory of its verl.
    """
    if (read := _read(program, package, overrides)) is None:
        return
    keys, known = read
    for word in overrides:
        match = OVERRIDE.fullmatch(word)
        if match is None or match["sign"] == "++" or match["key"] == ENGINE:
            continue
        sign, key = match["sign"], match["key"]
        if key.startswith("hydra."):
            continue
        if sign == "+" and _is_taken(keys, key, match["value"]):
            yield f"+{key}: verl has this key, and Hydra does not add it again: leave the + out"
        elif sign != "+" and not _has(keys, key):
            otherwise = f"leave it out, or give +{key} to add it"
            hint = did_you_mean(key, known, otherwise, cutoff=0.8)
            yield f"{key} is not a key of this verl: {hint}"


def near(key: str, known: Sequence[str]) -> str:
    """Return the known key of which one name between the dots is misspelt in `key`; "" if none."""
    names = key.split(".")
    for place, name in enumerate(names):
        around = names[:place], names[place + 1 :]
        alike = [
            other[place]
            for other in (one.split(".") for one in known)
            if len(other) == len(names) and (other[:place], other[place + 1 :]) == around
        ]
        if found := nearest(name, alike, cutoff=0.8):
            return ".".join([*around[0], found, *around[1]])
    return ""


def absent_files(program: Path, words: Sequence[str], here: Path | None) -> Iterator[str]:
    """Yield a sentence if the file or a directory that Hydra's options name is not there.

    `here`: where the job starts; None if only the nodes know it.
    """
    try:
        named, options = _named_in(program), _options(words)
    except UNREADABLE:
        return
    if named is None or options is None or any("hydra.searchpath" in word for word in words):
        return
    given = options[0]
    places = []
    for option, start in ((PATH, program.parent), (MORE, here)):
        path = Path(given.get(option, named[0] if option == PATH else ""))
        if (option not in given and option == MORE) or "://" in str(given.get(option)):
            continue
        if start is None and not path.is_absolute():
            return
        place = (start or Path()) / path
        if not place.is_dir():
            whole = "" if path.is_absolute() else f", which is {place},"
            meant = None if here is None or path.is_absolute() else here / path
            instead = "an absolute path" if meant is None or not meant.is_dir() else str(meant)
            yield f"{option} {path}{whole} is not a directory: give {instead}"
            return
        places.append(place)
    name = f"{given.get(NAME, named[1]).removesuffix('.yaml')}.yaml"
    if not places or any((place / name).is_file() for place in places):
        return
    beside = [file.name for place in places for file in place.glob("*.yaml")]
    instead = did_you_mean(name, beside, "give the name of a file there")
    where = " or in ".join(map(str, places))
    yield f"{NAME} {name.removesuffix('.yaml')} is not a file in {where}: {instead}"


def names_own_file(words: Sequence[str]) -> bool:
    """Return whether Hydra's options of files name a directory of one's own."""
    options = _options(words)
    return options is not None and not options[0].keys().isdisjoint((PATH, MORE))


def is_checked(program: Path, package: Path, overrides: Sequence[str]) -> bool:
    """Return whether `strange` knows the keys."""
    return _read(program, package, overrides) is not None


def _read(
    program: Path, package: Path, words: Sequence[str]
) -> tuple[Mapping[str, Any], list[str]] | None:
    """Return the keys with their defaults, and all names of keys; None if they are not known."""
    try:
        keys = _configuration(program, package, words)
        return None if keys is None else (keys, [*_names(keys)])
    except UNREADABLE:
        return None  # the job itself says what is wrong with its files


def _configuration(program: Path, package: Path, words: Sequence[str]) -> Mapping[str, Any] | None:
    """Return the keys with their defaults; None if only Hydra can put them together."""
    named, options = _named_in(program), _options(words)
    if named is None or options is None:
        return None
    directory, name = named
    given, overrides = options
    directory = program.parent / given.get(PATH, directory)
    name = given.get(NAME, name).removesuffix(".yaml")
    engine = ""
    for word in overrides:
        option, _, value = word.partition("=")
        if option == ENGINE:
            engine = value
        elif (
            "@" in option or "/" in option or ("." not in option and (directory / option).is_dir())
        ):
            return None  # it chooses a part by itself
    if engine not in ("", "dp"):
        name = name.replace("ppo_", f"ppo_{engine}_", 1)
        if not (directory / f"_generated_{name}.yaml").is_file():
            return None
    if "/" in name or "://" in given.get(PATH, ""):
        return None
    more = [Path.cwd() / given[MORE]] if MORE in given else []
    return _loaded([directory, *more, package / "trainer" / "config"], name, package)


def _options(words: Sequence[str]) -> tuple[dict[str, str], list[str]] | None:
    """Return what Hydra's options of files say, and the other words; None with another option."""
    given: dict[str, str] = {}
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        option, equals, value = word.partition("=")
        if option in OPTIONS:
            given[OPTIONS[option]] = value if equals else "".join(left[:1])
            left = left if equals else left[1:]
        elif word.startswith("-"):
            return None
        else:
            rest.append(word)
    return given, rest


def _named_in(program: Path) -> tuple[Path, str] | None:
    """Return the directory and the name of the configuration that `hydra.main` names."""
    for node in ast.walk(ast.parse(program.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "hydra.main":
            given = {one.arg: one.value for one in node.keywords}
            path, name = given.get("config_path"), given.get("config_name")
            if isinstance(path, ast.Constant) and isinstance(name, ast.Constant):
                return program.parent / str(path.value), str(name.value).removesuffix(".yaml")
    return None


def _loaded(places: Sequence[Path], name: str, package: Path) -> dict[str, Any] | None:
    """Return the configuration of this name in the first place that has it."""
    for place in places:
        is_verls = place.resolve().is_relative_to(package.resolve())
        whole = [place / f"_generated_{name}.yaml"] if is_verls else []  # a copy may be changed
        for file in (*whole, place / f"{name}.yaml"):
            if file.is_file():
                row = yaml.load(file.read_text(), LOADER)
                return _composed(row, places, package) if isinstance(row, dict) else None
    return None


def _composed(row: dict[str, Any], places: Sequence[Path], package: Path) -> dict[str, Any] | None:
    """Return a file's keys on those of the files that its `defaults` name."""
    own = {key: value for key, value in row.items() if key not in ("defaults", "hydra")}
    made: dict[str, Any] = {}
    parts = row.get("defaults") or ["_self_"]
    for part in parts if isinstance(parts, list) else [parts]:
        if not isinstance(part, str):
            return None
        more = own if part == "_self_" else _loaded(places, part, package)
        if more is None:
            return None
        made = yaml_text.merged(made, more)
    return made


def _has(keys: Mapping[str, Any], key: str) -> bool:
    """Return whether there is a key; true behind an interpolation, which only Hydra resolves."""
    found: Any = keys
    for name in key.split("."):
        if isinstance(found, list) or (isinstance(found, str) and "${" in found):
            return True
        if not isinstance(found, Mapping) or name not in found:
            return False
        found = found[name]
    return True


def _is_taken(keys: Mapping[str, Any], key: str, value: str) -> bool:
    """Return whether Hydra refuses `+key=value`: the key exists, and its value is not a list."""
    found: Any = keys
    for name in key.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return False
        found = found[name]
    is_open = found is None or (isinstance(found, str) and ("${" in found or found == "???"))
    return not is_open and value[:1] not in ("{", "[")


def _names(keys: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in keys.items():
        if isinstance(value, Mapping) and value:
            yield from _names(value, f"{above}{name}.")
        else:
            yield f"{above}{name}"
