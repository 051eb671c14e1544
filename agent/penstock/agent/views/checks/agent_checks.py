"""Checks of an agent or a relay: its status, its engines, their pairs, its roll-outs. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.agent import limits
from penstock.agent.views import text
from penstock.agent.views.checks.cause_checks import NOT_ASKED, Judgement
from penstock.agent.views.checks.engine_checks import address_findings, engine_findings
from penstock.agent.views.checks.findings import NOTE, OK, WRONG, Finding
from penstock.agent.views.engines import is_stopped
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.version import DISTRIBUTION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

AGENT = "agent"

_RELAY = "relay"

_PAIRS = "pairs"
_ADVICE_FOR_ROLLOUTS = {
    "undecided": "'agentctl rollout status {name}' shows the numbers; 'agentctl rollout promote {name}' or "
    "'agentctl rollout abort {name}' ends it",
    "paused": "'agentctl rollout resume {name}' goes on, 'agentctl rollout abort {name}' takes the policy back",
    "aborted": "correct policy {name} and start again, or 'agentctl delete policy {name}'; "
    "'agentctl rollout history {name}' has the steps",
}


def check_agent(
    status: admin.AgentStatus,
    engines: Sequence[admin.Engine],
    now: float,
    judgement: Judgement = NOT_ASKED,
) -> list[Finding]:
    """Check how the agent and all engines are installed and configured.

    Args:
        status: the agent's.
        engines: its engines.
        now: this machine's clock, seconds since the epoch.
        judgement: has findings of its own; what it tells is not told again.

    """
    agent_now = status.now.ToNanoseconds() / 1e9
    found = [*_agent(status, now, judgement), *_connected(status, engines, is_judged=judgement.is_known)]
    seen: set[int] = set()
    for engine in engines:
        found += engine_findings(engine, agent_now, seen, is_judged=judgement.is_known)
    return [*found, *address_findings(engines)]


def _sources(status: admin.AgentStatus, now: float) -> Iterator[Finding]:
    """Check the policy sources; the content of files has its own finding."""
    for each in status.policy_sources:
        where = "resource or the agent's rights" if each.kind == "kubernetes" else "server and its address"
        if each.state != "connected":
            yield Finding(
                WRONG,
                AGENT,
                f"policy source {each.name} is {each.state} since {text.ago_of(each.since, now)}; its last "
                f"{each.accepted} policies stay in force: {text.one_line(each.error, 200)}",
                f"check the {where}; the agent connects again by itself",
            )
        elif each.kind != "file" and each.error:
            yield Finding(WRONG, AGENT, f"policy source {each.name}: {text.one_line(each.error, 200)}", "")
        elif each.kind != "file":
            yield Finding(OK, AGENT, f"{each.accepted} policies come from {each.name}")
        for refusal in each.refusals:
            yield Finding(
                WRONG,
                AGENT,
                f"policy {refusal.name} of {each.name} is refused, the last good one stays in force: "
                f"{text.one_line(refusal.sentence, 200)}",
                "correct it at its source",
            )


def _agent(status: admin.AgentStatus, now: float, judgement: Judgement) -> Iterator[Finding]:
    agent_now = status.now.ToNanoseconds() / 1e9
    since = text.ago_of(status.start_time, agent_now)
    yield Finding(OK, AGENT, f"penstock-agent {status.version} answers, started {since}")
    # An absent policy source comes last in the text, and has a finding of its own.
    is_told = status.degraded.startswith("the policy source ") or judgement.tells_of_disk(status.degraded)
    if status.degraded and not is_told:
        yield Finding(
            WRONG,
            AGENT,
            f"degraded: {status.degraded}",
            f"check the disk and the files of {status.state_dir}; see docs/guides/state.md",
        )
    yield from _disk(status)
    yield from _traces(status, agent_now)
    if status.policy_file_error:
        yield Finding(
            WRONG,
            AGENT,
            f"{status.policy_file} is refused; the last valid policies stay in force: {status.policy_file_error}",
            "correct the file; it is read again automatically",
        )
    elif status.policy_file:
        yield Finding(OK, AGENT, f"policies come from {status.policy_file}")
    yield from _sources(status, agent_now)
    if status.acknowledged_entries_lost:
        yield Finding(
            WRONG,
            AGENT,
            f"{status.acknowledged_entries_lost} acknowledged entries are lost: the state in {status.state_dir} was reset to "
            "an earlier point",
            "counts and traces lack these entries; the machine lost power or the disk is bad: check the system log",
        )
    if status.messages_refused:
        yield Finding(
            WRONG,
            AGENT,
            f"{status.messages_refused} messages of engines were refused, last {text.ago_of(status.last_refused, agent_now)}: "
            f"{text.one_line(status.last_refusal, 200)}",
            "follow that sentence; if it names a field, the engine's penstock breaks the wire contract: "
            "install the agent's version in the engine's image",
        )
    if abs(now - agent_now) > limits.ASKER_CLOCK_SECONDS:
        yield Finding(
            NOTE,
            AGENT,
            f"its clock is {_apart(agent_now - now)} this machine's",
            "ages that agentctl prints are wrong by as much; synchronize the clocks",
        )


def _disk(status: admin.AgentStatus) -> Iterator[Finding]:
    free, used = _mib(status.disk_free_bytes), _mib(status.state_bytes)
    said = f"state in {status.state_dir}: {used} used, {free} free"
    if status.disk_free_bytes < limits.DISK_NOTE_BYTES:
        level = WRONG if status.disk_free_bytes < limits.DISK_WRONG_BYTES else NOTE
        yield Finding(level, AGENT, said, "free disk space: on a full disk nothing is acknowledged")
    else:
        yield Finding(OK, AGENT, said)


def _traces(status: admin.AgentStatus, agent_now: float) -> Iterator[Finding]:
    if not status.otlp_endpoint:
        yield Finding(
            NOTE,
            AGENT,
            "traces are not exported",
            "set OTEL_EXPORTER_OTLP_ENDPOINT in the agent's environment",
        )
        return
    if status.otlp_error:
        yield Finding(
            WRONG,
            AGENT,
            f"traces do not reach {status.otlp_endpoint}: {text.one_line(status.otlp_error, 200)}",
            "check the backend, OTEL_EXPORTER_OTLP_ENDPOINT and _PROTOCOL; the log keeps the spans meanwhile",
        )
        return
    oldest = status.oldest_unexported.ToNanoseconds() / 1e9
    if oldest and agent_now - oldest > limits.EXPORT_LAG_SECONDS:
        yield Finding(
            WRONG,
            AGENT,
            f"traces reach {status.otlp_endpoint} {text.age(agent_now - oldest)} late",
            "the backend is too slow: add capacity, or lower telemetry.traceSampleRatio",
        )
    else:
        yield Finding(OK, AGENT, f"traces go to {status.otlp_endpoint}")


def _connected(
    status: admin.AgentStatus, engines: Sequence[admin.Engine], *, is_judged: bool
) -> Iterator[Finding]:
    connected = sum(engine.connected for engine in engines)
    stopped = sum(map(is_stopped, engines))
    expected = status.engines_expected
    if not engines:
        yield Finding(
            WRONG,
            AGENT,
            "no engine is connected",
            f"in the engine's container: install {DISTRIBUTION}, set PENSTOCK_ENDPOINT={status.listen_address}, "
            "mount the socket's directory; search the engine's log for 'penstock'",
        )
    elif connected + stopped < expected:
        # What became of those that have been here is a cause of the diagnosis.
        yield Finding(
            NOTE if is_judged and len(engines) >= expected else WRONG,
            AGENT,
            f"{connected} of {text.count(expected, 'engine')} connected",
            f"check that each has PENSTOCK_ENDPOINT={status.listen_address} and, if a pod has several servers, "
            "a PENSTOCK_SERVER of its own; --engines-expected sets the expected number",
        )
    else:
        found = (
            f"{connected} of {text.count(expected, 'engine')}"
            if expected
            else text.count(connected, "engine")
        )
        others = f", {stopped} stopped" if stopped else ""
        yield Finding(NOTE if stopped == len(engines) else OK, AGENT, f"{found} connected{others}")
    versions = Counter(
        source.hello.penstock_version
        for engine in engines
        for source in engine.sources
        if source.connected and source.hello.penstock_version
    )
    if set(versions) - {status.version}:
        said = ", ".join(
            f"{version} in {text.count(count, 'process')}" for version, count in sorted(versions.items())
        )
        yield Finding(
            NOTE,
            AGENT,
            f"penstock is {status.version} here, {said} of engines",
            "adjacent versions work together; finish the upgrade",
        )


def _apart(seconds: float) -> str:
    return f"{text.span_of_time(abs(seconds))} {'ahead of' if seconds > 0 else 'behind'}"


def _mib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"


def check_relay(
    status: admin.AgentStatus, engines: Sequence[admin.Engine], now: float, judgement: Judgement = NOT_ASKED
) -> list[Finding]:
    """Check the relay, who of its agents is missing, and each agent with its engines; *now*: this machine's clock."""
    answering = [each for each in status.agents if each.HasField("status")]
    said = f"{len(answering)} of {text.count(len(status.agents), 'agent')} answer"
    found = [
        Finding(
            OK,
            _RELAY,
            f"penstock-relay {status.version} answers, started {text.ago_of(status.start_time, now)}",
        ),
        Finding(OK if len(answering) == len(status.agents) else WRONG, _RELAY, said),
    ]
    for each in status.agents:
        subject = f"{AGENT} {each.name}"
        if not each.HasField("status"):
            found.append(
                Finding(
                    WRONG,
                    subject,
                    f"does not answer at {each.address}, {each.state} since {text.ago_of(each.since, now)}: "
                    f"{text.one_line(each.error, 200) or 'it is being asked for the first time'}",
                    "what its engines do is not shown: check its pod, then its address and certificates in the relay's flags",
                )
            )
            continue
        own = [engine for engine in engines if engine.key.server.partition("/")[0] == each.name]
        found += [
            item._replace(subject=subject) if item.subject == AGENT else item
            for item in check_agent(each.status, own, now, judgement)
        ]
    return found


