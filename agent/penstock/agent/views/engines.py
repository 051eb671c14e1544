"""Engines: rows, words and the description in full. Pure: messages and the current time in, text out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.agent.views import text
from penstock.agent.views.diagnosis import confidence_words, since_words
from penstock.agent.views.field_diff import flat_values
from penstock.agent.views.peers import (
    failed_attempts,
    failure_words,
    peer_words,
    quarantine_words,
    styled_condition,
)
from penstock.agent.views.queues import free_cell, queue_cell, scheduler_lines
from penstock.agent.views.tables import Table
from penstock.proto.names import ENGINE_CORE
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events
from penstock.proto.v1 import snapshot_pb2 as snapshots

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.proto.v1.snapshot_pb2 import Hook


_LONGEST_PARTS = 400
"""Maximum characters of all that a hook does without."""


_LONGEST_ERROR = 400


def engine_rows(items: Iterable[admin.Engine], now: float) -> Table:
    """Return the table of engines."""
    return Table(
        ("ENGINE", "ROLE", "STATUS", "POLICY", "KV-ACTION", "EC-ACTION", "IN-SYNC", "DEFERRED", "IN-FLIGHT", "LAST-SEEN",
         "RUNNING", "WAITING", "FREE-BLOCKS", "MODEL", "VLLM", "KV-CONNECTOR", "LABELS"),
        [
            (
                text.engine(item.key),
                role_words(item),
                status_words(item, now),
                _policy_in_force(item),
                action_words(item),
                _ec_action(item),
                _yes(item.in_sync),
                str(sum(entry.count for entry in item.deferred)),
                str(sum(entry.count for entry in item.in_flight)),
                text.ago_of(item.last_seen, now),
                str(item.queue.running) if item.HasField("queue") else text.NONE,
                queue_cell(item),
                free_cell(item),
                _model(item),
                _vllm(item),
                item.facts.kv_connector or text.NONE,
                ",".join(f"{key}={value}" for key, value in sorted(item.labels.items())) or text.NONE,
            )
            for item in items
        ],
        wide=7,
    )  # fmt: skip


def role_words(item: admin.Engine) -> str:
    """Return an engine's role, with a question mark if it was guessed."""
    role = text.word(common.Role, item.role)
    return f"{role}?" if item.role_guessed and item.role else role


def parts_words(hook: Hook) -> str:
    """Return what an installed hook does without, as text; empty for nothing."""
    parts = hook.missing_parts if hook.installed else ()
    lost = (text.one_line(part.lost or part.name) for part in parts)
    return text.one_line(", ".join(each for each in lost if each), _LONGEST_PARTS)


def cores(item: admin.Engine) -> list[admin.Source]:
    """Return the connected EngineCores of one name; more than one is a configuration error."""
    # One that begins a new epoch may have two sources for a moment.
    found = {
        (source.hello.pid, source.hello.start_time_unix_nano): source
        for source in item.sources
        if source.connected and source.hello.process == ENGINE_CORE
    }
    return list(found.values())


def action_words(item: admin.Engine) -> str:
    """Return the action for failed KV loads; while paused, the one that would be in force."""
    if item.paused and item.wanted_kv_action:
        return text.paused(item.wanted_kv_action)
    return item.policy.kv_action or text.NONE


def _ec_action(item: admin.Engine) -> str:
    if item.paused and item.wanted_ec_action:
        return text.paused(item.wanted_ec_action)
    return item.policy.ec_action or text.NONE


def _policy_in_force(item: admin.Engine) -> str:
    if item.paused and item.wanted_hash:
        return text.paused(text.short_policies(item.wanted_policies, item.wanted_hash))
    return text.short_policies(item.policies, item.policy.hash) if item.HasField("policy") else text.NONE


def is_stopped(item: admin.Engine) -> bool:
    """Return whether an engine is away because it was stopped on purpose."""
    return item.said_goodbye and not item.connected


