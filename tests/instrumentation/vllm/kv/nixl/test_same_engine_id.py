"""Two engines with one connector engine id (a manifest that fixes it): vLLM keeps peers by their ids and reads from the first."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from penstock.instrumentation.core import constants as c
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

from tests.support.engine.recorder import recording
from tests.support.kv import nixl_pair
from tests.support.kv.nixl_pair import HOST, Engine, instrumented_engines, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.engine.recorder import Recorder

    MakeEngine = Callable[..., Engine]

FIXED = "fixed-by-the-manifest"
PUSH = "NixlPushConnector"


@pytest.fixture(scope="module")
def make_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeEngine]:
    """Build instrumented engines, which live until the module is done."""
    with pytest.MonkeyPatch.context() as monkeypatch, recording(monkeypatch):
        directory = tmp_path_factory.mktemp("nixl")
        prepare(monkeypatch, directory)
        with instrumented_engines(directory, monkeypatch) as make:
            yield make


def with_fixed_id(make_engine: MakeEngine, role: str, connector: str = "NixlConnector") -> Engine:
    """Build an engine whose manifest fixes its connector engine id."""
    plain = nixl_pair.config

    def fixed(*arguments: Any) -> Any:
        found = plain(*arguments)
        found.kv_transfer_config.engine_id = FIXED
        return found

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(nixl_pair, "config", fixed)
        return make_engine(role, connector=connector)


@pytest.fixture(scope="module")
def twins(make_engine: MakeEngine) -> tuple[Engine, Engine]:
    """Build two prefill engines whose manifest gives both the same id."""
    return with_fixed_id(make_engine, "kv_producer"), with_fixed_id(make_engine, "kv_producer")


def load(decode: Engine, request_id: str, prefill: Engine, **named: Any) -> list[Any]:
    """Let *decode* load what *prefill* leases; return what its worker says of reads from another engine."""
    prefill.lease(f"prefill-of-{request_id}")
    decode.read(request_id, prefill, **named)
    decode.received(request_id)
    return misread(decode)


def misread(decode: Engine) -> list[Any]:
    """Return what a worker has reported of reads from another engine since its last read."""
    return [each for _, _, report in decode._answers if report is not None for each in report.misread]


def owner_known(decode: Engine, engine_id: str, address: str) -> int:
    """Return who answers at an address, once a second handshake has told."""
    other = decode.worker._penstock.handshakes.last(engine_id).others[address]
    deadline = time.monotonic() + nixl_pair.DEADLINE
    while other.owner == c.ADDRESS_OWNER_UNSPECIFIED and not other.dismissed:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return int(other.owner)


def test_the_first_is_read(twins: tuple[Engine, Engine], make_engine: MakeEngine, recorder: Recorder) -> None:
    """What is asked of the second comes from the first: reported as such, with the first one's address."""
    one, two = twins
    decode = make_engine("kv_consumer")
    assert load(decode, "a", one) == []
    one.sent("prefill-of-a")
    assert [each["peer"] for each in recorder.transfers] == [one.address]
    assert not any(peer.other_addresses for peer in recorder.snapshot().peers)

    load(decode, "b", two)
    assert torch.equal(decode.cache[[1, 2, 3]], one.cache[[4, 5, 6]])
    assert [each["peer"] for each in recorder.transfers] == [one.address] * 2
    assert owner_known(decode, FIXED, two.address) == c.ADDRESS_OWNER_OTHER
    decode.step()
    told = misread(decode)
    assert {(each.request_id, each.peer.address, each.named.address) for each in told} == {
        ("b", one.address, two.address)
    }
    assert told[-1].owner == c.ADDRESS_OWNER_OTHER

    (third,) = load(decode, "c", two)
    assert (third.request_id, third.owner) == ("c", c.ADDRESS_OWNER_OTHER)
    (peer,) = [each for each in recorder.snapshot().peers if each.peer.engine_id == FIXED]
    assert peer.peer.address == one.address
    (other,) = peer.other_addresses
    assert (other.address, other.owner, other.transfers) == (two.address, c.ADDRESS_OWNER_OTHER, 2)
    assert other.first_time_unix_nano > 0
    recorder.events.clear()


def test_a_heartbeat_is_enough(
    twins: tuple[Engine, Engine], make_engine: MakeEngine, recorder: Recorder
) -> None:
    """Heartbeats for waiting requests name the second one, too: it is known before anything is read from the first."""
    one, two = twins
    decode = make_engine("kv_consumer")
    load(decode, "a", one)
    decode.heartbeat(FIXED, two.port)
    assert owner_known(decode, FIXED, two.address) == c.ADDRESS_OWNER_OTHER
    decode.step()
    assert misread(decode) == []
    (other,) = [each for peer in recorder.snapshot().peers for each in peer.other_addresses]
    assert (other.owner, other.transfers) == (c.ADDRESS_OWNER_OTHER, 0)
    recorder.events.clear()


