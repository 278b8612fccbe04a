"""The code that draws curves, for inside of the run's page and of the report: both load nothing."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

CHARTS = files("entrypoint.run") / "charts"
"""What the run's page and the report share. uPlot is unchanged."""
STYLE = "".join((CHARTS / name).read_text() for name in ("uPlot.css", "charts.css"))
SCRIPTS = tuple(
    (CHARTS / name).read_text() for name in ("uPlot.js", "elements.js", "smoothing.js", "charts.js")
)
LICENCE = f"<!-- uPlot:\n{(CHARTS / 'uPlot.LICENSE').read_text()}-->\n"


def source(code: str) -> str:
    """Pure: return what allows this code in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
