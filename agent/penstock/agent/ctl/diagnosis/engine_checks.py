"""What may be wrong with one engine. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.ctl.diagnosis.findings import NOTE, OK, WRONG, Finding
from penstock.agent.ctl.render import rows, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.proto.v1 import admin_pb2 as admin

# Seconds by which an engine's clock may differ from the agent's: spans of both are put in one order.
_CLOCKS = 1.0
# An engine holds at most 32 MiB; half of it is a sign.
_UNACKNOWLEDGED = 16 << 20
_CHOSEN = "disabled by PENSTOCK_HOOKS_DISABLED"
_ADVICE_FOR_DROPS = {
    "queue_full": "a burst was faster than the process's exporter: counts and traces are short by as many; if it goes on, "
    "give the process more CPU and report the rate of requests",
    "paused": "they were made just before a pause; nothing is to be done",
}


def engine_findings(engine: admin.Engine, now: float, seen: set[int]) -> list[Finding]:
    """Look at one engine; a good one is one finding.

    Args:
        engine: as the agent has it.
        now: the agent's clock.
        seen: epochs of sources that were looked at already; engines of one server share its API processes.

    """
    subject = f"engine {text.engine(engine.key)}"
    if not engine.connected:
        return [_away(engine, subject, now)]
    found = [*_plugin(engine, subject), *_name(engine, subject), *_policy(engine, subject)]
    for source in engine.sources:
        if source.epoch not in seen:
            seen.add(source.epoch)
            found += _source(source, subject, paused=engine.paused)
    if not any(finding.level == WRONG for finding in found):
        hooks = sum(hook.installed for source in engine.sources for hook in source.hooks)
        found.insert(0, Finding(OK, subject, f"connected, {hooks} hooks installed, policy in force"))
    return found


def _away(engine: admin.Engine, subject: str, now: float) -> Finding:
    last, retires = text.ago_of(engine.last_seen, now), text.ago_of(engine.retires, now)
    forget = f"agentctl forget engine {text.engine(engine.key)}"
    if engine.said_goodbye:
        what = f"was stopped, last seen {last}; the agent forgets it {retires}"
        return Finding(NOTE, subject, what, f"{forget} does so at once")
    return Finding(
        WRONG,
        subject,
        f"is not connected, last seen {last}",
        f"if it runs, look for 'penstock' in its log; if it has gone for good, {forget} "
        f"(the agent forgets it {retires} by itself)",
    )


def _plugin(engine: admin.Engine, subject: str) -> Iterator[Finding]:
    if not engine.HasField("facts"):
        yield Finding(
            WRONG,
            subject,
            "its EngineCore has sent no snapshot: only other processes of it are here, or it has just come",
            "look again in a few seconds; then look for 'penstock' in its log",
        )
    if engine.paused:
        yield Finding(
            WRONG,
            subject,
            f"is paused: vLLM's own configuration, no telemetry{_held_back(engine)}",
            f"agentctl resume {text.engine(engine.key)}; 'agentctl get audit' says who paused it and why",
        )
    if engine.role_guessed:
        yield Finding(
            NOTE,
            subject,
            "its role was guessed",
            "set PENSTOCK_LABELS=role=decode (or prefill, encoder, both) in its environment: selectors rely on it",
        )


def _held_back(engine: admin.Engine) -> str:
    return f" (its policy would be {text.short_hash(engine.wanted_hash)})" if engine.wanted_hash else ""


def _name(engine: admin.Engine, subject: str) -> Iterator[Finding]:
    cores = rows.cores(engine)
    if len(cores) > 1:
        pids = ", ".join(str(source.hello.pid) for source in cores)
        yield Finding(
            WRONG,
            subject,
            f"{len(cores)} EngineCores go by this name (pid {pids}): their counts are one, and a policy reaches one "
            "of them at a time",
            "set PENSTOCK_SERVER in the environment of each vLLM server of the pod; after a restart look again first",
        )


def _policy(engine: admin.Engine, subject: str) -> Iterator[Finding]:
    # Why it is not is said already.
    if engine.in_sync or engine.paused or len(rows.cores(engine)) > 1:
        return
    wanted = text.short_hash(engine.wanted_hash)
    if engine.policy.last_error:
        yield Finding(
            WRONG,
            subject,
            f"refuses its policy {wanted}: {text.one_line(engine.policy.last_error, 200)}",
            f"agentctl describe engine {text.engine(engine.key)} says which policy gives the field; "
            "agentctl rollback undoes a change",
        )
    else:
        yield Finding(
            WRONG,
            subject,
            f"policy {wanted} is not in force in it",
            "it has not subscribed or not answered: look again in a few seconds; an engine that does no step "
            "answers late, and a penstock that is older than the agent may not know policies",
        )


def _source(source: admin.Source, subject: str, *, paused: bool) -> Iterator[Finding]:
    hello = source.hello
    process = f"worker {hello.rank}" if hello.process == "worker" else hello.process
    for hook in source.hooks:
        # A pause takes the hooks out, which is said already.
        if hook.installed or paused:
            continue
        if hook.reason.startswith(_CHOSEN):
            yield Finding(NOTE, subject, f"{process}: hook {hook.name} is off ({hook.reason})")
        else:
            yield Finding(
                WRONG,
                subject,
                f"{process}: hook {hook.name} is not installed: {text.one_line(hook.reason, 200)}",
                f"what it shows is missing; it does not fit vLLM {hello.vllm_version or 'of this version'}: install a "
                f"penstock that knows it, or silence this with PENSTOCK_HOOKS_DISABLED={hook.name}",
            )
    for drop in source.drops:
        yield Finding(
            WRONG,
            subject,
            f"{process}: {drop.count} {drop.kind or 'entries'} were lost since the agent started "
            f"({drop.reason or 'unknown'})",
            _ADVICE_FOR_DROPS.get(
                drop.reason,
                "counts and traces are short by as many; they were lost while the agent was away for too long, "
                "or it was too slow",
            ),
        )
    for error in source.guard_errors:
        yield Finding(
            WRONG,
            subject,
            f"{process}: {error.count} errors of penstock itself in {error.hook}: {error.error_class}",
            "the engine goes on as if it were not there; report it with the engine's log",
        )
    offset = source.clock_offset_nano / 1e9
    if source.HasField("clock_offset_nano") and abs(offset) > _CLOCKS:
        direction = "ahead of" if offset > 0 else "behind"
        yield Finding(
            WRONG,
            subject,
            f"{process}: its clock is {text.span_of_time(abs(offset))} {direction} the agent's",
            "ages and the order of spans are wrong by as much: synchronize the clocks (NTP)",
        )
    if source.emitter.unacknowledged_bytes > _UNACKNOWLEDGED:
        yield Finding(
            WRONG,
            subject,
            f"{process}: {source.emitter.unacknowledged_bytes >> 20} MiB wait for the agent, of 32 that it can hold",
            "the agent does not keep up: see its CPU limit and its disk",
        )
