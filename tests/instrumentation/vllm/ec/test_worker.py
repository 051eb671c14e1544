"""The worker's side, over vLLM's own ECExampleConnector and files that are missing, cut short or something else."""

from __future__ import annotations

import pickle
import warnings
import zlib
from typing import TYPE_CHECKING, Any

import pytest
import torch
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core.settings import Settings
from penstock.instrumentation.orders import Drill
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.ec import fingerprints
from penstock.instrumentation.vllm.ec.hook import EcConnectorHook
from penstock.instrumentation.vllm.ec.item_checks import Placeholders
from penstock.instrumentation.vllm.ec.worker import EcWorker
from penstock.instrumentation.vllm.messages.worker_report import (
    CheckedItem,
    EcReport,
    ItemFailure,
    checked_items,
    failed_items,
)

from tests.support.engine import schedulers
from tests.support.engine.versions import encoder_output

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    import safetensors.torch
    from transformers import PretrainedConfig
    from vllm.config import ECTransferConfig
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
    from vllm.distributed.ec_transfer.ec_connector.example_connector import (
        ECExampleConnector,
        ECExampleConnectorMetadata,
        MMMeta,
    )
    from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.engine.recorder import Recorder

    MakeWorker = Callable[..., Any]

ROWS, WIDTH = 4, 64
GOOD = torch.arange(ROWS * WIDTH, dtype=torch.float32).reshape(ROWS, WIDTH)


@pytest.fixture
def make_worker(recorder: Recorder, tmp_path: Path) -> Iterator[MakeWorker]:
    """Build a worker's ECExampleConnector over files below ``tmp_path``, instrumented."""
    hook = EcConnectorHook()
    hook.install()

    def make(role: str = "ec_consumer", widths: dict[str, int] | None = None) -> Any:
        config = schedulers.vllm_config(tmp_path)
        config.ec_transfer_config = ECTransferConfig(
            ec_connector="ECExampleConnector",
            ec_role=role,
            ec_connector_extra_config={"shared_storage_path": str(tmp_path)},
        )
        config.ec_transfer_config.mm_encoder_output_widths = widths or {}
        return ECConnectorFactory.create_connector(config, ECConnectorRole.WORKER)

    yield make
    hook.uninstall()


def put(
    directory: Path, item: str, tensor: torch.Tensor = GOOD, *, key: str = "ec_cache", cut: int = 0
) -> None:
    """Write the file of an item; *cut* takes so many bytes from its end."""
    (directory / item).mkdir(exist_ok=True)
    path = directory / item / "encoder_cache.safetensors"
    safetensors.torch.save_file({key: tensor.contiguous()}, path)
    if cut:
        path.write_bytes(path.read_bytes()[:-cut])


def step(worker: Any, cache: dict[str, Any], *items: str, guarded: bool = True, **attributes: Any) -> Any:
    """Let the worker load the items as vLLM's runner does; return its worker metadata."""
    metadata = ECExampleConnectorMetadata()
    for item in items:
        metadata.add_mm_data(MMMeta.make_meta(item, ROWS))
    metadata.penstock_items = tuple((item, ROWS, "image", f"of-{item}") for item in items)
    if guarded:
        metadata.penstock_guarded = True
    for name, value in attributes.items():
        setattr(metadata, name, value)
    worker.bind_connector_metadata(pickle.loads(pickle.dumps(metadata)))
    worker.start_load_caches(cache)
    report = worker.build_connector_worker_meta()
    worker.clear_connector_metadata()
    return report


class _Plain:
    """A connector."""

    is_producer = False


class _Knowing(_Plain):
    """One that knows the checksums of its items."""

    def checksum(self, _item: str) -> None:
        """Return none."""


@pytest.mark.parametrize("connector", [_Plain, _Knowing])
def test_the_library_of_fingerprints_is_imported_at_start(
    connector: type[_Plain], recorder: Recorder, tmp_path: Path
) -> None:
    """The first step that compares does not wait for it; a connector without checksums does not need it."""
    fingerprints._cipher.cache_clear()
    config = schedulers.vllm_config(tmp_path)
    config.ec_transfer_config = ECTransferConfig(ec_connector="ECExampleConnector", ec_role="ec_consumer")
    EcWorker(config, connector())
    assert fingerprints._cipher.cache_info().currsize == (connector is _Knowing)


