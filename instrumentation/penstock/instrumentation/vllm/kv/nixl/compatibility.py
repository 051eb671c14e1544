"""The factors of a NIXL compatibility hash: an engine's own, and those in which a peer differs.

vLLM exposes only a hash of a dozen factors. The factors that a process does not know have few possible values, so the hash is
recomputed with one or two factors changed until it matches. A match is proof; without one (another model, a vLLM that hashes
other factors) the result is empty.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.vllm.compat import open_factors, speculative_factors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_VERSIONS: Final = ("vllm_version", "nixl_connector_version")
_MINORS: Final = 6
_PATCHES: Final = 4
_CONNECTORS: Final = 4
_VALUE_MAX: Final = 200
_KNOWN_MAX: Final = 64


def differing_factors(
    factors: Mapping[str, Any],
    alternatives: Mapping[str, Sequence[Any]],
    remote_hash: str,
    hash_of: Callable[[dict[str, Any]], str],
) -> tuple[str, ...]:
    """Return the names of the one or two factors that differ; empty if no combination matches *remote_hash*.

    Pure; computes at most some thousand hashes. A pair with a version factor is tried only with the other one,
    because two releases differ in both.
    """
    for names in _choices(alternatives):
        for values in itertools.product(*(alternatives[name] for name in names)):
            if hash_of({**factors, **dict(zip(names, values, strict=True))}) == remote_hash:
                return names
    return ()


def _choices(alternatives: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, ...]]:
    yield from ((name,) for name in alternatives)
    for pair in itertools.combinations(alternatives, 2):
        if sum(name in _VERSIONS for name in pair) != 1:
            yield pair


class MismatchedFactors:
    """The factors in which peers differ from one worker, by their hash; on vLLM's handshake thread.

    vLLM forgets a failed handshake, so each request for such a peer begins another one, and some thousand hashes hold up the
    handshakes behind it: they are computed once for each of the newest peers' hashes.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, ...]] = {}

    def explain(self, worker: Any, remote_hash: str) -> tuple[str, ...]:
        """Return the names of the factors in which a peer with *remote_hash* differs from *worker*, empty if unknown."""
        found = self._known.get(remote_hash)
        if found is None:
            if len(self._known) >= _KNOWN_MAX:
                del self._known[next(iter(self._known))]
            found = self._known[remote_hash] = explain_mismatch(worker, remote_hash)
        return found


def explain_mismatch(worker: Any, remote_hash: str) -> tuple[str, ...]:
    """Compute what :meth:`MismatchedFactors.explain` returns."""
    from vllm.config.utils import hash_factors

    config = worker.vllm_config
    factors = _prove_factors(config, worker.compat_hash, [worker.backend_name])
    factors = factors or _prove_factors(config, worker.compat_hash, _backends())
    if factors is None:
        return ()
    return differing_factors(factors, _alternatives(factors), remote_hash, hash_factors)


def own_factors(vllm_config: Any, shown_hash: str) -> dict[str, str]:
    """Return the factors of the hash that an engine's workers expose, as text; empty if they cannot be proved.

    Computes at most some thousand hashes (tens of milliseconds): once, when an engine starts.
    """
    factors = _prove_factors(vllm_config, shown_hash, _backends()) or {}
    return {name: _text(value) for name, value in factors.items()}


def _text(value: Any) -> str:
    """Return *value* as valid UTF-8, truncated: a path may hold other bytes."""
    return str(value).encode("utf-8", "replace").decode()[:_VALUE_MAX]


def _prove_factors(config: Any, shown_hash: str, backends: Iterable[str]) -> dict[str, Any] | None:
    """Return the factors that match *shown_hash*; None if this vLLM hashes factors unknown here.

    The scheduler's process knows neither the workers' attention backends nor the direction of the transfers.
    """
    from vllm.config.utils import hash_factors

    known, unknown = _config_factors(config), open_factors()
    for backend in backends:
        for values in itertools.product(*unknown.values()):
            factors = {**known, "attn_backend_name": backend, **dict(zip(unknown, values, strict=True))}
            if hash_factors(factors) == shown_hash:
                return factors
    return None


def _backends() -> Iterator[str]:
    """Yield each attention backend, then each pair of them: a model may use two."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    names = sorted(each.name for each in AttentionBackendEnum)
    yield from names
    yield from map(",".join, itertools.combinations(names, 2))


def _config_factors(config: Any) -> dict[str, Any]:
    """Return the factors that vLLM's ``compute_nixl_compatibility_hash`` reads from the configuration."""
    from vllm import __version__
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import metadata

    model, cache = config.model_config, config.cache_config
    return {
        "vllm_version": __version__,
        "nixl_connector_version": metadata.NIXL_CONNECTOR_VERSION,
        "model": model.model,
        "dtype": str(model.dtype),
        "num_kv_heads": model.get_total_num_kv_heads(),
        "head_size": model.get_head_size(),
        "num_hidden_layers": model.get_total_num_hidden_layers(),
        "cache_dtype": str(cache.cache_dtype),
        "is_hma_enabled": not config.scheduler_config.disable_hybrid_kv_cache_manager,
        **speculative_factors(config),
    }


def _alternatives(factors: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the other possible values of each factor; factors with an open set of values are omitted."""
    from typing import get_args

    from vllm.config.cache import CacheDType
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    connector = int(factors["nixl_connector_version"])
    known: dict[str, Sequence[Any]] = {
        **open_factors(),
        "dtype": ["torch.bfloat16", "torch.float16", "torch.float32"],
        "cache_dtype": list(get_args(CacheDType)),
        "is_hma_enabled": [True, False],
        "attn_backend_name": [each.name for each in AttentionBackendEnum],
        "vllm_version": nearby_versions(str(factors["vllm_version"])),
        "nixl_connector_version": list(range(max(1, connector - _CONNECTORS), connector + _CONNECTORS + 1)),
    }
    return {name: [each for each in values if each != factors[name]] for name, values in known.items()}


def nearby_versions(version: str) -> list[str]:
    """Return the releases around *version* (``0.32.0``): six minor versions to either side, four patches each."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if match is None:
        return []
    major, minor = int(match[1]), int(match[2])
    return [
        f"{major}.{near}.{patch}"
        for near in range(max(0, minor - _MINORS), minor + _MINORS + 1)
        for patch in range(_PATCHES)
    ]