def test_one_engine_with_two_addresses(
    make_engine: MakeEngine, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host name instead of its address is the same process: what was said before it answered is taken back."""
    prefill, decode = make_engine("kv_producer"), make_engine("kv_consumer")
    load(decode, "a", prefill)
    with monkeypatch.context() as other_name:
        other_name.setattr(nixl_pair, "HOST", "localhost")
        load(decode, "b", prefill)
    assert owner_known(decode, prefill.id, f"localhost:{prefill.port}") == c.ADDRESS_OWNER_SAME
    decode.step()
    assert [each.owner for each in misread(decode)][-1:] in ([], [c.ADDRESS_OWNER_SAME])
    assert not any(peer.other_addresses for peer in recorder.snapshot().peers)
    decode._answers.clear()
    with monkeypatch.context() as other_name:
        other_name.setattr(nixl_pair, "HOST", "localhost")
        assert load(decode, "c", prefill) == []
    assert {each["peer"] for each in recorder.transfers} == {prefill.address}
    recorder.events.clear()


def test_an_address_of_another_id(make_engine: MakeEngine, recorder: Recorder) -> None:
    """A request that names a wrong address for an id that one engine alone has, is read from that: nobody is accused."""
    prefill, stranger, decode = (make_engine(f"kv_{role}") for role in ("producer", "producer", "consumer"))
    load(decode, "a", prefill)
    load(decode, "b", prefill, port=stranger.port)
    assert owner_known(decode, prefill.id, stranger.address) == c.ADDRESS_OWNER_UNSPECIFIED
    decode.step()
    assert [each.owner for each in misread(decode)][-1:] in ([], [c.ADDRESS_OWNER_SAME])
    assert not any(peer.other_addresses for peer in recorder.snapshot().peers)
    recorder.events.clear()


def test_a_new_id_at_an_address(make_engine: MakeEngine, recorder: Recorder) -> None:
    """An engine that was restarted has its old address and another id: that is ordinary."""
    first, decode = make_engine("kv_producer"), make_engine("kv_consumer")
    load(decode, "a", first)
    with pytest.MonkeyPatch.context() as monkeypatch:
        first._listener.shutdown()
        monkeypatch.setattr(nixl_pair, "free_port", lambda: first.port)
        second = make_engine("kv_producer")
    assert second.address == first.address
    assert load(decode, "b", second) == []
    assert torch.equal(decode.cache[[1, 2, 3]], second.cache[[4, 5, 6]])
    assert not any(peer.other_addresses for peer in recorder.snapshot().peers)
    assert HOST in second.address
    recorder.events.clear()


def test_the_reader_has_the_id_too(
    twins: tuple[Engine, Engine], make_engine: MakeEngine, recorder: Recorder
) -> None:
    """VLLM registers no peer under its own id: such a load fails at the handshake, and reads nothing wrong."""
    one, _ = twins
    decode = with_fixed_id(make_engine, "kv_consumer")
    one.lease("prefill-of-a")
    decode.read("a", one)
    decode.step_until(lambda answer: answer[0].failed_recving, "the load fails")
    (failure,) = recorder.take("transfer_failure", "a")
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_INCOMPATIBLE)
    assert "local engine" in failure.error_text
    assert failure.peer.address == one.address
    recorder.events.clear()


def test_push_writes_into_the_first(make_engine: MakeEngine, recorder: Recorder) -> None:
    """Push mode: what the second of two decode engines with one id registers for is written into the first one's cache.

    The prefill side knows it of the peer; which answers of the first are wrong is known to nobody, and the second waits.
    """
    prefill = make_engine("kv_producer", connector=PUSH)
    one, two = (with_fixed_id(make_engine, "kv_consumer", PUSH) for _ in range(2))
    for decode, request in ((one, "a"), (two, "b")):
        decode.await_push(f"{request}-0000000d", prefill)
        prefill.push(f"{request}-0000000f")
        if decode is one:
            prefill.both_until(one, lambda _, his: "a-0000000d" in his[0].finished_recving, "the first write")
            one.cache[1:4] = 0.0
    prefill.both_until(two, lambda _, __: len(recorder.transfers) == 2, "the second write")
    assert [each["peer"] for each in recorder.transfers] == [one.address] * 2
    assert torch.equal(one.cache[1:4], prefill.cache[4:7])
    assert not torch.equal(two.cache[1:4], prefill.cache[4:7])
    # An earlier vLLM's writes have a handshake of their own, which does not tell whom the second asks for.
    if not hasattr(prefill.worker, "_ensure_d_handshake"):
        assert owner_known(prefill, FIXED, two.address) == c.ADDRESS_OWNER_OTHER
        (other,) = [each for peer in recorder.snapshot().peers for each in peer.other_addresses]
        assert (other.address, other.owner) == (two.address, c.ADDRESS_OWNER_OTHER)
    assert not any(misread(each) for each in (prefill, one, two))
    recorder.events.clear()


def test_children_of_a_multi_connector_have_the_engine_s_id() -> None:
    """VLLM takes an ``engine_id`` of a child and gives its own beside it: the engine does not start."""

    def children(**own: str) -> Any:
        child = {"kv_connector": "NixlConnector", "kv_role": "kv_both", **own}
        whole = KVTransferConfig(
            kv_connector="MultiConnector",
            kv_role="kv_both",
            engine_id=FIXED,
            kv_connector_extra_config={"connectors": [child]},
        )
        config: Any = SimpleNamespace(kv_transfer_config=whole)
        return MultiConnector._get_connector_classes_and_configs(config)

    ((_, child),) = children()
    assert child.kv_transfer_config.engine_id == FIXED
    with pytest.raises(TypeError, match="engine_id"):
        children(engine_id="its own")
