"""The mixin over vLLM's ``P2PSecondaryTierManager``: its requests, jobs, sessions, and vLLM's back-off from a peer."""

from __future__ import annotations

import math
import time
from abc import ABC
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.tiering.promotions import Source
from penstock.instrumentation.vllm.naming import Failure, Peer, cut, peers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.vllm.kv.tiering.promotions import EndedPromotion, Promotions
    from penstock.proto.v1.snapshot_pb2 import Snapshot
    from penstock.rules import Overdue

_GUARD = guard("kv_p2p_tier")
_LOAD_SECONDS: Final = 30.0
"""How long vLLM waits for the end of a load, where it does not say."""

# vLLM's own words for why a session died (0.33); 0.32 has none.
_REASONS: Final = (
    ("handshake timed out", c.ERROR_TYPE_TIMEOUT),
    ("timed out", c.ERROR_TYPE_TIMEOUT),
    ("rejected peer connect", c.ERROR_TYPE_INCOMPATIBLE),
    ("protocol error", c.ERROR_TYPE_DECODE),
    ("peer disconnected", c.ERROR_TYPE_REMOTE_RESET),
    ("control connection lost", c.ERROR_TYPE_REMOTE_RESET),
)


class PromotionListener(Protocol):
    """Who decides about the requests of a tier; on the scheduler's thread, inside a step."""

    def on_promotions(self, promotions: Promotions, ended: Iterable[EndedPromotion]) -> None:
        """Take what has become of *promotions*, emit their failures."""

    def on_promotion_begun(self, request_id: str) -> None:
        """Take that a request waits for a promotion whose source is reached."""


