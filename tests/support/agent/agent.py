"""A real ``penstock-agent`` process in a directory of its own."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from tests.support import where_to_look
from tests.support.agent.forked_agent import inherited, launch, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.support.forks.fork_server import Fork

# Its imports take a second of one core, and others may be busy on it.
START_DEADLINE = 60.0
# A turn of the wait takes about this; one that takes much longer shows that the machine is busy with something else.
_POLL = 0.01
_LONGEST_TURN = 0.05
# However busy it is.
_PATIENCE = 5.0
AGENT = "penstock.agent"
# The same with short intervals.
HASTY_AGENT = "tests.support.agent.hasty_agent"


def wait_until(condition: Callable[..., object], what: str, deadline: float = 60.0) -> None:
    """Poll *condition* until it is true; fail with *what* after *deadline* seconds.

    Seconds in which this process did not get its turn count for little: who is waited for did not get it either. After
    five times the deadline it is over in any case.
    """
    begun = before = time.monotonic()
    waited = 0.0
    while not condition():
        time.sleep(_POLL)
        now = time.monotonic()
        waited, before = waited + min(now - before, _LONGEST_TURN), now
        if waited > deadline or now - begun > _PATIENCE * deadline:
            raise AssertionError(f"not within {deadline:g} s ({now - begun:.0f} s of a busy machine): {what}")


class AgentProcess:
    """One agent on one state directory; it can be stopped, killed and started again.

    Attributes:
        listen: address for engines, as ``PENSTOCK_ENDPOINT`` takes it.
        admin: address of the admin socket.
        http: ``host:port`` of metrics and health; new at each start.

    """

    def __init__(
        self,
        directory: Path,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        *,
        module: str = AGENT,
    ) -> None:
        self.directory = directory
        self._module = module
        self.state_dir = directory / "state"
        self.listen = f"unix://{directory}/ingest.sock"
        self.admin = f"unix://{directory}/admin.sock"
        self.http = ""
        self.process: Fork | subprocess.Popen[bytes] | None = None
        self._args = list(args)
        # No endpoint unless a test names one: nothing is to leave the machine.
        self._env = {**inherited(), **(env or {})}
        self._log = directory / "agent.log"

    def command(self) -> list[str]:
        """Return the command line; later flags win over the helper's own."""
        return [
            sys.executable, "-m", self._module,
            f"--listen={self.listen}",
            f"--admin-listen={self.admin}",
            "--http=127.0.0.1:0",
            "--page=off",
            f"--state-dir={self.state_dir}",
            *self._args,
        ]  # fmt: skip

    def start(self) -> AgentProcess:
        """Start it and wait until it is ready."""
        self.launch()
        self.wait_ready()
        return self

    def launch(self) -> None:
        """Start it and do not wait."""
        self.process = launch(self.command(), env=self._env, log=self._log)

    def run(self, *subcommand: str) -> subprocess.CompletedProcess[str]:
        """Run a command of penstock-agent with its flags to the end; that has two minutes."""
        executable, option, module, *flags = self.command()
        return run([executable, option, module, *subcommand, *flags], env=self._env, directory=self.directory)

    def wait_ready(self) -> None:
        """Wait until it is ready; fail if it ends before."""
        wait_until(self._ready, "the agent is ready", START_DEADLINE)

    def _ready(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the agent ended with {self.process.returncode}:\n{self.log()}")
        try:
            addresses = json.loads((self.state_dir / "addresses.json").read_text())
        except FileNotFoundError:
            return False
        if addresses["pid"] != self.process.pid:
            return False
        self.listen, self.admin, self.http = addresses["listen"], addresses["admin"], addresses["http"]
        return self.get("/readyz")[0] == 200

    def stop(self, sig: int = signal.SIGTERM, deadline: float = 60.0) -> int:
        """Send *sig*, wait for the end, return the exit code; a stopped agent stays stopped."""
        process = self.process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(sig)
        try:
            code = process.wait(deadline)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the agent did not end within {deadline:g} s:\n{self.log()}") from None
        self.process = None
        return code

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        self.stop(signal.SIGKILL)

    def log(self) -> str:
        """Return all that it wrote to standard error, over all starts."""
        return self._log.read_text() if self._log.exists() else ""

    def records(self) -> list[dict[str, object]]:
        """Return its log records, over all starts."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def get(self, path: str, accept: str = "text/plain") -> tuple[int, str]:
        """GET a path of its HTTP port: status and body; status 0 without an answer."""
        request = urllib.request.Request(f"http://{self.http}{path}", headers={"Accept": accept})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str, **labels: str) -> float | None:
        """Return the sum of the samples of *name* that carry *labels*; None if there is none."""
        values = self.samples(name, **labels)
        return sum(values) if values else None

    def samples(self, name: str, **labels: str) -> list[float]:
        """Return the samples of *name* that carry *labels*."""
        lines = self.get("/metrics")[1].splitlines(keepends=True)
        text = "".join(line for line in lines if line.startswith((f"{name}{{", f"{name} ")))
        return [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if labels.items() <= sample.labels.items()
        ]


@contextmanager
def short_directory() -> Iterator[Path]:
    """Make a temporary directory whose path is short enough for a unix socket."""
    directory = Path(tempfile.mkdtemp(prefix="ps-"))
    try:
        yield directory
    except BaseException:
        where_to_look.rescue(directory)
        raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def running_agent(
    args: Sequence[str] = (), env: Mapping[str, str] | None = None, *, module: str = AGENT
) -> Iterator[AgentProcess]:
    """Run an agent in a temporary directory; it is stopped at the end."""
    with short_directory() as directory:
        agent = AgentProcess(directory, args, env, module=module)
        try:
            yield agent.start()
        finally:
            agent.stop()
