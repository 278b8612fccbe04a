"""Each exit code has a meaning, a remedy, and its rows in the docs."""

from __future__ import annotations

from contract.exit_codes import MEANINGS, ExitCode
from tests.support.doc_pages import REFERENCE, exit_codes
from tests.support.repository import ROOT

TROUBLESHOOTING = ROOT / "docs" / "troubleshooting.md"


def test_each_exit_code_has_a_meaning_and_each_failure_a_remedy() -> None:
    assert set(MEANINGS) == set(ExitCode)
    assert [code for code, of in MEANINGS.items() if not of.text] == []
    without = [code for code, of in MEANINGS.items() if not of.remedy]
    assert without == [ExitCode.FINISHED]


def test_the_reference_has_the_table_of_exit_codes() -> None:
    """Renewed by `python -m tests.support.doc_pages`."""
    assert exit_codes() in REFERENCE.read_text()


def test_troubleshooting_has_a_remedy_for_each_exit_code() -> None:
    page = TROUBLESHOOTING.read_text()
    failed = [code for code in ExitCode if code is not ExitCode.FINISHED]
    assert [code for code in failed if f"| {int(code)} |" not in page] == []
