"""What callgrind and strace have written: instructions and calls by label, system calls by label.

Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_TRIGGER: Final = "desc: Trigger: Client Request: "
_ALLOCATORS: Final = frozenset({"_PyObject_Malloc", "PyObject_Malloc", "PyObject_Calloc", "PyObject_Realloc"})
_NAMED: Final = re.compile(r"(\(\d+\))(?: (.+))?")

MARK: Final = "/penstock-replay/"
"""How the path of a mark begins: a system call that asks for it says where a region begins or ends."""


@dataclass(frozen=True, slots=True)
class Dump:
    """One dump of callgrind: its label, the instructions and the calls of Python's allocator in it."""

    label: str
    instructions: int
    allocations: int


def parse_dump(lines: Iterable[str]) -> Dump | None:
    """Return a dump, or None if the program did not ask for it (callgrind writes one at the end).

    Raises:
        ValueError: it has no total.

    """
    label, total, allocations = "", None, 0
    names: dict[str, str] = {}
    callee = ""
    for line in lines:
        if line.startswith(_TRIGGER):
            label = line.removeprefix(_TRIGGER).strip()
        elif line.startswith(("fn=", "cfn=")):
            named = _NAMED.fullmatch(line.partition("=")[2].strip())
            if named is not None:
                number, name = named.groups()
                callee = names.setdefault(number, name or "")
            else:
                callee = line.partition("=")[2].strip()
        elif line.startswith("calls="):
            if callee.partition("'")[0] in _ALLOCATORS:
                allocations += int(line.removeprefix("calls=").split()[0])
        elif line.startswith(("totals:", "summary:")):
            total = int(line.split()[1])
    if not label:
        return None
    if total is None:
        raise ValueError(f"The dump {label!r} has no total.")
    return Dump(label, total, allocations)


def parse_calls(lines: Iterable[str]) -> dict[str, int]:
    """Return the system calls in the regions of each label, from what strace has written about one thread.

    A region is between the marks ``LABEL/on`` and ``LABEL/off``.
    """
    found: dict[str, int] = {}
    inside = ""
    for line in lines:
        _, marked, rest = line.partition(f'"{MARK}')
        if marked:
            label, _, end = rest.partition('"')[0].rpartition("/")
            found.setdefault(label, 0)
            inside = label if end == "on" else ""
        elif inside and "(" in line and not line.startswith(("---", "+++")):
            found[inside] += 1
    return found
