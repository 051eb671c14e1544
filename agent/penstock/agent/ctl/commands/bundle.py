"""``agentctl bundle``: the evidence of one agent in one file."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from penstock.agent.bundle import BundleBuilder, ScratchDirectory, read_watchdog_dumps
from penstock.agent.ctl.connection.client import interrupt_on_signals
from penstock.agent.ctl.connection.endpoint import bundle_of
from penstock.agent.ctl.errors import FailedError, UsageError
from penstock.agent.ctl.options import DURATION, Parsed, duration_message, with_client
from penstock.agent.ctl.printing import say
from penstock.agent.errors import PenstockError
from penstock.agent.parsing import format_size, mask_urls, parse_size
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.agent.bundle import BundleManifest, WatchdogDumps
    from penstock.agent.ctl.connection.client import Client

_ENDING = ".penstock"
_STDOUT = "-"
_PROGRESS_SECONDS = 1.0


@click.command()
@click.option(
    "--since",
    type=DURATION,
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="How much of the log to include.",
)
@click.option(
    "--filename",
    "-f",
    "path",
    type=click.Path(dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="The file to write; - for standard output.  [default: penstock-TIME.penstock]",
)
@click.option(
    "--max-size",
    type=Parsed("SIZE", parse_size),
    default="64MiB",
    show_default=True,
    metavar="SIZE",
    help="Maximum size of the data fetched from the agent. If there is more, the oldest log entries are left out.",
)
@click.option(
    "--watchdog-dumps",
    "dumps",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Add the newest stack dumps of vLLM's watchdog in DIR, a directory of this machine: its dump_dir on a shared volume.",
)
@click.option("--agent", default="", metavar="NAME", help="Of a relay: the agent whose evidence is taken.")
@with_client
@click.pass_context
def bundle(
    context: click.Context,
    client: Client,
    since: timedelta,
    path: str | None,
    max_size: int,
    dumps: Path | None,
    agent: str,
) -> None:
    """Write the evidence of an agent into one file, which reading commands open with --bundle FILE.

    It holds the log, policies and their history, the audit log, orders, engines with their last snapshots, the metrics
    page and the configuration without secrets; no prompts, tokens or outputs of models.
    """
    if bundle_of(context):
        raise UsageError("a bundle is taken from an agent; copy the file instead")
    request = admin.GetBundleRequest(since=duration_message(since), max_bytes=max_size, agent=agent)
    name = path or f"penstock-{datetime.now(UTC):%Y%m%dT%H%M%SZ}{_ENDING}"
    if name == _STDOUT and sys.stdout.isatty():
        raise UsageError("a bundle is not for a terminal; give -f FILE, or pipe it")
    stacks = None if dumps is None else _stacks(dumps)
    interrupt_on_signals(context)
    try:
        scratch = ScratchDirectory()
    except OSError as error:
        raise FailedError(
            f"no temporary file can be made: {error.strerror}; set TMPDIR to a directory"
        ) from error
    try:
        with scratch:
            target = scratch.path / "bundle" if name == _STDOUT else Path(name)
            manifest = _take(client, request, scratch.path, target, stacks)
            _hand_over(manifest, target, to_stdout=name == _STDOUT)
            if stacks is not None:
                say(f"{stacks.taken} of {stacks.found} watchdog dumps", err=name == _STDOUT)
    except PenstockError as error:
        raise FailedError(str(error)) from error
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise FailedError(f"the bundle cannot be written: {reason}") from error


def _stacks(directory: Path) -> WatchdogDumps:
    """Read the dumps before the agent is asked.

    Raises:
        UsageError: the directory cannot be read.

    """
    try:
        return read_watchdog_dumps(directory)
    except OSError as error:
        raise UsageError(
            f"--watchdog-dumps {directory} cannot be read: {error.strerror}; mount the volume of vLLM's dump_dir here"
        ) from error


def _take(
    client: Client,
    request: admin.GetBundleRequest,
    directory: Path,
    target: Path,
    stacks: WatchdogDumps | None,
) -> BundleManifest:
    """Take the parts from the agent and write them to *target*."""
    parts = directory / "parts"
    parts.mkdir()
    builder, shown = BundleBuilder(parts, request.max_bytes), time.monotonic()
    try:
        for part in client.stream("GetBundle", request):
            builder.add(part)
            if time.monotonic() - shown >= _PROGRESS_SECONDS:
                shown = time.monotonic()
                _say_progress(builder)
        if stacks is not None:
            builder.add_dumps(stacks.text)
        return builder.write(
            target,
            address=mask_urls(request.agent or client.address),
            since_seconds=request.since.ToSeconds(),
        )
    finally:
        builder.close()


def _say_progress(builder: BundleBuilder) -> None:
    say(f"{format_size(builder.bytes)} of {format_size(builder.expected)} of the log", err=True)


def _hand_over(manifest: BundleManifest, target: Path, *, to_stdout: bool) -> None:
    size = format_size(target.stat().st_size)
    if to_stdout:
        with target.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
    what = "to standard output" if to_stdout else str(target)
    since = f", the oldest of {manifest.first_time}" if manifest.batches else ""
    say(f"wrote {what}: {size}, {manifest.batches} batches of the log{since}", err=to_stdout)
    for sentence in manifest.gaps():
        say(sentence, err=True)
