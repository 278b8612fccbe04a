"""A figure that a notebook shows."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure


class Curve(Figure):
    """A figure that is shown as the value of a notebook's cell.

    IPython shows matplotlib's own class only if the notebook has loaded pyplot.
    """

    def _repr_png_(self) -> bytes:
        """Return the picture. IPython calls this."""
        made = BytesIO()
        self.savefig(made, format="png")
        return made.getvalue()
