"""The environment of an engine process, read once, validated and frozen.

:func:`load` never raises: it turns a wrong value into one log line and leaves Penstock off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.core.engine_log import logger
from penstock.proto.constants import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DOWNWARD_API: Final = ("POD_NAME", "POD_NAMESPACE", "POD_UID", "NODE_NAME")
KUBERNETES_ROLES: Final = MappingProxyType(
    {
        **{role: role for role in ROLES},
        "encode": "encoder",
        "encode-prefill": "prefill",
        "prefill-decode": "both",
        "encode-prefill-decode": "both",
    }
)
"""The roles of the label ``llm-d.ai/role``, and ours."""
MAX_LABELS: Final = 64
MAX_LABEL_BYTES: Final = 6 << 10
"""Of all keys and values together: the agent accepts a Hello of 8 KiB."""

# The kernel's limit of sun_path, with its closing zero byte.
_UNIX_PATH_MAX: Final = 107
_PORT_MAX: Final = 65535
_TCP = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9]([-.\w]*[A-Za-z0-9])?):(?P<port>\d{1,5})")
# Kubernetes' grammar of label keys (with an optional prefix), values and names.
_LABEL_KEY = re.compile(
    r"([a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?")


class SettingsError(ValueError):
    """A variable holds a wrong value; the text names variable, value and remedy."""


@dataclass(frozen=True)
class Settings:
    """The environment of one engine process.

    Attributes:
        endpoint: where the agent listens, in grpc's syntax: ``unix:///path`` or ``host:port``.
        server: name of this vLLM server; empty where the pod has one.
        labels: ``PENSTOCK_LABELS``, ``PENSTOCK_POD_LABELS`` and the downward API, at most 64.
        hooks_disabled: names of hooks that are not installed.
        allow_faults: whether this engine accepts a ``FaultDrill``.
        allow_stacks: whether this engine tells what its threads execute.

    """

    endpoint: str
    server: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    hooks_disabled: frozenset[str] = frozenset()
    allow_faults: bool = False
    allow_stacks: bool = False


def load(environ: Mapping[str, str]) -> Settings | None:
    """Return the settings, or None where ``PENSTOCK_ENDPOINT`` is unset or a value is wrong.

    A wrong value is logged once, in one line.
    """
    try:
        return parse(environ)
    except SettingsError as error:
        logger.error("penstock stays off: %s", error)
        return None


def parse(environ: Mapping[str, str]) -> Settings | None:
    """Return the settings, or None where ``PENSTOCK_ENDPOINT`` is unset.

    Raises:
        SettingsError: a variable holds a wrong value.

    """
    endpoint = environ.get("PENSTOCK_ENDPOINT", "").strip()
    if not endpoint:
        return None
    return Settings(
        endpoint=_endpoint(endpoint),
        server=_server(environ.get("PENSTOCK_SERVER", "")),
        labels=_labels(environ),
        hooks_disabled=_names(environ.get("PENSTOCK_HOOKS_DISABLED", "")),
        allow_faults=_switch("PENSTOCK_ALLOW_FAULTS", environ.get("PENSTOCK_ALLOW_FAULTS", "")),
        allow_stacks=_switch("PENSTOCK_ALLOW_STACKS", environ.get("PENSTOCK_ALLOW_STACKS", "")),
    )


def guard_raises(environ: Mapping[str, str]) -> bool:
    """Return whether the guard lets errors through (``PENSTOCK_GUARD=raise``, for tests only)."""
    return environ.get("PENSTOCK_GUARD", "") == "raise"


def _endpoint(value: str) -> str:
    if value.startswith("unix:"):
        path = value.removeprefix("unix://")
        if not path.startswith("/") or path == "/":
            raise SettingsError(
                f"PENSTOCK_ENDPOINT={value!r} does not name a socket; write unix:///run/penstock/ingest.sock"
            )
        if len(path.encode()) > _UNIX_PATH_MAX:
            raise SettingsError(
                f"PENSTOCK_ENDPOINT={value!r} is longer than the {_UNIX_PATH_MAX} bytes of a socket's path; "
                "put the socket into a shorter directory"
            )
        return value
    match = _TCP.fullmatch(value)
    if match is None or not 0 < int(match["port"]) <= _PORT_MAX:
        raise SettingsError(
            f"PENSTOCK_ENDPOINT={value!r} is neither unix:///path nor host:port; "
            "write unix:///run/penstock/ingest.sock or 127.0.0.1:4320"
        )
    return value


def _server(value: str) -> str:
    if _LABEL_VALUE.fullmatch(value) is None:
        raise SettingsError(
            f"PENSTOCK_SERVER={value!r} is not a name; use at most 63 letters, digits, '-', '_' or '.'"
        )
    return value


def _labels(environ: Mapping[str, str]) -> Mapping[str, str]:
    raw = environ.get("PENSTOCK_LABELS", "")
    # What is not UTF-8 in the environment arrives as surrogates, which nothing may send on.
    labels = {
        name: environ[name][:253].encode("utf-8", "replace").decode()
        for name in DOWNWARD_API
        if environ.get(name)
    }
    labels.update(_pod_labels(environ.get("PENSTOCK_POD_LABELS", "")))
    for key, value in _items("PENSTOCK_LABELS", raw):
        if key == "role" and value not in ROLES:
            raise SettingsError(
                f"PENSTOCK_LABELS={raw!r} has the role {value!r}; use one of {', '.join(ROLES)}"
            )
        labels[key] = value
    if len(labels) > MAX_LABELS:
        raise SettingsError(
            f"PENSTOCK_LABELS={raw!r} makes {len(labels)} labels; keep at most "
            f"{MAX_LABELS - len(DOWNWARD_API)}"
        )
    size = sum(len(key) + len(value) for key, value in labels.items())
    if size > MAX_LABEL_BYTES:
        raise SettingsError(
            f"PENSTOCK_LABELS={raw!r} makes labels of {size} characters in all; keep at most {MAX_LABEL_BYTES}"
        )
    return MappingProxyType(labels)


def _pod_labels(raw: str) -> dict[str, str]:
    """Return what Kubernetes says of the pod: without the labels that it does not have, and the role by our name.

    Other people's labels are no reason to stay off: a role that is not known is left out, and guessed as without it.
    """
    labels = {key: value for key, value in _items("PENSTOCK_POD_LABELS", raw) if value}
    role = labels.pop("role", "")
    if role in KUBERNETES_ROLES:
        labels["role"] = KUBERNETES_ROLES[role]
    elif role:
        logger.warning(
            "penstock guesses the role: PENSTOCK_POD_LABELS=%r has %r, which is none of %s",
            raw,
            role,
            ", ".join(KUBERNETES_ROLES),
        )
    return labels


def _items(variable: str, raw: str) -> Iterator[tuple[str, str]]:
    for item in filter(None, (part.strip() for part in raw.split(","))):
        key, equals, value = item.partition("=")
        if not equals or _LABEL_KEY.fullmatch(key) is None or _LABEL_VALUE.fullmatch(value) is None:
            raise SettingsError(
                f"{variable}={raw!r} has the item {item!r}, which is not key=value in Kubernetes' "
                "grammar of labels; write role=decode,tier=gold"
            )
        yield key, value


def _names(value: str) -> frozenset[str]:
    return frozenset(filter(None, (part.strip() for part in value.split(","))))


def _switch(variable: str, value: str) -> bool:
    if value in ("", "0"):
        return False
    if value == "1":
        return True
    raise SettingsError(f"{variable}={value!r} is neither 1 nor 0; set it to 1 or leave it out")
