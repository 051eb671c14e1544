"""YAML as ``agentctl`` writes it: other readers find the same strings and numbers in it. Pure."""

from __future__ import annotations

import re
from typing import Any

import yaml
from penstock.agent.views.text import with_escapes

# Numbers in YAML 1.2 and strings in 1.1, which PyYAML writes: some hashes and span ids.
_NUMBER = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?|0o[0-7]+|0x[0-9a-fA-F]+")


def dump_yaml(*documents: Any) -> str:
    """Return YAML documents, without a newline at the end."""
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 30)
    # Such characters occur only in double-quoted strings.
    return with_escapes(text.rstrip("\n"), lambda character: f"\\U{ord(character):08x}")


class _Dumper(yaml.SafeDumper):
    """Double-quotes strings that need escapes, and quotes strings that look like numbers."""

    def ignore_aliases(self, _: Any) -> bool:
        """Write each value out: ``apply`` limits aliases."""
        return True

    def text(self, value: str) -> yaml.ScalarNode:
        """Represent a string."""
        style = None if value.isprintable() else '"'
        if _NUMBER.fullmatch(value):
            style = "'"
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _Dumper.text)
