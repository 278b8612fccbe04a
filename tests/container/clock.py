"""A wall clock that is wrong, for all that runs in a container."""

from __future__ import annotations

import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


@dataclass(frozen=True, slots=True)
class WrongClock:
    """The files of it, on this machine; `of_container` names them where they are mounted."""

    directory: Path

    @classmethod
    def made_in(cls, directory: Path, seconds: int = 0) -> WrongClock:
        """`seconds` ahead. Needs a C compiler."""
        clock = cls(directory)
        (directory / "offset").write_bytes(_told(seconds))
        build = ["gcc", "-shared", "-fPIC", "-O2", "-o"]
        subprocess.run([*build, directory / "clock.so", SOURCE], check=True)
        return clock

    def jump(self, seconds: int) -> None:
        """So far ahead of the machine's own."""
        with (self.directory / "offset").open("r+b") as shared:
            shared.write(_told(seconds))

    @staticmethod
    def variables(mounted: str) -> dict[str, str]:
        return {"LD_PRELOAD": f"{mounted}/clock.so", "CLOCK_OFFSET_FILE": f"{mounted}/offset"}


def _told(seconds: int) -> bytes:
    """As the library reads them."""
    return struct.pack("=q", seconds)
