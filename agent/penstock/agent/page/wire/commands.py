"""Command lines of agentctl that do or say the same as the page. Pure."""

from __future__ import annotations

import shlex

_PROGRAM = "agentctl"
_ASCII, _SHORT = 0x80, 0x10000


def command(*words: str) -> str:
    """Return the command line of agentctl with *words*, quoted for a shell; a word that begins with a dash stays a value.

    A word with a character that cannot be printed is in the form ``$'…'`` of bash and zsh: what is shown is what is run.
    """
    return " ".join(map(_quoted, (_PROGRAM, *words)))


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
