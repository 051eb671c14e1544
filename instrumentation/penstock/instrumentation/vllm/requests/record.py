"""The record of a live request, from its arrival in the scheduler to its end.

``kv_transfer_params`` are read at arrival, because the connector changes them in place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.messages import peer_at
from penstock.instrumentation.vllm.naming import Peer, peers
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.messages import LoadFailure, Misread
    from penstock.instrumentation.vllm.requests.affected import UnreportedOutcome
    from penstock.instrumentation.vllm.requests.gates import RequestGates

# The front end appends eight hexadecimal digits to the id that it makes from X-Request-Id.
_SUFFIX: Final = re.compile(r"-[0-9a-f]{8}$")


@dataclass(slots=True)
class RequestRecord:
    """One request in this scheduler; times are wall clock in nanoseconds, 0 for "not yet".

    Attributes:
        kv_role: ``ROLE_PREFILL`` if its KV is to be read elsewhere, ``ROLE_DECODE`` if it reads another's, else 0.
        peer: the peer that its KV comes from.
        by_tier: role and peer are those of vLLM's P2P tier: nothing is leased to its reader, and what the peer does not have is a miss.
        client_id: the caller's X-Request-Id, where the front end passes it beside the trace context and not in the id.
        attempt: number of remote loads that were begun for it.
        local_tokens: tokens before those of the last remote load.
        external_tokens: tokens of the last remote load.
        connector: the connector that moved something for it last; empty where that is not known.
        failure: the first failure that a worker reported of the present attempt.
        decided: the attempt whose outcome is decided, 0 for none.
        unreported: what was decided about the present attempt while some ranks still load.
        collateral: the present attempt is no load of its own: it shares blocks with one that failed.
        timed_out: its load was ended by a deadline.
        stays_local: it was rewound, so the next answer to "what is there to load?" is nothing, until it is scheduled.
        rewound: a policy has sent it back at least once.
        probe: the number by which its load decides about a half-open peer, 0 for none.
        ec_attempt: number of its loads of encoder outputs that were decided about.
        verifications: fields of its ``Verification`` messages, known at its end.
        ec_lost: number of encoder outputs that it has lost by that.
        gates: what it waits for before its first token; None if it arrived unobserved.
        interruptions: how often the observation had been interrupted when it arrived; -1 if it arrived unobserved.
        nans: NaNs among the logits of its tokens; None where vLLM has not counted them.
        misread: the attempt whose blocks were read from another engine than it names, and what a worker said of that.
        preempted_ns: when it lost its blocks last.
        reflex: why a reflex has given its present load up, or left it out.
        would: why one would have, but only reports; told at the end of its wait.

    """

    request_id: str
    kv_role: int = c.ROLE_UNSPECIFIED
    peer: Peer | None = None
    by_tier: bool = False
    remote_request_id: str = ""
    traceparent: str = ""
    tracestate: str = ""
    client_id: str = ""
    arrival_ns: int = 0
    scheduled_ns: int = 0
    first_token_ns: int = 0
    local_cached_tokens: int = 0
    external_cached_tokens: int = 0
    attempt: int = 0
    local_tokens: int = 0
    external_tokens: int = 0
    connector: str = ""
    failure: LoadFailure | None = None
    decided: int = 0
    unreported: UnreportedOutcome | None = None
    collateral: bool = False
    timed_out: bool = False
    stays_local: bool = False
    rewound: bool = False
    probe: int = 0
    ec_attempt: int = 0
    ec_lost: int = 0
    gates: RequestGates | None = None
    interruptions: int = -1
    nans: int | None = None
    preempted_ns: int = 0
    reflex: str = ""
    would: str = ""
    verifications: Sequence[dict[str, Any]] = ()
    misread: tuple[int, Misread] | None = None

    @property
    def present_attempt(self) -> int:
        """The number of the present load, from 1."""
        return max(self.attempt, 1)

    @property
    def load_peer(self) -> Peer | None:
        """The peer of the present load: the one that failed, else the one that the request names."""
        return self.failure.peer if self.failure is not None else self.peer

    @property
    def caused_by(self) -> Peer | None:
        """The peer that made the present load from another one fail, where it is known."""
        culprit = self.failure.culprit if self.failure is not None else None
        return culprit.peer if culprit is not None else None

    def origin(self, place: str) -> Peer:
        """Return the other end of a load from *place* (``messages/transfers.py``).

        What the tiers of an offloading connector bring from no single place has none, although one of them may be the peer.
        """
        return Peer() if self.by_tier and not place else peer_at(place, self.peer)

    @property
    def is_decided(self) -> bool:
        """Whether the outcome of the present attempt is decided."""
        return self.decided >= self.present_attempt

    @property
    def given_up(self) -> bool:
        """Whether a reflex has given its present load up, and a worker has ended it by that."""
        return bool(self.reflex) and self.failure is not None and self.failure.given_up

    def begin_load(self, external_tokens: int, *, collateral: bool = False) -> None:
        """Record that the next remote load begins, or with *collateral* that another's failure affects it."""
        self.attempt += 1
        self.external_tokens = external_tokens
        self.failure = None
        self.collateral = collateral
        self.timed_out = False
        self.reflex = ""

    def on_misread(self, misread: Misread) -> None:
        """Record that blocks of the present attempt were read from another engine, or that it was the same one after all."""
        same = misread.owner == c.ADDRESS_OWNER_SAME
        self.misread = None if same else (self.present_attempt, misread)

    @property
    def used_misread(self) -> Misread | None:
        """What was read from another engine and not lost again; None for nothing."""
        if self.misread is None or self.decided >= self.misread[0]:
            return None
        attempt, misread = self.misread
        return None if self.failure is not None and attempt == self.present_attempt else misread

    def on_scheduled(self, request: Any, now_ns: int) -> None:
        """Record the first time that it is scheduled, with its cached tokens."""
        if self.scheduled_ns:
            return
        self.scheduled_ns = now_ns
        if self.gates is not None:
            self.gates.on_scheduled(now_ns)
        stats = request.prefill_stats
        if stats is not None:
            self.local_cached_tokens = stats.num_local_cached_tokens
            self.external_cached_tokens = stats.num_external_cached_tokens

    def has_token(self, request: Any, now_ns: int, interruptions: int = 0) -> bool:
        """Record the first token if it is there, else what is computed so far; tell whether it is.

        *interruptions*: how often the observation was interrupted so far. If that is since the request arrived, it is not
        known when the token came.
        """
        if self.first_token_ns:
            return True
        gates = self.gates
        if request.num_output_tokens:
            came_ns = now_ns if gates is None else gates.end(now_ns, interruptions)
            if self.watched(interruptions):
                self.first_token_ns = came_ns
            return True
        if gates is not None and gates.lost_until:
            gates.on_computed(request.num_computed_tokens, now_ns)
        return False

    def watched(self, interruptions: int) -> bool:
        """Return whether all of it was observed, where there were so many *interruptions* so far."""
        return self.interruptions == interruptions

    def unloaded_tokens(self, request: Any, block_size: int) -> int:
        """Return the prompt tokens of a request that was to load them, and that it computed although nothing says why.

        A load that was begun, refused or failed says why. Up to a block is computed after a full hit of the local cache, too.
        What the P2P tier does not find is a miss.
        """
        if (
            self.kv_role != c.ROLE_DECODE
            or self.by_tier
            or self.attempt
            or self.decided
            or not self.first_token_ns
        ):
            return 0
        computed: int = request.num_prompt_tokens - self.local_cached_tokens - self.external_cached_tokens
        return computed if computed > max(block_size, 1) else 0

    def closed_fields(self, request: Any, leased_blocks: int, ending: str) -> dict[str, Any]:
        """Return the fields of ``RequestClosed``; *ending* is vLLM's word for why it ended."""
        fields: dict[str, Any] = {
            "traceparent": self.traceparent,
            "tracestate": self.tracestate,
            "external_request_id": self.client_id or external_id(self.request_id),
            "kv_role": self.kv_role,
            "remote_request_id": self.remote_request_id,
            "arrival_time_unix_nano": self.arrival_ns,
            "scheduled_time_unix_nano": self.scheduled_ns,
            "first_token_time_unix_nano": self.first_token_ns,
            "prompt_tokens": request.num_prompt_tokens,
            "output_tokens": request.num_output_tokens,
            "local_cached_tokens": self.local_cached_tokens,
            "external_cached_tokens": self.external_cached_tokens,
            "preemptions": request.num_preemptions,
            "finish_reason": ending,
            "leased_blocks": leased_blocks,
        }
        if self.peer is not None:
            fields["peer"] = self.peer.fields()
        gates = self.gates.fields() if self.gates is not None else None
        if gates is not None:
            fields["gates"] = gates
        if self.nans is not None:
            fields["nans_in_logits"] = self.nans
        if self.verifications:
            fields["verifications"] = list(self.verifications)
        return fields


