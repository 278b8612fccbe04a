"""Replaces the model in a directory. All else in the directory stays, such as checkpoints."""

from __future__ import annotations

from pathlib import Path

from contract.run_dir import sync_directory

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json")


def incoming(directory: Path) -> Path:
    """Return where to write a new model before `replace` brings it to `directory`.

    It is inside of a directory that exists: such a directory may be a mount of its own.
    """
    name = f".{directory.name}.incoming"
    return directory / name if directory.is_dir() else directory.with_name(name)


def replace(directory: Path) -> None:
    """Bring what is in `incoming(directory)` to `directory`, and delete an older model's weights.

    A new directory appears as a whole. In a directory that exists, files are replaced one after
    the other. Does nothing if there is nothing to bring. Raises OSError.
    """
    new = incoming(directory)
    if not new.exists():
        return
    sync_directory(new)
    if new.parent != directory:
        new.rename(directory)
        sync_directory(directory.parent)
        return
    brought = {path.name for path in new.iterdir()}
    for name in sorted(brought):
        (new / name).replace(directory / name)
    for old in {path for pattern in WEIGHTS for path in directory.glob(pattern)}:
        if old.name not in brought and old.is_file():
            old.unlink()
    new.rmdir()
    sync_directory(directory)
