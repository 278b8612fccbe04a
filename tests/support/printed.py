"""What a program prints, for a test that waits for a part of it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest


@dataclass(slots=True)
class Printed:
    """Standard output of this process, as far as it was looked at."""

    capsys: pytest.CaptureFixture[str]
    text: str = ""

    def has(self, part: str) -> bool:
        """Look at the output; return whether it has this part by now."""
        self.text += self.capsys.readouterr().out
        return part in self.text
