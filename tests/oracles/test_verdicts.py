"""The cases of `verdicts.jsonl` judged by upstream's own functions too.

A row says where upstream's reward is another one ("upstream"), and why that is wanted ("because").
verl's and TRL's functions are called as they are. SQuAD's F1 and MathVista's comparison are written
down here from their definitions: neither is in a package.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.oracles.process import OPENRLHF
from tests.support.repository import ROOT

LINES = (ROOT / "tests" / "data" / "verdicts.jsonl").read_text().splitlines()
ALL = list(map(json.loads, LINES))
CASES = [case for case in ALL if case["reward"] is not None]
"""Those without a label that fails."""


def module(file: Path) -> ModuleType:
    """Return a module by its file: its package would import much that it does not need."""
    spec = spec_from_file_location(f"upstream_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def verl(name: str) -> ModuleType:
    return module(OPENRLHF / "verl" / "utils" / "reward_score" / f"{name}.py")


def targets(label: str) -> list[str]:
    """Return the answers of a label as Search-R1's and SQuAD's data have them."""
    try:
        read = json.loads(label)
    except ValueError:
        return [label]
    if not isinstance(read, dict | list):
        return [label]
    while isinstance(read, dict):
        read = read.get("target", read.get("answers", read.get("text")))
    return list(map(str, read if isinstance(read, list) else [read]))


def exact_match(case: dict[str, Any]) -> float:
    truth = {"target": targets(case["label"])}
    return float(verl("search_r1_like_qa_em").compute_score(case["completion"], truth))


def f1(case: dict[str, Any]) -> float:
    """SQuAD's: the harmonic mean of precision and recall of words, the best of the answers."""
    upstream = verl("search_r1_like_qa_em")
    answer = upstream.extract_solution(case["completion"])

    def of(gold: str) -> float:
        words, wanted = (upstream.normalize_answer(text).split() for text in (answer, gold))
        same = sum((Counter(words) & Counter(wanted)).values())
        return 2 * same / (len(words) + len(wanted)) if same else float(words == wanted)

    return 0.0 if answer is None else max(map(of, targets(case["label"])))


def gsm8k(case: dict[str, Any]) -> float:
    """verl's, with the number that its preparation of GSM8K takes from a solution."""
    found = re.search(r"#### (-?[0-9.,]+)", case["label"])
    truth = (found[1] if found else case["label"]).replace(",", "")
    return float(verl("gsm8k").compute_score(case["completion"], truth))


def mathvista(case: dict[str, Any]) -> float:
    """MathVista's comparison of what a person takes out of the completion ("extraction")."""
    row, extraction = {"answer": case["label"]}, case["extraction"]
    if case["label"].startswith("{"):
        row = json.loads(case["label"])
    answer, choices = row["answer"], row.get("choices")
    if choices:
        letter = re.findall(r"\(([a-zA-Z])\)", extraction)
        chosen = letter[0].upper() if letter else extraction
        place = ord(chosen) - ord("A") if len(chosen) == 1 else -1
        if not 0 <= place < len(choices):
            place = min(range(len(choices)), key=lambda at: distance(chosen, choices[at]))
        return float(choices[place] == answer)
    try:
        if re.fullmatch(r"-?\d+", answer):
            return float(str(int(float(extraction))) == answer)
        if re.fullmatch(r"-?\d*\.\d+", answer):
            return float(str(round(float(extraction), row["precision"])) == answer)
    except ValueError:
        return 0.0
    return float(extraction == answer)


def distance(one: str, other: str) -> int:
    """Return the edits between two texts: Levenshtein's distance."""
    before = list(range(len(other) + 1))
    for place, sign in enumerate(one, 1):
        row = [place]
        for at, wanted in enumerate(other, 1):
            row.append(min(before[at] + 1, row[-1] + 1, before[at - 1] + (sign != wanted)))
        before = row
    return before[-1]


def format_(case: dict[str, Any]) -> float:
    found = find_spec("trl")
    assert found is not None
    assert found.origin is not None
    upstream = module(Path(found.origin).parent / "rewards" / "format_rewards.py")
    (reward,) = upstream.think_format_reward([[{"content": case["completion"]}]])
    return float(reward)


JUDGES: dict[str, Callable[[dict[str, Any]], float]] = {
    "exact-match": exact_match,
    "f1": f1,
    "gsm8k": gsm8k,
    "mathvista": mathvista,
    "format": format_,
}


@pytest.mark.parametrize("verifier", JUDGES)
def test_upstream_gives_the_same_reward_or_the_row_says_why_not(verifier: str) -> None:
    cases = [case for case in CASES if case["verifier"] == verifier]
    assert len(cases) >= 25
    for case in cases:
        assert JUDGES[verifier](case) == pytest.approx(case.get("upstream", case["reward"])), case
        assert ("upstream" in case) == ("because" in case), case
    agreed = sum("upstream" not in case for case in cases)
    cases_of_all = sum(case["verifier"] == verifier for case in ALL)
    row = f"| `{verifier}` | {cases_of_all} | {cases_of_all} | {agreed} of {len(cases)} |"
    assert row in (ROOT / "docs" / "rewards.md").read_text()
