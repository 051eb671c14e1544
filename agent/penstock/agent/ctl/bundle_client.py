"""``--bundle FILE``: a client of a file instead of an agent."""

from __future__ import annotations

import importlib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.agent.ctl.client import Client
from penstock.agent.ctl.clock import current_time, freeze
from penstock.agent.ctl.errors import FailedError
from penstock.agent.ctl.render import say, text
from penstock.agent.ctl.tls import ClientTls
from penstock.agent.errors import PenstockError

if TYPE_CHECKING:
    import click

# By its name, as commands are: it brings the whole agent along, which a command for an agent does not need.
_SERVER = "penstock.agent.evidence.served"


def open_bundle(context: click.Context, path: str, program: str) -> Client:
    """Open a bundle for the command of *context*, until that ends; its time is the present from now on.

    Raises:
        FailedError: the file cannot be used; the sentence says why.

    """
    try:
        server = importlib.import_module(_SERVER).BundleServer(Path(path))
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
    return Client(server.address, ClientTls(), program)
