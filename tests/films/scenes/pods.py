"""Faults of pods: they end, stand still, or are others than those before."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import zmq
from penstock.proto.v1 import admin_pb2 as admin

from demo.common.client import complete
from demo.common.model import tiny_model
from demo.common.steps import until
from demo.servers import ROOT, Server
from tests.films.scenes.base import FILMED, PairScene, TwoPodScene, spare_of
from tests.support.kv.other_weights import copied_model, other_weights
from tests.support.kv.peers import signal_group
from tests.support.stop import stop, stop_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.kv.bench import Bench, Prefilled

# Of six.
_STANDS_SECONDS, _GOES_SECONDS = 4.0, 2.0
_AWAY_SECONDS, _THERE_SECONDS = 8.0, 12.0
# Who give up their requests.
_CLIENTS: Final = 16
_STRAY: Final = b"\xc1"
_CACHE: Final = ROOT / ".cache" / "films" / "models"


def _end(server: Server) -> None:
    """End it as Kubernetes does: SIGTERM to the main process, then SIGKILL to all."""
    server.child.signal(signal.SIGTERM)
    until(lambda: not server.child.running, "The server has not ended")
    signal_group(server, signal.SIGKILL)


class Drained(TwoPodScene):
    """Scale-in: the router lets go of the pod, then it is stopped; later there is a new one."""

    def begin(self) -> None:
        """Let go of it and stop it."""
        server, self.server = self.server, None
        assert server is not None
        time.sleep(5)
        _end(server)
        self.spare.stop()


class _Gone(TwoPodScene):
    """The router goes on to name the pod."""

    def begin(self) -> None:
        """End the pod."""
        server, self.server = self.server, None
        assert server is not None
        self.request = self.stale
        self.end(server)
        self.spare.stop()

    def end(self, server: Server) -> None:
        """End it in the way of this film."""
        raise NotImplementedError

    def remedy(self) -> None:
        """Start a new one, and name it."""
        super().remedy()
        self.request = self.both


class Undrained(_Gone):
    """Scale-in without a drain."""

    def end(self, server: Server) -> None:
        """Stop it."""
        _end(server)


class Killed(_Gone):
    """The pod is killed."""

    def end(self, server: Server) -> None:
        """Kill it."""
        del server
        self.spare.kill()


class RollingRestart(TwoPodScene):
    """Each prefill pod but one is replaced: a new one first, then the old one, which the router has let go of."""

    def __init__(self, kv: Bench) -> None:
        super().__init__(kv)
        self._next = spare_of(kv, "prefill-c")

    def _replace(self) -> None:
        new = self._next.server()
        old, self.server = self.server, new
        assert old is not None
        time.sleep(5)
        _end(old)
        self.spare.stop()
        self.spare, self._next = self._next, self.spare

    def begin(self) -> None:
        """Replace it."""
        self._replace()

    def remedy(self) -> None:
        """Replace it again."""
        self._replace()

    def close(self) -> None:
        """End both."""
        self._next.stop()
        super().close()


class _Stands(TwoPodScene):
    """Something of the second pod stands still again and again, each time amid a load from it."""

    stands, goes = _STANDS_SECONDS, _GOES_SECONDS

    def halt(self) -> Callable[[], object]:
        """Stop it, and return what lets it go on."""
        raise NotImplementedError

    def _caught(self) -> None:
        assert self.server is not None
        self.sent += 2
        self.kv.decode(self.kv.prefilled())
        requests = [self.kv.prefilled(server=self.server) for _ in range(2)]
        go_on = self.halt()
        try:
            with ThreadPoolExecutor(len(requests)) as senders:
                sent = [senders.submit(self.kv.decode, each) for each in requests]
                time.sleep(self.stands)
                go_on()
                for each in sent:
                    each.result()
        finally:
            go_on()
        time.sleep(self.goes)

    def begin(self) -> None:
        """Stop it."""
        self.request = self._caught

    def remedy(self) -> None:
        """Let it go on for good."""
        self.request = self.both


class StandsBriefly(_Stands):
    """Its worker stands still for four seconds of six."""

    _pid = 0

    def begin(self) -> None:
        """Stop it."""
        self._pid = worker_of(self.kv, "prefill-b")
        super().begin()

    def halt(self) -> Callable[[], object]:
        """Stop the worker alone."""
        stop(self._pid)
        return lambda: os.kill(self._pid, signal.SIGCONT)


class NetworkFlaps(_Stands):
    """It is away for eight seconds of twenty: all its processes stand still."""

    stands, goes = _AWAY_SECONDS, _THERE_SECONDS

    def halt(self) -> Callable[[], object]:
        """Stop all."""
        server = self.server
        assert server is not None
        stop_group(server.child.pid)
        return lambda: signal_group(server, signal.SIGCONT)


class WorkerStandsStill(TwoPodScene):
    """A worker stands still until the remedy; its EngineCore reports."""

    _pid = 0

    def begin(self) -> None:
        """Stop it."""
        self._pid = worker_of(self.kv, "prefill-b")
        stop(self._pid)

    def both(self) -> None:
        """Send a request through one of the two; clients give up after ten seconds."""
        self.sent += 1
        with suppress(OSError):
            if self.sent % 2 or self.server is None:
                self.kv.decode(self.kv.prefilled())
            else:
                complete(self.server.url, f"{self.sent} short", max_tokens=1, timeout=10.0)

    def remedy(self) -> None:
        """Let it go on."""
        os.kill(self._pid, signal.SIGCONT)
        self._pid = 0

    def close(self) -> None:
        """Do so, whatever happened, and end it."""
        if self._pid:
            self.remedy()
        super().close()


class ListenerDies(TwoPodScene):
    """A stray message ends the second pod's listener of handshakes; the remedy is a new pod."""

    def begin(self) -> None:
        """Send the message that vLLM cannot decode, a port scan for instance."""
        assert self.server is not None
        with zmq.Context() as context, context.socket(zmq.REQ) as stray:
            stray.linger = 1000
            stray.connect(f"tcp://{self.server.peer}")
            stray.send(_STRAY)
            until(lambda: self.agent.ctl("doctor").output.count("nixl_handshake_listener"), "It lives on")

    def remedy(self) -> None:
        """Restart it."""
        server, self.server = self.server, None
        assert server is not None
        time.sleep(5)
        _end(server)
        self.spare.stop()
        super().remedy()


