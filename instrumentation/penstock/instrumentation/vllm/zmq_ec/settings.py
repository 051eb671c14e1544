"""``ZmqECConnector``'s configuration: vLLM's ``ec_*`` fields and ``ec_connector_extra_config``, checked once. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.instrumentation.vllm.naming import UNKNOWN, address
from penstock.instrumentation.vllm.zmq_ec.wire import CurveFiles

PRODUCERS_MAX: Final = 256

RETRIES_MAX: Final = 2

LOAD_FAILURE: Final = ("recompute", "fail")

_CURVE: Final = "curve_"
_CURVE_NAMES: Final = ("key_file", "allowed_clients", "server_key_file")


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """How a consumer fetches items; times in seconds.

    Attributes:
        producers: ``host:port`` of the producers that are asked for every item.
        allow_request_producers: a request's ``ec_transfer_params`` may name others. Clients choose these addresses.
        region_bytes: shared memory.
        probe_timeout: how long a request may wait to learn whether a producer has its item.
        start_timeout: how long a hit waits for room or for its turn.
        idle_timeout: how long a transfer may stand still.
        transfer_timeout: how long a transfer may take.
        retries: attempts after the first.
        missing_for: how long a miss is remembered.
        bad_for: how long an item whose load failed is not loaded again.
        load_failure: what happens to requests that waited for a failed load, while no observer decides.
        same_host: items of producers in the same process namespace are copied out of their memory.

    """

    producers: tuple[str, ...] = ()
    allow_request_producers: bool = False
    region_bytes: int = 1_000_000_000
    probe_timeout: float = 0.5
    start_timeout: float = 2.0
    idle_timeout: float = 2.0
    transfer_timeout: float = 30.0
    retries: int = 1
    missing_for: float = 1.0
    bad_for: float = 60.0
    load_failure: str = "recompute"
    same_host: bool = True

    @property
    def longest_wait(self) -> float:
        """The longest that an item can be pending."""
        once = self.probe_timeout + self.start_timeout + self.transfer_timeout
        return once * (self.retries + 1) + 1.0


@dataclass(frozen=True, slots=True)
class ZmqEcSettings:
    """The whole configuration; *model* is the name that both sides share, *host_cache_bytes* a producer's memory."""

    host: str
    port: int
    model: str
    host_cache_bytes: int
    consumer: ConsumerSettings
    curve: CurveFiles


def load(
    extra: Mapping[str, Any], *, ip: str, port: int, buffer_bytes: float, model: str, data_parallel_index: int
) -> ZmqEcSettings:
    """Return the settings; *buffer_bytes* (vLLM's ``ec_buffer_size``) is the size of either memory unless *extra* says it.

    Raises:
        ValueError: a value is wrong; says which, and what is possible.

    """
    left = dict(extra)
    buffer = int(buffer_bytes)
    settings = ZmqEcSettings(
        host=ip,
        port=port + data_parallel_index if port else 0,
        model=_text(left, "model", model),
        host_cache_bytes=_count(left, "host_cache_bytes", buffer, 1 << 16),
        consumer=ConsumerSettings(
            producers=_producers(left.pop("producers", ())),
            allow_request_producers=_flag(left, "allow_request_producers"),
            region_bytes=_count(left, "region_bytes", buffer, 1 << 16),
            probe_timeout=_seconds(left, "probe_timeout", 0.5),
            start_timeout=_seconds(left, "start_timeout", 2.0),
            idle_timeout=_seconds(left, "idle_timeout", 2.0),
            transfer_timeout=_seconds(left, "transfer_timeout", 30.0),
            retries=_count(left, "retries", 1, 0, RETRIES_MAX),
            missing_for=_seconds(left, "missing_for", 1.0),
            bad_for=_seconds(left, "bad_for", 60.0),
            load_failure=_choice(left, "load_failure", LOAD_FAILURE),
            same_host=_flag(left, "same_host", default=True),
        ),
        curve=CurveFiles(**{name: _path(left, f"{_CURVE}{name}") for name in _CURVE_NAMES}),
    )
    if left:
        raise ValueError(
            f"ec_connector_extra_config of ZmqECConnector has unknown keys: {', '.join(sorted(map(str, left)))}. "
            "Known are model, host_cache_bytes, "
            + ", ".join(
                sorted(ConsumerSettings.__dataclass_fields__) + [_CURVE + name for name in _CURVE_NAMES]
            )
            + "."
        )
    return settings


def named_producer(params: Any, item: str) -> tuple[str, ...]:
    """Return the producer that a request's ``ec_transfer_params`` name for *item*, if its address is valid."""
    entry = params.get(item) if isinstance(params, Mapping) else None
    if not isinstance(entry, Mapping):
        return ()
    found = address(entry.get("peer_host"), entry.get("peer_port"))
    return () if found == UNKNOWN else (found,)


def _producers(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or len(value) > PRODUCERS_MAX:
        raise ValueError(f"producers must be a list of at most {PRODUCERS_MAX} addresses, not {value!r:.200}")
    found = []
    for each in value:
        host, _, port = each.rpartition(":") if isinstance(each, str) else ("", "", "")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        checked = address(host, port)
        if checked == UNKNOWN:
            raise ValueError(f"producers has {each!r:.200}, which is no host:port")
        found.append(checked)
    return tuple(dict.fromkeys(found))


def _text(left: dict[str, Any], key: str, default: str) -> str:
    value = left.pop(key, default)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} must be a text, not {value!r:.200}")
    return value


def _path(left: dict[str, Any], key: str) -> str:
    """Return an absolute path, empty without one: the engine's processes need not share a working directory."""
    value = left.pop(key, "")
    if not isinstance(value, str) or (value and not value.startswith("/")):
        raise ValueError(f"{key} must be an absolute path, not {value!r:.200}")
    return value


def _flag(left: dict[str, Any], key: str, *, default: bool = False) -> bool:
    value = left.pop(key, default)
    if not isinstance(value, bool):
        raise ValueError(f"{key} must be true or false, not {value!r:.200}")  # noqa: TRY004
    return value


def _count(left: dict[str, Any], key: str, default: int, least: int, most: int = 1 << 50) -> int:
    value = left.pop(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{key} must be a whole number from {least} to {most}, not {value!r:.200}")
    return value


def _seconds(left: dict[str, Any], key: str, default: float) -> float:
    value = left.pop(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 3600:  # noqa: PLR2004
        raise ValueError(f"{key} must be seconds, more than 0 and at most 3600, not {value!r:.200}")
    return float(value)


def _choice(left: dict[str, Any], key: str, choices: tuple[str, ...]) -> str:
    value = left.pop(key, choices[0])
    if value not in choices:
        raise ValueError(f"{key} must be {' or '.join(choices)}, not {value!r:.200}")
    return str(value)