BROKEN: dict[str, tuple[dict[str, Any] | None, int, str]] = {
    "missing": (None, c.ERROR_TYPE_EVICTED, "No such file"),
    "cut short": ({"cut": 8}, c.ERROR_TYPE_CORRUPT, ""),
    "empty": ({"cut": 10**9}, c.ERROR_TYPE_CORRUPT, ""),
    "something else": ({"key": "other"}, c.ERROR_TYPE_CORRUPT, "ec_cache"),
    "rows missing": ({"tensor": GOOD[:-1]}, c.ERROR_TYPE_CORRUPT, "shape (3, 64), 4 rows"),
    "flat": ({"tensor": GOOD.flatten()}, c.ERROR_TYPE_CORRUPT, "4 rows"),
    "too narrow": ({"tensor": GOOD[:, :-1]}, c.ERROR_TYPE_CORRUPT, "63 wide, embeddings here are 64 wide"),
    "no embedding": ({"tensor": GOOD.to(torch.int8)}, c.ERROR_TYPE_CORRUPT, "no embedding"),
}


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("how", BROKEN)
def test_one_broken_of_three(
    how: str, position: int, make_worker: MakeWorker, recorder: Recorder, tmp_path: Path
) -> None:
    """A guarded step gives the broken item a placeholder of the right shape and loads the others; the report names it alone."""
    arguments, error_type, text = BROKEN[how]
    names = ["a", "b", "c"]
    broken = names[position]
    for name in names:
        if name != broken:
            put(tmp_path, name)
        elif arguments is not None:
            put(tmp_path, name, **arguments)
    cache: dict[str, Any] = {}
    report = step(make_worker(), cache, *names)
    assert cache.keys() == set(names)
    for name, tensor in cache.items():
        assert torch.equal(tensor, torch.zeros_like(GOOD) if name == broken else GOOD)
    assert report == EcReport((ItemFailure(broken, c.FAILURE_MODE_LOAD, error_type),))
    (failure,) = recorder.take("transfer_failure", f"of-{broken}")
    assert (failure.channel, failure.mode, failure.error_type, failure.item, failure.connector) == (
        c.CHANNEL_EC,
        c.FAILURE_MODE_LOAD,
        error_type,
        broken,
        "ECExampleConnector",
    )
    assert text in failure.error_text
    assert {each["request_id"]: each["result"] for each in recorder.transfers} == {
        f"of-{name}": c.TRANSFER_RESULT_ERROR if name == broken else c.TRANSFER_RESULT_OK for name in names
    }


def test_all_broken(make_worker: MakeWorker, recorder: Recorder) -> None:
    """With every file gone, each is tried once and each is reported."""
    cache: dict[str, Any] = {}
    names = [f"item{index}" for index in range(20)]
    report = step(make_worker(), cache, *names)
    assert [each.item for each in report.failures] == names
    assert len(recorder.take("transfer_failure")) == 20


