"""The ``Admin`` service: one line a call, and one place where errors become statuses.

A call not listed answers UNIMPLEMENTED, by the generated base.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from penstock.agent.admin.calls import (
    bills,
    bundles,
    deliveries,
    diagnoses,
    engines,
    events,
    orders,
    pairs,
    peers,
    policies,
    requests,
    rollouts,
    status,
    suspects,
    what_if,
)
from penstock.agent.errors import ImpossibleError, PenstockError
from penstock.agent.server.grpc_server import MAX_SEND_BYTES
from penstock.agent.server.status_codes import Call, abort_with
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import admin_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from google.protobuf.message import Message
    from penstock.agent.admin.lookups import AgentContext

Request = TypeVar("Request")
Response = TypeVar("Response", bound="Message")


def _unary(
    call: Callable[[AgentContext, Request], Awaitable[Response]],
) -> Callable[[AdminService, Request, Call], Awaitable[Response]]:
    async def method(self: AdminService, request: Request, context: Call) -> Response:
        try:
            return _checked(await call(self.agent, request))
        except PenstockError as error:
            await abort_with(context, error)

    return method


def _checked(response: Response) -> Response:
    """Return *response*; raise ImpossibleError if it exceeds the size that gRPC sends."""
    size = response.ByteSize()
    if size > MAX_SEND_BYTES:
        raise ImpossibleError(
            f"the response has {size >> 20} MiB, the limit is {MAX_SEND_BYTES >> 20}; narrow the request"
        )
    return response


def _stream(
    call: Callable[[AgentContext, Request], AsyncIterator[Response]],
) -> Callable[[AdminService, Request, Call], AsyncIterator[Response]]:
    async def method(self: AdminService, request: Request, context: Call) -> AsyncIterator[Response]:
        try:
            async for response in call(self.agent, request):
                yield response
        except PenstockError as error:
            await abort_with(context, error)

    return method


class AdminService(admin_pb2_grpc.AdminServicer):
    """The methods of ``penstock.v1.Admin``."""

    def __init__(self, agent: AgentContext) -> None:
        self.agent = agent
        self._tail = events.NewEntrySignal(agent.journal)

    def close(self) -> None:
        """End the calls that follow the log."""
        self._tail.close()

    GetStatus = _unary(status.get_status)

    ApplyPolicy = _unary(policies.apply_policy)
    DeletePolicy = _unary(policies.delete_policy)
    RollbackPolicy = _unary(policies.rollback_policy)
    ListPolicies = _unary(policies.list_policies)
    GetEffectivePolicy = _unary(policies.get_effective_policy)
    ListAudit = _unary(policies.list_audit)
    ExportPolicies = _unary(policies.export_policies)
    ImportPolicies = _unary(policies.import_policies)

    SetPolicyRollout = _unary(rollouts.set_policy_rollout)
    ListPolicyRollouts = _unary(rollouts.list_policy_rollouts)

    WatchRollout = _stream(deliveries.watch_rollout)
    SetPaused = _stream(deliveries.set_paused)

    ListEngines = _unary(engines.list_engines)
    ListPeers = _unary(peers.list_peers)
    ListPairs = _unary(pairs.list_pairs_of)
    GetSignals = _unary(engines.get_signals)
    ListRequests = _unary(requests.list_requests)
    ListHolders = _unary(requests.list_holders)
    ListSuspects = _unary(suspects.list_suspects)

    SetQuarantine = _unary(orders.set_quarantine)
    ListQuarantines = _unary(orders.list_quarantines)
    SetEjection = _unary(orders.set_ejection)
    ListEjections = _unary(engines.list_ejections)
    StartDrill = _unary(orders.start_drill)
    StopDrill = _unary(orders.stop_drill)
    ListDrills = _unary(orders.list_drills)

    ListEvents = _unary(events.list_events)
    GetTrace = _unary(events.get_trace_of)
    Explain = _unary(requests.explain_of)
    Diagnose = _unary(diagnoses.diagnose_engines)
    WhatIf = _unary(what_if.what_if)
    GetBill = _unary(bills.get_bill)

    GetStacks = _unary(engines.get_stacks)
    Backup = _unary(status.backup)
    GetBundle = _stream(bundles.get_bundle)
    Forget = _unary(engines.forget)

    IssuePageToken = _unary(status.issue_page_token)

    async def WatchEvents(  # noqa: N802  (the wire's name)
        self,
        request: admin.ListEventsRequest,
        context: Call,
    ) -> AsyncIterator[admin.LoggedEvent]:
        """Follow the log until the caller or the agent ends."""
        try:
            async for event in events.watch_events(self.agent, self._tail, request):
                yield event
        except PenstockError as error:
            await abort_with(context, error)
