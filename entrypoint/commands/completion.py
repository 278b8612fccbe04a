"""`completion`: a script that has bash or zsh complete commands and flags."""

from __future__ import annotations

from entrypoint.commands import arguments, bundle, cli, demo, report

SCRIPT = """\
# eval "$(rollcall completion)"
[ -z "${{ZSH_VERSION-}}" ] || {{ autoload -U +X bashcompinit && bashcompinit; }}
_rollcall() {{
  local words
  case "$COMP_CWORD ${{COMP_WORDS[1]}}" in
    1\\ *) words="{commands}" ;;
{flags}
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _rollcall rollcall
"""


def script() -> str:
    """Return the script; a word that is no command or flag is completed as a file's name."""
    parsers = {name: arguments.parser(name) for name in arguments.COMMANDS}
    parsers |= {"report": report.parser(), "bundle": bundle.parser(), "demo": demo.parser()}
    lines = [f'    *\\ {name}) words="{" ".join(of.flags)}" ;;' for name, of in parsers.items()]
    return SCRIPT.format(commands=" ".join(cli.COMMANDS), flags="\n".join(lines))
