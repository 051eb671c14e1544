"""vLLM's sleep mode takes a NIXL worker's KV caches from NIXL and gives them back: real workers, from vLLM 0.33 on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.engine.versions import from_version
from tests.support.kv.nixl_pair import Engine, connect, instrumented_engines, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.engine.recorder import Recorder

    MakeEngine = Callable[..., Engine]

pytestmark = from_version(0, 33, "its NIXL workers give their KV caches up while the engine sleeps")


@pytest.fixture
def make_engine(recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeEngine]:
    """Build instrumented engines."""
    del recorder
    prepare(monkeypatch, tmp_path)
    with instrumented_engines(tmp_path, monkeypatch) as make:
        yield make


def test_an_engine_sleeps_and_wakes(make_engine: MakeEngine, recorder: Recorder) -> None:
    """Each edge is one event; the snapshot says since when; a reader that shakes hands again reads as before."""
    prefill, decode = make_engine("kv_producer"), make_engine("kv_consumer")
    connect(prefill, decode)
    assert not recorder.snapshot().transfer.released_time_unix_nano

    for _ in range(2):  # vLLM may ask twice
        decode.connector.unregister_kv_caches()
    (asleep,) = recorder.take("kv_caches_released")
    assert (asleep.connector, asleep.restored, asleep.peers) == ("NixlConnector", False, 1)
    observer = decode.worker._penstock
    since = observer.caches_released_ns
    assert since
    assert not prefill.worker._penstock.caches_released_ns

    for _ in range(2):
        decode.connector.restore_kv_caches()
    _, awake = recorder.take("kv_caches_released")
    assert (awake.restored, awake.since_time_unix_nano) == (True, since)
    assert not observer.caches_released_ns
    prefill.lease("prefill-of-second")
    decode.read("second", prefill)
    decode.received("second")
    prefill.sent("prefill-of-second")
