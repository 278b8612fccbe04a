"""`completion`: a script that has bash or zsh complete commands and flags."""

from __future__ import annotations

from entrypoint.commands import arguments, bundle, cli, demo, init, report
from entrypoint.config import parsers

ASKED = ("prepare", "serve-retriever", "serve-reward", "translate", *parsers.STAGES)
"""Other programs: the shell takes their flags from their help, and keeps those of the last one."""

SCRIPT = """\
# eval "$(rollcall completion)"
[ -z "${{ZSH_VERSION-}}" ] || {{ autoload -U +X bashcompinit && bashcompinit; }}
_rollcall_ask() {{
  [ "${{_rollcall_asked-}}" = "$*" ] || {{
    _rollcall_asked="$*"
    _rollcall_said="$("$@" --help 2>/dev/null)"
  }}
}}
_rollcall_flags() {{
  _rollcall_ask "$@"
  words="$(grep -oE -- '--[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?' <<<"$_rollcall_said" | sort -u)"
}}
_rollcall_tasks() {{
  _rollcall_ask "$@"
  words="$(sed -nE 's/^    ([a-z][a-z0-9_-]*)( .*)?$/\\1/p' <<<"$_rollcall_said")"
}}
_rollcall() {{
  local words=""
  case "$COMP_CWORD ${{COMP_WORDS[1]}}" in
    1\\ * | "2 help") words="{commands}" ;;
{flags}
    "2 prepare") _rollcall_tasks "${{COMP_WORDS[0]}}" prepare ;;
    *\\ prepare) _rollcall_flags "${{COMP_WORDS[0]}}" prepare "${{COMP_WORDS[2]}}" ;;
    {asked}) _rollcall_flags "${{COMP_WORDS[0]}}" "${{COMP_WORDS[1]}}" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _rollcall rollcall
"""


def script() -> str:
    """Return the script; a word that is not a command or flag is completed as a file's name."""
    known = {name: arguments.parser(name) for name in arguments.COMMANDS}
    known |= {"report": report.parser(), "bundle": bundle.parser(), "demo": demo.parser()}
    known["init"] = init.parser()
    lines = [f'    *\\ {name}) words="{" ".join(of.flags)}" ;;' for name, of in known.items()]
    asked = " | ".join(f"*\\ {name}" for name in ASKED if name != "prepare")
    return SCRIPT.format(commands=" ".join(cli.COMMANDS), flags="\n".join(lines), asked=asked)
