"""A change on its way to the engines: printed engine by engine, and waited for."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl.errors import FailedError, hinted_here
from penstock.agent.ctl.options import duration_message
from penstock.agent.ctl.output import say_document, say_table
from penstock.agent.ctl.printing import say
from penstock.agent.views import text
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.orders import selector_words
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.agent.ctl.connection.client import Client

_LEAST = timedelta(milliseconds=100)


# Seconds that a stream may take to end after its timeout.
GRACE = 5.0
DEFAULT_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Followed:
    """The outcome of a change: its document, and why it is not in force everywhere."""

    document: dict[str, Any]
    failure: click.ClickException | None = None


def change_name(response: admin.ApplyPolicyResponse) -> str:
    """Name a change in messages."""
    if not response.name:
        return "the import"
    return f"{'the deletion of ' if response.result == 'deleted' else ''}policy {response.name}"


def wait_for(
    client: Client,
    response: admin.ApplyPolicyResponse,
    selectors: Mapping[str, admin.EngineSelector],
    *,
    timeout: timedelta,
    output: str,
    allow_none: bool,
) -> Followed:
    """Wait until a change is in force; print the progress if *output* is ``table``.

    It is in force when all engines of *selectors* (by policy) have it and engines no longer selected have dropped it.
    Each selector must match a connected engine, unless *allow_none*.
    """
    wait = _Wait(client, response, selectors, time.monotonic() + timeout.total_seconds())
    failures: list[click.ClickException] = []
    try:
        follow_delivery(wait.rollouts(), change_name(response), quiet=output != "table")
    except click.ClickException as error:
        failures.append(error)
    if not allow_none:
        failures += [FailedError(_nowhere(what, selectors[what])) for what in wait.nowhere]
    document = {"change": as_json_values(response), "rollout": as_json_values(wait.last)}
    return Followed(document, _joined(failures) if failures else None)


def conclude(followed: Sequence[Followed], output: str) -> None:
    """Print the outcome of changes as JSON or YAML: one as it is, several as ``items``.

    Raises:
        ClickException: a change is not in force everywhere.

    """
    if output != "table":
        documents = [item.document for item in followed]
        say_document(documents[0] if len(documents) == 1 else {"items": documents}, output)
    failures = [item.failure for item in followed if item.failure is not None]
    if failures:
        raise _joined(failures)


def time_left(end: float) -> timedelta:
    """Return the time until *end* (monotonic seconds), at least 100 ms: enough for one answer."""
    return max(timedelta(seconds=end - time.monotonic()), _LEAST)


@dataclass(slots=True)
class _Wait:
    """One change being rolled out.

    Attributes:
        end: monotonic seconds.
        last: the progress so far.
        nowhere: policies that no connected engine matches.

    """

    client: Client
    response: admin.ApplyPolicyResponse
    selectors: Mapping[str, admin.EngineSelector]
    end: float
    last: admin.Rollout = field(default_factory=lambda: admin.Rollout(done=True))
    nowhere: list[str] = field(default_factory=list)

    def rollouts(self) -> Iterator[admin.Rollout]:
        """Yield the progress in all engines."""
        for what, selector in self.selectors.items():
            connected = False
            for rollout in self._watch(selector):
                connected = any(engine.state != "disconnected" for engine in rollout.engines)
                yield self.last
            if not connected:
                self.nowhere.append(what)
        seen = [engine.key for engine in self.last.engines]
        let_go = [engine.key for engine in self.response.engines if engine.key not in seen]
        if let_go:
            for _ in self._watch(admin.EngineSelector(engines=let_go)):
                yield self.last

    def _watch(self, selector: admin.EngineSelector) -> Iterator[admin.Rollout]:
        before, timeout = self.last, time_left(self.end)
        request = admin.WatchRolloutRequest(
            store_generation=self.response.store_generation,
            selector=selector,
            timeout=duration_message(timeout),
            source=self.response.source if self.response.HasField("source") else None,
        )
        for rollout in self.client.stream("WatchRollout", request, timeout.total_seconds() + GRACE):
            keys = [engine.key for engine in rollout.engines]
            self.last = admin.Rollout(
                store_generation=rollout.store_generation,
                engines=[*(engine for engine in before.engines if engine.key not in keys), *rollout.engines],
                done=before.done and rollout.done,
            )
            yield rollout


def _nowhere(what: str, selector: admin.EngineSelector) -> str:
    return (
        f"{what} is in force nowhere: no connected engine matches {selector_words(selector)}; "
        "'agentctl get engines -o wide' shows labels; --allow-none allows this"
    )


def _joined(failures: Sequence[click.ClickException]) -> click.ClickException:
    if len(failures) == 1:
        return failures[0]
    return FailedError("; ".join(failure.message for failure in failures))


def show_change(response: admin.ApplyPolicyResponse, *, dry_run: bool) -> None:
    """Print what a change did, or would do."""
    show_warnings(response)
    tail = " (dry run: nothing was changed)" if dry_run else ""
    say(f"policy {response.name} {response.result}, generation {response.generation}{tail}")
    show_shares(response)
    if dry_run:
        show_fields(response)


def show_warnings(response: admin.ApplyPolicyResponse) -> None:
    """Print the warnings of a change."""
    for warning in response.warnings:
        say(text.style(f"warning: {warning}", "yellow"), err=True)


def show_shares(response: admin.ApplyPolicyResponse) -> None:
    """Print which share of the engines the changed policies select, where it is not all."""
    for share in response.shares:
        say(share)


def show_fields(response: admin.ApplyPolicyResponse) -> None:
    """Print the field changes in each engine."""
    rows = [
        (
            text.engine(engine.key),
            field.field,
            _given(field.old_value, field.old_policy),
            _given(field.new_value, field.new_policy),
        )
        for engine in response.engines
        for field in engine.fields
    ]
    if rows:
        say_table(("ENGINE", "FIELD", "FROM", "TO"), rows)
    elif response.engines:
        # A relay does not merge policies; each agent does.
        say(f"matched engines: {', '.join(text.engine(engine.key) for engine in response.engines)}")
    else:
        say("no known engine would change")


def follow_delivery(
    rollouts: Iterable[admin.Rollout], what: str, *, quiet: bool, done: str = "", ends: bool = False
) -> admin.Rollout:
    """Print a rollout's progress, and return its last message.

    Args:
        rollouts: the messages.
        what: names the change in messages.
        quiet: print nothing.
        done: state of an engine that acknowledged; default: the policies in force.
        ends: the order ends something, so a paused engine complies, too.

    Raises:
        FailedError: an engine refused, is paused, shares its name with another, or did not answer in time.

    """
    shown: dict[str, str] = {}
    last = admin.Rollout()
    try:
        for last in rollouts:
            for engine in last.engines:
                name, line = text.engine(engine.key), _line(engine, done)
                if shown.get(name) != line:
                    shown[name] = line
                    if not quiet:
                        say(f"engine {name} {line}")
    except KeyboardInterrupt:
        said = f"no longer waiting for {what}; the change stays. 'agentctl get engines' shows the progress"
        say(hinted_here(said, click.get_current_context(silent=True)), err=True)
        raise
    if not quiet and not last.engines:
        say("no known engine is selected")
    _judge(last, what, done, ends=ends)
    return last


def told(rollouts: Iterable[admin.Rollout], what: str) -> Iterator[admin.Rollout]:
    """Yield the progress of an order, which is at least one message.

    Raises:
        FailedError: there was none: nobody knows what has become of *what*.

    """
    count = 0
    for each in rollouts:
        yield each
        count += 1
    if not count:
        raise FailedError(
            f"the agent ended without a word about {what}; 'agentctl get engines' shows what is in force"
        )


def _given(value: str, policy: str) -> str:
    return f"{value} ({policy})" if value else "vllm's own"


def _line(engine: admin.EngineRollout, done: str) -> str:
    if engine.state == "acknowledged":
        took = text.span_of_time(engine.took.ToNanoseconds() / 1e9)
        now = done or f"in force: {text.policies(engine.policies, engine.hash)}"
        but = f" (its policy is refused: {_reason(engine)})" if engine.error else ""
        return text.style(f"acknowledged after {took}, {now}", "green") + but
    if engine.state == "refused":
        return text.style(f"refused: {_reason(engine)}", "red")
    if engine.state == "disconnected":
        return "disconnected; applied when it reconnects"
    if engine.state == "paused":
        return text.style(text.paused(done or _wanted(engine)), "yellow")
    return f"{engine.state}{': ' if engine.error else ''}{engine.error}"


def _wanted(engine: admin.EngineRollout) -> str:
    return text.policies(engine.wanted_policies, engine.wanted_hash)


def _reason(engine: admin.EngineRollout) -> str:
    return f"{engine.field}: {engine.error}" if engine.field else engine.error


def _judge(last: admin.Rollout, what: str, done: str, *, ends: bool) -> None:
    bad = [
        said for engine in last.engines if (said := _trouble(engine, done, last_word=last.done, ends=ends))
    ]
    if not bad:
        return
    paused = (
        "; 'agentctl resume' ends a pause"
        if not ends and any(engine.state == "paused" for engine in last.engines)
        else ""
    )
    raise FailedError(
        f"{what} is not in force in {len(bad)} of {text.count(len(last.engines), 'engine')}: {', '.join(bad)}{paused}"
    )


def _trouble(engine: admin.EngineRollout, done: str, *, last_word: bool, ends: bool) -> str:
    """Return why the change is not in force in an engine; empty if it is."""
    name = text.engine(engine.key)
    if engine.state == "refused":
        return f"{name} refused it ({_reason(engine)})"
    if engine.state == "paused" and not ends:
        return f"{name} is {text.paused(done or _wanted(engine))}"
    if engine.state == "contested":
        return f"{name} is contested ({engine.error})"
    if engine.state in {"waiting", "disconnected"} and not last_word:
        return f"{name} is still {engine.state}{f' ({engine.error})' if engine.error else ''}"
    return ""
