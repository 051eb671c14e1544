"""``--wait``: follows a change into the engines it selects and those it no longer selects."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl.errors import FailedError
from penstock.agent.ctl.options import duration_message
from penstock.agent.ctl.printing.output import say_document
from penstock.agent.ctl.rollout.progress import GRACE, follow_rollout
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.orders import selector_words
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.agent.ctl.connection.client import Client

_LEAST = timedelta(milliseconds=100)


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
        follow_rollout(wait.rollouts(), change_name(response), quiet=output != "table")
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
