"""Sentences of faults."""

from __future__ import annotations

from contract.options import Fault, ended


def test_a_question_or_a_whole_sentence_gets_no_second_full_stop() -> None:
    assert [ended(one) for one in ("a", "a.", "did you mean b?")] == ["a.", "a.", "did you mean b?"]
    assert str(Fault("--a", "b", "is wrong; is it c?", "Give c")) == (
        "--a: is wrong; is it c? (given: b). Give c"
    )
    assert str(Fault("A", "b", "is wrong", "did you mean c?")) == "A='b' is wrong: did you mean c?"
