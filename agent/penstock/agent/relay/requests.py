"""What a relay asks one agent, of a request for all. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.agent.relay.engine_names import own_key, own_selector
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAMED = 5
_LISTED = 20
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


def which_agent(asked: str, known: Iterable[str]) -> str:
    """Return a sentence about a call that needs one agent, for a name that is empty or not *known*."""
    names = sorted(known)
    more = f" and {len(names) - _LISTED} more; 'agentctl doctor' names all" if len(names) > _LISTED else ""
    listed = (", ".join(names[:_LISTED]) or "none") + more
    if asked:
        return f"this relay has no agent {asked!r}; it has {listed}"
    return f"a bundle is of one agent; name it with --agent: {listed}"


def _with(request: Any, field: str, value: Any) -> Any:
    changed = type(request)()
    changed.CopyFrom(request)
    getattr(changed, field).CopyFrom(value)
    return changed
