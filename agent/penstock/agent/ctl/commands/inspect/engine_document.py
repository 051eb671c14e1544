"""One engine as a document: the output of ``describe engine -o json``, and its comparable part."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.agent.ctl.errors import FailedError, UsageError
from penstock.agent.ctl.options import engine_selector
from penstock.agent.model import EngineKey
from penstock.agent.parsing import no_engine
from penstock.agent.views import text
from penstock.agent.views.json_values import as_json_values
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import EngineKey as EngineKeyMessage

if TYPE_CHECKING:
    from penstock.agent.ctl.connection.client import Client

_MAX_CHARACTERS = 4 * 1024 * 1024
# Facts that always differ between engines, or are shown elsewhere.
_OWN = frozenset(
    {"kvEngineId", "startTime", "sideChannel", "labels", "role", "roleGuessed", "compatibilityHash",
     "compatibilityFactors"}
)  # fmt: skip
# Labels that only name the pod.
_PLACE = frozenset({"POD_NAME", "POD_UID", "NODE_NAME"})


def find_engine(client: Client, key: EngineKey) -> admin.Engine:
    """Return one engine.

    Raises:
        FailedError: no engine has that key.

    """
    request = admin.ListEnginesRequest(selector=engine_selector(engines=[key]))
    engines = client.call("ListEngines", request).engines
    if not engines:
        everything = client.call("ListEngines", admin.ListEnginesRequest()).engines
        raise FailedError(
            no_engine(key, [EngineKey(item.key.server, item.key.engine) for item in everything])
        )
    found: admin.Engine = engines[0]
    return found


def effective_policy(client: Client, key: EngineKey) -> admin.EffectivePolicy:
    """Return the merge of all policies in one engine."""
    message = EngineKeyMessage(server=key.server, engine=key.engine)
    found: admin.EffectivePolicy = client.call(
        "GetEffectivePolicy", admin.GetEffectivePolicyRequest(key=message)
    )
    return found


def described(client: Client, key: EngineKey) -> dict[str, Any]:
    """Return the document of one engine and its effective policy."""
    return document(find_engine(client, key), effective_policy(client, key))


def document(engine: admin.Engine, effective: admin.EffectivePolicy) -> dict[str, Any]:
    """Return an engine and its effective policy as JSON values."""
    return as_json_values(engine) | {"effectivePolicy": as_json_values(effective)}


def read_engine(path: str) -> dict[str, Any]:
    """Read a document of :func:`document` from a file, or from standard input for ``-``.

    Raises:
        UsageError: it cannot be read, or is something else.

    """
    try:
        if path == "-":
            content = sys.stdin.read(_MAX_CHARACTERS)
        else:
            with Path(path).open(encoding="utf-8") as stream:
                content = stream.read(_MAX_CHARACTERS)
        found = json.loads(content)
    except OSError as error:
        raise UsageError(f"{path!r} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path!r} is not JSON: {error}") from None
    if not (isinstance(found, dict) and isinstance(found.get("sources"), list) and "inSync" in found):
        raise UsageError(
            f"{path!r} is not an engine document; write one with 'agentctl describe engine ENGINE -o json'"
        )
    return found


def comparable(engine: dict[str, Any]) -> dict[str, Any]:
    """Return what two engines should share, and what is in force in them."""
    facts = engine.get("facts") or {}
    labels = engine.get("labels") or {}
    status = engine.get("policy") or {}
    effective = engine.get("effectivePolicy") or {}
    return {
        "role": engine.get("role"),
        "connected": engine.get("connected"),
        "paused": engine.get("paused"),
        "labels": {name: value for name, value in labels.items() if name not in _PLACE},
        **{name: value for name, value in facts.items() if name not in _OWN},
        "compatibility": {
            "hash": facts.get("compatibilityHash", ""),
            "factors": facts.get("compatibilityFactors") or {},
        },
        "penstock": _of_sources(engine, "penstockVersion"),
        "hooks": {
            hook["name"]: "installed" if hook["installed"] else f"not installed: {hook['reason']}"
            for source in engine.get("sources", ())
            for hook in source.get("hooks", ())
        },
        "missingParts": _missing_parts(engine),
        "policy": {
            "inForce": status.get("hash", ""),
            "inSync": engine.get("inSync"),
            "kvAction": status.get("kvAction", ""),
            "ecAction": status.get("ecAction", ""),
            **{
                field["field"]: _standing(engine, f"{field['newValue']} ({field['newPolicy']})")
                for field in effective.get("fields", ())
            },
        },
    }


def _missing_parts(engine: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return what each installed hook does without in any process, by hook and part."""
    found: dict[str, dict[str, str]] = {}
    for source in engine.get("sources", ()):
        for hook in source.get("hooks", ()):
            # A document of an earlier agentctl has no parts.
            for part in hook.get("missingParts", ()) if hook["installed"] else ():
                found.setdefault(hook["name"], {})[part["name"]] = f"without: {part['lost']}"
    return found


def _standing(engine: dict[str, Any], value: str) -> str:
    """Return *value* with its state: in force, paused, or wanted."""
    if engine.get("inSync"):
        return value
    return text.paused(value) if engine.get("paused") else f"wanted: {value}"


def _of_sources(engine: dict[str, Any], name: str) -> str:
    hellos = [source.get("hello") or {} for source in engine.get("sources", ())]
    return ", ".join(sorted({hello[name] for hello in hellos if hello.get(name)}))
