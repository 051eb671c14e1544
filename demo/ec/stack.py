"""The processes of ``make demo-ec``: agent, trace backend, encoder, language model, and the link between them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from demo.common.link import Link
from demo.common.processes import free_port
from demo.common.progress import begin_phase, report
from demo.common.vision_model import tiny_vision_model
from demo.common.workspace import run_directory, start_agent
from demo.ec.servers import encoder_spec, language_spec
from demo.servers import ROOT, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import ExitStack
    from pathlib import Path

    from demo.common.agent import Agent
    from demo.common.otlp_receiver import Receiver
    from demo.servers import ServerSpec

# A busy machine may delay an encoder's answers, and the reset of its connections when it dies.
PATIENCE = {"probe_timeout": 20.0, "start_timeout": 20.0, "idle_timeout": 20.0}


def environment(endpoint: str, name: str, role: str) -> dict[str, str]:
    """Return Penstock's environment variables of a server."""
    return {
        "PENSTOCK_ENDPOINT": endpoint,
        "PENSTOCK_SERVER": name,
        "PENSTOCK_LABELS": f"role={role},tier={name}",
    }


@dataclass(slots=True)
class Encoder:
    """An encoder server that can be killed and replaced.

    Attributes:
        extra: further configuration of its connector.
        port: of its connector, for encoder outputs.

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
            RuntimeError: no encoder is running.

        """
        if self._server is None:
            raise RuntimeError("The encoder was killed; start it again first.")
        return self._server.url

    def start(self) -> Server:
        """Start an encoder, or take the prepared one; it may not be ready yet."""
        if self._next is not None:
            (self.port, self._server), self._next = self._next, None
        else:
            self._server = Server(self._spec("encoder", self.port), model=self.model, logs=self.logs)
        return self._server

    def prepare(self) -> None:
        """Start the next encoder in advance, on a port of its own."""
        port = free_port()
        self._next = port, Server(self._spec("encoder-next", port), model=self.model, logs=self.logs)

    def kill(self) -> None:
        """``kill -9`` all its processes, as if its machine had failed."""
        if self._server is not None:
            self._server.child.kill_all()
            self._server = None

    def stop(self) -> None:
        """Stop it with SIGTERM. Safe to call twice."""
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
        link: between language model and encoder; the language model uses its address as the encoder's.
        receiver: the demo's own backend; None if OTEL_EXPORTER_OTLP_ENDPOINT is set.

    """

    agent: Agent
    traces: str
    receiver: Receiver | None
    encoder: Encoder
    language: Server
    link: Link


@contextmanager
def running_ec_stack() -> Iterator[EcStack]:
    """Start all processes, wait until both servers are ready, and stop everything at the end.

    Removes the run's files (sockets, state, logs) unless it fails.

    Raises:
        ChildError: a process did not start.

    """
    with run_directory() as (directory, parts):
        yield start_ec_stack(directory, parts, report)


def start_ec_stack(
    directory: Path,
    parts: ExitStack,
    say: Callable[[str], None],
    *,
    encoder_extra: Mapping[str, Any] | None = None,
    language_env: Mapping[str, str] | None = None,
) -> EcStack:
    """Start all processes; *parts* stops them.

    Args:
        directory: of their files.
        parts: receives what stops them.
        say: gets a sentence for each process that is waited for.
        encoder_extra: further configuration of the encoder's connector.
        language_env: further environment of the language model.

    Raises:
        ChildError: a process did not start.

    """
    begin_phase("the agent starts")
    backend = start_agent(directory, parts, say)
    agent = backend.agent
    begin_phase("two vLLM servers, an encoder and a language model, start on the CPU")
    model = tiny_vision_model(ROOT / ".cache" / "models")
    encoder = Encoder(agent.endpoint, model, directory, encoder_extra or {})
    parts.callback(encoder.stop)
    link = parts.enter_context(Link(encoder.port))
    language = Server(
        language_spec(
            "language",
            producers=[link.address],
            extra={"load_failure": "fail", **PATIENCE},
            env={**environment(agent.endpoint, "language", "both"), **(language_env or {})},
        ),
        model=model,
        logs=directory,
    )
    parts.callback(language.stop)
    for server in (encoder.start(), language):
        server.wait_ready(say=say)
    return EcStack(agent, backend.traces, backend.receiver, encoder, language, link)
