"""Command lines of ``agentctl`` in messages: their commands, and the program that a reader has to type. Pure."""

from __future__ import annotations

import re

PROGRAM = "agentctl"

PLUGIN = "kubectl penstock"

PROGRAMS = (PROGRAM, PLUGIN)

COMMANDS = (
    "apply", "bill", "bundle", "completion", "config", "debug", "delete", "describe", "diagnose", "diff", "doctor", "drill", "edit", "explain", "export", "forget",
    "get", "import", "inject-fault", "page", "pause", "quarantine", "resume", "rollback", "rollout", "set-policy", "top", "trace", "version",
    "watch", "what-if",
)  # fmt: skip

# After -- stands a command for kubectl exec, where the default address is right.
_TYPED = re.compile(rf"(?<!-- )\b{PROGRAM} (?=(?:{'|'.join(COMMANDS)})\b)")

# What a bundle refuses, as it changes or asks the live agent: a hint for a bundle leaves it to the default address.
_LIVE = re.compile(
    r"(?:apply|debug|delete|drill stop|edit|forget|import|inject-fault|pause|quarantine (?:add|lift)|resume|rollback"
    r"|rollout (?:start|pause|resume|abort|promote)|set-policy|watch)\b"
)

_OF_BUNDLE = f"{PROGRAM} --bundle "


def hinted(text: str, program: str) -> str:
    """Return *text* with *program* for ``agentctl`` in each command line."""

    def replaced(typed: re.Match[str]) -> str:
        live = program.startswith(_OF_BUNDLE) and _LIVE.match(text, typed.end())
        return typed[0] if live else f"{program} "

    return _TYPED.sub(replaced, text)