def capture(request: Any) -> RequestRecord:
    """Return the record of a vLLM ``Request`` that arrives."""
    given = request.kv_transfer_params
    # They are the client's: vllm_xargs can put anything there.
    params: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    headers: Mapping[str, str] = request.trace_headers or {}
    role, peer, by_tier = kv_role(params), peers.from_params(params), False
    if not role and peer is None:
        peer = peers.of_tier(params)
        role = _tier_role(params, peer)
        by_tier = bool(role)
    return RequestRecord(
        request_id=request.request_id,
        kv_role=role,
        peer=peer,
        by_tier=by_tier,
        remote_request_id=peers.identifier(params.get("remote_request_id")),
        traceparent=headers.get("traceparent", ""),
        tracestate=headers.get("tracestate", ""),
        # Dynamo's workers get it so; vLLM's own server makes it part of the request's id.
        client_id=peers.identifier(headers.get("x-request-id")),
        arrival_ns=int(request.arrival_time * NANOS),
    )


def kv_role(params: Mapping[str, Any]) -> int:
    """Return what a request does here by its ``kv_transfer_params``: ``ROLE_PREFILL``, ``ROLE_DECODE`` or 0."""
    if params.get("do_remote_prefill"):
        return c.ROLE_DECODE
    if params.get("do_remote_decode"):
        return c.ROLE_PREFILL
    return c.ROLE_UNSPECIFIED


def _tier_role(params: Mapping[str, Any], source: Peer | None) -> int:
    """Return the same by the parameters of the P2P tier; *source* is the engine that they name."""
    if source is not None:
        return c.ROLE_DECODE
    return c.ROLE_PREFILL if isinstance(params.get(peers.REMOTE_DECODER), Mapping) else c.ROLE_UNSPECIFIED


def external_id(request_id: str) -> str:
    """Return the id that the client saw, without the random suffix of vLLM's internal one."""
    return _SUFFIX.sub("", request_id)


def finish_reason(request: Any) -> str:
    """Return vLLM's word for why a finished request ended; empty if it has none."""
    reason = request.get_finished_reason()
    return "" if reason is None else str(reason)
