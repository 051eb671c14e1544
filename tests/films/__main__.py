"""``make record-films``: record films into a directory, one bundle a phase.

    python -m tests.films DIRECTORY [NAME ...]

``PENSTOCK_FILM_SPEED=20`` makes all twenty times as short, to see that a scene plays; such bundles are no recordings.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from demo.common.steps import until
from demo.servers import ROOT
from tests.films.scenes import SCENES
from tests.support.engine.forked_child import ForkedChild
from tests.support.incidents.films import ALERTS, PHASES
from tests.support.incidents.recording import take_bundle
from tests.support.prometheus.rules import FILES, RULES
from tests.support.prometheus.server import Prometheus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.common.agent import Agent
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
    alerts: dict[str, list[dict[str, object]]] = {}
    with SCENES[name].running(logs) as scene, _prometheus(scene.agent) as prometheus:
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
                alerts[phase] = _firing(prometheus)
                take_bundle(scene.agent, (target / f"{phase}.bundle").absolute(), began=start)
                say(f"{phase}: {scene.agent.ctl('diagnose').output.splitlines()[0]}")
        finally:
            try:
                traffic.end()
            finally:
                scene.close()
    (target / ALERTS).write_text(json.dumps(alerts, indent=1) + "\n")
    say("done")


@contextmanager
def _prometheus(agent: Agent) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes *agent* as often as in production."""
    with tempfile.TemporaryDirectory() as directory:
        rules = [RULES / file for file in FILES]
        prometheus = Prometheus(Path(directory), [agent.http], rules, interval="15s")
        try:
            prometheus.start()
            yield prometheus
        finally:
            prometheus.stop()


def _firing(prometheus: Prometheus) -> list[dict[str, object]]:
    """Return the alerts that fire: name, severity, and of which engine and peer."""
    rows = (prometheus.get("alerts") or {"alerts": []})["alerts"]
    fired = [row["labels"] for row in rows if row["state"] == "firing"]
    told = ("alertname", "severity", "server", "engine", "peer")
    return [{label: labels[label] for label in told if label in labels} for labels in fired]


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
    with ExitStack() as patches:
        for module in ("demo.servers", "demo.eplb.__main__"):
            patches.enter_context(patch(f"{module}.Child", ForkedChild))
        patches.callback(ForkedChild.end_servers)
        failed = [name for name in names or SCENES if not _recorded(name, Path(directory))]
    if failed:
        sys.exit(f"not recorded: {', '.join(failed)}")


def _recorded(name: str, directory: Path) -> bool:
    """Record a film; say why where that fails: the others are worth their minutes."""
    try:
        record(name, directory)
    except Exception:  # noqa: BLE001
        _print(f"{name}: {traceback.format_exc()}")
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
