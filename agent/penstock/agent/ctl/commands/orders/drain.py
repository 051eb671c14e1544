"""``agentctl drain``: wait until an engine can be ended."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.commands.orders.eject import LateError, order_ejection
from penstock.agent.ctl.connection.endpoint import bundle_of
from penstock.agent.ctl.errors import FailedError, UsageError
from penstock.agent.ctl.moments import current_time
from penstock.agent.ctl.options import DURATION, ENGINE, with_client
from penstock.agent.ctl.output import say_document
from penstock.agent.ctl.printing import is_table, say, with_output
from penstock.agent.model import EngineKey
from penstock.agent.parsing import format_duration, no_engine
from penstock.agent.views import text
from penstock.agent.views.drain import drain_states, last_report
from penstock.agent.views.json_values import moment
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.views.drain import DrainState

_POLL_SECONDS = 0.5
# An order out of rotation lasts longer than the wait: the engine is to be ended after it.
_LONGER = timedelta(minutes=1)
_PATIENCE = timedelta(seconds=10)


@click.command()
@click.argument("key", type=ENGINE, metavar="ENGINE")
@click.option("--timeout", type=DURATION, default="60s", show_default=True, help="Give up after this long.")
@click.option(
    "--settle",
    type=DURATION,
    default="3s",
    show_default=True,
    help="ENGINE is drained once nothing was needed for this long: it reports once a second.",
)
@click.option(
    "--eject",
    is_flag=True,
    help="First take ENGINE's server out of rotation, for --timeout and a minute; back at once if this gives up.",
)
@with_output()
@with_client
def drain(
    client: Client, key: EngineKey, timeout: timedelta, settle: timedelta, eject: bool, output: str
) -> None:
    """Wait until nothing of ENGINE is needed any more: no lease unread, no transfer or save under way.

    Of an engine that gives KV away, requests in its scheduler are needed, too. Without --eject it changes nothing:
    take ENGINE out of your router first, or new requests hold it up. Says who is waited for, and after --timeout,
    with exit code 1, what was given up.
    """
    if bundle_of(click.get_current_context()):
        raise UsageError("drain waits for a running engine, which a bundle has not; leave out --bundle")
    if not eject:
        _wait(client, key, timeout, settle, output)
        return
    # Only an answer of drain is a document on stdout.
    tell = is_table(output)
    _rotate(client, key, timeout + _LONGER, "drain", tell=tell)
    try:
        _wait(client, key, timeout, settle, output)
    except BaseException:
        _rotate(client, key, None, "drain was given up", tell=tell)
        raise


def _rotate(client: Client, key: EngineKey, ttl: timedelta | None, reason: str, *, tell: bool) -> None:
    """Take the engine's server out of rotation, or back in; a front end that is late keeps nobody from the wait."""
    try:
        order_ejection(client, [key], "", ttl, reason, _PATIENCE, tell=tell)
    except LateError as error:
        say(text.style(error.message, "yellow"), err=True)


def _wait(client: Client, key: EngineKey, timeout: timedelta, settle: timedelta, output: str) -> None:
    watch, ends, said, quiet_since = _Watch(client, key), time.monotonic() + timeout.total_seconds(), "", 0.0
    while True:
        state = watch.look()
        now = time.monotonic()
        if not state.drained:
            quiet_since = 0.0
        else:
            quiet_since = quiet_since or now
            if now - quiet_since >= settle.total_seconds():
                break
        sentence = state.sentence(current_time())
        if now >= ends:
            _show(state, output)
            raise FailedError(f"gave up after {format_duration(timeout)}: {_of_end(state, sentence)}")
        if is_table(output) and not state.drained and _what(state) != said:
            said = _what(state)
            say(sentence)
        time.sleep(min(_POLL_SECONDS, max(0.0, ends - now)))
    _show(state, output)
    if is_table(output):
        say(state.sentence(current_time()))


def _what(state: DrainState) -> str:
    """Return what is said of a state, without its ages."""
    return state.unknown or repr([(need.what, need.number, need.whom) for need in state.needs])


def _of_end(state: DrainState, sentence: str) -> str:
    return f"{sentence}, but not for long enough yet (--settle)" if state.drained else sentence


def _show(state: DrainState, output: str) -> None:
    if is_table(output):
        return
    needs = [
        {"what": need.what, "count": need.number, "whom": need.whom}
        | ({"oldest": moment(need.oldest_unix_nano)} if need.oldest_unix_nano else {})
        for need in state.needs
    ]
    document = {"engine": state.engine, "drained": state.drained, "unknown": state.unknown, "needs": needs}
    say_document(document, output)


class _Watch:
    """What is known of one engine, look by look. Ages of reports are by this machine's clock, not by the agent's."""

    def __init__(self, client: Client, key: EngineKey) -> None:
        self._client = client
        self._key = key
        self._reported = 0
        self._heard = 0.0

    def look(self) -> DrainState:
        """Return the engine's state now.

        Raises:
            FailedError: there is no such engine.

        """
        request = admin.ListEnginesRequest(without_counters=True)
        known = self._client.call("ListEngines", request).engines
        found = [
            each
            for each in known
            if (each.key.server, each.key.engine) == (self._key.server, self._key.engine)
        ]
        if not found:
            names = [EngineKey(each.key.server, each.key.engine) for each in known]
            raise FailedError(no_engine(self._key, names))
        holders = self._client.call("ListHolders", admin.ListHoldersRequest()).holders
        (state,) = drain_states(found[:1], holders, known, self._silence)
        return state

    def _silence(self, engine: admin.Engine) -> float:
        reported, now = last_report(engine), time.monotonic()
        if reported != self._reported:
            self._reported, self._heard = reported, now
        return now - self._heard
