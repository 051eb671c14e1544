"""The banners: what changes how the rest of the screen is to be read. Pure."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.agent.ctl.diagnosis import stall_findings
from penstock.agent.ctl.render import text
from penstock.agent.ctl.render.order_rows import drill_words, until_words
from penstock.agent.page.screen.model import Banner
from penstock.agent.page.wire import about, command, plain
from penstock.agent.policy.manifest import BREAK_GLASS_PRIORITY
from penstock.proto.v1 import events_pb2 as events

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.agent.page.screen.answers import ScreenAnswers
    from penstock.proto.v1 import admin_pb2 as admin

MOST = 20
"""Banners of a screen, of which the last counts the rest."""

_SEVERITIES = {"error": 0, "warning": 1, "info": 2}
# Engines that a sentence names.
_NAMED = 4


def banners(answers: ScreenAnswers) -> tuple[Banner, ...]:
    """Return the banners, the worst first."""
    found = sorted(_all(answers), key=lambda each: _SEVERITIES[each.severity])
    return at_most(tuple(found), MOST)


def at_most(found: tuple[Banner, ...], most: int) -> tuple[Banner, ...]:
    """Return *found*, or *most* banners, one at least, of which the last counts the rest."""
    most = max(most, 1)
    if len(found) <= most:
        return found
    shown, rest = found[: most - 1], found[most - 1 :]
    count = sum(each.left_out or 1 for each in rest)
    more = f"{count} more; 'agentctl doctor' lists all"
    return (*shown, Banner("degraded", rest[0].severity, more, command("doctor"), count))


def _all(answers: ScreenAnswers) -> Iterator[Banner]:
    doctor = command("doctor")
    if answers.trouble:
        yield _banner("degraded", "error", answers.trouble, doctor)
    if answers.status is not None:
        yield from _of_status(answers.status, answers.now, doctor)
    if answers.engines is not None:
        yield from _of_engines(answers.engines.engines, answers.now)
    for drill in () if answers.drills is None else answers.drills.drills:
        author = f", by {drill.spec.author}" if drill.spec.author else ""
        yield _banner(
            "drill", "warning", f"drill {drill.id}: {drill_words(drill)}{author}", command("drill", "list")
        )
    if answers.quarantines is not None:
        yield from _quarantined(answers.quarantines.quarantines, answers.now)
    for policy in () if answers.policies is None else answers.policies.policies:
        spec = json.loads(policy.manifest_json)["spec"]
        ends = datetime.fromisoformat(spec["expiresAt"]).timestamp() if spec.get("expiresAt") else 0.0
        if spec.get("priority", 0) >= BREAK_GLASS_PRIORITY and ends > answers.now:
            author = f", by {policy.author}" if policy.author else ""
            sentence = (
                f"policy {policy.name} is break-glass, ends {text.ago(int(ends * 1e9), answers.now)}{author}"
            )
            yield _banner("break_glass", "warning", sentence, about("describe", "policy", name=policy.name))
    for rollout in () if answers.rollouts is None else answers.rollouts.rollouts:
        if rollout.state != "promoted":
            severity = "info" if rollout.state == "progressing" else "warning"
            sentence = (
                f"rollout of policy {rollout.name}, {rollout.percent} %, {rollout.state}: {rollout.message}"
            )
            yield _banner("rollout", severity, sentence, about("rollout", "status", name=rollout.name))


def _of_status(status: admin.AgentStatus, now: float, doctor: str) -> Iterator[Banner]:
    if status.degraded:
        yield _banner("degraded", "warning", status.degraded, doctor)
    if status.acknowledged_entries_lost:
        lost = f"acknowledged entries that the agent's state lacks: {status.acknowledged_entries_lost}"
        yield _banner("entries_lost", "error", lost, doctor)
    if status.policy_file_error:
        yield _banner("source_away", "warning", f"policy file: {status.policy_file_error}", doctor)
    for source in status.policy_sources:
        if source.state == "away":
            since = text.ago_of(source.since, now)
            yield _banner(
                "source_away",
                "warning",
                f"policy source {source.name} is away since {since}: {source.error}",
                doctor,
            )
    for agent in status.agents:
        if agent.state == "away":
            since = text.ago_of(agent.since, now)
            yield _banner(
                "agent_away", "error", f"agent {agent.name} is away since {since}: {agent.error}", doctor
            )
        elif agent.HasField("status") and agent.status.degraded:
            yield _banner("degraded", "warning", f"agent {agent.name}: {agent.status.degraded}", doctor)


def _of_engines(engines: Sequence[admin.Engine], now: float) -> Iterator[Banner]:
    paused = [item for item in engines if item.paused or item.HasField("pause")]
    if paused:
        origin = text.pause_origin(paused[0].pause, now) if paused[0].HasField("pause") else ""
        state = "paused" if all(item.paused for item in paused) else "ordered to pause"
        sentence = f"{_named(paused)} {state}{f', {origin}' if origin else ''}"
        yield _banner("paused", "warning", sentence, command("get", "engines"))
    away = [item for item in engines if not item.connected]
    if away:
        severity = "info" if all(item.said_goodbye for item in away) else "error"
        last = text.ago_of(
            max((item.last_seen for item in away), key=lambda moment: moment.ToNanoseconds()), now
        )
        yield _banner(
            "engine_away", severity, f"{_named(away)} disconnected, last seen {last}",
            command("get", "engines"),
        )  # fmt: skip
    for item in engines:
        name = text.engine(item.key)
        for finding in stall_findings(item, f"engine {name}"):
            yield _banner(
                "stall", "error", f"engine {name}: {finding.what}", about("describe", "engine", name=name)
            )


def _quarantined(items: Sequence[admin.Quarantine], now: float) -> Iterator[Banner]:
    open_ = [item for item in items if item.state != events.QUARANTINE_STATE_CLOSED]
    peers = list(dict.fromkeys(item.peer.address for item in open_))
    for peer in peers:
        orders = [item for item in open_ if item.peer.address == peer]
        engines = text.count(len(orders), "engine")
        reason = f": {orders[0].reason}" if orders[0].reason else ""
        by = f", by {orders[0].author}" if orders[0].author else ""
        sentence = f"peer {peer} quarantined in {engines}, until {until_words(orders[0], now)}{by}{reason}"
        yield _banner("quarantine", "warning", sentence, command("quarantine", "list"))


def _named(engines: Sequence[admin.Engine]) -> str:
    names = ", ".join(text.engine(item.key) for item in engines[:_NAMED])
    more = f" and {len(engines) - _NAMED} more" if len(engines) > _NAMED else ""
    return f"engine{'' if len(engines) == 1 else 's'} {names}{more} {'is' if len(engines) == 1 else 'are'}"


def _banner(kind: str, severity: str, sentence: str, line: str) -> Banner:
    return Banner(kind, severity, plain(text.folded(sentence)), line)
