"""Everything that `make demo-ec` runs: agent, trace backend, an encoder, a language model, and the link between them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from demo.common.link import Link
from demo.common.processes import free_port
from demo.common.vision_model import tiny_vision_model
from demo.common.workspace import run_directory, start_watch
from demo.ec.servers import encoder_spec, language_spec
from demo.servers import ROOT, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import ExitStack
    from pathlib import Path

    from demo.common.agent import Agent
    from demo.common.otlp_receiver import Receiver
    from demo.servers import ServerSpec

# On a busy machine an encoder may take its time to answer, and its death to end its connections.
PATIENCE = {"probe_timeout": 20.0, "start_timeout": 20.0, "idle_timeout": 20.0}


def environment(endpoint: str, name: str, role: str) -> dict[str, str]:
    """Return what Penstock needs to know of a server."""
    return {
        "PENSTOCK_ENDPOINT": endpoint,
        "PENSTOCK_SERVER": name,
        "PENSTOCK_LABELS": f"role={role},tier={name}",
    }


@dataclass(slots=True)
class Encoder:
    """The encoder's place: a server that can be killed and replaced by another one.

    Attributes:
        extra: of its connector's configuration.
        port: where it serves its outputs.

    """

    endpoint: str
    model: Path
    logs: Path
    extra: Mapping[str, Any] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    _server: Server | None = None
    _next: tuple[int, Server] | None = None

    @property
    def url(self) -> str:
        """Its API, for clients.

        Raises:
            RuntimeError: there is none now.

        """
        if self._server is None:
            raise RuntimeError("The encoder was killed; start it again first.")
        return self._server.url

    def start(self) -> Server:
        """Start one, or take the one that was prepared; it may not serve yet."""
        if self._next is not None:
            (self.port, self._server), self._next = self._next, None
        else:
            self._server = Server(self._spec("encoder", self.port), model=self.model, logs=self.logs)
        return self._server

    def prepare(self) -> None:
        """Start the one that is to come next, at a port of its own, so that nobody has to wait for it then."""
        port = free_port()
        self._next = port, Server(self._spec("encoder-next", port), model=self.model, logs=self.logs)

    def kill(self) -> None:
        """``kill -9`` all its processes, as if its machine were gone."""
        if self._server is not None:
            self._server.child.kill_all()
            self._server = None

    def stop(self) -> None:
        """End it as one should. Safe to call twice."""
        if self._next is not None:
            self._next[1].stop()
            self._next = None
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _spec(self, name: str, port: int) -> ServerSpec:
        return encoder_spec(
            name, port=port, extra=self.extra, env=environment(self.endpoint, name, "encoder")
        )


@dataclass(frozen=True, slots=True)
class EcStack:
    """The running parts.

    Attributes:
        link: between language model and encoder; its address is the encoder's for the language model.
        receiver: None where OTEL_EXPORTER_OTLP_ENDPOINT names somebody else's.

    """

    agent: Agent
    traces: str
    receiver: Receiver | None
    encoder: Encoder
    language: Server
    link: Link


@contextmanager
def running_ec_stack(say: Callable[[str], None]) -> Iterator[EcStack]:
    """Start all parts, wait until both servers serve, and leave nothing running at the end.

    The files of the run (sockets, state, logs) are removed unless it fails.

    Raises:
        ChildError: a part did not start.

    """
    with run_directory(say) as (directory, parts):
        yield start_ec_stack(directory, parts, say)


def start_ec_stack(
    directory: Path,
    parts: ExitStack,
    say: Callable[[str], None],
    *,
    encoder_extra: Mapping[str, Any] | None = None,
) -> EcStack:
    """Start all parts; *parts* ends them. *encoder_extra* is more of the configuration of the encoder's connector.

    Raises:
        ChildError: a part did not start.

    """
    watch = start_watch(directory, parts, say)
    agent = watch.agent
    model = tiny_vision_model(ROOT / ".cache" / "models")
    encoder = Encoder(agent.endpoint, model, directory, encoder_extra or {})
    parts.callback(encoder.stop)
    link = parts.enter_context(Link(encoder.port))
    language = Server(
        language_spec(
            "language",
            producers=[link.address],
            extra={"load_failure": "fail", **PATIENCE},
            env=environment(agent.endpoint, "language", "both"),
        ),
        model=model,
        logs=directory,
    )
    parts.callback(language.stop)
    for server in (encoder.start(), language):
        server.wait_ready(say=say)
    return EcStack(agent, watch.traces, watch.receiver, encoder, language, link)
