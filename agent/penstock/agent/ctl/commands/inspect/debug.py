"""``agentctl debug``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.console import say
from penstock.agent.ctl.formats import with_output
from penstock.agent.ctl.lazy_group import LazyGroup
from penstock.agent.ctl.name_arguments import ENGINE
from penstock.agent.ctl.options import author, with_client
from penstock.agent.ctl.output import show
from penstock.agent.views import text
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import EngineKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.model import EngineKey as Key
    from penstock.proto.v1.policy_pb2 import StackDump, ThreadStack

_INDENT = "  "
_NAME = 128


@click.group(cls=LazyGroup)
def debug() -> None:
    """Look into a running engine."""


@debug.command()
@click.argument("engine", type=ENGINE)
@click.option("--reason", default="", help="Reason, for the audit log.")
@with_output()
@with_client
def stacks(client: Client, engine: Key, reason: str, output: str) -> None:
    """Show what the threads of ENGINE's EngineCore execute: functions and lines, no values.

    The engine has to be started with PENSTOCK_ALLOW_STACKS=1. The engine answers even while a step hangs, and keeps
    running.
    """
    key = EngineKey(server=engine.server, engine=engine.engine)
    request = admin.GetStacksRequest(key=key, author=author(), reason=reason)
    found = client.call("GetStacks", request)
    if output != "table":
        show(found, output)
        return
    for dump in found.processes:
        say(*_lines(dump))


def _lines(dump: StackDump) -> Iterator[str]:
    yield f"{dump.process} (pid {dump.pid}): {text.count(len(dump.threads), 'thread')}"
    for thread in dump.threads:
        yield from _thread(thread)
    if dump.threads_left_out:
        yield f"{text.count(dump.threads_left_out, 'more thread')} not shown"


def _thread(thread: ThreadStack) -> Iterator[str]:
    yield f"{_INDENT}{text.one_line(thread.name, _NAME)}:"
    for frame in thread.frames:
        where = text.one_line(f"{frame.module}.{frame.function}", 2 * _NAME)
        yield f"{2 * _INDENT}{where} ({text.one_line(frame.file, _NAME)}:{frame.line})"
    if thread.frames_left_out:
        yield f"{2 * _INDENT}{text.count(thread.frames_left_out, 'outer frame')} not shown"
