"""Command lines of agentctl that do or say the same as the page. Pure."""

from __future__ import annotations

import shlex

_PROGRAM = "agentctl"


def command(*words: str) -> str:
    """Return the command line of agentctl with *words*, quoted for a shell; a word that begins with a dash stays a value."""
    return shlex.join([_PROGRAM, *words])


def about(*words: str, name: str) -> str:
    """Return the command line that ends with a name, which may begin with a dash."""
    return command(*words, "--", name) if name.startswith("-") else command(*words, name)
