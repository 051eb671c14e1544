"""``--bundle FILE``: a client of a file instead of an agent, and the page of that file."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.agent.ctl.connection.client import Client
from penstock.agent.ctl.connection.tls import ClientTls
from penstock.agent.ctl.errors import FailedError
from penstock.agent.ctl.moments import current_time, freeze
from penstock.agent.ctl.printing import say
from penstock.agent.errors import PenstockError
from penstock.agent.views import text

if TYPE_CHECKING:
    import click
    from penstock.agent.evidence.served import BundleServer


def open_bundle(context: click.Context, path: str, program: str) -> Client:
    """Open a bundle for the command of *context*, until that ends; its time is the present from now on.

    Raises:
        FailedError: the file cannot be used; the sentence says why.

    """
    return Client(_opened(context, path).address, ClientTls(), program)


def open_page(context: click.Context, path: str, program: str, *, port: int, since: float | None) -> str:
    """Serve the page of a bundle until the command of *context* ends, and return its address.

    Args:
        context: of the command.
        path: of the bundle.
        program: the beginning of a command line that reads the bundle.
        port: of loopback; 0 for a free one.
        since: seconds before the bundle that the verdict is about; None for those of ``agentctl diagnose``.

    Raises:
        FailedError: the file or the port cannot be used; the sentence says why.

    """
    server = _opened(context, path)
    from penstock.agent.evidence.page import serve_page  # noqa: PLC0415

    try:
        return serve_page(server, Path(path).name, program, port=port, since=since)
    except PenstockError as error:
        raise FailedError(str(error)) from error


def interrupt_on_signals(context: click.Context) -> None:
    """Let signals that end a process do what Ctrl-C does until *context* ends: what was unpacked is removed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        before = signal.signal(number, signal.default_int_handler)
        context.call_on_close(partial(signal.signal, number, before))


def _opened(context: click.Context, path: str) -> BundleServer:
    """Return the server of a bundle, which closes with *context*; the present is the bundle's time from now on."""
    interrupt_on_signals(context)
    # It brings the whole agent along, which a command for an agent does not need.
    from penstock.agent.evidence.served import BundleServer  # noqa: PLC0415

    try:
        server = BundleServer(Path(path))
    except PenstockError as error:
        raise FailedError(str(error)) from error
    context.call_on_close(server.close)
    if not context.resilient_parsing:
        moment = datetime.fromtimestamp(server.now, UTC).astimezone()
        age = text.age(max(0.0, current_time() - server.now))
        where = f", from {server.manifest.address}" if server.manifest.address else ""
        say(f"as of {moment:%Y-%m-%d %H:%M:%S %Z}, {age} ago{where}", err=True)
        for sentence in server.manifest.gaps():
            say(text.style(sentence, "yellow"), err=True)
    freeze(context, server.now)
    return server