def last_words(monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> list[int]:
    """Return how many failures had been told whenever the agent was to have what was emitted so far."""
    told: list[int] = []

    def flush(_seconds: float) -> None:
        told.append(sum(event.HasField("transfer_failure") for event in recorder.events))

    monkeypatch.setattr(runtime, "flush", flush)
    return told


def test_vllms_own_behaviour_where_it_is_not_guarded(
    make_worker: MakeWorker, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connector's exception propagates unchanged and is reported at once; other errors are not reported."""
    worker = make_worker()
    told = last_words(monkeypatch, recorder)
    put(tmp_path, "wrong", GOOD[:-1])
    cache: dict[str, Any] = {}
    assert step(worker, cache, "wrong", guarded=False) is None
    assert cache["wrong"].shape[0] == ROWS - 1
    with pytest.raises(FileNotFoundError):
        step(worker, {}, "gone", guarded=False)
    assert told == [1]
    (failure,) = recorder.take("transfer_failure")
    assert (failure.item, failure.error_class) == ("gone", "FileNotFoundError")


def test_passive_without_orders(make_worker: MakeWorker, recorder: Recorder, tmp_path: Path) -> None:
    """Metadata without our attributes is loaded as if we were not there."""
    worker = make_worker()
    put(tmp_path, "a")
    metadata = ECExampleConnectorMetadata()
    metadata.add_mm_data(MMMeta.make_meta("a", ROWS))
    worker.bind_connector_metadata(metadata)
    cache: dict[str, Any] = {}
    worker.start_load_caches(cache)
    assert torch.equal(cache["a"], GOOD)
    assert worker.build_connector_worker_meta() is None
    assert not recorder.transfers
    assert type(worker).__name__ == "ECExampleConnector"
    assert isinstance(worker, ECExampleConnector)


def test_a_placeholder_is_never_taken_for_the_item(
    make_worker: MakeWorker, recorder: Recorder, tmp_path: Path
) -> None:
    """It is neither published nor found in the place of the item when that is loaded again."""
    worker = make_worker("ec_both")
    cache: dict[str, Any] = {"held": GOOD}
    step(worker, cache, "late")
    assert worker._penstock_worker.without_placeholders(cache).keys() == {"held"}
    put(tmp_path, "late")
    assert step(worker, cache, "late") is None
    assert torch.equal(cache["late"], GOOD)
    assert worker._penstock_worker.without_placeholders(cache) is cache


def test_shapes_are_learnt(make_worker: MakeWorker, recorder: Recorder, tmp_path: Path) -> None:
    """What was encoded here shows width and type; an item that differs is broken, a placeholder is like it."""
    worker = make_worker()
    wide = torch.ones((ROWS, 3 * WIDTH), dtype=torch.bfloat16)
    step(worker, {}, penstock_encodes={"mine": "image", "sound": "audio"})
    worker.save_caches({"mine": wide}, "mine")
    worker.save_caches({"sound": GOOD}, "sound")  # says nothing about images
    worker.save_caches({"unknown": GOOD}, "unknown")
    assert not recorder.transfers  # a consumer saves nothing
    put(tmp_path, "narrow", GOOD.to(torch.bfloat16))
    put(tmp_path, "precise", torch.ones((ROWS, 3 * WIDTH)))
    put(tmp_path, "right", wide)
    cache: dict[str, Any] = {}
    report = step(worker, cache, "narrow", "precise", "right")
    assert [each.item for each in report.failures] == ["narrow", "precise"]
    assert {(tensor.shape, tensor.dtype) for tensor in cache.values()} == {(wide.shape, wide.dtype)}
    texts = [failure.error_text for failure in recorder.take("transfer_failure")]
    assert texts == [
        "the item is 64 wide, embeddings here are 192 wide",
        "the item is of type torch.float32, embeddings here are of type torch.bfloat16",
    ]


class _Model:
    """As much of vLLM's ModelConfig as shapes need."""

    def __init__(self, vision: dict[str, Any]) -> None:
        self.hf_config = PretrainedConfig(vision_config=PretrainedConfig(**vision))
        self.dtype = torch.float16
        self.multimodal_config = None

    @staticmethod
    def get_inputs_embeds_size() -> int:
        return WIDTH


_QWEN = {"deepstack_visual_indexes": [5, 11, 17]}


@pytest.mark.parametrize(
    ("vision", "measured", "modality", "width", "others"),
    [
        ({}, {}, "image", 64, {128: False, 63: False}),
        (_QWEN, {}, "image", 256, {64: False}),
        (_QWEN, {}, "audio", 64, {256: False}),
        (_QWEN, {"image": 128}, "image", 128, {256: False}),
        ({"deepstack_map": {"3": 1}}, {}, "image", 64, {192: True, 63: False}),
    ],
)
def test_widths(
    vision: dict[str, Any],
    measured: dict[str, int],
    modality: str,
    width: int,
    others: dict[int, bool],
) -> None:
    """As measured; else the embedding's, with DeepStack's layers beside it; where they are not known any multiple passes."""
    shapes = Placeholders(_Model(vision), measured)
    assert (shapes.width(modality), shapes.dtype(modality)) == (width, torch.float16)
    for each, passes in {width: True, **others}.items():
        assert (shapes.fault(torch.zeros((ROWS, each)), ROWS, modality) == "") is passes, each


def test_saves_are_sends(
    make_worker: MakeWorker, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer's save is a transfer; one that raises is reported, and the exception propagates."""
    worker = make_worker("ec_producer")
    worker.save_caches({"a": GOOD}, "a")
    (sample,) = recorder.transfers
    assert (sample["direction"], sample["bytes"], sample["result"]) == (
        c.DIRECTION_SEND,
        GOOD.nbytes,
        c.TRANSFER_RESULT_OK,
    )
    told = last_words(monkeypatch, recorder)
    (tmp_path / "full").write_text("a file where a directory should be")
    with pytest.raises(OSError, match="full"):
        worker.save_caches({"full": GOOD}, "full")
    assert told == [1]
    (failure,) = recorder.take("transfer_failure")
    assert (failure.item, failure.direction) == ("full", c.DIRECTION_SEND)


@pytest.mark.parametrize(("guarded", "hit"), [(True, True), (False, False)])
def test_a_drill(
    guarded: bool, hit: bool, make_worker: MakeWorker, recorder: Recorder, tmp_path: Path
) -> None:
    """A rehearsal breaks good items, and only where that harms no engine; all of it is marked."""
    runtime.configure(Settings(endpoint="unix:///nowhere/ingest.sock", allow_faults=True))
    worker = make_worker()
    put(tmp_path, "a")
    cache: dict[str, Any] = {}
    drill = Drill("d", c.CHANNEL_EC, c.FAILURE_MODE_LOAD, 1.0, 60_000_000_000)
    report = step(worker, cache, "a", guarded=guarded, penstock_drills=(drill,))
    assert torch.equal(cache["a"], torch.zeros_like(GOOD) if hit else GOOD)
    assert ([each.rehearsal for each in report.failures] if report else []) == ([True] if hit else [])
    told = [event.rehearsal for event in recorder.events if event.WhichOneof("body") == "transfer_failure"]
    assert told == ([True] if hit else [])


@pytest.mark.parametrize(("peer", "hit"), [("10.0.0.1:7000", True), ("10.0.0.2:7000", False), ("", False)])
def test_a_drill_with_one_peer(
    peer: str, hit: bool, make_worker: MakeWorker, recorder: Recorder, tmp_path: Path
) -> None:
    """It breaks the items that came from that peer; their failures name it."""
    runtime.configure(Settings(endpoint="unix:///nowhere/ingest.sock", allow_faults=True))
    worker = make_worker()
    put(tmp_path, "a")
    drill = Drill("d", c.CHANNEL_EC, c.FAILURE_MODE_LOAD, 1.0, 60_000_000_000, "10.0.0.1:7000")
    items = (("a", ROWS, "image", "r", peer),)
    report = step(worker, {}, "a", penstock_drills=(drill,), penstock_items=items)
    assert bool(report) is hit
    assert [each.peer.address for each in recorder.take("transfer_failure")] == [peer] * hit


class _Own:
    """A connector's own worker metadata, which knows nothing of ours."""

    def __init__(self, ranks: set[int]) -> None:
        self.ranks = ranks

    def aggregate(self, other: Any) -> _Own:
        """Combine; another's report would have no ranks."""
        return _Own(self.ranks | other.ranks)


def test_reports_of_ranks(make_worker: MakeWorker, recorder: Recorder) -> None:
    """A connector's own metadata is always wrapped, so that every rank's can be combined, and comes out as it went in."""
    worker = make_worker()._penstock_worker
    assert worker.report(None) is None
    ranks = [worker.report(_Own({rank})) for rank in range(2)]
    ranks.append(EcReport((ItemFailure("a", c.FAILURE_MODE_LOAD, c.ERROR_TYPE_CORRUPT, rank=2),)))
    whole = ranks[0].aggregate(ranks[1]).aggregate(ranks[2])
    assert whole.inner.ranks == {0, 1}
    assert failed_items(encoder_output(whole)).keys() == {"a"}
    assert failed_items(encoder_output(_Own({0}))) == {}
    assert failed_items(None) == {}


@pytest.mark.parametrize("enforced", [True, False])
@pytest.mark.parametrize("guarded", [True, False])
def test_an_item_that_differs_from_its_checksum(
    guarded: bool, enforced: bool, make_worker: MakeWorker, recorder: Recorder, tmp_path: Path
) -> None:
    """A guarded step that enforces gives it a placeholder; any other one uses it, and says so."""
    put(tmp_path, "good")
    put(tmp_path, "other", GOOD + 1)
    cache: dict[str, Any] = {}
    checksum = zlib.crc32(GOOD.numpy().tobytes())
    report = step(
        make_worker(),
        cache,
        "good",
        "other",
        guarded=guarded,
        penstock_checksums={"good": checksum, "other": checksum},
        penstock_enforced=enforced and guarded,
    )
    checked = (CheckedItem("good", mismatched=False), CheckedItem("other", mismatched=True))
    assert checked_items(encoder_output(report)) == checked
    assert torch.equal(cache["good"], GOOD)
    used = not (enforced and guarded)
    assert torch.equal(cache["other"], GOOD + 1 if used else torch.zeros_like(GOOD))
    wanted = () if used else (ItemFailure("other", c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_CORRUPT),)
    assert report.failures == wanted
    (failure,) = recorder.take("transfer_failure", "of-other")
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_CORRUPT)
    assert (failure.compared, failure.mismatched, failure.used) == (1, 1, used)
    assert not recorder.take("transfer_failure", "of-good")