def status_words(item: admin.Engine, now: float) -> str:
    """Return an engine's status: connected, disconnected, stopped, paused with the end of the pause, or a shared name."""
    if is_stopped(item):
        return "stopped"
    if not item.connected:
        return text.style("disconnected", "red")
    if (number := len(cores(item))) > 1:
        return text.style(f"{number} share a name", "red")
    if not item.paused:
        if item.HasField("ejection"):
            way = "" if item.ejection.in_force else "to go "
            return text.style(f"connected, {way}out of rotation", "yellow")
        return text.style("connected", "green")
    ends = f", {text.pause_end(item.pause, now)}" if item.pause.HasField("until") else ""
    return text.style(f"paused{ends}", "yellow")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _model(item: admin.Engine) -> str:
    return item.facts.model or next(
        (source.hello.model for source in item.sources if source.hello.model), text.NONE
    )


def _vllm(item: admin.Engine) -> str:
    return item.facts.vllm_version or next(
        (source.hello.vllm_version for source in item.sources if source.hello.vllm_version), text.NONE
    )


def condition_line(cause: admin.DiagnosedCause, now: float) -> str:
    """Return a condition of the diagnosis as a line."""
    since = since_words(cause, now)
    sentence = text.one_line(cause.sentence, _LONGEST_ERROR)
    look = "red" if cause.confidence >= admin.DIAGNOSIS_CONFIDENCE_LIKELY else "yellow"
    return text.style(
        f"{cause.kind} ({confidence_words(cause)}){f' {since}' if since else ''}: {sentence}", look
    )


def engine_description(
    item: admin.Engine,
    effective: admin.EffectivePolicy,
    peers: list[admin.PeerSummary],
    now: float,
    holders: Sequence[admin.HolderSummary] = (),
    conditions: Sequence[str] | None = None,
) -> Iterator[str]:
    """Yield the lines of a description; without known *conditions*, with what the agent saw not happen."""
    yield f"Engine: {text.engine(item.key)}"
    yield f"Role: {role_words(item)}"
    yield f"Status: {status_words(item, now)}, last seen {text.ago_of(item.last_seen, now)}"
    if item.HasField("pause"):
        yield text.style(f"Pause: {text.pause_origin(item.pause, now)}", "yellow")
    if item.HasField("ejection"):
        yield text.style(f"Out of rotation: {text.ejection_words(item.ejection, now)}", "yellow")
    yield from text.section("Labels", (f"{key}={value}" for key, value in sorted(item.labels.items())))
    yield from text.section("Facts", _facts(item, now))
    yield from text.section("Policy", _policy(item, effective, now))
    if conditions is None:
        yield from text.section("Stalled", _stalled(item, now))
    else:
        yield from text.section("Conditions", conditions)
    yield from text.section("Scheduler", scheduler_lines(item, now))
    yield from text.section("Deferred", _waiting(item, now))
    yield from text.section("In flight", _in_flight(item, now))
    if item.HasField("asleep_since"):
        since = text.ago(item.asleep_since.ToNanoseconds(), now)
        yield f"Asleep: no peer can reach its KV caches since {since} (vLLM's sleep mode)"
    if item.leases.count:
        oldest = text.ago(item.leases.oldest_start_time_unix_nano, now)
        yield f"Leases: {item.leases.count} of {text.count(item.leases.blocks, 'block')}, oldest {oldest}"
    yield from text.section("Held blocks", (_held(each, now) for each in holders))
    if item.eplb.enabled:
        yield f"Expert balancing: {_eplb(item.eplb)}"
    yield from text.section("Peers", (_peer(peer, now) for peer in peers))
    yield from text.section("Processes", (line for source in item.sources for line in _source(source, now)))


