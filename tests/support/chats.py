"""Tokenisers with the chat templates of real models, and policies that say what a test wants."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trl

from env.episodes.types import Context, Generated, ReplyStop

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
END = {"qwen2_5": "<|im_end|>", "qwen3": "<|im_end|>", "llama3_1": "<|eot_id|>", "mistral": "</s>"}
SPECIAL = {
    "qwen2_5": ["<|im_start|>", "<|im_end|>", "<|endoftext|>"],
    "qwen3": ["<|im_start|>", "<|im_end|>", "<|endoftext|>"],
    "llama3_1": [
        "<|begin_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|python_tag|>",
    ],
    "mistral": [
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_CALLS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
    ],
}
MISTRAL = """\
{{ bos_token }}{% for message in messages %}\
{% if message.role == "user" %}\
{% if tools is not none and loop.last %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]\
{% endif %}[INST] {{ message.content }}[/INST]\
{% elif message.role == "assistant" %} {{ message.content | trim }}{{ eos_token }}\
{% elif message.role == "tool" %}\
{% if message.tool_call_id is not defined or message.tool_call_id | length != 9 %}\
{{ raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{% endif %}\
[TOOL_RESULTS] {"content": {{ message.content | tojson }}, "call_id": "{{ message.tool_call_id }}"}\
[/TOOL_RESULTS]{% endif %}{% endfor %}"""
"""After the template of Mistral 7B v0.3, without its parts for calls in earlier replies."""


def tokenizer(family: str | None) -> Any:
    """One token a byte, the special tokens of the family's models, and their chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE({token: row for row, token in enumerate(alphabet)}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    special = SPECIAL[family] if family else ["</s>"]
    plain.add_special_tokens([AddedToken(text, special=True) for text in special])
    end = END[family] if family else "</s>"
    made = PreTrainedTokenizerFast(
        tokenizer_object=plain,
        eos_token=end,
        bos_token=next((text for text in special if text in ("<s>", "<|begin_of_text|>")), None),
        additional_special_tokens=special,
        clean_up_tokenization_spaces=False,
    )
    if family:
        path = TEMPLATES / f"{family}.jinja"
        made.chat_template = MISTRAL if family == "mistral" else path.read_text()
    return made


class Scripted:
    """A policy that says its replies in order, each with an end token unless a stop string does.

    It says them whatever it is asked."""

    def __init__(self, tokenizer: Any, replies: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._replies = iter(replies)
        self.contexts: list[Context] = []

    async def __call__(self, context: Context) -> Generated:
        self.contexts.append(context)
        text = next(self._replies)
        tokens = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        stop = ReplyStop.STOP_STRING
        if not any(text.endswith(one) for one in context.stops):
            tokens, stop = [*tokens, self._tokenizer.eos_token_id], ReplyStop.END
        if len(tokens) > context.limit:
            tokens, stop = tokens[: context.limit], ReplyStop.LENGTH
        return Generated(tokens, [-0.5] * len(tokens), [3] * len(tokens), stop)


def calling(name: str, arguments: str = "{}") -> str:
    """A tool call, as Qwen's models write it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
