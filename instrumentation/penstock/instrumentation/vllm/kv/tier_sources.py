"""The requests of one scheduler whose KV may come from another engine's memory through a P2P tier: who may ask, what becomes of it.

vLLM asks the source before the request has blocks, and computes what does not come. So a request whose source is quarantined, or
whose promotion failed, is decided about before it waits for a load: it goes on here, or a policy fails it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.vllm.compat import child_connectors
from penstock.instrumentation.vllm.messages import LoadFailure
from penstock.instrumentation.vllm.naming import peers
from penstock.instrumentation.vllm.recovery import rewind
from penstock.instrumentation.vllm.requests import Affected, Cause
from penstock.rules import PeerFailure, Trigger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.vllm.kv.decider import KvDeadlines
    from penstock.instrumentation.vllm.kv.request_peers import RequestPeers
    from penstock.instrumentation.vllm.kv.tiering import EndedPromotion, Promotions
    from penstock.instrumentation.vllm.requests import RequestRecord, SchedulerObserver

    Settle = Callable[[RequestRecord, Affected, Cause, LoadFailure | None], None]


class TierSources:
    """The sources of one scheduler's requests; on its thread, inside a step.

    Attributes:
        tiers: the P2P tiers that Penstock observes; without one nothing here is called.

    """

    def __init__(
        self,
        scheduler: Any,
        observer: SchedulerObserver,
        peers_: RequestPeers,
        deadlines: KvDeadlines,
        settle: Settle,
    ) -> None:
        """Listen to the tiers of *scheduler*'s connector; *settle* decides about a request and acts."""
        self._scheduler = scheduler
        self._observer = observer
        self._peers = peers_
        self._deadlines = deadlines
        self._settle = settle
        self._asked: set[str] = set()
        self._lost: set[str] = set()
        connector = scheduler.connector
        self.tiers = tuple(
            tier
            for each in (connector, *child_connectors(connector))
            for tier in getattr(each, "_penstock_tiers", ())
        )
        for tier in self.tiers:
            tier._penstock_listener = self

    def before_lookup(self, request: Any, local_tokens: int) -> None:
        """Decide, before the first look-up for a request with *local_tokens*, whether its source may be asked."""
        if request.request_id in self._asked:
            return
        record = self._observer.record_of(request)
        if not record.by_tier or record.peer is None:
            return
        self._asked.add(request.request_id)
        record.local_tokens = local_tokens
        if self._peers.admit(record).remote:
            for tier in self.tiers:
                tier._penstock_before_lookup(request.request_id)
            return
        # Each of them: a list, so that none is left out.
        if any([tier._penstock_keep_local(request.request_id) for tier in self.tiers]):  # noqa: C419
            affected = Affected(
                request.request_id,
                local_tokens,
                self._expected(request, local_tokens),
                optional=True,
                trigger=Trigger.QUARANTINE,
            )
            self._settle(record, affected, self._peers.cause(record.peer.address), None)

    def on_promotions(self, promotions: Promotions, ended: Iterable[EndedPromotion]) -> None:
        """Take what has become of promotions and look-ups."""
        for each in ended:
            record = self._observer.record(each.request_id)
            failure = each.failure
            if failure is None:
                self._peers.on_promotion(record, each.peer, None)
                continue
            promotions.emit(each, record.present_attempt if record is not None else 1)
            self._peers.on_promotion(record, each.peer, PeerFailure(failure.mode, failure.error_type))
            request = self._scheduler.requests.get(each.request_id)
            # One outcome for a request: what failed once, vLLM does not ask for again.
            if record is not None and request is not None and each.request_id not in self._lost:
                self._lost.add(each.request_id)
                record.connector = promotions.connector
                affected = Affected(
                    each.request_id, record.local_tokens, self._lost_tokens(each, request), optional=True
                )
                failed = LoadFailure(each.request_id, failure.mode, failure.error_type, each.peer, 0)
                self._settle(record, affected, Cause(failure.mode, failure.error_type), failed)

    def on_promotion_begun(self, request_id: str) -> None:
        """Start the clock of the transfer of a request that waits in a look-up for its promotion."""
        self._deadlines.on_began(request_id)

    def give_up(self, record: RequestRecord) -> None:
        """Report and count that the source of a request, which is over a deadline in its look-up, did not answer or write in time."""
        overdue = self._deadlines.overdue(record.request_id)
        for tier in self.tiers if overdue is not None else ():
            ended = tier._penstock_give_up(record.request_id, overdue)
            if ended is not None:
                promotions = tier._penstock_promotions
                record.connector = promotions.connector
                promotions.emit(ended, record.present_attempt)
                failure = PeerFailure(ended.failure.mode, ended.failure.error_type)
                self._peers.on_promotion(record, ended.peer, failure)

    def on_finished(self, request_id: str) -> None:
        """Forget a request."""
        self._asked.discard(request_id)
        self._lost.discard(request_id)

    def _lost_tokens(self, ended: EndedPromotion, request: Any) -> int:
        """Return the tokens that a failed promotion would have brought."""
        local = self._observer.record_of(request).local_tokens
        if not ended.blocks:
            return self._expected(request, local)
        groups = len(rewind.block_sizes(self._scheduler))
        tokens = ended.blocks // groups * self._chunk_tokens
        return int(min(tokens, max(request.num_prompt_tokens - local, 0)))

    def _expected(self, request: Any, local_tokens: int) -> int:
        """Return the tokens that a request was to get from its source; 0 where only an answer could tell.

        A prefill engine has the whole chunks of a prompt; what another engine has, it says.
        """
        if not isinstance(request.kv_transfer_params.get(peers.REMOTE_PREFILLER), Mapping):
            return 0
        chunk = self._chunk_tokens
        return int(max(request.num_prompt_tokens // chunk * chunk - local_tokens, 0))

    @property
    def _chunk_tokens(self) -> int:
        spec = getattr(self.tiers[0], "_offloading_spec", None)
        return int(rewind.block_sizes(self._scheduler)[0]) * int(getattr(spec, "blocks_per_chunk", 1) or 1)
