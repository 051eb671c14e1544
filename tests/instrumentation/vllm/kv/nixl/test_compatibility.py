"""Finding the factors in which two compatibility hashes differ."""

from __future__ import annotations

from typing import Any

import pytest
from penstock.instrumentation.vllm.kv.nixl import compatibility
from penstock.instrumentation.vllm.kv.nixl.compatibility import (
    MismatchedFactors,
    differing_factors,
    nearby_versions,
)

FACTORS = {
    "dtype": "float16",
    "transfer_mode": "pull",
    "vllm_version": "0.32.0",
    "nixl_connector_version": 14,
}

ALTERNATIVES: dict[str, list[Any]] = {
    "dtype": ["bfloat16", "float32"],
    "transfer_mode": ["push"],
    "vllm_version": ["0.33.0"],
    "nixl_connector_version": [15],
}


def hash_of(factors: dict[str, Any]) -> str:
    """Return a readable substitute for vLLM's hash."""
    return repr(sorted(factors.items()))


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"dtype": "float32"}, ("dtype",)),
        ({"transfer_mode": "push"}, ("transfer_mode",)),
        ({"dtype": "bfloat16", "transfer_mode": "push"}, ("dtype", "transfer_mode")),
        (
            {"vllm_version": "0.33.0", "nixl_connector_version": 15},
            ("vllm_version", "nixl_connector_version"),
        ),
        ({"dtype": "int4"}, ()),
        ({"model": "another"}, ()),
    ],
    ids=str,
)
def test_differing_factors(changes: dict[str, Any], names: tuple[str, ...]) -> None:
    """Differing factors are found if their values are known, and never guessed."""
    assert differing_factors(FACTORS, ALTERNATIVES, hash_of({**FACTORS, **changes}), hash_of) == names


def test_versions_near() -> None:
    """Releases of a fleet in the middle of an upgrade are candidates; a development version has none."""
    assert {"0.31.0", "0.32.1", "0.33.0"} <= set(nearby_versions("0.32.0"))
    assert nearby_versions("dev") == []


def test_a_peer_is_explained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each handshake with it fails again; of the hashes that peers show as many are kept as there may be."""
    asked: list[str] = []

    def explain(_worker: Any, remote_hash: str) -> tuple[str, ...]:
        asked.append(remote_hash)
        return ("dtype",) if remote_hash == "a" else ()

    monkeypatch.setattr(compatibility, "explain_mismatch", explain)
    known = MismatchedFactors()
    for _ in range(3):
        assert known.explain(None, "a") == ("dtype",)
        assert known.explain(None, "unknown") == ()
    assert asked == ["a", "unknown"]
    for number in range(200):
        known.explain(None, str(number))
    assert len(known._known) == 64