class _Replaced(TwoPodScene):
    """The second pod is replaced by one that does not fit, and that one by another which does."""

    def begin(self) -> None:
        """Stop it, and start the one that does not fit."""
        self._replace(fits=False)

    def remedy(self) -> None:
        """Stop that one, and start another that fits."""
        self._replace(fits=True)

    def _replace(self, *, fits: bool) -> None:
        server, self.server = self.server, None
        assert server is not None
        time.sleep(5)
        _end(server)
        self.spare.stop()
        with self.start(fits=fits):
            self.server = self.spare.server()

    @contextmanager
    def start(self, *, fits: bool) -> Iterator[None]:
        """Set up what the next pod differs in."""
        raise NotImplementedError
        yield


class Incompatible(_Replaced):
    """It has another dtype."""

    @contextmanager
    def start(self, *, fits: bool) -> Iterator[None]:
        """Have it start with another one."""
        arguments = () if fits else ("--dtype", "float16")
        self.spare = spare_of(self.kv, "prefill-b", *arguments)
        yield


class OtherWeights(_Replaced):
    """It has other weights under the same path."""

    variant = replace(FILMED, model=lambda _: copied_model(_CACHE))

    def __init__(self, kv: Bench) -> None:
        super().__init__(kv)
        self._model = _CACHE / "tiny-llama-copied"
        self.spare = spare_of(kv, "prefill-b", "--model", str(self._model))

    @contextmanager
    def start(self, *, fits: bool) -> Iterator[None]:
        """Exchange them while it starts."""
        if fits:
            yield
        else:
            with other_weights(self._model):
                yield


class PodStandsStill(TwoPodScene):
    """All of the second pod stands still, and clients give up; the remedy lets it go on."""

    def begin(self) -> None:
        """Stop it amid requests, whose clients leave, and let the router name the first pod only."""
        assert self.server is not None
        with suppress(OSError):
            self.both()
        requests = [self.kv.prefilled(6, server=self.server) for _ in range(_CLIENTS)]
        self.request = self.well
        stop_group(self.server.child.pid)
        with ThreadPoolExecutor(_CLIENTS) as senders:
            list(senders.map(self._give_up, requests))

    def _give_up(self, request: Prefilled) -> None:
        with suppress(OSError):
            self.kv.decode(request, timeout=5.0)

    def remedy(self) -> None:
        """Let it go on."""
        assert self.server is not None
        signal_group(self.server, signal.SIGCONT)
        self.request = self.both

    def close(self) -> None:
        """Do so, whatever happened, and end it."""
        self.remedy()
        super().close()


class LoadNeverStarts(PairScene):
    """A router leaves out the peer's address: vLLM parks the request and dies of the next one; the remedy is a new decode pod."""

    def __init__(self, kv: Bench) -> None:
        super().__init__(kv)
        self._new: Server | None = None
        self._client: threading.Thread | None = None

    def begin(self) -> None:
        """Send that request, and none after it."""
        self.request = lambda: None
        time.sleep(5)
        request = self.kv.prefilled()
        bare = {name: value for name, value in request.params.items() if name != "remote_host"}

        def send() -> None:
            with suppress(OSError):
                complete(self.kv.stack.decode.url, request.prompt, kv_transfer_params=bare, timeout=900.0)

        self._client = threading.Thread(target=send, daemon=True)
        self._client.start()

    def remedy(self) -> None:
        """Restart decode."""
        old = self.kv.stack.decode
        _end(old)
        self._new = Server(old.spec, model=tiny_model(ROOT / ".cache" / "models"), logs=old.child.log.parent)
        self._new.wait_ready()
        self.kv.stack = replace(self.kv.stack, decode=self._new)
        self.request = self.well

    def close(self) -> None:
        """End the new one."""
        if self._new is not None:
            self._new.stop()


def worker_of(kv: Bench, server: str) -> int:
    """Return the process id of *server*'s worker."""
    engines = kv.admin.ListEngines(admin.ListEnginesRequest()).engines
    (pid,) = (
        source.hello.pid
        for engine in engines
        if engine.key.server == server
        for source in engine.sources
        if source.hello.process == "worker" and source.connected
    )
    return pid
