"""A request that a failed load affects, why the load failed, and what is decided about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.rules import Trigger

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.naming import Peer
    from penstock.rules import Decision


@dataclass(frozen=True, slots=True)
class Affected:
    """A request whose load failed, or which cannot have the encoder outputs that it needs.

    Attributes:
        kept: computed tokens that survive.
        lost: computed tokens that do not.
        items: encoder outputs that it needs and does not have.
        local_media: this engine has the media to encode all *items* from.
        exported: another connector may have passed tainted blocks on.
        held: it waits with blocks that cannot be taken from it, so it cannot be rewound.
        pinned: its load was given up while a transfer may still write to its blocks, so it cannot be rewound.
        looking_up: the connector has not said whether there is anything to load.
        loading: other ranks still load for it, and a deadline may end that before they do.
        without_media: the workers were not given the media of an input that it would need again.
        optional: without a policy vLLM computes what is lost, whatever its ``kv_load_failure_policy`` says.
        collateral: it shares blocks with the request whose load failed, its own did not fail.
        trigger: what made the load fail.

    """

    request_id: str
    kept: int
    lost: int = 0
    items: tuple[str, ...] = ()
    local_media: bool = True
    exported: bool = False
    held: bool = False
    pinned: bool = False
    looking_up: bool = False
    loading: bool = False
    without_media: bool = False
    optional: bool = False
    collateral: bool = False
    trigger: Trigger = Trigger.FAILURE


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a load failed.

    Attributes:
        mode: ``FAILURE_MODE_*``, 0 where nothing was attempted.
        error_type: ``ERROR_TYPE_*``.
        rehearsal: a fault drill caused it.
        peer: the peer of an encoder output, where it is known.

    """

    mode: int
    error_type: int
    rehearsal: bool = False
    peer: Peer | None = None


@dataclass(frozen=True, slots=True)
class UnreportedOutcome:
    """A decision to recompute, with the policy's hash, that is reported when every rank has ended the load.

    *ended*: they have, while Penstock was paused.
    """

    affected: Affected
    decision: Decision
    cause: Cause
    policy_hash: str
    ended: bool = False
