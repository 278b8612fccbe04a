"""NCCL's lists of names, such as `^=mlx5_0:1,mlx5_2`, read as NCCL reads them.

As in its `parseStringList` and `matchIfList`: `^` (all others) and `=` (exactly) count at the
beginning of the whole list alone, a space is a part of a name, and no name fits every one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SIGNS = "^="
ALONE = "^ and = count at the beginning of the whole list alone"


@dataclass(frozen=True, slots=True)
class NameList:
    excludes: bool
    exact: bool
    names: tuple[str, ...]
    """As they are written, with their port, such as `mlx5_0:1`."""

    def chooses(self, name: str, port: int | None = None) -> bool:
        listed = not self.names or any(self.fits(one, name, port) for one in self.names)
        return listed is not self.excludes

    def fits(self, listed: str, name: str, port: int | None = None) -> bool:
        """Return whether one of the list's names stands for this one."""
        prefix, _, number = listed.partition(":")
        same = name == prefix if self.exact else name.startswith(prefix)
        return same and (not number or port is None or number == str(port))

    def without(self, present: Iterable[tuple[str, int | None]]) -> list[str]:
        """Return the listed names that stand for nothing that is there."""
        there = [*present]
        return [one for one in self.names if not any(self.fits(one, *that) for that in there)]

    @property
    def misplaced(self) -> tuple[str, ...]:
        """The names that begin with a sign, which NCCL takes for a part of the name."""
        return tuple(name for name in self.names if name[0] in SIGNS)

    @property
    def meant(self) -> str:
        """What to give for misplaced signs, if all names have the same; else a sentence."""
        sign = ("^" if self.excludes else "") + ("=" if self.exact else "")
        plain = [name.lstrip(SIGNS) for name in self.names]
        if all(
            f"{sign}{bare}" == name for name, bare in zip(self.names[1:], plain[1:], strict=True)
        ):
            return f"give {sign}{','.join(plain)}"
        return "give one sign before all names, or none"


def parsed(text: str) -> NameList:
    rest = text.removeprefix("^")
    names = rest.removeprefix("=").split(",")
    return NameList(
        excludes=text.startswith("^"),
        exact=rest.startswith("="),
        names=tuple(name for name in names if name.partition(":")[0]),
    )