def _facts(item: admin.Engine, now: float) -> Iterator[str]:
    if not item.HasField("facts"):
        yield "not reported yet"
        return
    facts = item.facts
    for name, value in (
        ("Model", facts.model),
        ("vLLM", facts.vllm_version),
        ("KV connector", " ".join(part for part in (facts.kv_connector, facts.kv_role) if part)),
        ("KV engine id", facts.kv_engine_id),
        ("KV load failure policy of vLLM", facts.kv_load_failure_policy),
        ("EC connector", " ".join(part for part in (facts.ec_connector, facts.ec_role) if part)),
        ("Side channel", facts.side_channel),
        ("Encoder outputs at", facts.ec_address),
        ("Scheduler", facts.scheduler_class),
        ("Weights", weights_words(facts.weights)),
        ("Compatibility", facts.compatibility_hash),
    ):
        if value:
            yield f"{name}: {value}"
    for name, value in sorted(facts.compatibility_factors.items()):
        yield f"{text.INDENT}{name}={value}"
    if facts.faults_allowed:
        yield "Fault drills: allowed (PENSTOCK_ALLOW_FAULTS=1)"
    pipeline = f", pipeline {facts.pipeline_parallel_size}" if facts.pipeline_parallel_size > 1 else ""
    yield f"Parallel: tensor {facts.tensor_parallel_size}, data {facts.data_parallel_size}{pipeline}"
    yield f"Blocks: {facts.num_gpu_blocks} of {facts.block_size} tokens"
    yield f"Started: {text.ago(facts.start_time_unix_nano, now)}"


def weights_words(facts: snapshots.WeightsFacts) -> str:
    """Return which weights an engine has loaded; empty where it does not tell."""
    size = (
        f"{facts.files} file{'' if facts.files == 1 else 's'} of {facts.bytes / 1e9:.3g} GB"
        if facts.files
        else ""
    )
    parts = (
        f"digest {facts.digest}" if facts.digest else "",
        size,
        f"commit {facts.revision}" if facts.revision else "",
        facts.unknown,
    )
    return ", ".join(part for part in parts if part)


def _policy(item: admin.Engine, effective: admin.EffectivePolicy, now: float) -> Iterator[str]:
    if item.HasField("policy"):
        yield from _in_force(item, now)
    else:
        wanted = _named(item.wanted_policies, item.wanted_hash)
        yield f"Wanted: {wanted}; policy in force not reported yet"
    names = {policy.name: text.policies([policy], "") for policy in effective.policies}
    for field in effective.fields:
        name = names.get(field.new_policy, field.new_policy)
        said = f"{field.field} = {field.new_value}, by policy {name}"
        # A field not in force must be marked.
        yield said if item.in_sync else text.paused(said) if item.paused else f"wanted: {said}"
    for step in effective.schedule[1:]:
        fields = ", ".join(
            f"{path}={value}" for path, value in flat_values(json.loads(step.spec_json or "{}"))
        )
        yield f"{text.ago_of(step.begins, now)}: {fields or text.policies((), '')}"


def _in_force(item: admin.Engine, now: float) -> Iterator[str]:
    status = item.policy
    held = item.paused and item.wanted_hash
    wanted = _named(item.wanted_policies, item.wanted_hash)
    but_for = _but_for(item, wanted) if item.wanted_hash else ""
    yield f"In force: {_named(item.policies, status.hash)}{but_for}"
    if item.wanted_hash != status.hash and not held:
        yield text.style(f"Wanted: {wanted}", "yellow")
    yield f"In sync: {'yes' if item.in_sync else 'no'}"
    if status.kv_action:
        yield f"On a failed KV load: {status.kv_action}{_but_for(item, item.wanted_kv_action)}"
    if status.ec_action:
        yield f"On a failed EC load: {status.ec_action}{_but_for(item, item.wanted_ec_action)}"
    if status.expires_time_unix_nano:
        yield f"Expires: {text.ago(status.expires_time_unix_nano, now)}"
    if status.last_error:
        yield text.style(f"Last error: {text.one_line(status.last_error, _LONGEST_ERROR)}", "red")


def _named(policies: Sequence[common.PolicySource], hash_: str) -> str:
    """Return the policies behind a hash, and the hash; the latter alone if they are not known."""
    return f"{text.policies(policies, hash_)}, hash {hash_}" if policies else hash_ or text.policies((), "")


def _but_for(item: admin.Engine, wanted: str) -> str:
    """Return what would be in force without the pause."""
    return f", {text.style(text.paused(wanted), 'yellow')}" if item.paused and wanted else ""


def _stalled(item: admin.Engine, now: float) -> Iterator[str]:
    for stall in item.stalls:
        sentence = text.one_line(stall.sentence, _LONGEST_ERROR)
        yield text.style(f"{stall.kind} since {text.ago_of(stall.since, now)}: {sentence}", "red")


