"""Runs one relay until a signal ends it; its own metrics: its agents by state, and its process."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

import structlog
from penstock.agent.admin.authorization import AccessInterceptor
from penstock.agent.admin.router_feed import RouterFeed
from penstock.agent.aio import stop_event
from penstock.agent.page import PageServer, PageSource
from penstock.agent.relay.connection import AWAY, CONNECTING, UP
from penstock.agent.relay.discovery import AgentFinder, pod_reader, registry_reader
from penstock.agent.relay.ejections import EjectionBoard
from penstock.agent.relay.fleet import Fleet
from penstock.agent.relay.fleet_leader import Duties
from penstock.agent.relay.policies import open_source
from penstock.agent.relay.service import RelayCalls, RelayService
from penstock.agent.server import TcpAddress
from penstock.agent.server.feed_server import FeedServer
from penstock.agent.server.full_collections import short_full_collections
from penstock.agent.server.grpc_server import GrpcServer, raise_file_limit
from penstock.agent.server.http_server import HttpServer
from penstock.agent.server.page_tokens import PageTokens
from penstock.agent.server.tls import Certificates
from penstock.proto.v1 import admin_pb2_grpc
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Gauge,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

if TYPE_CHECKING:
    from penstock.agent.relay.config import RelayConfig
    from penstock.agent.relay.policies import FleetPolicies

_log = structlog.get_logger(__name__)
_ADMIN_MODE = 0o600
_LAST_CALLS_SECONDS = 1.0


AGENTS = "penstock_relay_agents"
LEASE_HELD = "penstock_relay_lease_held"
STATUS_PATCHES = "penstock_relay_status_patches"
ROLLOUT_ABORTS = "penstock_relay_rollout_aborts"
EJECTIONS = "penstock_relay_ejections"
EJECTIONS_HELD_BACK = "penstock_relay_ejections_held_back"


async def run(config: RelayConfig) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        PenstockError: an address cannot be bound, or a certificate cannot be used; one sentence.

    """
    stop = stop_event()
    raise_file_limit()
    async with AsyncExitStack() as parts:
        registries = {spec.name: registry_reader(spec, config.nats) for spec in config.agents.registries}
        pods = {
            each.name: pod_reader(each, config.kube_api, config.kube_token_file, config.kube_ca)
            for each in config.agents.pods
        }
        fleet = Fleet(AgentFinder(config.agents, {**registries, **pods}), config.agent_tls, config.deadline)
        parts.push_async_callback(fleet.close)
        following = asyncio.ensure_future(fleet.run())
        parts.push_async_callback(_ended, following)
        policies = _policies(config)
        board = EjectionBoard()
        duties = None if policies is None else Duties(policies, fleet, board)
        if duties is not None:
            parts.push_async_callback(duties.close)
            parts.push_async_callback(_ended, asyncio.ensure_future(duties.run()))

        def trouble() -> str:
            found = (fleet.trouble(), "" if duties is None else duties.trouble())
            return "; ".join(filter(None, found))

        tokens = PageTokens()
        service = RelayService(fleet, policies, None if duties is None else duties.leader, tokens, board)
        addresses = await _serve(config, service, RelayCalls(fleet.large), parts)
        http = HttpServer(config.http, lambda _: render_metrics(fleet, duties, board), str, str, trouble)
        await http.start()
        parts.push_async_callback(http.stop)
        if config.page is not None:
            page = PageServer(config.page, service, PageSource("relay", socket.gethostname()), tokens)
            parts.push_async_callback(page.stop)
            addresses |= await page.serve_if_free()
        if config.feed is not None:
            feed = FeedServer(config.feed, RouterFeed(service).content)
            parts.push_async_callback(feed.stop)
            await feed.start()
            addresses["feed"] = feed.url
        _log.info("relay started", http=str(http.address), **addresses)
        with short_full_collections():
            await stop.wait()
        _log.info("relay stopping")


async def _serve(
    config: RelayConfig, service: RelayService, calls: RelayCalls, parts: AsyncExitStack
) -> dict[str, str]:
    addresses = {}
    for address in config.admin_listen:
        over_tls = config.admin_tls if isinstance(address, TcpAddress) else None
        server = GrpcServer(
            address,
            "--admin-listen",
            _ADMIN_MODE,
            credentials=Certificates(over_tls).credentials() if over_tls else None,
            interceptors=[AccessInterceptor(over_tls.allow if over_tls else None), calls],
            # Its clients are people's commands, over any network; none of them holds what others need.
            patience=5.0,
        )
        admin_pb2_grpc.add_AdminServicer_to_server(service, server.server)  # type: ignore[no-untyped-call]
        parts.push_async_callback(server.stop, _LAST_CALLS_SECONDS)
        await server.start()
        addresses["admin_tcp" if over_tls else "admin"] = str(server.address)
    return addresses


def _policies(config: RelayConfig) -> FleetPolicies | None:
    spec = config.policy_source
    if spec is None:
        return None
    return open_source(
        spec, config.nats, api=config.kube_api, token_file=config.kube_token_file, ca=config.kube_ca
    )


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def render_metrics(
    fleet: Fleet, duties: Duties | None = None, board: EjectionBoard | None = None
) -> tuple[bytes, str]:
    """Return the exposition and its content type."""
    registry = CollectorRegistry()
    agents = Gauge(AGENTS, "Agents of this relay by state.", ["state"], registry=registry)
    states = Counter(agent.state for agent in fleet.agents())
    for state in (CONNECTING, UP, AWAY):
        agents.labels(state).set(states[state])
    if duties is not None:
        _add_duties(registry, duties, board or EjectionBoard())
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _add_duties(registry: CollectorRegistry, duties: Duties, board: EjectionBoard) -> None:
    held = Gauge(
        LEASE_HELD, "1 while this relay leads roll-outs and writes the status of policies.", registry=registry
    )
    held.set(duties.lease.held)
    aborts = Gauge(
        ROLLOUT_ABORTS, "Roll-outs that this relay has aborted by their comparison.", registry=registry
    )
    aborts.set(duties.leader.aborts)
    orders = Gauge(
        EJECTIONS,
        "Servers that this relay has taken out of rotation by policy, or would have.",
        ["result"],
        registry=registry,
    )
    for result in ("enforced", "observed", "refused"):
        orders.labels(result).set(board.orders[result])
    held_back = Gauge(
        EJECTIONS_HELD_BACK,
        "Servers that a rail keeps in rotation now, against the evidence.",
        registry=registry,
    )
    held_back.set(sum(each.word == "held_back" for each in board.verdicts))
    if duties.writer is None:
        return
    patches = Gauge(STATUS_PATCHES, "Writes of a policy's status.", ["result"], registry=registry)
    for result in ("ok", "failed"):
        patches.labels(result).set(duties.writer.patches[result])
