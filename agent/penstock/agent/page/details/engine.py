"""One engine: what ``agentctl describe engine`` prints, and its policy by field."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.page.details.arguments import engine_of, selector_of
from penstock.agent.page.details.detail import Detail, Link, sentences, table_section, text_section
from penstock.agent.page.wire import AdminCalls, AnswerError, about, plain
from penstock.agent.views import text
from penstock.agent.views.engines import engine_description
from penstock.agent.views.tables import Table
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Mapping


async def engine_detail(calls: AdminCalls, query: Mapping[str, str]) -> Detail:
    """Return facts, labels, hooks, sources, peers and the effective policy of an engine."""
    key = engine_of(query, "key")
    if key is None:
        raise AnswerError(400, "key is missing")
    selector, name = selector_of(key), text.engine(key)
    engines = (await calls.call("ListEngines", admin.ListEnginesRequest(selector=selector))).engines
    if not engines:
        raise AnswerError(404, f"engine {name!r} not found; 'agentctl get engines' lists them")
    effective = await calls.call("GetEffectivePolicy", admin.GetEffectivePolicyRequest(key=key))
    peers = (await calls.call("ListPeers", admin.ListPeersRequest(selector=selector))).peers
    holders = (await calls.call("ListHolders", admin.ListHoldersRequest(selector=selector))).holders
    _, *lines = engine_description(engines[0], effective, list(peers), calls.clock(), holders)
    policies = policy_fields(effective)
    links = [Link("policy", name=field.new_policy) for field in effective.fields]
    return Detail(
        title=plain(f"Engine {name}"),
        sentences=sentences(stall.sentence for stall in engines[0].stalls),
        command=about("describe", "engine", name=name),
        sections=(
            table_section(
                "Policy",
                policies,
                sentence=""
                if policies.rows
                else "no policy selects it; vLLM's own configuration is in force",
                links=links,
            ),
            text_section("Engine", lines),
        ),
    )


def policy_fields(effective: admin.EffectivePolicy) -> Table:
    """Return the fields of a merged policy with the policy that gives each. Pure."""
    names = {each.name: text.policies([each], "") for each in effective.policies}
    rows: list[tuple[str, ...]] = [
        (field.field, field.new_value, names.get(field.new_policy, field.new_policy))
        for field in effective.fields
    ]
    return Table(("FIELD", "VALUE", "POLICY"), rows)
