"""Instruments the P2P tiers of an ``OffloadingConnector`` in the scheduler. Imports vLLM's tier only where one was built, or for a survey."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.hooks import Extension, InstanceState, Requirement, Swaps, registry
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.tiering.promotions import Promotions
from penstock.instrumentation.vllm.kv.tiering.tier_mixin import P2pTierMixin, load_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.instrumentation.hooks import Need
    from penstock.proto.v1.snapshot_pb2 import Snapshot

_TIER: Final = "P2PSecondaryTierManager"


class TierClasses(NamedTuple):
    """vLLM's classes of the tier that the mixin leans on."""

    tier: Any
    session: Any
    request: Any


def tier_classes() -> TierClasses:
    """Import and return vLLM's classes.

    Raises:
        ImportError: this vLLM has no such tier.

    """
    from vllm.v1.kv_offload.tiering.p2p.manager import P2PSecondaryTierManager
    from vllm.v1.kv_offload.tiering.p2p.session import P2PSession
    from vllm.v1.kv_offload.tiering.p2p.session.client import _ClientRequestState

    return TierClasses(P2PSecondaryTierManager, P2PSession, _ClientRequestState)


class P2pTierHook:
    """Requires what the mixin extends and reads; it patches tiers only."""

    name = "kv_p2p_tier"
    component = c.COMPONENT_SCHEDULER

    def __init__(self) -> None:
        self.swaps = Swaps()

    def requires(self) -> Iterable[Need]:
        """Return the tier's methods and the state of its sessions."""
        tier, session, request = tier_classes()
        return [
            Extension(P2pTierMixin, tier),
            Requirement(tier, "on_new_request", ("req_context",)),
            Requirement(tier, "on_request_finished", ("req_context",)),
            Requirement(tier, "submit_load", ("job_metadata",)),
            Requirement(tier, "get_finished_jobs"),
            Requirement(tier, "_reap_dead_sessions"),
            Requirement(tier, "on_schedule_end", ("context",)),
            InstanceState(tier, ("_sessions", "_failed_req_ids", "_primary_kv_view")),
            *(Requirement(session, name) for name in ("connected", "alive", "ready")),
            InstanceState(session, ("_client",)),
            InstanceState(request, ("loads", "probes")),
        ]

    def install(self) -> None:
        """Do nothing: :class:`P2pTiers` instruments each tier."""

    def uninstall(self) -> None:
        """Restore the classes of live tiers."""
        self.swaps.restore()


class P2pTiers:
    """Instruments every P2P tier of the process, if the hook's requirements are met."""

    def __init__(self) -> None:
        self._hook: P2pTierHook | None = None
        self._numbers = itertools.count()

    def instrument(self, connector: Any) -> Sequence[Any]:
        """Put the mixin over the P2P tiers of *connector* in the scheduler; return them, none if it has none or they do not fit."""
        manager = getattr(getattr(connector, "connector_scheduler", None), "manager", None)
        found = [each for each in getattr(manager, "secondary_tiers", ()) if _is_p2p(each)]
        if not found:
            return ()
        self._hook = self._hook or P2pTierHook()
        settings = runtime.settings
        if not registry.install(self._hook, settings.hooks_disabled if settings is not None else ()):
            return ()
        for tier in found:
            self._hook.swaps.swap(tier, P2pTierMixin)
            tier._penstock_promotions = Promotions(
                type(connector).__name__, int(tier._primary_kv_view.strides[0]), load_seconds()
            )
            runtime.snapshots.add(f"p2p_tier.{next(self._numbers)}", _filler(tier))
        return found


def _filler(tier: Any) -> Callable[[Snapshot], None]:
    """Return what adds *tier* to a snapshot while vLLM keeps it alive."""
    kept = weakref.ref(tier)

    def fill(snapshot: Snapshot) -> None:
        alive = kept()
        if alive is not None:
            alive._penstock_fill(snapshot)

    return fill


def _is_p2p(tier: Any) -> bool:
    return any(each.__name__ == _TIER for each in type(tier).__mro__)
