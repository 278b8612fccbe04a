"""From words to what a command gets: expansions, splits and quotes (bash(1), "EXPANSION")."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trainer.config.translate.bash import braces
from trainer.config.translate.bash.arithmetic import NoNumberError, Sum
from trainer.config.translate.bash.open_text import hide, opened, split
from trainer.config.translate.bash.parameters import Parameter
from trainer.config.translate.bash.patterns import Field
from trainer.config.translate.bash.scope import Scope, text_of
from trainer.config.translate.bash.state import Unknown
from trainer.config.translate.bash.syntax import SHOWN, Node
from trainer.config.translate.rows import UNSET

ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v",
           "e": "\x1b", "E": "\x1b", "\\": "\\", "'": "'", '"': '"', "?": "?"}  # fmt: skip
ESCAPE = re.compile(
    r"\\(?:([ntrabfveE\\'\"?])|([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4}))"
)
HOME_OF_WORD, HOME_OF_VALUE = re.compile("~"), re.compile(r"(?:[^~]*:)?~")
HOME_OF_COMMAND = re.compile(r"(?:[A-Za-z_]\w*=)?~")
"""Beginnings of a word, of an assigned value and of a command's word in which `~` is $HOME."""


class Words:
    """Expands words in a scope."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.uncertain: Unknown | None = None
        """Why nobody knows how many words the fields are."""

    def fields(self, words: Iterable[Node], *, command: bool = False) -> list[str]:
        """Return words as a command or an array gets them; a command's `NAME=~` is expanded too."""
        found: list[str] = []
        for word in words:
            for parts in braces.expanded(word.get("Parts") or []):
                fields = self._split(
                    self._with_home(parts, HOME_OF_COMMAND if command else HOME_OF_WORD)
                )
                found += [self._with_files(field, word) for field in fields]
        return found

    def text(self, word: Node | None) -> str:
        """Return a word's text without a split, as an assignment has it."""
        return "".join(text for text, _ in self.field(word))

    def field(self, word: Node | None) -> Field:
        """Return a word without a split, with what quotes make literal."""
        parts = self._with_home((word or {}).get("Parts") or [], HOME_OF_VALUE)
        return [piece for part in parts for piece in _joined(self._values(part, quoted=False))]

    def default(self, word: Node | None, *, quoted: bool) -> list[Field]:
        """Return the fields of a default: in quotes one, else as the words are."""
        parts = (word or {}).get("Parts") or []
        if quoted:
            return [_joined(self._in_quotes(parts, default=True))]
        return self._split(self._with_home(parts, HOME_OF_WORD), keep=True)

    def document(self, word: Node | None) -> str:
        """Return the text of a here document whose end has no quotes."""
        field = _joined(self._in_quotes((word or {}).get("Parts") or [], document=True))
        return "".join(text for text, _ in field)

    def _split(self, parts: list[Node], *, keep: bool = False) -> list[Field]:
        """Return the fields of parts; with `keep` quotes stay and what is literal is not split."""
        done: list[Field] = []
        now: Field | None = None
        for part in parts:
            literal_part = part["Type"] in ("Lit", "SglQuoted", "DblQuoted", "ExtGlob")
            if literal_part and part["Type"] == "Lit" and keep:
                done, now = self._add_split(done, now, self._literal(part))
                continue
            values = self._values(part, quoted=False)
            for place, field in enumerate(values):
                if place:
                    done += [now] if now is not None else []
                    now = None
                if literal_part:
                    now = (now or []) + field
                else:
                    done, now = self._add_split(done, now, field)
        return done + ([now] if now is not None else [])

    def _add_split(
        self, done: list[Field], now: Field | None, field: Field
    ) -> tuple[list[Field], Field | None]:
        """Add an expansion without quotes, which separators cut."""
        separators = self._scope.state.variables.get("IFS", " \t\n")
        for text, quoted in field:
            if quoted:
                now = [*(now or []), (text, True)]
                continue
            self.uncertain = self.uncertain or self._scope.unknown_piece(text)
            known = separators if isinstance(separators, str) else " \t\n"
            starts, found, ends = split(text, known)
            if starts and now is not None:
                done, now = [*done, now], None
            for place, one in enumerate(found):
                if place:
                    done, now = [*done, now or []], None
                now = [*(now or []), (one, False)]
            if ends and now is not None:
                done, now = [*done, now], None
        return done, now

    def _values(self, part: Node, *, quoted: bool) -> list[Field]:
        match part["Type"]:
            case "Lit":
                return [self._literal(part)]
            case "SglQuoted":
                text = part.get("Value", "").translate(SHOWN)
                return [[(self._ansi(text, part) if part.get("Dollar") else text, True)]]
            case "DblQuoted":
                return self._in_quotes(part.get("Parts") or [])
            case "ParamExp":
                values = Parameter(part, self._scope, self, quoted=quoted).values()
                return [one if isinstance(one, list) else [(one, quoted)] for one in values]
            case "ArithmExp":
                return [[(self._sum(part), quoted)]]
            case "CmdSubst":
                return [[(self._substituted(part), quoted)]]
            case "ExtGlob":
                return [[(self._scope.source.of(part), False)]]
        why = "the machine knows this user" if part["Type"] == "User" else "this form is not read"
        return [[(self._scope.ask_for(part, why), quoted)]]

    def _literal(self, part: Node) -> Field:
        """Return text without quotes, in which a backslash makes a character literal."""
        field: Field = []
        for found in re.finditer(
            r"\\(.)|[^\\]+|\\", part.get("Value", "").translate(SHOWN), re.DOTALL
        ):
            field.append((found[1], True) if found[1] else (found[0], False))
        return field

    def _in_quotes(
        self, parts: list[Node], *, default: bool = False, document: bool = False
    ) -> list[Field]:
        """Return the fields of a quoted text: several with `"$@"`, none if it is all there is."""
        fields: list[Field] = [[]]
        several = 0
        for part in parts:
            if part["Type"] == "Lit":
                escaped = "$`\\" if document else '$`"\\' + ("}" if default else "")
                text = part["Value"].translate(SHOWN)
                text = re.sub(rf"\\([{re.escape(escaped)}])", r"\1", text)
                fields[-1] = [*fields[-1], (text, True)]
                continue
            if part["Type"] == "SglQuoted" and (default or document):
                text = self._scope.source.of(part)
                if re.search(r'[$`\\"]', part["Value"]):
                    text = self._scope.ask_for(part, "these quotes are not read")
                fields[-1] = [*fields[-1], (text, True)]
                continue
            values = self._values(part, quoted=True)
            several += part["Type"] == "ParamExp" and not values
            for place, field in enumerate(values):
                if place:
                    fields.append([])
                fields[-1] = [*fields[-1], *((text, True) for text, _ in field)]
        if several and several == len(parts):
            return []
        return [field or [("", True)] for field in fields]

    def _ansi(self, text: str, part: Node) -> str:
        """Return the text of `$'…'`."""

        def char(found: re.Match[str]) -> str:
            if found[1]:
                return ESCAPES[found[1]]
            code = int(found[2], 8) & 255 if found[2] else int(found[3] or found[4], 16)
            if 0 < code < 128:
                return chr(code)
            return self._scope.ask_for(part, "this byte is not read")

        return ESCAPE.sub(char, text)

    def _sum(self, part: Node) -> str:
        sum_ = Sum(self._scope, self.text)
        try:
            return str(sum_.value(part.get("X")))
        except NoNumberError as error:
            if str(error):
                return self._scope.ask_for(part, str(error))
        try:
            return opened(f"(({sum_.shown(part['X'])}))")
        except NoNumberError:
            return self._scope.ask_for(part, "a part of the sum is not known")

    def _substituted(self, part: Node) -> str:
        output = self._scope.output_of(self._scope, part)
        if output is not None:
            return output
        if self._is_the_shells(part):
            text = self._scope.source.of(part)
            return opened(text[1:] if text.startswith("$") else f"({text.strip('`')})")
        return self._scope.ask_for(part, "its output is known only when the script runs")

    def _is_the_shells(self, part: Node) -> bool:
        """Return whether any shell would run a command as the script does."""
        state, text = self._scope.state, self._scope.source.of(part)
        calls = any(re.search(rf"\b{re.escape(name)}\b", text) for name in state.functions)
        return self._scope.of_outside(part) and not (calls or state.directory or "\n" in text)

    def _with_home(self, parts: list[Node], places: re.Pattern[str]) -> list[Node]:
        """Return the parts with `~` as $HOME where bash expands it."""
        if not parts or parts[0]["Type"] != "Lit" or "~" not in parts[0]["Value"]:
            return parts
        first = parts[0]["Value"]
        begun = places.match(first)
        if not begun:
            return parts
        at = begun.end() - 1
        user = first[at + 1 :].partition("/")[0]
        if re.fullmatch(r"[a-z_][\w-]*", user):
            return [{**parts[0], "Type": "User"}, *parts[1:]]
        if user or (at + 1 == len(first) and len(parts) > 1):
            return parts
        home = self._scope.value("HOME")
        text = text_of(home)
        shown = opened("{HOME}") if text is None else text
        if isinstance(home, Unknown):
            shown = self._scope.ask("HOME", home)
        before, after = first[:at], first[at + 1 :]
        return [
            {**parts[0], "Value": before},
            {"Type": "SglQuoted", "Value": shown},
            {**parts[0], "Value": after},
            *parts[1:],
        ]

    def _with_files(self, field: Field, word: Node) -> str:
        """Return a field's text; a pattern of file names is left to the shell."""
        text = "".join(piece for piece, _ in field)
        bare = [hide(piece)[0] for piece, quoted in field if not quoted]
        pattern = any("*" in piece or ("?" in piece and "://" not in text) for piece in bare)
        if not pattern or "noglob" in self._scope.state.options:
            return text
        shown = text.replace(UNSET, "$")
        asked = f"(echo {re.sub('[(){}]', '', shown)})"
        why = Unknown.at(word, f"the script's machine knows which files match `{shown}`")
        self._scope.record.asked[asked] = why
        self.uncertain = self.uncertain or why
        return UNSET + asked


def _joined(fields: list[Field]) -> Field:
    """Return the fields as one, with a space between two."""
    between = [[(" ", True)] if place else [] for place in range(len(fields))]
    return [piece for sign, one in zip(between, fields, strict=True) for piece in [*sign, *one]]