class P2pTierMixin(ABC):  # noqa: B024  (like the tier's own base: the layouts must agree for a swap)
    """Over a P2P tier. vLLM's calls pass unchanged; nothing is done for each block or look-up."""

    _penstock_promotions: Promotions | None = None
    _penstock_listener: PromotionListener | None = None

    def on_new_request(self, req_context: Any) -> Any:
        """Record the source of a request, and whether vLLM opens no session to it."""
        upstream: Any = super()
        promotions = self._penstock_promotions
        if promotions is not None and runtime.active:
            with _GUARD:
                peer = peers.of_tier(req_context.kv_transfer_params)
                if peer is not None:
                    promotions.on_request(req_context.req_id, _source(req_context, peer))
        answer = upstream.on_new_request(req_context)
        if promotions is not None and runtime.active:
            with _GUARD:
                self._penstock_on_session(promotions, req_context.req_id)
        return answer

    def on_request_finished(self, req_context: Any) -> Any:
        """Forget a request."""
        upstream: Any = super()
        promotions, over = self._penstock_promotions, None
        if promotions is not None:
            with _GUARD:
                over = promotions.on_request_ended(req_context.req_id)
        result = upstream.on_request_finished(req_context)
        if over is not None:
            with _GUARD:
                self._penstock_keep_blocks(over)
        return result

    def submit_load(self, job_metadata: Any) -> Any:
        """Record a promotion, and why it is not asked for if its session is gone."""
        upstream: Any = super()
        promotions = self._penstock_promotions
        if promotions is not None and runtime.active:
            with _GUARD:
                request_id = job_metadata.req_context.req_id
                promotions.on_submitted(job_metadata.job_id, request_id, len(job_metadata.keys))
                tier: Any = self
                source = promotions.source_of(request_id)
                if source is not None and source.name not in tier._sessions:
                    text = "the session to the source is gone, nothing was asked for"
                    lost = Failure(c.FAILURE_MODE_SETUP, c.ERROR_TYPE_OTHER, error_text=text)
                    promotions.on_not_posted(job_metadata.job_id, lost)
        return upstream.submit_load(job_metadata)

    def get_finished_jobs(self) -> Any:
        """Report the promotions that have ended; on the scheduler's thread, or on the tier's own."""
        upstream: Any = super()
        results = upstream.get_finished_jobs()
        promotions = self._penstock_promotions
        # Each look counts: the time of a promotion that has not ended is known by it.
        if promotions is not None:
            with _GUARD:
                promotions.on_finished(results or ())
        return results

    def _reap_dead_sessions(self) -> Any:
        """Record why sessions end, and which look-ups stay without an answer."""
        upstream: Any = super()
        promotions = self._penstock_promotions
        tier: Any = self
        lost: dict[str, Failure] = {}
        if promotions is not None and runtime.active:
            with _GUARD:
                lost = {
                    peer_id: session_failure(session)
                    for peer_id, session in tier._sessions.items()
                    if session.connected and not session.alive
                }
        if promotions is None or not lost:
            return upstream._reap_dead_sessions()
        before = {}
        with _GUARD:
            before = {peer_id: _unanswered(tier._sessions[peer_id]) for peer_id in lost}
            for peer_id, failure in lost.items():
                promotions.on_peer_lost(_named(peer_id), failure)
        result = upstream._reap_dead_sessions()
        with _GUARD:
            for peer_id, keys in before.items():
                promotions.on_unanswered(keys, lost[peer_id])
        return result

    def on_schedule_end(self, context: Any) -> Any:
        """Pass on what has become of promotions since the last step."""
        upstream: Any = super()
        result = upstream.on_schedule_end(context)
        promotions, listener = self._penstock_promotions, self._penstock_listener
        if promotions is not None:
            with _GUARD:
                if listener is not None:
                    for request_id in promotions.begun(self._penstock_reached):
                        listener.on_promotion_begun(request_id)
                ended = promotions.take()
                if ended and listener is not None and runtime.active:
                    listener.on_promotions(promotions, ended)
        return result

    def _penstock_on_session(self, promotions: Promotions, request_id: str) -> None:
        """Report a request to whose source vLLM opens no session."""
        tier: Any = self
        source = promotions.source_of(request_id)
        if source is None or source.key not in tier._failed_req_ids or source.name in tier._sessions:
            return
        # What made vLLM back off was a failure of its own.
        mode = c.FAILURE_MODE_COLLATERAL
        if _backoff_seconds(self, source.name) > 0:
            text = "vLLM backs off from the source after a fault"
        elif len(tier._sessions) >= _peers_max():
            text = "this engine has as many peers as it may (VLLM_P2P_MAX_PEERS)"
        else:
            mode, text = c.FAILURE_MODE_SETUP, "no session to the source could be opened"
        promotions.on_refused(request_id, Failure(mode, c.ERROR_TYPE_OTHER, error_text=text))

    def _penstock_before_lookup(self, request_id: str) -> None:
        """Report a request whose session is gone before its first look-up, which is a miss then."""
        promotions = self._penstock_promotions
        source = promotions.source_of(request_id) if promotions is not None else None
        tier: Any = self
        if promotions is None or source is None or source.name in tier._sessions:
            return
        if source.key not in tier._failed_req_ids:
            text = "the session to the source ended before it was asked"
            promotions.on_refused(
                request_id, Failure(c.FAILURE_MODE_SETUP, c.ERROR_TYPE_OTHER, error_text=text)
            )

    def _penstock_keep_local(self, request_id: str) -> bool:
        """Have a request find nothing at its source, as vLLM does after a failure; tell whether it has one here."""
        promotions = self._penstock_promotions
        source = promotions.source_of(request_id) if promotions is not None else None
        if source is not None:
            tier: Any = self
            # Until the request ends.
            tier._failed_req_ids.add(source.key)
        return source is not None

    def _penstock_give_up(self, request_id: str, overdue: Overdue) -> EndedPromotion | None:
        """Give up a request that is over a deadline; return that as its failure if its source owes it an answer or blocks."""
        promotions = self._penstock_promotions
        source = promotions.source_of(request_id) if promotions is not None else None
        if promotions is None or source is None:
            return None
        asked = self._penstock_asked(source)
        if asked is None or not (asked.loads or None in asked.probes.copy().values()):
            return None
        return promotions.give_up(request_id, overdue)

    def _penstock_keep_blocks(self, source: Source) -> None:
        """Let vLLM wait as long for the end of loads that a deadline gave up as without a deadline.

        The source may write until it has acknowledged the abort; the blocks are another request's when vLLM stops waiting for that.
        """
        asked = self._penstock_asked(source)
        for load in asked.loads.values() if asked is not None else ():
            if load.aborted_at is not None:
                load.aborted_at = max(load.aborted_at, load.submitted_at + load_seconds())

    def _penstock_asked(self, source: Source) -> Any:
        """Return vLLM's state of a request at its source: look-ups and loads; None if nothing is asked there."""
        tier: Any = self
        session = tier._sessions.get(source.name)
        return session._client._requests.get(source.key) if session is not None else None

    def _penstock_reached(self, name: str) -> bool:
        tier: Any = self
        session = tier._sessions.get(name)
        return session is not None and bool(session.ready)

    def _penstock_fill(self, snapshot: Snapshot) -> None:
        """Add the promotions in flight and the peers; on the exporter's thread, reads only."""
        promotions = self._penstock_promotions
        if promotions is None:
            return
        promotions.fill(snapshot)
        tier: Any = self
        backing_off = {peer_id for peer_id in _backoffs(self).copy() if _backoff_seconds(self, peer_id) > 0}
        now, monotonic = time.time(), time.monotonic()
        sessions = tier._sessions.copy()
        for peer_id, session in sessions.items():
            snapshot.peers.add(
                peer=Peer(_named(peer_id)).fields(),
                connected=bool(session.ready and session.alive),
                upstream_invalid=peer_id in backing_off,
                last_active_unix_nano=_last_active(session, now, monotonic),
            )
        for peer_id in backing_off.difference(sessions):
            snapshot.peers.add(peer=Peer(_named(peer_id)).fields(), upstream_invalid=True)


