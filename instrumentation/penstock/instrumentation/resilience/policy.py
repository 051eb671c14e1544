"""A policy as decisions read it: frozen values, None where vLLM's own configuration holds. Times in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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


@dataclass(frozen=True, slots=True)
class PolicyBody:
    """One merge of policies; a field is None where no policy sets it."""

    kv_load_failure: KvLoadFailure | None = None
    ec_load_failure: EcLoadFailure | None = None
    deferral: Deferral | None = None
    peer_quarantine: PeerQuarantine | None = None
    telemetry: Telemetry | None = None


@dataclass(frozen=True, slots=True)
class Policy(PolicyBody):
    """The policy in force: the body to act by, its hash, and the body of the policies in mode observe.

    Attributes:
        hash: as the agent computed it; empty for vLLM's own configuration.
        observed: decisions by it are reported and not acted upon; None if no policy is in mode observe.

    """

    hash: str = ""
    observed: PolicyBody | None = None


NO_POLICY = Policy()
"""vLLM's own configuration."""
