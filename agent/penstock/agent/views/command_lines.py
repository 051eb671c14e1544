"""Command lines of ``agentctl``: those in messages, with the program that a reader has to type, and quoted ones. Pure."""

from __future__ import annotations

import re
import shlex

PROGRAM = "agentctl"
PLUGIN = "kubectl penstock"
PROGRAMS = (PROGRAM, PLUGIN)

COMMANDS = (
    "apply", "bill", "bundle", "completion", "config", "debug", "delete", "describe", "diagnose", "diff", "doctor", "drain", "drill", "edit", "eject", "explain", "export", "forget",
    "get", "import", "inject-fault", "page", "pause", "quarantine", "recommend", "resume", "rollback", "rollout", "routers", "set-policy", "signals", "top", "trace", "version",
    "watch", "what-if",
)  # fmt: skip

# After -- stands a command for kubectl exec, where the default address is right.
_TYPED = re.compile(rf"(?<!-- )\b{PROGRAM} (?=(?:{'|'.join(COMMANDS)})\b)")

# What a bundle refuses, as it changes or asks the live agent: a hint for a bundle leaves it to the default address.
_LIVE = re.compile(
    r"(?:apply|debug|delete|drain|drill stop|edit|eject|forget|import|inject-fault|pause|quarantine (?:add|lift)|resume|rollback|routers"
    r"|rollout (?:start|pause|resume|abort|promote)|set-policy|watch)\b"
)

_OF_BUNDLE = f"{PROGRAM} --bundle "


_ASCII, _SHORT = 0x80, 0x10000


def hinted(text: str, program: str) -> str:
    """Return *text* with *program* for ``agentctl`` in each command line."""

    def replaced(typed: re.Match[str]) -> str:
        live = program.startswith(_OF_BUNDLE) and _LIVE.match(text, typed.end())
        return typed[0] if live else f"{program} "

    return _TYPED.sub(replaced, text)


def command(*words: str) -> str:
    """Return the command line of agentctl with *words*, quoted for a shell; a word that begins with a dash stays a value.

    A word with a character that cannot be printed is in the form ``$'…'`` of bash and zsh: what is shown is what is run.
    """
    return " ".join(map(_quoted, (PROGRAM, *words)))


def about(*words: str, name: str) -> str:
    """Return the command line that ends with a name, which may begin with a dash."""
    return command(*words, "--", name) if name.startswith("-") else command(*words, name)


def _quoted(word: str) -> str:
    return shlex.quote(word) if word.isprintable() else f"$'{''.join(map(_escaped, word))}'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    number = ord(character)
    if number < _ASCII:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < _SHORT else f"\\U{number:08x}"
