"""Controls the encoder outputs that one scheduler loads: deferral, deadlines, failures. It joins the parts.

The scheduler's session and the EC connector's mixin call it inside the guard. While Penstock is paused it decides nothing new by a
policy; what was begun before (a placeholder in a worker, an item that is bad) is still cleaned up, because the engine must
not serve it. A connector that has a default of its own for failed loads keeps it then: its loads are guarded in any case.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import hears_all_ranks
from penstock.instrumentation.vllm.ec.decider import EcFailureDecider
from penstock.instrumentation.vllm.ec.drills import EcDrills
from penstock.instrumentation.vllm.ec.item_peers import ItemPeers
from penstock.instrumentation.vllm.ec.observer import EcObserver
from penstock.instrumentation.vllm.ec.pending_items import BadItems, PendingItems
from penstock.instrumentation.vllm.ec.protocol import EcLoader
from penstock.instrumentation.vllm.ec.step_loads import (
    EcFailurePlanner,
    EcStepLoads,
    UnconfirmedEcLoads,
    supports,
)
from penstock.instrumentation.vllm.ec.unavailable import EcAdmission, MissingMedia, UnavailableItems
from penstock.instrumentation.vllm.ec.verifier import EcVerifier
from penstock.instrumentation.vllm.ec.waits import EcWaits
from penstock.instrumentation.vllm.messages import StepMetadata, checked_items, failed_items
from penstock.instrumentation.vllm.requests import Affected, Cause
from penstock.rules import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.instrumentation.orders import Orders
    from penstock.instrumentation.vllm.admission import PeerGate
    from penstock.instrumentation.vllm.ec.protocol import ExternalItem
    from penstock.instrumentation.vllm.ec.request_loads import RequestLoads
    from penstock.instrumentation.vllm.ec.step_loads import CacheAnswer
    from penstock.instrumentation.vllm.recovery import WorkerEncoderInputs
    from penstock.instrumentation.vllm.requests import SchedulerObserver
    from penstock.proto.v1.snapshot_pb2 import Snapshot
    from penstock.rules import Decision, Policy

_UNKNOWN: Final = Cause(c.FAILURE_MODE_LOAD, c.ERROR_TYPE_OTHER)
_OUTCOMES: Final = {"recompute": Outcome.RECOMPUTED, "fail": Outcome.FAILED}


class EcLoadController:
    """The encoder outputs of one scheduler that has an EC connector.

    Attributes:
        failing: requests that are about to fail, and what their clients learn.
        admits: keeps a request from peers that are cut off, see ``EcAdmission``; always true while none can be.
        peers: those of its items, and whether one can be cut off.
        unfit_drill: returns why a fault drill cannot be rehearsed here.

    """

    def __init__(
        self, scheduler: Any, observer: SchedulerObserver, media: WorkerEncoderInputs, gate: PeerGate
    ) -> None:
        """Control *scheduler*, which is built but has not run.

        Args:
            scheduler: vLLM's.
            observer: its requests.
            media: what its workers know of inputs.
            gate: the peers that it may load from.

        """
        self._scheduler = scheduler
        self._connector = scheduler.ec_connector
        self._loader: EcLoader | None
        # Beside a connector that moves items ahead of scheduling and is no EcLoader itself.
        self._loads: RequestLoads | None = getattr(self._connector, "_penstock_loads", None)
        self._native = isinstance(self._connector, EcLoader)
        self._loader = self._connector if self._native else self._loads
        loads = self._loader or self._connector
        self.peers = ItemPeers(gate, loads)
        self._telemetry = EcObserver(
            type(self._connector).__name__, c.COMPONENT_SCHEDULER, results=self.peers.results
        )
        own = Outcome.RECOMPUTED
        if self._loader is not None:
            own = _OUTCOMES.get(self._loader.load_failure_default, own)
            self._loader.observe(self._telemetry)
        self._decider = EcFailureDecider(
            scheduler, observer, connector=self._telemetry.connector, own=own, wait_ns=self.peers.wait_ns
        )
        self.failing = self._decider.failing
        self._rewinds = supports(scheduler) and hears_all_ranks(scheduler)
        self._steps = UnconfirmedEcLoads(scheduler)
        self._bad = BadItems()
        self._pending = PendingItems(scheduler, self._loader, self._bad, media, self._loads)
        self._media = MissingMedia(self._pending, self._bad, self._decider, self._loads)
        self._planner = EcFailurePlanner(scheduler, self._pending, settle=self._settle)
        self.admits = EcAdmission(self.peers, self._pending, self._decider).admits
        self._drills = EcDrills(loads, self._telemetry, self._bad)
        self.unfit_drill = self._drills.unfit
        self._waits = EcWaits(
            observer,
            self._decider,
            self._telemetry,
            self._pending,
            self._bad,
            self._loader,
            self._drills,
            self._do_without,
        )
        # Tables of those parts, read at each poll.
        self._waiting: Mapping[str, object] = self._waits.table
        self._deferred: Mapping[str, int] = observer.deferred
        self._unavailable = UnavailableItems(
            scheduler, self._decider, self._telemetry, self._pending, self._loads, self._media.cause_of
        )
        if self._loads is not None:
            self._loads.decide_by(self._unavailable)
        self._verifier = EcVerifier(self._connector, observer)
        self._orders = StepMetadata()

    def on_policy_change(self, policy: Policy, orders: Orders) -> None:
        """Apply the policy and the orders that came into force; between two steps, on any thread."""
        self._decider.policy = policy
        self._waits.on_policy_change(policy)
        self._verifier.on_policy_change(policy)
        self._orders.on_policy_change(policy, orders)
        self._drills.on_policy_change(orders)

    def fill(self, snapshot: Snapshot) -> None:
        """Add what is in flight and what is done about a failed load; on the exporter's thread, reads only."""
        rule = self._decider.policy.ec_load_failure if runtime.active else None
        own = self._loader.load_failure_default if self._loader is not None else ""
        snapshot.policy.ec_action = rule.action.value if rule is not None and rule.action is not None else own
        for address in self.peers.connected():
            snapshot.peers.add(peer={"address": address}, connected=True)
        for peer, count, oldest_ns in self._loader.in_flight() if self._loader is not None else ():
            snapshot.in_flight.add(
                channel=c.CHANNEL_EC,
                connector=self._telemetry.connector,
                peer=peer.fields(),
                count=count,
                oldest_start_time_unix_nano=oldest_ns,
                component=c.COMPONENT_SCHEDULER,
            )

    # The connector

    def on_answer(self, item: str, answer: CacheAnswer) -> bool:
        """Return whether *item* may be loaded, by the connector's *answer*; note it for the allocation that follows."""
        if answer.found and (
            item in self._bad
            or (self._guards and (self._steps.encodes(item) or self._drills.fails_answer(item)))
        ):
            answer = replace(answer, found=False)
        if answer.found and self._loads is not None and not self._loads.can_load(item):
            answer = replace(answer, found=False)
        self._steps.on_answer(item, answer)
        return answer.found

    def is_available(self, request: Any, computed: int, ready: bool) -> bool:
        """Return whether a request with *computed* tokens can be scheduled, where the connector says *ready*."""
        request_id = request.request_id
        if request_id in self.failing:
            return False
        # Most often nothing is bad, and this is a poll: every step asks about every request that waits.
        if self._bad.table:
            self._pending.recall(request, computed)
            if self._media.fails(request, computed):
                return False
            ready = ready or self._pending.only_what_is_given_up(request, computed)
        if ready:
            # Asked in every step of a request that computes, too.
            if request_id in self._waiting or request_id in self._deferred:
                self._waits.end(request_id)
            return True
        if runtime.active:
            self._waits.on_waiting(request, computed)
        return False

    def on_allocated(self, request: Any, index: int) -> None:
        """Record that an input got its room in vLLM's encoder cache."""
        answer = self._steps.on_allocated(request, index)
        if answer is not None and not self._native and self._connector.is_consumer:
            self._telemetry.probed(
                request.mm_features[index].identifier,
                self._loads.place if self._loads is not None else None,
                c.PROBE_RESULT_HIT if answer.found else c.PROBE_RESULT_MISS,
                answer.start_ns,
                answer.end_ns,
                request.request_id,
            )

    def attach(self, metadata: Any, *, tokens: int) -> None:
        """Put on the step's *metadata* what the workers load, whether to guard it, and the drills in force.

        *tokens*: of the step. vLLM's V1 model runner hands the metadata of one without tokens to no worker's connector.
        """
        items, encodes = self._steps.collect()
        self._drills.end_step()
        if runtime.active:
            self._orders.attach(metadata, unseen=not tokens)
        elif not self._native:
            return
        if not self._connector.is_consumer:
            return
        if encodes:
            metadata.penstock_encodes = encodes
        if not items:
            return
        items = tuple(self._with_peer(each) for each in items)
        # Plain tuples: a worker that has no Penstock can read them.
        metadata.penstock_items = tuple(tuple(each) for each in items)
        checksums = self._verifier.orders(items) if runtime.active else None
        if checksums:
            metadata.penstock_checksums = checksums
        if self._guards:
            metadata.penstock_guarded = True
            if checksums and self._verifier.enforces:
                metadata.penstock_enforced = True
            self._steps.on_planned(metadata, items)

    def on_unavailable(self, request_ids: Iterable[str]) -> set[str]:
        """Report the requests that the connector itself gives up, because an item of theirs cannot be had; return those that fail."""
        explain = self._native or (runtime.active and self._guards)
        return self._unavailable.settle(request_ids, explain=explain)

    # The scheduler

    def before_schedule(self) -> None:
        """Decide about the loads that failed and the waits that are overdue since the last step."""
        if self._bad.table:
            self._bad.prune()
        self.peers.before_step()
        if self._loader is not None:
            causes = {
                failure.item: Cause(failure.mode, failure.error_type, failure.rehearsal, failure.peer)
                for failure in self._loader.take_failed_loads()
            }
            if causes:
                self._waits.decide_failed(causes)
        if self._waiting and runtime.active:
            self._waits.decide_overdue()

    def after_schedule(self, output: Any) -> None:
        """Record the requests that compute on items loaded in the step just scheduled; have the workers drop bad items."""
        self._steps.after_schedule(output)
        self._planner.release(output)

    @property
    def needs_media(self) -> bool:
        """Whether a request that is new in this step may be rewound for the loads that are under way, behind any of its inputs."""
        return bool(self._steps)

    def refuses(self, request: Any, indexes: Iterable[int]) -> bool:
        """Fail a request of which vLLM would encode these inputs, if one cannot be encoded here; tell whether it fails."""
        return self._guards and self._media.refuses(request, indexes)

    def before_free(self, request: Any) -> None:
        """Record that a request is about to lose its blocks."""
        self._steps.before_free(request)

    def on_step_result(self, metadata: Any, output: Any) -> None:
        """Take back what was computed from items that the workers could not load in the step with that *metadata*."""
        self._verifier.on_checked(checked_items(output))
        loads = self._steps.confirm(metadata) or EcStepLoads()
        failed = failed_items(output)
        if failed and self._loads is not None:
            # Its loads come before the step that computes on them.
            self._loads.on_worker_failures(each for each in failed.values() if each.item not in loads.users)
            failed = {item: failure for item, failure in failed.items() if item in loads.users}
        if not failed:
            return
        for item, failure in failed.items():
            peer = self._loader.peer_of(item) if self._loader is not None else None
            cause = Cause(failure.mode, failure.error_type, failure.rehearsal, peer)
            self.peers.on_load_failed(item, cause)
            self._give_up(item, cause)
        try:
            self._planner.plan(loads, failed.keys())
        except Exception:
            self._planner.abandon(loads, failed.keys())
            raise

    def on_finished(self, request: Any) -> None:
        """Forget a request that has finished."""
        self._waits.forget(request.request_id)
        self._verifier.on_finished(request.request_id)
        self.peers.on_finished(request.request_id)
        if self._loads is not None:
            self._loads.on_finished(request.request_id)

    def _with_peer(self, item: ExternalItem) -> ExternalItem:
        peer = self._loader.peer_of(item.item) if self._loader is not None else None
        return item if peer is None else item._replace(peer=peer.address)

    @property
    def _guards(self) -> bool:
        return self._rewinds and (self._native or self._decider.has_rule)

    # Decisions

    def _give_up(self, item: str, cause: Cause) -> None:
        self._bad.remember(item, cause)
        if self._loader is not None:
            self._loader.give_up(item)

    def _do_without(self, request: Any, item: str, cause: Cause) -> None:
        """Have a request, or where the connector knows no requests all of them, encode *item* here."""
        if self._loads is not None:
            self._loads.do_without(request, item, cause)
        else:
            self._give_up(item, cause)

    def _settle(self, request: Any, affected: Affected) -> Decision:
        found = (self._bad.cause(item) for item in affected.items)
        cause = next((each for each in found if each is not None), _UNKNOWN)
        if affected.collateral:
            cause = replace(cause, mode=c.FAILURE_MODE_COLLATERAL, error_type=c.ERROR_TYPE_OTHER)
        return self._decider.decide(request, affected, cause)
