"""A real Prometheus and promtool, from Debian's package ``prometheus``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


_NOT_READY = 503


def binary(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``; fail, not skip, without it."""
    path = shutil.which(name)
    if path is None:
        raise AssertionError(f"{name} is not on PATH; install Debian's package prometheus (2.42 or newer)")
    return path


def promtool(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run promtool to its end; its output is in ``stdout``, errors too."""
    return subprocess.run(
        [binary("promtool"), *arguments],
        cwd=cwd,
        # One core, and garbage for memory: half the CPU time.
        env={**os.environ, "GOMAXPROCS": "1", "GOGC": "400"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )


class Prometheus:
    """One running Prometheus.

    Attributes:
        url: of its web port, on the loopback.

    """

    def __init__(
        self, directory: Path, targets: Sequence[str], rules: Sequence[Path], *, interval: str = "500ms"
    ) -> None:
        self._directory = directory
        self._log = directory / "prometheus.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        copies = [self._at_our_pace(rule, directory) for rule in rules]
        (directory / "prometheus.yml").write_text(yaml.safe_dump(self._config(targets, copies, interval)))

    @staticmethod
    def _at_our_pace(rules: Path, directory: Path) -> Path:
        """Copy rules without intervals of their own, which are made for scrapes every 15 s."""
        content = yaml.safe_load(rules.read_text())
        for group in content["groups"]:
            group.pop("interval", None)
        copy = directory / rules.name
        copy.write_text(yaml.safe_dump(content))
        return copy

    @staticmethod
    def _config(targets: Sequence[str], rules: Sequence[Path], interval: str) -> dict[str, Any]:
        return {
            "global": dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), interval),
            "rule_files": [str(path) for path in rules],
            "scrape_configs": [{"job_name": "penstock", "static_configs": [{"targets": list(targets)}]}],
        }

    def start(self) -> None:
        """Start it on a port of the system's choice and wait for that port."""
        command = [
            binary("prometheus"),
            f"--config.file={self._directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._directory / 'data'}",
            "--web.listen-address=127.0.0.1:0",
            "--enable-feature=exemplar-storage",
            "--log.format=logfmt",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "GOMAXPROCS": "1"},
            )
        end = time.monotonic() + 60
        while not (address := self._listening()):
            if self._process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"Prometheus did not start:\n{self._log.read_text()}")
            time.sleep(0.02)
        self.url = f"http://{address}"

    def _listening(self) -> str:
        """Return the address from its log line ``msg="Listening on" address=...``."""
        for line in self._log.read_text().split("\n")[:-1]:
            if 'msg="Listening on"' in line:
                return line.rpartition("address=")[2].strip()
        return ""

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its HTTP API; None while it is not ready."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            with error:
                if error.code != _NOT_READY:
                    raise AssertionError(f"{url}: {error.read().decode()}") from error
            return None

    def until(
        self, path: str, found: Callable[[Any], Any], *, deadline: float = 120.0, **parameters: str
    ) -> Any:
        """Ask until *found* makes something true of the answer's data; return that."""
        end = time.monotonic() + deadline
        while True:
            data = self.get(path, **parameters)
            result = found(data) if data else None
            if result:
                return result
            if time.monotonic() > end:
                raise AssertionError(f"{path} {parameters}: {data}\n{self._log.read_text()}")
            time.sleep(0.1)

    def value(self, query: str) -> tuple[dict[str, str], float]:
        """Return labels and value of the one series of a query, once it is above 0."""

        def positive(data: Any) -> Any:
            series = [(row["metric"], float(row["value"][1])) for row in data["result"]]
            assert len(series) <= 1, series
            return [row for row in series if row[1] > 0]

        labels, value = self.until("query", positive, query=query)[0]
        return labels, value

    def alert(self, name: str) -> Any:
        """Return the one alert of that name once its condition holds; it may still have to last."""
        (row,) = self.until(
            "alerts", lambda data: [row for row in data["alerts"] if row["labels"]["alertname"] == name]
        )
        return row

    def wait_for_rules(self) -> None:
        """Wait until all rules have seen what Prometheus has scraped by now, twice, for alerts that build on recordings."""
        for _ in range(2):
            now = datetime.now(UTC)

            def evaluated(data: Any, now: datetime = now) -> bool:
                times = [datetime.fromisoformat(group["lastEvaluation"]) for group in data["groups"]]
                return bool(times) and min(times) > now

            self.until("rules", evaluated)


@contextmanager
def running_prometheus(
    directory: Path, targets: Sequence[str], rules: Sequence[Path]
) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes *targets* twice a second."""
    prometheus = Prometheus(directory, targets, rules)
    try:
        prometheus.start()
        yield prometheus
    finally:
        prometheus.stop()
