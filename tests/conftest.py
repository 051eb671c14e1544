"""How the suite is shared out when several tests run at a time (``pytest -n``, xdist): by file, and all engines to one worker.

A failing test's report ends with the files to look at.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import where_to_look

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

# The same examples in every run: who changes one thing does not land on a rare example of another (fresh ones: ``make
# properties``). How fast they are is for benchmarks to say.
settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=20,
)
settings.register_profile("long", settings.get_profile("fixed"), max_examples=100)
settings.register_profile("fresh", settings.get_profile("fixed"), derandomize=False, max_examples=1_000)
settings.load_profile("fixed")

# A test sees what raised in agentctl, not the sentence about it.
os.environ["AGENTCTL_TRACEBACK"] = "1"

# One worker runs all tests of engines, and begins with them: tests share a set of engines only within a process. Engines
# leave half of two cores idle for the other tests, which give way to them: vLLM's own handshake has a deadline of five seconds.
_ENGINES = ("tests/e2e/", "tests/routers/test_with_engines.py")
_GIVES_WAY = min(os.getpriority(os.PRIO_PROCESS, 0) + 5, 19)
# Where Linux shares its cores among sessions, each engine has a share of its own already, and a priority is one within the
# session of the tests: what gave way there would wait for a busy loop of the same session.
_AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")
SHARED_BY_SESSION = _AUTOGROUP.exists() and _AUTOGROUP.read_text().strip() == "1"
# What is begun late must be short, or one worker waits for the other.
_LONG = "tests/faults/"
_FAREWELL_SECONDS = 60
# A worker begins a test only when it knows the next one, so it needs two.
_AHEAD = 2

_BEGUN = pytest.StashKey[float]()
_WITH_ENGINES = pytest.StashKey[bool]()

_workers: list[Any] = []
"""Of the process that shares the tests out; empty in a worker, and where there are none."""


def pytest_configure() -> None:
    """Stop engines and agents before a run ends on a signal, as after Ctrl-C."""
    signal.signal(signal.SIGTERM, _end)
    # A shell lets what it starts in the background ignore SIGINT, and all that this starts would inherit it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, _frame: object) -> None:
    """Pass the signal on to the workers, which get Ctrl-C from the terminal; once, though it may come twice."""
    signal.signal(number, signal.SIG_IGN)
    for worker in _workers:
        worker.gateway._io.popen.send_signal(number)
    raise KeyboardInterrupt


def _rank(item: pytest.Item) -> int:
    return -2 * item.nodeid.startswith(_ENGINES) - item.nodeid.startswith(_LONG)


def _scope(nodeid: str) -> str:
    """Return what names the tests that one worker runs one after the other."""
    return "engines" if nodeid.startswith(_ENGINES) else nodeid.partition("::")[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where tests are shared out, begin with the engines and the other long ones.

    Of the others, those of the first half, of which many wait, and of the second, of which many compute, take turns.
    """
    config.stash[_WITH_ENGINES] = any(item.nodeid.startswith(_ENGINES) for item in items)
    if hasattr(config, "workerinput"):
        others = list(dict.fromkeys(item.path for item in items if not _rank(item)))
        half = len(others) // 2 + 1
        turns = {file: number % half for number, file in enumerate(others)}
        items.sort(key=lambda item: (_rank(item), turns.get(item.path, 0)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let no search for garbage look at what is imported, vLLM above all: neither while it is, nor in each test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        # Extensions complain of what the interpreter's last search does not find.
        atexit.register(gc.unfreeze)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready(node: Any) -> None:
    """Note a worker that may start engines from now on."""
    _workers.append(node)


def pytest_keyboard_interrupt() -> None:
    """Let engines and agents be stopped after Ctrl-C: xdist itself interrupts the workers again while they do that."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    for worker in _workers:
        with contextlib.suppress(worker.channel.TimeoutError, worker.channel.RemoteError):
            worker.channel.waitclose(_FAREWELL_SECONDS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Callable[..., None]) -> Any:
    """Return what hands out the tests: file by file, in this order."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        """Keeps a file together, and all engines' tests."""

        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

        def _reschedule(self, node: Any) -> None:
            """Give *node* tests until it has some to run: it reports nothing, and so gets nothing, before it has run one."""
            super()._reschedule(node)
            while not node.shutting_down and self._pending_of(self.assigned_work[node]) <= _AHEAD:
                super()._reschedule(node)

        def remove_node(self, node: Any) -> str | None:
            """Return the test in which a worker died; what the worker has not run goes to the others, without that test."""
            units = self.assigned_work.pop(node)
            waiting = [(unit, test) for unit in units.values() for test, done in unit.items() if not done]
            if not waiting:
                return None
            died_in, test = waiting[0]
            died_in[test] = True
            for scope, unit in reversed(units.items()):
                if not all(unit.values()):
                    self.workqueue[scope] = unit
                    self.workqueue.move_to_end(scope, last=False)
            for other in self.nodes:
                self._reschedule(other)
            return test

    config.option.loadscopereorder = False
    return Scheduler(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note when a test began: what was written before is not about it. A worker that is beside engines gives way."""
    item.stash[_BEGUN] = time.time()
    config = item.config
    if (
        hasattr(config, "workerinput")
        and config.stash[_WITH_ENGINES]
        and not item.nodeid.startswith(_ENGINES)
        and not SHARED_BY_SESSION
    ):
        os.setpriority(os.PRIO_PROCESS, 0, _GIVES_WAY)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let the report of a failing test end with the files to look at; logs are copied, as they go with their servers."""
    report = yield
    if report.failed:
        with contextlib.suppress(OSError, ValueError):
            report.sections.append(("Where to look", _where_to_look(item)))
    return report


def _where_to_look(item: pytest.Item) -> str:
    path, line, _ = item.location
    about = where_to_look.places(item.path)
    lines = [f"test     {path}:{(line or 0) + 1}", *(f"about    {place}" for place in about)]
    factory: pytest.TempPathFactory = item.config._tmp_path_factory  # type: ignore[attr-defined]
    logs = where_to_look.logs(item.stash.get(_BEGUN, 0.0), factory.getbasetemp())
    if logs:
        kept = where_to_look.keep(item.nodeid, logs)
        lines += [f"log      {each.relative_to(Path.cwd())}" for each in sorted(kept.iterdir())]
    return "\n".join(lines)
