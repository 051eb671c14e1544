"""What a change did, and how far it has come in the engines."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl import words
from penstock.agent.ctl.failure import FailedError
from penstock.agent.ctl.hints import hinted_here
from penstock.agent.ctl.options import duration_message
from penstock.agent.ctl.output import dump, plain, table
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.agent.ctl.client import Client

# Seconds beyond its own time that a stream may take to end.
GRACE = 5.0
DEFAULT_TIMEOUT = timedelta(seconds=30)
_LEAST = timedelta(milliseconds=100)


def show_change(response: admin.ApplyPolicyResponse, *, dry_run: bool) -> None:
    """Print what a change did, or would do."""
    show_warnings(response)
    tail = " (dry run: nothing was changed)" if dry_run else ""
    click.echo(f"policy {response.name} {response.result}, generation {response.generation}{tail}")
    if dry_run:
        show_fields(response)


def show_warnings(response: admin.ApplyPolicyResponse) -> None:
    """Print what somebody who makes a change should know."""
    for warning in response.warnings:
        # It names engines, which name themselves.
        click.echo(click.style(f"warning: {words.printable(warning)}", fg="yellow"), err=True)


def show_fields(response: admin.ApplyPolicyResponse) -> None:
    """Print what a change means in each engine, field by field."""
    rows = [
        (
            words.engine(engine.key),
            field.field,
            _given(field.old_value, field.old_policy),
            _given(field.new_value, field.new_policy),
        )
        for engine in response.engines
        for field in engine.fields
    ]
    if rows:
        click.echo(table(("ENGINE", "FIELD", "FROM", "TO"), rows))
    else:
        click.echo("no engine that is known now would change")


def follow(rollouts: Iterable[admin.Rollout], what: str, *, quiet: bool, done: str = "") -> admin.Rollout:
    """Print a rollout's progress as it comes, and return its last word.

    *done* says what an engine that has acknowledged does now; the default is
    the hash of the policy in force.

    Raises:
        FailedError: an engine refused, or has not answered in time.

    """
    shown: dict[str, str] = {}
    last = admin.Rollout()
    try:
        for last in rollouts:
            for engine in last.engines:
                name, line = words.engine(engine.key), _line(engine, done)
                if shown.get(name) != line:
                    shown[name] = line
                    if not quiet:
                        click.echo(words.printable(f"engine {name} {line}"))
    except KeyboardInterrupt:
        text = (
            f"no longer waiting for {what}: it stays as ordered; 'agentctl get engines' shows how far it is"
        )
        click.echo(hinted_here(text, click.get_current_context(silent=True)), err=True)
        raise
    if not quiet and not last.engines:
        click.echo("no engine is known that it concerns")
    _judge(last, what)
    return last


@dataclass(frozen=True, slots=True)
class Followed:
    """What a change came to: how a program reads it, and why it is not in force everywhere."""

    document: dict[str, Any]
    failure: click.ClickException | None = None


def wait_for(
    client: Client,
    response: admin.ApplyPolicyResponse,
    selector: admin.EngineSelector,
    timeout: timedelta,
    output: str,
) -> Followed:
    """Wait until a change is in force, and print the progress unless the *output* is for a program.

    It is once those that *selector* selects have it, and those that it has let go are rid of it.
    """
    what = f"policy {response.name}" if response.name else "the import"
    last: admin.Rollout | None = None

    def remembered() -> Iterator[admin.Rollout]:
        nonlocal last
        for last in _rollouts(client, response, selector, timeout):  # noqa: UP028  (the last one is kept)
            yield last

    failure: click.ClickException | None = None
    try:
        follow(remembered(), what, quiet=output != "table")
    except click.ClickException as error:
        failure = error
    document = {"change": plain(response), "rollout": None if last is None else plain(last)}
    return Followed(document, failure)


def conclude(followed: Sequence[Followed], output: str) -> None:
    """Print as JSON or YAML what changes came to: one as it is, several as ``items``.

    Raises:
        ClickException: one is not in force everywhere.

    """
    if output != "table":
        documents = [item.document for item in followed]
        click.echo(dump(documents[0] if len(documents) == 1 else {"items": documents}, output))
    failures = [item.failure for item in followed if item.failure is not None]
    if len(failures) > 1:
        raise FailedError("; ".join(failure.message for failure in failures))
    if failures:
        raise failures[0]


def time_left(end: float) -> timedelta:
    """Return the time until *end* (monotonic seconds); when it is over, enough to ask once how things are."""
    return max(timedelta(seconds=end - time.monotonic()), _LEAST)


def _rollouts(
    client: Client, response: admin.ApplyPolicyResponse, selector: admin.EngineSelector, timeout: timedelta
) -> Iterator[admin.Rollout]:
    end = time.monotonic() + timeout.total_seconds()
    selected = admin.Rollout(done=True)
    for selected in _rollout(client, response, selector, timeout):
        yield selected
    seen = [engine.key for engine in selected.engines]
    let_go = [engine.key for engine in response.engines if engine.key not in seen]
    if let_go:
        left = time_left(end)
        for rest in _rollout(client, response, admin.EngineSelector(engines=let_go), left):
            yield admin.Rollout(
                store_generation=rest.store_generation,
                engines=[*selected.engines, *rest.engines],
                done=selected.done and rest.done,
            )


def _rollout(
    client: Client, response: admin.ApplyPolicyResponse, selector: admin.EngineSelector, timeout: timedelta
) -> Iterator[admin.Rollout]:
    request = admin.WatchRolloutRequest(
        store_generation=response.store_generation, selector=selector, timeout=duration_message(timeout)
    )
    return client.stream("WatchRollout", request, timeout.total_seconds() + GRACE)


def _given(value: str, policy: str) -> str:
    return f"{value} ({policy})" if value else "vllm's own"


def _line(engine: admin.EngineRollout, done: str) -> str:
    if engine.state == "acknowledged":
        took = words.span_of_time(engine.took.ToNanoseconds() / 1e9)
        now = done or f"in force: {words.short_hash(engine.hash)}"
        but = f" (its policy is refused: {_reason(engine)})" if engine.error else ""
        return click.style(f"acknowledged after {took}, {now}", fg="green") + but
    if engine.state == "refused":
        return click.style(f"refused: {_reason(engine)}", fg="red")
    if engine.state == "disconnected":
        return "disconnected: it gets this when it comes back"
    return f"{engine.state}{': ' if engine.error else ''}{engine.error}"


def _reason(engine: admin.EngineRollout) -> str:
    return f"{engine.field}: {engine.error}" if engine.field else engine.error


def _judge(last: admin.Rollout, what: str) -> None:
    bad = [
        f"{words.engine(engine.key)} refused it ({_reason(engine)})"
        for engine in last.engines
        if engine.state == "refused"
    ]
    if not last.done:
        bad += [
            f"{words.engine(engine.key)} is still {engine.state}"
            for engine in last.engines
            if engine.state in {"waiting", "disconnected"}
        ]
    if bad:
        raise FailedError(
            f"{what} is not in force in {len(bad)} of {len(last.engines)} engines: {', '.join(bad)}"
        )
