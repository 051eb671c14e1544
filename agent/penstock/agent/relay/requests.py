"""What a relay asks one agent, of a request for all. Pure."""

from __future__ import annotations

from typing import Any

from penstock.agent.relay.engine_names import own_key, own_selector
from penstock.proto.v1 import admin_pb2 as admin

_NAMED = 5
# Which field names one engine.
_KEYS: dict[type[Any], str] = {
    admin.GetEffectivePolicyRequest: "key",
    admin.GetStacksRequest: "key",
    admin.ForgetRequest: "engine",
}


def for_agent(request: Any, agent: str) -> Any:
    """Return *request* with the engines' own names; None if it names only engines of other agents."""
    selector = getattr(request, "selector", None)
    if selector is not None and selector.engines:
        own = own_selector(selector, agent)
        return None if own is None else _with(request, "selector", own)
    field = _KEYS.get(type(request))
    if field is not None and request.HasField(field):
        key = own_key(getattr(request, field), agent)
        return None if key is None else _with(request, field, key)
    return request


def engines_of(request: Any) -> str:
    """Return the engines that a request names; empty for none."""
    keys = list(request.selector.engines) if hasattr(request, "selector") else []
    field = _KEYS.get(type(request))
    if field is not None and request.HasField(field):
        keys.append(getattr(request, field))
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return ", ".join(f"{key.server}/{key.engine}".lstrip("/") for key in keys[:_NAMED]) + more


def _with(request: Any, field: str, value: Any) -> Any:
    changed = type(request)()
    changed.CopyFrom(request)
    getattr(changed, field).CopyFrom(value)
    return changed
