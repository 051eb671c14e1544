"""A server that is stopped on purpose, as Kubernetes stops it, and one whose EngineCore is killed."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import pytest
from penstock.proto.names import ENGINE_CORE
from penstock.proto.v1 import admin_pb2 as admin

from demo.common.client import complete, fetch
from demo.common.steps import until
from tests.support.engine.bench import new_name
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.kv.peers import Spare, signal_group

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from penstock.proto.v1.events_pb2 import Event

    from demo.servers import Server
    from tests.support.kv.bench import Bench

# Servers of their own on the agent of a stack that others use.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]


class Pod(NamedTuple):
    """A server and its engine."""

    kv: Bench
    name: str
    server: Server

    @property
    def engine(self) -> admin.Engine:
        """What the agent says of it."""
        engines = self.kv.admin.ListEngines(admin.ListEnginesRequest()).engines
        (found,) = (each for each in engines if each.key.server == self.name)
        return found

    @property
    def core(self) -> admin.Source:
        """Its EngineCore."""
        (found,) = (each for each in self.engine.sources if each.hello.process == ENGINE_CORE)
        return found

    @property
    def computes(self) -> bool:
        """Whether its engine works on a request, as vLLM says itself."""
        said = fetch(f"{self.server.url}/metrics").text
        found = re.findall(r"^vllm:num_requests_running\{.*\} (\S+)", said, re.MULTILINE)
        return any(float(number) for number in found)

    @property
    def stopped(self) -> bool:
        """Whether the agent says that it has stopped."""
        return self.engine.said_goodbye

    def ends(self, kind: str) -> list[Event]:
        """Return the ends of its processes of a kind: lost or stopped."""
        epochs = {source.epoch for source in self.engine.sources}
        return [event for event in self.kv.events(kind) if getattr(event, kind).epoch in epochs]

    @property
    def stopped_processes(self) -> set[str]:
        """Which of its processes have stopped without a goodbye of their own."""
        return {event.source_stopped.process for event in self.ends("source_stopped")}

    def ask(self, tokens: int = 2) -> int:
        """Send it a request and return the status; 0 if there was no answer."""
        try:
            return complete(self.server.url, "a request", max_tokens=tokens).status
        except OSError:
            return 0

    def terminate(self) -> None:
        """Send SIGTERM to its main process alone, as Kubernetes does."""
        self.server.child.signal(signal.SIGTERM)


@contextmanager
def _pod(kv: Bench, kind: str, *args: str) -> Iterator[Pod]:
    """Run one more server whose EngineCore the agent knows, and have the agent forget it at the end."""
    name = new_name(kind)
    spare = Spare(kv.stack, name, *args)
    try:
        pod = Pod(kv, name, spare.server())
        until(lambda: f"{name}/0" in kv.ctl("get", "engines"), f"{name}/0 is not known")
        yield pod
    finally:
        spare.stop()
        until(lambda: kv.agent.ctl("forget", "engine", f"{name}/0").code == 0, f"{name}/0 is not forgotten")


@contextmanager
def _in_flight(pod: Pod) -> Iterator[Future[int]]:
    """Have its engine work on a request; give the status of the answer. In the end the whole server is killed."""
    with ThreadPoolExecutor(1) as sender:
        status = sender.submit(pod.ask, 1500)
        try:
            until(lambda: pod.computes or status.done(), "No request is in flight")
            assert not status.done()
            yield status
        finally:
            signal_group(pod.server, signal.SIGKILL)


def _causes_about(kv: Bench, server: str) -> list[str]:
    """Return the causes about the engine of *server*. A peer of other tests may have its address: the evidence then names it."""
    request = admin.DiagnoseRequest()
    request.since.FromSeconds(60)
    return [
        cause.sentence
        for cause in kv.admin.Diagnose(request, timeout=60).causes
        if any(key.server == server for key in cause.engines)
    ]


def _is_told_lost(kv: Bench, server: str) -> bool:
    """Return whether the engine of *server* is told as lost: by a cause, or below the one of a peer whose address it may have had."""
    request = admin.DiagnoseRequest()
    request.since.FromSeconds(300)
    causes = kv.admin.Diagnose(request, timeout=60).causes
    told = f"engine {server}/0 vanished without a goodbye"
    facts = [evidence.fact for cause in causes for evidence in cause.evidence]
    return any(
        fact.startswith(told)
        for fact in (*facts, *(each.sentence for each in causes if each.kind == "engine_lost"))
    )


def _answered_doctor(kv: Bench) -> str:
    """Return what doctor says once the agent answers it; empty where other work has the cores."""
    told = kv.agent.ctl("doctor").output
    return "" if "accepts connections but does not answer" in told else told


@pytest.mark.parametrize(
    "asked",
    [pytest.param(True, id="asked"), pytest.param(False, id="never-asked", marks=pytest.mark.long)],
)
def test_sigterm_to_the_server_is_a_stop(kv: Bench, *, asked: bool) -> None:
    """Its EngineCore is killed at once: no loss and no condition, whether its API server had a request before or none.

    With a request in flight vLLM may answer it nothing and wait for its client, until the kubelet loses patience: then there
    is no goodbye at all.
    """
    with _pod(kv, "stopped") as pod, _in_flight(pod) if asked else nullcontext():
        pod.terminate()
        until(lambda: pod.stopped, f"{pod.name}/0 has not stopped")
        # Its last process may be connected a moment longer than what says that it stops.
        kv.wait_value(0, "penstock_engine_connected", server=pod.name)
        assert kv.value("penstock_engine_stopped", server=pod.name) == 1
        assert not _causes_about(kv, pod.name)
        doctor = until(lambda: _answered_doctor(kv), "the agent does not answer doctor")
        assert f"note   engine {pod.name}/0: was stopped, last seen" in doctor
        assert f"wrong  engine {pod.name}/0" not in doctor
        assert re.search(rf"{pod.name}/0 +prefill +stopped ", kv.ctl("get", "engines"))
        assert "Status: stopped, last seen" in kv.ctl("describe", "engine", f"{pod.name}/0")
        # After the grace time.
        epoch = pod.core.epoch
        kv.event("source_stopped", epoch=epoch)
        assert not pod.ends("source_lost")
        assert pod.stopped
        assert "engine-core stopped with its server" in kv.ctl("get", "events", "--kind", "source_stopped")
        assert not _causes_about(kv, pod.name)
        signal_group(pod.server, signal.SIGKILL)
        until(
            lambda: pod.stopped_processes >= {ENGINE_CORE, "worker"}, "Not all of its processes have stopped"
        )
        assert not pod.ends("source_lost")


@pytest.mark.long
def test_sigterm_to_a_server_that_drains(kv: Bench) -> None:
    """Its requests end, and its EngineCore says goodbye itself."""
    with _pod(kv, "drained", "--shutdown-timeout", "60") as pod, _in_flight(pod) as status:
        pod.terminate()
        assert status.result() == 200
        until(lambda: pod.stopped, f"{pod.name}/0 has not stopped")
        until(lambda: not pod.server.child.running, "The server has not ended")
        kv.event("server_stopping", timeout_nano=60 * 10**9)
        assert not pod.ends("source_lost")


@pytest.mark.parametrize("process", [ENGINE_CORE, pytest.param("worker", marks=pytest.mark.long)])
def test_a_killed_process_takes_its_engine_with_it(kv: Bench, process: str) -> None:
    """The EngineCore is lost, also one that ends because of its worker. Its API server then says goodbye: that is no stop."""
    with _pod(kv, "killed") as pod:
        assert pod.ask() == 200
        core = pod.core
        (killed,) = (each for each in pod.engine.sources if each.hello.process == process)
        os.kill(killed.hello.pid, signal.SIGKILL)
        until(lambda: not pod.server.child.running, "The API server has not ended")
        kv.event("source_lost", epoch=core.epoch)
        assert not pod.stopped
        assert kv.value("penstock_engine_stopped", server=pod.name) == 0
        assert not pod.ends("source_stopped")
        until(lambda: _is_told_lost(kv, pod.name), f"{pod.name}/0 is not told as lost")
