"""``agentctl rollout``: a policy to more and more engines, compared with those without it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl.errors import UsageError
from penstock.agent.ctl.lazy_group import LazyGroup
from penstock.agent.ctl.listing import Listing, ListStyle, show_listing, with_listing
from penstock.agent.ctl.manifest_files import ManifestText, read_paths
from penstock.agent.ctl.moments import current_time
from penstock.agent.ctl.options import DURATION, POLICY, author, duration_message, with_client
from penstock.agent.ctl.output import show
from penstock.agent.ctl.printing import say, with_output
from penstock.agent.views import text
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.tables import Table
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import timedelta

    from penstock.agent.ctl.connection.client import Client

_ANNOTATION = "penstock.dev/rollout"
_MOST_AUDIT = 1000


class _Percents(click.ParamType[Any]):
    """``5,25,100``."""

    name = "PERCENTS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the numbers."""
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(part.strip().isdecimal() and int(part) <= 100 for part in parts):  # noqa: PLR2004  (percent)
            self.fail(f"{value!r} cannot be read; write ascending percents such as 5,25,100", param, ctx)
        return tuple(map(int, parts))


@click.group(cls=LazyGroup)
def rollout() -> None:
    """Roll out a policy step by step: start, status, pause, resume, promote, abort, history."""


@rollout.command()
@click.argument("name", type=POLICY)
@click.option(
    "--steps",
    type=_Percents(),
    help="Percents of the engines, ascending; the last one is 100.  [default: 5,25,100]",
)
@click.option("--hold", type=DURATION, help="Minimum duration of each step.  [default: 10m]")
@click.option(
    "--abort-if",
    "abort_if",
    multiple=True,
    metavar="CONDITION",
    help="Abort if the engines with the policy are that much worse; repeatable.  "
    "[default: failed>2x, deferred>1.5x, recomputed>2x]",
)
@click.option(
    "--proceed-undecided",
    is_flag=True,
    help="Go on after the hold where there is not enough evidence; without it the rollout waits.",
)
@click.option(
    "-f",
    "--filename",
    metavar="FILE",
    help="New content of NAME, which is in force; the other engines keep NAME as it is until promotion.",
)
@click.option("--reason", default="", help="Reason, for the audit log.")
@with_output()
@with_client
def start(
    client: Client,
    name: str,
    steps: tuple[int, ...] | None,
    hold: timedelta | None,
    abort_if: tuple[str, ...],
    proceed_undecided: bool,
    filename: str | None,
    reason: str,
    output: str,
) -> None:
    """Roll out policy NAME, which 'set-policy --rollout-percent 0' has prepared.

    The agent raises the percentage after each hold, compares the engines with and without the policy, and sets it to
    0 % by itself if those with it are worse. With -f, NAME stays in force, and its change in FILE is rolled out.
    """
    change = "" if filename is None else _only(read_paths([filename]), filename).text
    request = admin.SetPolicyRolloutRequest(
        name=name,
        action="start",
        steps=steps or (),
        hold=None if hold is None else duration_message(hold),
        abort_if=abort_if,
        author=author(),
        reason=reason,
        proceed_undecided=proceed_undecided,
        manifest_json=change,
    )
    _send(client, request, output)


def _only(found: list[ManifestText], filename: str) -> ManifestText:
    if len(found) != 1:
        raise UsageError(f"{filename} has {len(found)} policies; give one, the new content of NAME")
    return found[0]


@rollout.command()
@click.argument("names", type=POLICY, nargs=-1, metavar="[NAME]...")
@with_listing
@with_client
def status(client: Client, names: tuple[str, ...], style: ListStyle) -> None:
    """List rollouts; with one NAME also the evidence of its present step."""

    def fetch() -> Listing:
        response = client.call("ListPolicyRollouts", admin.ListPolicyRolloutsRequest())
        if names:
            kept = [item for item in response.rollouts if item.name in names]
            response = admin.ListPolicyRolloutsResponse(rollouts=kept)
        now = current_time()
        return Listing(
            "rollout",
            _table(response.rollouts, now),
            [item.name for item in response.rollouts],
            lambda: as_json_values(response),
            "rollouts",
            "no rollouts; 'agentctl rollout start NAME' begins one",
            notes=[line for item in response.rollouts for line in _evidence(item)] if len(names) == 1 else (),
            missing=[
                f"policy {name!r} has no rollout; 'agentctl rollout start {name}' begins one"
                for name in names
                if all(item.name != name for item in response.rollouts)
            ],
            single=len(names) == 1,
        )

    show_listing(fetch, style)


@rollout.command()
@click.argument("name", type=POLICY)
@click.option("--reason", default="", help="Reason, for the audit log.")
@with_output()
@with_client
def pause(client: Client, name: str, reason: str, output: str) -> None:
    """Stop the rollout of NAME where it is; the engines that have the policy keep it."""
    _order(client, name, "pause", reason, output)


