"""The first screen from the answers, of 64 KiB at most: verdict, banners and tables. Pure.

The verdict is what ``agentctl diagnose`` says; the banners change how the rest of the screen is to be read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.agent.page.screen.model import Banner, Peers, Screen
from penstock.agent.page.screen.tables import engine_table, peer_table, policy_table, waits
from penstock.agent.page.screen.verdict import verdict
from penstock.agent.page.wire import (
    MAX_MESSAGE_BYTES,
    about,
    command,
    encode,
    encode_fields,
    join_fields,
    plain,
)
from penstock.agent.views import text
from penstock.agent.views.checks import break_glass_finding, drill_findings, quarantine_findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.agent.page.screen.model import ScreenAnswers
    from penstock.agent.views.checks import Finding
    from penstock.proto.v1 import admin_pb2 as admin

_CUT = ("peers", "waits", "policy", "engines", "banners", "verdict")

_MOST_BANNERS = 20
"""Banners of a screen, of which the last counts the rest."""

_SEVERITIES = {"error": 0, "warning": 1, "info": 2}
# Causes by which engines are away, or it is not known whether they are.
_ABSENCES = {"agent_blind", "engine_away", "engine_lost"}
# Engines that a sentence names.
_NAMED = 4


def build_screen(
    answers: ScreenAnswers, peers: Peers | None = None, *, between: Callable[[], None] = lambda: None
) -> Screen:
    """Return the screen of *answers*, of any size.

    Args:
        answers: what is shown.
        peers: their table, if it is there already.
        between: called again and again: after each table, and after rows of the large ones.

    """
    table = peer_table(answers, between=between) if peers is None else peers
    found = banners(answers)
    between()
    policy = policy_table(answers)
    between()
    return Screen(
        now=round(answers.now * 1e3),
        data_time=round(answers.data_time * 1e3),
        verdict=verdict(answers),
        banners=found,
        peers=table,
        waits=waits(answers),
        policy=policy,
        engines=engine_table(answers, between=between),
    )


def fitted(
    screen: Screen, most: int = MAX_MESSAGE_BYTES, *, between: Callable[[], None] = lambda: None
) -> tuple[Screen, bytes]:
    """Return *screen* and its JSON, with as many rows as *most* bytes hold; *between* is called after each field.

    Raises:
        ValueError: without rows it has too many bytes, too.

    """
    fields = encode_fields(screen, between)
    while len(encoded := join_fields(Screen, fields)) > most:
        name, screen = _smaller(screen, fields, len(encoded) - most)
        fields[name] = encode(getattr(screen, name))
        between()
    return screen, encoded


def _smaller(screen: Screen, fields: Mapping[str, bytes], excess: int) -> tuple[str, Screen]:
    """Return the largest field that has rows, and the screen with fewer of them; the counts say what is left out."""
    for name in sorted(_CUT, key=lambda name: -len(fields[name])):
        cut = _cut(screen, name)
        if cut != screen:
            return name, cut
    raise ValueError(f"a screen without rows has {excess} bytes too many")


def _cut(screen: Screen, name: str) -> Screen:
    match name:
        case "peers":
            rows = _two_thirds(screen.peers.rows)
            left = None if screen.peers.total is None else screen.peers.total - len(rows)
            return replace(screen, peers=replace(screen.peers, rows=rows, left_out=left))
        case "waits":
            return replace(screen, waits=replace(screen.waits, rows=_two_thirds(screen.waits.rows)))
        case "policy":
            return replace(screen, policy=replace(screen.policy, rows=_two_thirds(screen.policy.rows)))
        case "engines":
            rows_left = _two_thirds(screen.engines.rows)
            left = screen.engines.total - len(rows_left)
            return replace(screen, engines=replace(screen.engines, rows=rows_left, left_out=left))
        case "banners":
            return replace(screen, banners=_at_most(screen.banners, _two_thirds_of(len(screen.banners))))
    found = screen.verdict
    causes = _two_thirds(found.causes)
    left = found.left_out + len(found.causes) - len(causes)
    return replace(screen, verdict=replace(found, causes=causes, left_out=left))


def _two_thirds(rows: tuple[Any, ...]) -> tuple[Any, ...]:
    return rows[: _two_thirds_of(len(rows))]


def _two_thirds_of(count: int) -> int:
    return count * 2 // 3


def banners(answers: ScreenAnswers) -> tuple[Banner, ...]:
    """Return the banners, the worst first."""
    found = sorted(_all_banners(answers), key=lambda each: _SEVERITIES[each.severity])
    return _at_most(tuple(found), _MOST_BANNERS)


def _at_most(found: tuple[Banner, ...], most: int) -> tuple[Banner, ...]:
    """Return *found*, or *most* banners, one at least, of which the last counts the rest."""
    most = max(most, 1)
    if len(found) <= most:
        return found
    shown, rest = found[: most - 1], found[most - 1 :]
    count = sum(each.left_out or 1 for each in rest)
    more = f"{count} more; 'agentctl doctor' lists all"
    return (*shown, Banner("degraded", rest[0].severity, more, command("doctor"), count))


def _all_banners(answers: ScreenAnswers) -> Iterator[Banner]:
    doctor = command("doctor")
    if answers.trouble:
        yield _banner("degraded", "error", answers.trouble, doctor)
    if answers.status is not None:
        yield from _of_status(answers.status, answers.now, doctor)
    if answers.engines is not None:
        yield from _of_engines(answers.engines.engines, answers.diagnosis, answers.now)
    drills = () if answers.drills is None else answers.drills.drills
    for finding in drill_findings(drills):
        yield _of_finding("drill", finding, command("drill", "list"))
    quarantines = () if answers.quarantines is None else answers.quarantines.quarantines
    for finding in quarantine_findings(quarantines, answers.now):
        yield _of_finding("quarantine", finding, command("quarantine", "list"))
    for policy in () if answers.policies is None else answers.policies.policies:
        found = break_glass_finding(policy, answers.now)
        if found is not None:
            yield _of_finding("break_glass", found, about("describe", "policy", name=policy.name))
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


def _of_engines(
    engines: Sequence[admin.Engine], diagnosis: admin.Diagnosis | None, now: float
) -> Iterator[Banner]:
    paused = [item for item in engines if item.paused or item.HasField("pause")]
    if paused:
        origin = text.pause_origin(paused[0].pause, now) if paused[0].HasField("pause") else ""
        state = "paused" if all(item.paused for item in paused) else "ordered to pause"
        sentence = f"{_named(paused)} {state}{f', {origin}' if origin else ''}"
        yield _banner("paused", "warning", sentence, command("get", "engines"))
    ejected = [item for item in engines if item.connected and item.HasField("ejection")]
    if ejected:
        way = "" if all(item.ejection.in_force for item in ejected) else "to go "
        words = text.ejection_words(ejected[0].ejection, now)
        yield _banner(
            "out_of_rotation",
            "warning",
            f"{_named(ejected)} {way}out of rotation, {words}",
            command("get", "engines"),
        )
    told = _told(diagnosis)
    away = [item for item in engines if not item.connected]
    gone = [item for item in away if not item.said_goodbye and text.engine(item.key) not in told]
    stopped = [item for item in away if item.said_goodbye]
    for items, severity, word in ((gone, "warning", "not connected"), (stopped, "info", "stopped")):
        if items:
            newest = max((item.last_seen for item in items), key=lambda moment: moment.ToNanoseconds())
            yield _banner(
                "engine_away", severity, f"{_named(items)} {word}, last seen {text.ago_of(newest, now)}",
                command("get", "engines"),
            )  # fmt: skip


def _told(diagnosis: admin.Diagnosis | None) -> set[str]:
    """Return the engines whose absence the verdict tells, as a cause that lasts or as what it brings about."""
    causes = [] if diagnosis is None else [each for each in diagnosis.causes if not each.HasField("until")]
    found = [each for cause in causes for each in (cause, *cause.effects) if each.kind in _ABSENCES]
    return {text.engine(key) for each in found for key in each.engines}


def _named(engines: Sequence[admin.Engine]) -> str:
    names = ", ".join(text.engine(item.key) for item in engines[:_NAMED])
    more = f" and {len(engines) - _NAMED} more" if len(engines) > _NAMED else ""
    return f"engine{'' if len(engines) == 1 else 's'} {names}{more} {'is' if len(engines) == 1 else 'are'}"


def _of_finding(kind: str, finding: Finding, line: str) -> Banner:
    return _banner(kind, "warning", f"{finding.subject}: {finding.what}", line)


def _banner(kind: str, severity: str, sentence: str, line: str) -> Banner:
    return Banner(kind, severity, plain(text.folded(sentence)), line)
