"""``make record-films``: record films into a directory, one bundle a phase.

    python -m tests.films DIRECTORY [NAME ...]

``PENSTOCK_FILM_SPEED=20`` makes all twenty times as short, to see that a scene plays; such bundles are no recordings.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from demo.common.steps import until
from demo.servers import ROOT
from tests.films.scenes import SCENES
from tests.support.incidents.films import PHASES
from tests.support.incidents.recording import take_bundle

if TYPE_CHECKING:
    from tests.films.scenes.base import Scene

# Of the calm before, and between two requests.
_CALM_SECONDS, _PAUSE_SECONDS = 60.0, 1.5
_SPEED: Final = float(os.environ.get("PENSTOCK_FILM_SPEED", "1"))


class _Traffic(threading.Thread):
    """Sends the requests of a scene, one after the other."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(daemon=True)
        self._scene, self._ending = scene, threading.Event()

    def run(self) -> None:
        """Send until :meth:`end`."""
        while not self._ending.wait(_PAUSE_SECONDS):
            # A server that ends answers nothing.
            with suppress(OSError, KeyError, RuntimeError):
                self._scene.request()

    def end(self) -> None:
        """Stop after the request that is under way."""
        self._ending.set()
        if self.is_alive():
            self.join(120)


def record(name: str, directory: Path) -> None:
    """Record the film *name*, one bundle a phase, into a directory of that name."""
    logs = ROOT / ".cache" / "films" / name
    logs.mkdir(parents=True, exist_ok=True)
    target = directory / name
    target.mkdir(parents=True, exist_ok=True)
    began = time.time()

    def say(words: str) -> None:
        _print(f"{name}: {time.time() - began:5.0f} s  {words}")

    say("starts its engines")
    with SCENES[name].running(logs) as scene:
        traffic = _Traffic(scene)
        try:
            scene.open()
            traffic.start()
            until(lambda: scene.sent > 2, "No request is answered")
            # The first requests of engines that have just started are slow.
            time.sleep(20 / _SPEED)
            start = time.time()
            time.sleep(_CALM_SECONDS / _SPEED)
            for phase, seconds in PHASES.items():
                if phase == "seconds":
                    say("the fault begins")
                    scene.begin()
                elif phase == "minute":
                    say("the middle")
                    scene.middle()
                elif phase == "remedied":
                    say("the remedy")
                    scene.remedy()
                time.sleep(seconds / _SPEED)
                take_bundle(scene.agent, (target / f"{phase}.bundle").absolute(), began=start)
                say(f"{phase}: {scene.agent.ctl('diagnose').output.splitlines()[0]}")
        finally:
            try:
                traffic.end()
            finally:
                scene.close()
    say("done")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> None:
    """Record what is asked for; all films without names."""
    # Who is ended ends its engines.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    directory, *names = arguments
    unknown = set(names) - set(SCENES)
    if unknown:
        sys.exit(f"no such film: {', '.join(sorted(unknown))}; there are {', '.join(SCENES)}")
    for name in names or SCENES:
        record(name, Path(directory))


if __name__ == "__main__":
    main(sys.argv[1:])
