"""Prints the result of a change and the progress of its rollout."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.command_hints import hinted_here
from penstock.agent.ctl.errors import FailedError
from penstock.agent.ctl.printing.console import say
from penstock.agent.ctl.printing.output import say_table
from penstock.agent.views import text as words
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Seconds that a stream may take to end after its timeout.
GRACE = 5.0
DEFAULT_TIMEOUT = timedelta(seconds=30)


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
        say(words.style(f"warning: {warning}", "yellow"), err=True)


def show_shares(response: admin.ApplyPolicyResponse) -> None:
    """Print which share of the engines the changed policies select, where it is not all."""
    for share in response.shares:
        say(share)


def show_fields(response: admin.ApplyPolicyResponse) -> None:
    """Print the field changes in each engine."""
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
        say_table(("ENGINE", "FIELD", "FROM", "TO"), rows)
    elif response.engines:
        # A relay does not merge policies; each agent does.
        say(f"matched engines: {', '.join(words.engine(engine.key) for engine in response.engines)}")
    else:
        say("no known engine would change")


def follow_rollout(
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
                name, line = words.engine(engine.key), _line(engine, done)
                if shown.get(name) != line:
                    shown[name] = line
                    if not quiet:
                        say(f"engine {name} {line}")
    except KeyboardInterrupt:
        text = f"no longer waiting for {what}; the change stays. 'agentctl get engines' shows the progress"
        say(hinted_here(text, click.get_current_context(silent=True)), err=True)
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
        took = words.span_of_time(engine.took.ToNanoseconds() / 1e9)
        now = done or f"in force: {words.policies(engine.policies, engine.hash)}"
        but = f" (its policy is refused: {_reason(engine)})" if engine.error else ""
        return words.style(f"acknowledged after {took}, {now}", "green") + but
    if engine.state == "refused":
        return words.style(f"refused: {_reason(engine)}", "red")
    if engine.state == "disconnected":
        return "disconnected; applied when it reconnects"
    if engine.state == "paused":
        return words.style(words.paused(done or _wanted(engine)), "yellow")
    return f"{engine.state}{': ' if engine.error else ''}{engine.error}"


def _wanted(engine: admin.EngineRollout) -> str:
    return words.policies(engine.wanted_policies, engine.wanted_hash)


def _reason(engine: admin.EngineRollout) -> str:
    return f"{engine.field}: {engine.error}" if engine.field else engine.error


def _judge(last: admin.Rollout, what: str, done: str, *, ends: bool) -> None:
    bad = [
        text for engine in last.engines if (text := _trouble(engine, done, last_word=last.done, ends=ends))
    ]
    if not bad:
        return
    paused = (
        "; 'agentctl resume' ends a pause"
        if not ends and any(engine.state == "paused" for engine in last.engines)
        else ""
    )
    raise FailedError(
        f"{what} is not in force in {len(bad)} of {words.count(len(last.engines), 'engine')}: {', '.join(bad)}{paused}"
    )


def _trouble(engine: admin.EngineRollout, done: str, *, last_word: bool, ends: bool) -> str:
    """Return why the change is not in force in an engine; empty if it is."""
    name = words.engine(engine.key)
    if engine.state == "refused":
        return f"{name} refused it ({_reason(engine)})"
    if engine.state == "paused" and not ends:
        return f"{name} is {words.paused(done or _wanted(engine))}"
    if engine.state == "contested":
        return f"{name} is contested ({engine.error})"
    if engine.state in {"waiting", "disconnected"} and not last_word:
        return f"{name} is still {engine.state}{f' ({engine.error})' if engine.error else ''}"
    return ""
