"""What a demo says when it fails: what the logs tell, and what to try."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MOST_LINES = 12
_COLUMNS = 220
_TAIL_BYTES = 256 * 1024
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Block elements, of which vLLM's banner is drawn.
_BANNER = re.compile("[\u2580-\u259f]")
# "(EngineCore pid=7) ERROR 11-28 04:02:11 [core.py:133] text", as vLLM writes it; each line of a traceback, too.
_VLLM = re.compile(
    r"^(?P<process>\([^)]*\) ?)?(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:.]+ \[(?P<place>[^]]*)\] ?)?(?P<text>.*)$"
)
# "[7] 2026/11/28 04:02:11.123456 [INF] text" of NATS, "I1128 04:02:11.123456 …" of Kubernetes.
_OTHERS = re.compile(r"^\[\d+\] [\d/]+ [\d:.]+ \[(?P<nats>[A-Z]{3})\]|^(?P<klog>[IWEF])\d{4} [\d:.]+ ")
_QUIET = {"DEBUG", "INFO", "INF", "DBG", "TRC", "I"}
_LOUD = {"ERROR", "CRITICAL", "FATAL", "PANIC", "ERR", "FTL", "E", "F"}
_EXCEPTION = re.compile(
    r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Killed|Expired)\b(?:: .*)?$"
)
_MEMORY_GIB = 6
_KILLED = -9


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of a log.

    Attributes:
        level: as the program writes it, in capitals; empty for none.

    """

    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Machine:
    """How busy this machine is.

    Attributes:
        load: processes that ran or waited for a core, over the last minute.
        free_gib: memory that may be used without swapping.

    """

    cores: int
    load: float
    free_gib: float

    @classmethod
    def now(cls) -> Self:
        """Look at it."""
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        free = int(found.group(1)) / 2**20 if found else 0.0
        return cls(len(os.sched_getaffinity(0)), os.getloadavg()[0], free)


def telling_lines(text: str, most: int = MOST_LINES) -> list[str]:
    """Return the lines of a log that say what went wrong, oldest first, at most *most*.

    These are its exceptions, the first of which is the cause of the others; without one its errors; without one the last
    lines that are no routine; else the last lines. vLLM's banner is never one of them.
    """
    lines = list(_lines(text))
    exceptions = list(dict.fromkeys(line.text for line in lines if _EXCEPTION.match(line.text)))
    errors = [line.text for line in lines if line.level in _LOUD and "Traceback" not in line.text]
    unusual = [line.text for line in lines if line.level not in _QUIET]
    found = exceptions or errors or unusual or [line.text for line in lines]
    if found is exceptions and len(found) > most:
        found = [found[0], *found[1 - most :]]
    return [line if len(line) <= _COLUMNS else line[: _COLUMNS - 1] + "…" for line in found[-most:]]


def excerpt(log: Path, most: int = MOST_LINES) -> str:
    """Return the path of a log and its telling lines."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"{log} cannot be read: {error.strerror}."
    lines = telling_lines(text, most)
    return "\n".join([f"{log} says:", *(f"  {line}" for line in lines)]) if lines else f"{log} says nothing."


def troubled(logs: Iterable[Path]) -> list[Path]:
    """Return the logs in which something went wrong."""
    return [log for log in logs if _has_trouble(log)]


def advice(machine: Machine, codes: Sequence[int] = ()) -> list[str]:
    """Return what to try after a failure, the likeliest first; *codes* are those of processes that ended by themselves."""
    tips = []
    if _KILLED in codes or machine.free_gib < 1:
        tips.append(
            f"A process was killed or memory is short ({machine.free_gib:.1f} GiB are available): "
            f"the demo needs about {_MEMORY_GIB} GiB."
        )
    if machine.load > 2 * machine.cores:
        tips.append(
            f"The machine is busy (load {machine.load:.0f} on {machine.cores} cores): try again when it is idle."
        )
    if any(code > 0 for code in codes):
        tips.append(
            "A module that is missing or does not load: remove .venv, run `make setup`, and try again."
        )
    return [*tips, "Look into the log for the first error, then run the same command again."]


def _has_trouble(log: Path) -> bool:
    try:
        lines = list(_lines(log.read_text(errors="replace")))
    except OSError:
        return False
    return any(line.level in _LOUD or _EXCEPTION.match(line.text) for line in lines)


def _lines(text: str) -> Iterator[_Line]:
    """Yield the lines that say something, without colours, times and vLLM's banner."""
    for raw in _COLOUR.sub("", text).splitlines():
        line = _parsed(raw.rstrip())
        if line.text.strip() and not _BANNER.search(line.text):
            yield line


def _parsed(raw: str) -> _Line:
    if raw.startswith("{"):
        try:
            return _Line(str(json.loads(raw).get("level", "")).upper(), raw)
        except ValueError:
            return _Line("", raw)
    if other := _OTHERS.match(raw):
        return _Line(other["nats"] or other["klog"], raw)
    found = _VLLM.match(raw)
    if found is None:
        return _Line("", raw)
    return _Line(found["level"] or "", found["text"])
