"""The scheduler's side of verified KV transfers: which requests are digested and compared, and what was found.

Prefill: the workers compute the digests in the step in which the prefill of a request ends, their report comes with the output of that
step, before vLLM asks the connector for the transfer parameters. Decode: the digest comes with the request; the workers get it with
the step in which its load begins. Without ``integrity`` in the policy nothing of it happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.vllm.compat import block_clipper, child_connectors
from penstock.instrumentation.vllm.kv.integrity.transfer_digest import (
    DIGESTS_MAX,
    KEY,
    decode_digest,
    encode_digest,
    encode_problem,
    join_ranks,
)
from penstock.instrumentation.vllm.messages import (
    CheckedLoad,
    DigestOrder,
    GroupBlocks,
    TransferDigest,
    VerifyOrder,
    with_children,
)
from penstock.rules import integrity_rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.instrumentation.vllm.messages import RankDigest, WorkerReport
    from penstock.instrumentation.vllm.naming import Peer
    from penstock.rules import IntegrityRule, Policy

_GUARD = guard("kv_connector")

_NO_DIGEST: Final = "no digest came with the request"
_NO_REPORT: Final = "the workers reported no comparison"


class _Offered(NamedTuple):
    """What the workers were asked to digest: the blocks of each group that the request has, and those that were asked about.

    *number*: of the order; what is reported for another one is out of date.
    """

    blocks: tuple[int, ...]
    orders: tuple[GroupBlocks, ...]
    number: int


class KvVerifier:
    """The verification of one scheduler's requests; on its thread, inside a guard. Each request's end removes what is kept of it."""

    def __init__(self, scheduler: Any) -> None:
        """Verify the transfers of *scheduler*, which is built but has not run."""
        self._scheduler = scheduler
        self._rule: IntegrityRule | None = None
        self._to_digest: set[str] = set()
        self._orders = 0
        self._offered: dict[str, _Offered] = {}
        self._digests: dict[str, list[RankDigest]] = {}
        self._to_verify: dict[str, TransferDigest | str] = {}
        self._starting: dict[str, TransferDigest] = {}
        self._loads: dict[str, list[CheckedLoad]] = {}

    def on_policy_change(self, policy: Policy) -> None:
        """Apply the policy that came into force; requests that have arrived keep what was decided about them."""
        self._rule = integrity_rule(policy)

    # Arrival and end of a request

    def on_request_added(self, request: Any) -> None:
        """Decide whether a request is digested or verified here."""
        rule, params = self._rule, request.kv_transfer_params
        if rule is None or not isinstance(params, dict):
            return
        request_id = request.request_id
        if params.get("do_remote_prefill"):
            if rule.samples(str(params.get("remote_request_id", ""))):
                value = params.get(KEY)
                self._to_verify[request_id] = _NO_DIGEST if value is None else decode_digest(value)
        elif params.get("do_remote_decode") and rule.samples(request_id):
            self._to_digest.add(request_id)

    def on_finished(self, request_id: str, peer: Peer | None, *, failed: bool) -> list[dict[str, Any]]:
        """Forget a request; return the fields of its ``Verification``, none if nothing was to be verified.

        Args:
            request_id: the request.
            peer: that it loaded from.
            failed: its load failed for another reason, so there was nothing to compare.

        """
        self._to_digest.discard(request_id)
        self.on_lost(request_id)
        self._to_verify.pop(request_id, None)
        self._starting.pop(request_id, None)
        found = self._loads.pop(request_id, None)
        if found is None or (failed and not found):
            return []
        return [_fields(found or [CheckedLoad(request_id, 0, 0, 0, _NO_REPORT)], peer)]

    # Prefill

    def _digest_orders(self, output: Any) -> tuple[DigestOrder, ...]:
        """Return the orders for requests whose prefill ends in the step with that scheduler's *output*."""
        orders = []
        for request_id in self._to_digest & output.num_scheduled_tokens.keys():
            with _GUARD:
                order = self._digest_order(request_id, output.num_scheduled_tokens[request_id])
                if order is not None:
                    orders.append(order)
        return tuple(orders)

    def _digest_order(self, request_id: str, scheduled: int) -> DigestOrder | None:
        """Return the order for a request if its prefill ends in this step; a prefill may end again, after a preemption."""
        request = self._scheduler.requests[request_id]
        if request.num_computed_tokens >= request.num_prompt_tokens:
            return None
        # What was digested before is computed again, and may differ in its last bits.
        self.on_lost(request_id)
        if request.num_computed_tokens + scheduled < request.num_prompt_tokens:
            return None
        offered = self._offer(request)
        if offered is None:
            return None
        self._offered[request_id] = offered
        return DigestOrder(request_id, offered.orders, offered.number)

    def _offer(self, request: Any) -> _Offered | None:
        scheduler, tokens = self._scheduler, request.num_prompt_tokens
        clip = _block_clipper(scheduler.connector)
        if clip is None:
            return None
        size = scheduler.vllm_config.cache_config.block_size
        groups = scheduler.kv_cache_manager.get_block_ids(request.request_id)
        if any(len(group) != -(-tokens // size) for group in groups):
            return None
        clipped = clip(groups)
        tail = (tokens - 1) % size + 1
        most = DIGESTS_MAX // _total_heads(scheduler.vllm_config) // max(1, len(clipped))
        orders = tuple(GroupBlocks(tuple(group[-most:]) if most else (), tail) for group in clipped)
        self._orders += 1
        return _Offered(tuple(map(len, clipped)), orders, self._orders)

    def on_lost(self, request_id: str) -> None:
        """Drop the digest of a request whose blocks are no longer those that were digested."""
        self._offered.pop(request_id, None)
        self._digests.pop(request_id, None)

    def add_digest(self, request_id: str, params: dict[str, Any] | None) -> None:
        """Put the digest of a finished request into the transfer *params* that the connector returns for it."""
        offered, ranks = self._offered.pop(request_id, None), self._digests.pop(request_id, None)
        if offered is None or not params or not ranks:
            return
        problem = next((rank.problem for rank in ranks if rank.problem), "")
        digest = problem or join_ranks(ranks, offered.blocks, offered.orders)
        params[KEY] = encode_problem(digest) if isinstance(digest, str) else encode_digest(digest)

    # Decode

    def on_load_begun(self, request_id: str) -> None:
        """Record that the remote load of a request begins with this step."""
        wanted = self._to_verify.pop(request_id, None)
        if isinstance(wanted, str):
            self._loads[request_id] = [CheckedLoad(request_id, 0, 0, 0, wanted)]
        elif wanted is not None:
            self._starting[request_id] = wanted

    def _verify_orders(self, metadata: Iterable[Any]) -> tuple[VerifyOrder, ...]:
        loads: set[str] = set()
        for each in metadata:
            loads.update(getattr(each, "reqs_to_recv", ()))
        orders = []
        for request_id, digest in self._starting.items():
            self._loads[request_id] = []
            if request_id in loads:
                enforce = self._rule is not None and self._rule.enforce
                orders.append(VerifyOrder(request_id, digest, enforce))
        self._starting.clear()
        return tuple(orders)

    # The workers

    def attach(self, metadata: Any, output: Any) -> None:
        """Put the orders of this step on its connector *metadata*; *output* is the scheduler's."""
        if not self._to_digest and not self._starting:
            return
        each_metadata: Sequence[Any] = with_children(metadata)
        verify = self._verify_orders(each_metadata) if self._starting else ()
        digest = self._digest_orders(output) if self._to_digest else ()
        for each in each_metadata:
            if digest:
                each.penstock_digest = digest
            if verify:
                each.penstock_verify = verify

    def on_reports(self, reports: Iterable[WorkerReport]) -> None:
        """Take what the workers have digested and compared in a step."""
        for report in reports:
            for digest in report.digests:
                offered = self._offered.get(digest.request_id)
                if offered is not None and offered.number == digest.number:
                    self._digests.setdefault(digest.request_id, []).append(digest)
            for checked in report.checked:
                found = self._loads.get(checked.request_id)
                if found is not None:
                    found.append(checked)


def _fields(found: Sequence[CheckedLoad], peer: Peer | None) -> dict[str, Any]:
    """Return the fields of ``Verification`` of one load, compared on every rank."""
    mismatch = any(each.mismatched for each in found)
    reason = next((each.reason for each in found if each.reason), "")
    fields: dict[str, Any] = {
        "channel": c.CHANNEL_KV,
        "compared": sum(each.compared for each in found),
        "transferred": sum(each.transferred for each in found),
        "mismatch" if mismatch else "unverified" if reason else "ok": 1,
    }
    if reason:
        fields["reason"] = reason
    if peer is not None:
        fields["peer"] = peer.fields()
    return fields


def _block_clipper(connector: Any) -> Any:
    """Return what NIXL's connector uses to name the blocks that it offers; None without one that does."""
    for each in (connector, *child_connectors(connector)):
        clip = block_clipper(getattr(each, "connector_scheduler", None))
        if clip is not None:
            return clip
    return None


def _total_heads(config: Any) -> int:
    model = config.model_config
    return 1 if model.use_mla else max(1, model.get_total_num_kv_heads())
