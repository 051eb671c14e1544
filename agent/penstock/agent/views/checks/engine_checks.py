"""Checks of one engine, and of what its hooks have seen against vLLM's own counters. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from penstock.agent import limits
from penstock.agent.pairs import has_nixl
from penstock.agent.views import text
from penstock.agent.views.checks.findings import NOTE, OK, WRONG, Finding
from penstock.agent.views.engines import cores, parts_words
from penstock.proto.v1.common_pb2 import ROLE_DECODE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.proto.v1 import admin_pb2 as admin
    from penstock.proto.v1.snapshot_pb2 import UpstreamCount

_CHOSEN = "disabled by PENSTOCK_HOOKS_DISABLED"
_NOT_USED = "not used by this engine"
# Hosts, beside those of 127.0.0.0/8, that mean the machine itself.
_LOCAL: Final = frozenset({"localhost", "::1", "0.0.0.0", "::"})  # noqa: S104  (nothing is bound to it)
_ADVICE_FOR_DROPS = {
    "queue_full": "a burst outran the process's exporter: counts and traces lack these entries; if it continues, "
    "give the process more CPU and report the request rate",
    "paused": "recorded just before a pause; no action needed",
}


# By vLLM's name of a counter: one of what it counts, and vLLM's metric; that of failed transfers is the sum of three counters.
_WORDS: Final = {
    "num_notifications_after_expiry": ("late read", "vllm:nixl_num_notifications_after_expiry_total"),
    "num_kv_expired_reqs": ("expired lease", "vllm:nixl_num_kv_expired_reqs_total"),
    "num_failed_handshakes": ("failed handshake", "vllm:nixl_num_failed_transfers_total"),
    "num_failed_notifications": ("failed notification", "vllm:nixl_num_failed_notifications_total"),
    "num_failed_transfers": ("failed transfer", "vllm:nixl_num_failed_transfers_total"),
}
_MOONCAKE_WORDS: Final = {
    "num_failed_recvs": "failed load",
    "num_failed_transfers": "failed write",
    "num_kv_expired_reqs": "expired lease",
}


def engine_findings(
    engine: admin.Engine, now: float, seen: set[int], *, is_judged: bool = False
) -> list[Finding]:
    """Check how one engine is installed and configured; a healthy one is one finding.

    Args:
        engine: the agent's view of it.
        now: the agent's clock.
        seen: epochs of sources already checked; engines of one server share its API processes.
        is_judged: a diagnosis says of engines that are away what became of them.

    """
    subject = f"engine {text.engine(engine.key)}"
    if not engine.connected:
        return [_away(engine, subject, now, is_judged=is_judged)]
    found = [
        *_plugin(engine, subject),
        *_pause(engine, subject, now),
        *_name(engine, subject),
        *_policy(engine, subject),
    ]
    found += upstream_findings(engine, subject)
    new = [source for source in engine.sources if source.epoch not in seen]
    for source in new:
        seen.add(source.epoch)
        found += _source(source, subject, paused=engine.paused)
    found += _missing_parts(new, engine, subject)
    if not any(finding.level == WRONG for finding in found):
        hooks = sum(hook.installed for source in engine.sources for hook in source.hooks)
        found.insert(
            0, Finding(OK, subject, f"connected, {text.count(hooks, 'hook')} installed, policy in force")
        )
    return found


def address_findings(engines: Sequence[admin.Engine]) -> Iterator[Finding]:
    """Yield NIXL engines that advertise an address which is not theirs alone; of decode engines, from which nobody reads, none."""
    claims: dict[str, list[admin.Engine]] = {}
    for engine in engines:
        if engine.connected and engine.facts.side_channel and has_nixl(engine.facts):
            claims.setdefault(engine.facts.side_channel, []).append(engine)
    for address, found in claims.items():
        read = [each for each in found if each.role != ROLE_DECODE]
        if read and len(found) > 1:
            others = [text.engine(each.key) for each in found if each is not read[0]]
            yield Finding(
                WRONG,
                f"engine {text.engine(read[0].key)}",
                f"advertises {address} as its side channel, as {text.folded(', '.join(others))} does: who reads from one "
                "may reach another",
                "set VLLM_NIXL_SIDE_CHANNEL_HOST of each server to its pod's address",
            )
        elif read and _is_local(address):
            yield Finding(
                NOTE,
                f"engine {text.engine(read[0].key)}",
                f"advertises {address} as its side channel: only engines in the same pod or host network reach it",
                "set VLLM_NIXL_SIDE_CHANNEL_HOST to the pod's address if others are to read from it",
            )


def _is_local(address: str) -> bool:
    """Return whether an address means another machine on each machine."""
    host = address.rpartition(":")[0].strip("[]")
    return host in _LOCAL or host.startswith("127.")


def _away(engine: admin.Engine, subject: str, now: float, *, is_judged: bool) -> Finding:
    last, retires = text.ago_of(engine.last_seen, now), text.ago_of(engine.retires, now)
    forget = f"agentctl forget engine {text.engine(engine.key)}"
    if engine.said_goodbye:
        what = f"was stopped, last seen {last}; forgotten {retires}"
        return Finding(NOTE, subject, what, f"{forget} forgets it now")
    return Finding(
        NOTE if is_judged else WRONG,
        subject,
        f"not connected, last seen {last}",
        f"if it runs, search its log for 'penstock'; if it is gone for good, {forget} "
        f"(forgotten automatically {retires})",
    )


def _plugin(engine: admin.Engine, subject: str) -> Iterator[Finding]:
    if not engine.HasField("facts"):
        yield Finding(
            WRONG,
            subject,
            "its EngineCore has sent no snapshot: only its other processes are connected, or it has just started",
            "check again in a few seconds; then search its log for 'penstock'",
        )
    if engine.role_guessed:
        yield Finding(
            NOTE,
            subject,
            "its role was guessed",
            "set PENSTOCK_LABELS=role=decode (or prefill, encoder, both) in its environment: selectors use it",
        )


def _pause(engine: admin.Engine, subject: str, now: float) -> Iterator[Finding]:
    ordered = engine.HasField("pause")
    known = f"; {text.pause_origin(engine.pause, now)}" if ordered else ""
    advice = f"agentctl resume {text.engine(engine.key)}"
    if not engine.paused:
        if ordered:
            yield Finding(NOTE, subject, f"ordered to pause, not paused yet{known}", advice)
        return
    if not engine.pause.author:
        advice += "; 'agentctl get audit' shows who paused it and why"
    yield Finding(
        WRONG,
        subject,
        f"paused: vLLM's own configuration, no telemetry{_held_back(engine)}{known}",
        advice,
    )


def _held_back(engine: admin.Engine) -> str:
    return f" (its policy would be {_wanted(engine)})" if engine.wanted_hash else ""


def _wanted(engine: admin.Engine) -> str:
    return text.policies(engine.wanted_policies, engine.wanted_hash)


def _name(engine: admin.Engine, subject: str) -> Iterator[Finding]:
    found = cores(engine)
    if len(found) > 1:
        pids = ", ".join(str(source.hello.pid) for source in found)
        yield Finding(
            WRONG,
            subject,
            f"{len(found)} EngineCores share this name (pid {pids}): their counts are merged, and a policy reaches one "
            "of them at a time",
            "set PENSTOCK_SERVER in the environment of each vLLM server of the pod; after a restart check again first",
        )


def _policy(engine: admin.Engine, subject: str) -> Iterator[Finding]:
    # Another finding has the reason.
    if engine.in_sync or engine.paused or len(cores(engine)) > 1:
        return
    wanted = _wanted(engine)
    if engine.policy.last_error:
        yield Finding(
            WRONG,
            subject,
            f"refuses policy {wanted}: {text.one_line(engine.policy.last_error, 200)}",
            f"agentctl describe engine {text.engine(engine.key)} shows which policy sets the field; "
            "agentctl rollback undoes a change",
        )
    else:
        yield Finding(
            WRONG,
            subject,
            f"policy {wanted} is not in force",
            "it has not subscribed or not answered: check again in a few seconds; an idle engine "
            "answers late, and a penstock older than the agent may not support policies",
        )


def _source(source: admin.Source, subject: str, *, paused: bool) -> Iterator[Finding]:
    hello = source.hello
    process = f"worker {hello.rank}" if hello.process == "worker" else hello.process
    for hook in source.hooks:
        # A pause removes the hooks; another finding reports it.
        if hook.installed or paused or hook.reason.startswith(_NOT_USED):
            continue
        if hook.reason.startswith(_CHOSEN):
            yield Finding(NOTE, subject, f"{process}: hook {hook.name} is off ({hook.reason})")
        else:
            yield Finding(
                WRONG,
                subject,
                f"{process}: hook {hook.name} is not installed: {text.one_line(hook.reason, 200)}",
                f"its data is missing; it does not support vLLM {hello.vllm_version or 'of this version'}: install a "
                f"penstock that does, or silence this with PENSTOCK_HOOKS_DISABLED={hook.name}",
            )
    for drop in source.drops:
        yield Finding(
            WRONG,
            subject,
            f"{process}: {drop.count} {drop.kind or 'entries'} lost since the agent started "
            f"({drop.reason or 'unknown'})",
            _ADVICE_FOR_DROPS.get(
                drop.reason,
                "counts and traces lack these entries; the agent was down for too long, or too slow",
            ),
        )
    for error in source.guard_errors:
        yield Finding(
            WRONG,
            subject,
            f"{process}: {error.count} internal errors of penstock in {error.hook}: {error.error_class}",
            "the engine is not affected; report it with the engine's log",
        )
    offset = source.clock_offset_nano / 1e9
    if source.HasField("clock_offset_nano") and abs(offset) > limits.CLOCK_SECONDS:
        direction = "ahead of" if offset > 0 else "behind"
        yield Finding(
            WRONG,
            subject,
            f"{process}: its clock is {text.span_of_time(abs(offset))} {direction} the agent's",
            "ages and the order of spans are wrong by as much: synchronize the clocks (NTP)",
        )
    if source.emitter.unacknowledged_bytes > limits.UNACKNOWLEDGED_BYTES:
        yield Finding(
            WRONG,
            subject,
            f"{process}: {source.emitter.unacknowledged_bytes >> 20} of 32 MiB of its buffer wait for the agent",
            "the agent is too slow: check its CPU limit and its disk",
        )


def _missing_parts(sources: Sequence[admin.Source], engine: admin.Engine, subject: str) -> Iterator[Finding]:
    """Yield what installed hooks do without; processes of one kind that say the same are one finding."""
    ranks: dict[tuple[str, str, str, str], set[int]] = {}
    for source in sources:
        hello = source.hello
        for hook in source.hooks:
            if lost := parts_words(hook):
                said = hello.process, hook.name, lost, hello.vllm_version
                ranks.setdefault(said, set()).add(hello.rank)
    for (process, hook_name, lost, version), found in ranks.items():
        who = process
        if process == "worker":
            who = f"worker {min(found)}" if len(found) == 1 else text.count(len(found), "worker")
        vllm = f"vLLM {text.one_line(version)}" if version else "this vLLM"
        yield Finding(
            NOTE,
            subject,
            f"{who}: hook {text.one_line(hook_name)} works without: {lost} ({vllm} lacks what that needs)",
            f"agentctl describe engine {text.engine(engine.key)} -o yaml has the reason of each",
        )


def upstream_findings(engine: admin.Engine, subject: str) -> Iterator[Finding]:
    """Yield a finding for each counter that differs; one for all where vLLM has counted something and none differs.

    Args:
        engine: the agent's view of it.
        subject: its name in the finding.

    """
    agreed: Counter[str] = Counter()
    differ = False
    for source in engine.sources:
        for row in source.upstream_counts if source.connected else ():
            noun, metric = _counter_words(row)
            agreed[noun] += row.upstream
            if row.upstream == row.seen:
                continue
            differ = True
            process = f"worker {row.rank}" if source.hello.process == "worker" else source.hello.process
            yield Finding(
                WRONG,
                subject,
                f"{process}: vLLM counts {text.count(row.upstream, noun)} ({row.name}), penstock {row.seen}, since the "
                "process began",
                f"trust vLLM's own{f' ({metric})' if metric else ''}: penstock misses some, or vLLM counts differently; "
                "report it with the engine's log",
            )
    if agreed and not differ:
        counts = ", ".join(text.count(number, noun) for noun, number in agreed.items())
        yield Finding(OK, subject, f"vLLM's own counters agree: {counts}")


def _counter_words(row: UpstreamCount) -> tuple[str, str]:
    """Return what a counter counts, one of them, and vLLM's metric of it, where there is one."""
    if row.connector.startswith("Mooncake") and row.name in _MOONCAKE_WORDS:
        return _MOONCAKE_WORDS[row.name], f"vllm:mooncake_{row.name}_total, of vLLM 0.33 and newer"
    return _WORDS.get(row.name, (row.name, ""))
