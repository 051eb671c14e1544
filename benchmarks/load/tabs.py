"""Tabs of the page in a process of their own, which read all they are sent.

``python -m benchmarks.load.tabs PAGE COUNT PATIENCE`` waits for a line on standard input, opens the tabs, prints a line when each has
its first screen, reads until standard input ends, for at most PATIENCE seconds, and prints what it was sent.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.support.page.tab import Tab

if TYPE_CHECKING:
    from typing import Self

    from tests.support.page.tab import Sent

_ROOT: Final = Path(__file__).resolve().parents[2]
_FIRST_SCREEN_SECONDS: Final = 60.0
_AGAIN_SECONDS: Final = 0.5
_END_SECONDS: Final = 30.0
_READY, _OPEN = b"ready\n", b"open\n"


class TabsReport(NamedTuple):
    """What the tabs have seen.

    Attributes:
        largest: bytes of a message.
        ages: seconds, of each message that tells how old the screen is.

    """

    largest: int
    ages: list[float]


class Tabs:
    """The process; a context manager, in which it runs.

    Args:
        page: the page's address.
        count: how many tabs.
        patience: seconds after which they are closed in any case.

    """

    def __init__(self, page: str, count: int, patience: float) -> None:
        self._command = [sys.executable, "-m", __name__, page, str(count), str(patience)]

    def __enter__(self) -> Self:
        """Start it; it has no tab yet."""
        self._process = subprocess.Popen(
            self._command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            self._expect(_READY)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def open(self) -> None:
        """Open all tabs; return when each has a screen with peers and a verdict.

        Raises:
            RuntimeError: one has none; the process's own words are on standard error.

        """
        assert self._process.stdin is not None
        self._process.stdin.write(_OPEN)
        self._process.stdin.flush()
        self._expect(_OPEN)

    def leave(self) -> TabsReport:
        """Close all tabs; return what they have seen."""
        output, _ = self._process.communicate(timeout=_END_SECONDS)
        return TabsReport(**json.loads(output))

    def _expect(self, wanted: bytes) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != wanted:
            raise RuntimeError(f"the tabs' process has ended: {self._process.wait(_END_SECONDS)}")


def main(page: str, count: int, patience: float) -> None:
    """Be that process."""
    _say(_READY)
    sys.stdin.readline()
    with ExitStack() as stack:
        tabs = [stack.enter_context(_open_tab(page, patience)) for _ in range(count)]
        # Each reads from its first message on: one that waits for the others is let go as a slow one.
        begun = [threading.Event() for _ in tabs]
        readers = [
            threading.Thread(target=_read, args=each, daemon=True) for each in zip(tabs, begun, strict=True)
        ]
        for reader in readers:
            reader.start()
        if not all(each.wait(_FIRST_SCREEN_SECONDS) for each in begun):
            sys.exit("a tab has no screen with peers and a verdict; is the agent overloaded?")
        _say(_OPEN)
        sys.stdin.read()
        for tab in tabs:
            tab.leave()
        for reader in readers:
            reader.join()
    seen = [each for tab in tabs for each in tab.seen]
    dated = [each.data for each in seen if each.event in {"screen", "pulse"} and each.data["dataTime"]]
    ages = [(each["now"] - each["dataTime"]) / 1e3 for each in dated]
    _say(json.dumps(TabsReport(max(each.size for each in seen), ages)._asdict()).encode())


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _open_tab(page: str, patience: float) -> Tab:
    """Return a tab that was let in: those of the turn before go when the agent has next sent them something."""
    end = time.monotonic() + _FIRST_SCREEN_SECONDS
    while True:
        tab = Tab(page, patience=patience)
        tab.next()
        first = tab.next()
        if first is not None and first.event != "bye":
            return tab
        tab.close()
        if time.monotonic() > end:
            sys.exit("the page is full; have the tabs of the turn before not gone?")
        time.sleep(_AGAIN_SECONDS)


def _read(tab: Tab, begun: threading.Event) -> None:
    """Read to the end; *begun* is set from the first screen with peers and a verdict on, which may be there already."""
    found: Sent | None = tab.seen[-1]
    while found is not None:
        if found.event == "screen" and found.data["peers"]["total"] and found.data["verdict"]["computed"]:
            begun.set()
        found = tab.next()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