def session_failure(session: Any) -> Failure:
    """Return why a session that has died did: while its handshake went on, or later."""
    reason = str(getattr(session, "death_reason", ""))
    mode = c.FAILURE_MODE_TRANSFER if session.ready else c.FAILURE_MODE_HANDSHAKE
    known = next((error_type for words, error_type in _REASONS if words in reason), None)
    if reason:
        return Failure(mode, c.ERROR_TYPE_OTHER if known is None else known, error_text=cut(reason))
    if session.ready:
        text = "the session with the source ended"
        return Failure(mode, c.ERROR_TYPE_REMOTE_RESET, error_text=text)
    since = getattr(session, "_connected_at", None)
    if since is not None and time.monotonic() - since > _handshake_seconds():
        return Failure(mode, c.ERROR_TYPE_TIMEOUT, error_text="the source did not complete the handshake")
    return Failure(mode, c.ERROR_TYPE_OTHER, error_text="the session ended before the handshake did")


def load_seconds() -> float:
    """Return how long vLLM waits for the end of a load before it aborts it."""
    from vllm.v1.kv_offload.tiering.p2p.session import client

    return float(getattr(client, "_LOAD_TIMEOUT_S", _LOAD_SECONDS))


def _last_active(session: Any, now: float, monotonic: float) -> int:
    """Return when a session last moved, wall clock in nanoseconds; 0 until 0.31, which does not know."""
    at = getattr(session, "last_activity_at", None)
    return int((now + at - monotonic) * 1e9) if at is not None else 0


def _unanswered(session: Any) -> list[str]:
    """Return the requests that wait for an answer to a look-up of a session."""
    return [
        key
        for key, state in session._client._requests.items()
        if not state.loads and any(hit is None for hit in state.probes.values())
    ]


def _backoffs(tier: Any) -> dict[str, Any]:
    """Return vLLM's own back-offs by peer; until 0.33 it has none."""
    found: dict[str, Any] = getattr(tier, "_reconnect_backoff", None) or {}
    return found


def _backoff_seconds(tier: Any, peer_id: str) -> float:
    return float(tier._reconnect_wait(peer_id)) if peer_id in _backoffs(tier) else 0.0


def _source(req_context: Any, peer: Peer) -> Source:
    """Return the source of a request that has one."""
    params = req_context.kv_transfer_params
    source = params.get(peers.REMOTE_PREFILLER)
    if source is None:
        source = params.get(peers.REMOTE_KV_SOURCE)
    return Source(source["kv_request_id"], peer, f"{source['remote_host']}:{source['remote_port']}")


def _named(peer_id: str) -> str:
    """Return vLLM's name of a peer as an address."""
    host, _, port = str(peer_id).rpartition(":")
    return peers.address(host, port)


def _handshake_seconds() -> float:
    """Return how long vLLM waits for a peer's half of the handshake; until 0.31 it waits on."""
    from vllm import envs

    return float(getattr(envs, "VLLM_P2P_HANDSHAKE_TIMEOUT_S", math.inf))


def _peers_max() -> float:
    """Return how many sessions vLLM opens; until 0.31 there is no limit."""
    from vllm import envs

    return float(getattr(envs, "VLLM_P2P_MAX_PEERS", math.inf))