def _waiting(item: admin.Engine, now: float) -> Iterator[str]:
    for entry in item.deferred:
        peer = f" from {entry.peer.address}" if entry.peer.address else ""
        since = text.ago(entry.oldest_start_time_unix_nano, now)
        yield f"{entry.count} for {text.word(common.DeferralReason, entry.reason)}{peer}, oldest since {since}"


def _in_flight(item: admin.Engine, now: float) -> Iterator[str]:
    for entry in item.in_flight:
        since = text.ago(entry.oldest_start_time_unix_nano, now)
        channel = text.word(common.Channel, entry.channel)
        yield f"{entry.count} {channel} with {entry.peer.address or 'unknown'}, oldest since {since}"


def _held(item: admin.HolderSummary, now: float) -> str:
    peer = f" with {item.peer.address}" if item.peer.address else ""
    share = f" ({item.share:.1%} of the cache)" if item.HasField("share") else ""
    oldest = f", oldest {text.ago_of(item.oldest, now)}" if item.HasField("oldest") else ""
    holder = text.word(snapshots.BlockHolder, item.holder)
    return f"{holder}{peer}: {text.count(item.blocks, 'block')}{share}{oldest}"


def _eplb(facts: snapshots.EplbFacts) -> str:
    how = "asynchronous" if facts.asynchronous else "synchronous"
    by = f", by {facts.communicator}" if facts.communicator else ""
    return f"{how}, every {facts.step_interval} steps, by the load of the last {facts.window_size}{by}"


def _peer(peer: admin.PeerSummary, now: float) -> str:
    said = f"{peer_words(peer)}: {peer.transfers_ok} ok, {failed_attempts(peer)} failed"
    if peer.failures:
        said += f"; {failure_words(peer)}"
    if peer.HasField("last_failure"):
        said += f", last {text.ago_of(peer.last_failure, now)}"
    if peer.condition_reason:
        said += f"; {styled_condition(peer)}: {peer.condition_reason}"
    if peer.status.quarantine > events.QUARANTINE_STATE_CLOSED:
        said += f"; {text.style(quarantine_words(peer.status), 'red')}"
    return said


def _source(source: admin.Source, now: float) -> Iterator[str]:
    hello = source.hello
    state = (
        "connected" if source.connected else f"disconnected, last seen {text.ago_of(source.last_seen, now)}"
    )
    name = hello.process if hello.process != "worker" else f"worker {hello.rank}"
    yield f"{name} (pid {hello.pid}, penstock {hello.penstock_version or 'unknown'}): {state}"
    for hook in source.hooks:
        if not hook.installed:
            yield text.style(f"{text.INDENT}hook {hook.name} is not installed: {hook.reason}", "yellow")
    if source.hooks:
        installed = sum(hook.installed for hook in source.hooks)
        yield f"{text.INDENT}{installed} of {len(source.hooks)} hooks installed"
    for hook in source.hooks:
        if lost := parts_words(hook):
            yield f"{text.INDENT}without: {lost} ({text.one_line(hook.name)})"
    if source.HasField("unaccounted_entries"):
        yield from _entries(source)
    for drop in source.drops:
        yield text.style(f"{text.INDENT}lost: {drop.count} {drop.kind} ({drop.reason})", "yellow")
    for error in source.guard_errors:
        yield text.style(
            f"{text.INDENT}internal errors: {error.count} {error.error_class} in {error.hook}", "red"
        )


def _entries(source: admin.Source) -> Iterator[str]:
    """Yield the account of a source's entries: emitter counts of its last snapshot, agent counts of now."""
    emitter = source.emitter
    yield (
        f"{text.INDENT}entries: {emitter.produced_entries} produced, {source.stored_entries} stored, "
        f"{emitter.pending_entries} pending, {source.lost_entries} dropped"
    )
    if source.unaccounted_entries:
        yield text.style(
            f"{text.INDENT}{source.unaccounted_entries} entries are unaccounted for; please report this",
            "red",
        )