def check_pairs(pairs: Sequence[admin.Pair]) -> Iterator[Finding]:
    """Yield one finding for those that are compatible, and one for those that mix roll-outs."""
    good = sum(pair.compatible == admin.PAIR_COMPATIBILITY_YES for pair in pairs)
    if good:
        yield Finding(OK, _PAIRS, f"{good} of {text.count(len(pairs), 'pair')} known to be compatible")
    mixed = [pair for pair in pairs if any(each.fact == "revision" for each in pair.differences)]
    if mixed:
        words = sorted({word for pair in mixed for word in (pair.revision, pair.peer_revision)})
        yield Finding(
            NOTE,
            _PAIRS,
            f"{text.count(len(mixed), 'pair')} of {len(pairs)} mix roll-outs: {', '.join(words)}",
            "a roll-out under way needs no action; one that has stopped is to be finished or undone",
        )


def check_rollouts(rollouts: Iterable[admin.PolicyRollout], now: float) -> Iterator[Finding]:
    """Check what became of *rollouts*; *now*: seconds since the epoch."""
    for each in rollouts:
        subject, message = f"rollout {each.name}", text.one_line(each.message, 300)
        if each.state == "progressing":
            yield Finding(OK, subject, message)
        elif each.state == "undecided":
            over = text.ago_of(each.step_ends, now)
            yield Finding(
                NOTE,
                subject,
                f"its hold ended {over}: {message}",
                _ADVICE_FOR_ROLLOUTS["undecided"].format(name=each.name),
            )
        elif each.state in _ADVICE_FOR_ROLLOUTS:
            yield Finding(NOTE, subject, message, _ADVICE_FOR_ROLLOUTS[each.state].format(name=each.name))
