"""The policy's words alone: without the prompt, without a tokenizer's padding, BOS and end."""

from __future__ import annotations

import re
from dataclasses import replace

from env.types import RewardRequest

# OpenRLHF's queries have the marks of its tokeniser: padding and BOS before the text, end tokens
# and padding behind it. Others are words of the policy, such as </answer> or <|end_of_thought|>.
BEGINS = r"bos(?:_token)?|begin[_▁]of[_▁](?:text|sentence)|start_?of_?text"
ENDS = (
    r"im_end|end(?:_?of_?(?:text|turn|message|utterance|assistant)|▁of▁sentence)?|end_of_turn_token|"
    r"(?:eo[dmt](?:_id)?|eo[st]_token|eos)|(?:role|message)_end|return|call|user|observation"
)
PADDING = r"pad(?:_token|ding)?|(?:fim|vision)_pad|finetune_right_pad(?:_id)?"
PIPED = rf"(?:{BEGINS}|{ENDS}|{PADDING})"
PLAIN = (
    r"/?(?:s|pad|eos|bos|unk|sep|cls|mask)|(?:eos|bos|pad)_token|(?:start|end)_of_turn|"
    r"end_of_utterance"
)
SPECIAL = rf"(?:<(?:{PLAIN})>|<\|{PIPED}\|>|<｜{PIPED}｜>|\[(?:PAD|EOS|SEP)\])"
LEADING = re.compile(rf"^(?:\s*{SPECIAL})+", re.IGNORECASE)
ANY = re.compile(rf"{SPECIAL}\s*", re.IGNORECASE)


def completion_of(request: RewardRequest) -> str:
    """Return the request's response without padding, BOS and end tokens around it."""
    if not request.query.startswith(request.prompt):
        request = replace(request, query=LEADING.sub("", request.query))  # padding on the left
    return without_end(request.response)


def without_end(text: str) -> str:
    """Return a text without the special tokens, and the spaces between them, at its end.

    In one pass: a pattern that ends in `$` would try each of thousands of tokens again.
    """
    begin = end = 0
    for found in ANY.finditer(text):
        if found.start() != end:
            begin = found.start()
        end = found.end()
    return text[:begin] if end == len(text) else text