@rollout.command()
@click.argument("name", type=POLICY)
@click.option("--reason", default="", help="Reason, for the audit log.")
@with_output()
@with_client
def resume(client: Client, name: str, reason: str, output: str) -> None:
    """Go on with a paused rollout of NAME; its step and its comparison begin again."""
    _order(client, name, "resume", reason, output)


@rollout.command()
@click.argument("name", type=POLICY)
@click.option("--reason", default="", help="Reason, for the audit log.")
@with_output()
@with_client
def promote(client: Client, name: str, reason: str, output: str) -> None:
    """Put NAME in force in all engines that its selector matches, now."""
    _order(client, name, "promote", reason, output)


@rollout.command()
@click.argument("name", type=POLICY)
@click.option("--reason", default="", help="Reason, for the audit log.")
@with_output()
@with_client
def abort(client: Client, name: str, reason: str, output: str) -> None:
    """Withdraw NAME from all engines; it stays, at 0 %. A change (start -f) is withdrawn; NAME stays in force."""
    _order(client, name, "abort", reason, output)


@rollout.command()
@click.argument("name", type=POLICY)
@with_listing
@with_client
def history(client: Client, name: str, style: ListStyle) -> None:
    """List the steps of the rollouts of NAME, newest first, from the audit log."""

    def fetch() -> Listing:
        response = client.call("ListAudit", admin.ListAuditRequest(name=name, limit=_MOST_AUDIT))
        kept = [entry for entry in response.entries if _state(entry)]
        listed = admin.ListAuditResponse(entries=kept)
        return Listing(
            "audit",
            _history(kept, current_time()),
            [str(entry.id) for entry in kept],
            lambda: as_json_values(listed),
            "entries",
            f"policy {name} has had no rollout",
            limited=True,
        )

    show_listing(fetch, style)


def _order(client: Client, name: str, action: str, reason: str, output: str) -> None:
    request = admin.SetPolicyRolloutRequest(name=name, action=action, author=author(), reason=reason)
    _send(client, request, output)


def _send(client: Client, request: admin.SetPolicyRolloutRequest, output: str) -> None:
    response: admin.PolicyRollout = client.call("SetPolicyRollout", request)
    if output != "table":
        show(response, output)
        return
    here = f"{response.engines_selected} of {response.engines_matched} engines here"
    say(f"rollout of {response.name} {response.state}, {response.percent} %: {here}")


def _table(items: Iterable[admin.PolicyRollout], now: float) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            item.name,
            _state_words(item.state),
            f"{item.percent} %",
            f"{item.engines_selected}/{item.engines_matched}",
            ",".join(map(str, item.steps)),
            text.ago_of(item.step_ends, now) if item.HasField("step_ends") else text.NONE,
            text.one_line(item.message, 160),
            text.ago_of(item.started, now),
            item.author,
            " ".join(item.abort_if),
        )
        for item in items
    ]
    headers = (
        "NAME", "STATE", "PERCENT", "ENGINES", "STEPS", "STEP-ENDS", "MESSAGE", "STARTED", "AUTHOR", "ABORT-IF",
    )  # fmt: skip
    return Table(headers, rows, wide=3)


def _state_words(state: str) -> str:
    looks = {"aborted": "red", "undecided": "yellow", "paused": "yellow", "promoted": "green"}
    return text.style(state, looks[state]) if state in looks else state


def _evidence(item: admin.PolicyRollout) -> Iterator[str]:
    for comparison in item.comparisons:
        yield f"{comparison.verdict.replace('_', ' ')}: {comparison.evidence}"


def _state(entry: admin.AuditEntry) -> dict[str, Any]:
    """Return the rollout that a change left in the policy; empty for none."""
    if not entry.new_manifest_json:
        return {}
    # The audit log has orders besides.
    annotations = json.loads(entry.new_manifest_json).get("metadata", {}).get("annotations", {})
    try:
        found = json.loads(annotations.get(_ANNOTATION, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _history(entries: Iterable[admin.AuditEntry], now: float) -> Table:
    rows: list[tuple[str, ...]] = []
    for entry in entries:
        state = _state(entry)
        rows.append(
            (
                text.ago_of(entry.time, now).removesuffix(" ago"),
                entry.author or text.NONE,
                _state_words(str(state.get("phase", text.NONE))),
                f"{state.get('percent', text.NONE)} %",
                str(entry.new_generation),
                text.one_line(str(state.get("message", "")), 160) or text.NONE,
            )
        )
    return Table(("AGE", "AUTHOR", "STATE", "PERCENT", "GENERATION", "MESSAGE"), rows, wide=0)
