"""A model's tokeniser: texts to tokens and back, in the same way for all that read or write them.

Special tokens are words of the policy: `<think>`, `<search>` or `[TOOL_CALLS]` may be such tokens,
and rewards, stop strings and environments look for them. So a text shows all tokens but padding,
BOS and the end token at its end. OpenRLHF's texts show the latter too.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from env.data.template_messages import fitted
from env.types import Messages


@dataclass(frozen=True)
class TextCodec:
    """Converts texts to tokens, and tokens to texts."""

    tokenizer: Any
    """transformers' tokeniser."""
    ends: Collection[int] = ()
    """The model's end tokens: its generation config may have others than the tokeniser's."""

    def begin(self, text: str) -> list[int]:
        """Return the tokens of a text from its beginning, behind what the tokeniser begins with.

        That is BOS in many models' format. A text that has it already gets no second.
        """
        tokens, first = self.encode(text), self._first
        return tokens if tokens[: len(first)] == first else [*first, *tokens]

    def without_first(self, text: str) -> str:
        """Return a text without what the tokeniser puts before it, for who lets it do that."""
        return text.removeprefix(self._text(self._first))

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text alone: it continues another, or a template wrote it."""
        tokens: list[int] = self.tokenizer(_valid(text), add_special_tokens=False)["input_ids"]
        return tokens

    def render(self, messages: Messages, **options: Any) -> str:
        """Return a chat as the tokeniser's template writes it. `options`: of the template."""
        own = self.tokenizer
        known = fitted(messages, own.get_chat_template(tools=options.get("tools")))
        text: str = own.apply_chat_template(known, tokenize=False, **options)
        return text

    def decode(self, tokens: Sequence[int], *, follows: bool = False) -> str:
        """Return the text of tokens without padding, BOS, and the end token at the end.

        `follows`: they continue a text, so that a space at their beginning stays, which many
        tokenisers leave out at the beginning of a text.
        """
        kept = self._shown(tokens)
        if not follows or not kept:
            return self._text(kept)
        before = self._letter
        return self._text([*before, *kept])[len(self._text(before)) :]

    def _shown(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens that a text shows. A token that is the end token too counts as that."""
        own = self.tokenizer
        end, padding = own.eos_token_id, own.pad_token_id
        unseen = {own.bos_token_id, padding} - {end}
        kept = [int(token) for token in tokens if token not in unseen]
        length = len(kept)
        while length and kept[length - 1] == padding:
            length -= 1
        if kept and length == len(kept) and (kept[-1] == end or kept[-1] in self.ends):
            length -= 1
        return kept[:length]

    def _text(self, tokens: list[int]) -> str:
        text: str = self.tokenizer.decode(
            tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    @cached_property
    def _letter(self) -> list[int]:
        """The tokens of a character."""
        return next(filter(None, map(self.encode, string.printable)), [])

    @cached_property
    def _first(self) -> list[int]:
        """The tokens that the tokeniser puts before a text; it may put others behind one."""
        letter = next(filter(self.encode, string.printable), "")
        plain, whole = self.encode(letter), list(self.tokenizer(letter)["input_ids"])
        starts = range(len(whole) - len(plain) + 1)
        start = next((at for at in starts if whole[at : at + len(plain)] == plain), 0)
        return whole[:start]


def _valid(text: str) -> str:
    """Return a text without lone surrogates, which Python makes of binary data."""
    return text.encode(errors="replace").decode()
