"""A policy as decisions read it: frozen values, None where vLLM's own configuration holds; and which transfers it verifies. Times in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Final

_HASH_SHOWN: Final = 12


class Action(StrEnum):
    """The action on a failed load, by the manifest's word."""

    RECOMPUTE = "recompute"
    FAIL = "fail"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class KvLoadFailure:
    """``kvLoadFailure``; *tokens_per_second* is its recompute budget."""

    action: Action | None = None
    max_recompute_tokens: int | None = None
    tokens_per_second: int | None = None
    over_budget: Action | None = None


@dataclass(frozen=True, slots=True)
class EcLoadFailure:
    """``ecLoadFailure``."""

    action: Action | None = None
    max_recompute_items: int | None = None


@dataclass(frozen=True, slots=True)
class Deferral:
    """``deferral``."""

    max_start_wait: float | None = None
    max_transfer_wait: float | None = None
    on_timeout: Action | None = None


@dataclass(frozen=True, slots=True)
class PeerQuarantine:
    """``peerQuarantine``."""

    failures: int | None = None
    window: float | None = None
    duration: float | None = None
    max_peers_percent: int | None = None


@dataclass(frozen=True, slots=True)
class Telemetry:
    """``telemetry``."""

    trace_sample_ratio: float | None = None
    failure_log_interval: float | None = None


class IntegrityAction(StrEnum):
    """The action on a transfer that does not match the sender's digest, by the manifest's word."""

    OBSERVE = "observe"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True)
class Integrity:
    """``integrity``; without *action* a mismatch is only reported."""

    sample_ratio: float | None = None
    action: IntegrityAction | None = None


class ReflexAction(StrEnum):
    """Whether a reflex acts or only reports what it would have done, by the manifest's word."""

    OBSERVE = "observe"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True)
class StartWaitReflex:
    """``reflexes.startWait``; without *action* it only reports."""

    action: ReflexAction | None = None
    factor: float | None = None
    min_wait: float | None = None


@dataclass(frozen=True, slots=True)
class SlowPeerReflex:
    """``reflexes.slowPeer``; without *action* it only reports."""

    action: ReflexAction | None = None
    factor: float | None = None


@dataclass(frozen=True, slots=True)
class RecomputeStormReflex:
    """``reflexes.recomputeStorm``; it only reports."""

    action: ReflexAction | None = None
    queue_wait: float | None = None


@dataclass(frozen=True, slots=True)
class Reflexes:
    """``reflexes``; one that no policy sets is not there."""

    per_minute: int | None = None
    start_wait: StartWaitReflex | None = None
    slow_peer: SlowPeerReflex | None = None
    recompute_storm: RecomputeStormReflex | None = None


@dataclass(frozen=True, slots=True)
class PolicyBody:
    """One merge of policies; a field is None where no policy sets it."""

    kv_load_failure: KvLoadFailure | None = None
    ec_load_failure: EcLoadFailure | None = None
    deferral: Deferral | None = None
    peer_quarantine: PeerQuarantine | None = None
    telemetry: Telemetry | None = None
    integrity: Integrity | None = None
    reflexes: Reflexes | None = None


@dataclass(frozen=True, slots=True)
class PolicySource:
    """A policy that the agent merged, and the paths of the fields that it set: ``kvLoadFailure.action``."""

    name: str
    generation: int
    fields: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Policy(PolicyBody):
    """The policy in force: the body to act by, its hash, and the body of the policies in mode observe.

    Attributes:
        hash: as the agent computed it; empty for vLLM's own configuration.
        observed: decisions by it are reported and not acted upon; None if no policy is in mode observe.
        sources: what the body was merged from, as far as the agent told; no decision depends on it.

    """

    hash: str = ""
    observed: PolicyBody | None = None
    sources: tuple[PolicySource, ...] = ()

    def name_of(self, field: str) -> str:
        """Return who set *field*, for a person: ``policy decode-fail, generation 3``.

        An agent that does not name its policies leaves the start of the hash; empty if there is no policy.
        """
        for source in self.sources:
            if field in source.fields:
                return f"policy {source.name}, generation {source.generation}"
        return f"policy {self.hash[:_HASH_SHOWN]}" if self.hash else ""


NO_POLICY = Policy()
"""vLLM's own configuration."""


_BYTES: Final = 8
_RANGE: Final = 1 << (8 * _BYTES)


@dataclass(frozen=True, slots=True)
class IntegrityRule:
    """Verify this share of the requests; *enforce*: a mismatch is a failed load, else it is only reported."""

    sample_ratio: float
    enforce: bool

    def samples(self, request_id: str) -> bool:
        """Return whether the request with that id, the prefill side's, is verified: the same on every engine."""
        if self.sample_ratio >= 1.0:
            return True
        digest = blake2b(request_id.encode(errors="replace"), digest_size=_BYTES).digest()
        return int.from_bytes(digest) < self.sample_ratio * _RANGE


def integrity_rule(policy: Policy) -> IntegrityRule | None:
    """Return the rule of *policy*; None if nothing is verified. A policy in mode observe never enforces."""
    section, enforced = policy.integrity, True
    if section is None or not section.sample_ratio:
        section = policy.observed.integrity if policy.observed is not None else None
        enforced = False
    if section is None or not section.sample_ratio:
        return None
    return IntegrityRule(section.sample_ratio, enforced and section.action is IntegrityAction.ENFORCE)
