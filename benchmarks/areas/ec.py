"""Encoder outputs from one process to another: ``ZmqECConnector``, vLLM's ``ECExampleConnector`` on tmpfs, raw pyzmq: ``make bench ONLY=ec``.

A round is: the producer saves, says so, the consumer gets the items and gathers them into the model's input, as vLLM does
(ECExampleConnector maps its file: its reading is that copy). All take turns, so that whatever else the machine does
hits all alike, in another order each round; what counts are the ratios, taken round by round. ZmqECConnector is measured
twice: as it is, which copies out of the producer's memory because that is on the same host, and with ``same_host`` false,
over TCP, as between hosts. The consumer's process is the scheduler and the worker
at once, as with vLLM's ``uni`` executor. Raw pyzmq is a REQ/REP of the same bytes, sent from where they are and left
where libzmq put them, without checksum: what the transport alone costs. First ZmqECConnector passes once through its memory,
so that its pages are those of a server that has run for a while; the file of each round gets new pages, as it does there.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import tempfile
import time
import warnings
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
import zmq

from benchmarks.harness.results import Budget, Section, against

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from benchmarks.harness.interleave import Run
    from benchmarks.harness.results import Row

AREA: Final = "ec"
TITLE: Final = "Encoder outputs from one process to another"
MEANING: Final = (
    "`ZmqECConnector` moves encoder outputs from process to process. vLLM's own `ECExampleConnector` "
    "writes them to a file system, here one in memory; raw pyzmq is what the library gives without "
    "checks, bounds and keys."
)
_NOTES: Final = (
    (
        "From the producer's save to the consumer's copy into the model's input: `ZmqECConnector` between two processes of one host, and between the same over TCP (`same_host` false), "
        "vLLM's `ECExampleConnector` on tmpfs, and a raw pyzmq REQ/REP of the same bytes over TCP (no copy on either side, no checksum, no scheduler). One item a round, and 32 of one "
        "request. Why it is as it is: [benchmarks](../benchmarks/README.md#ec)."
    ),
)
_ROUNDS: Final = 15
_SMALL: Final = 1 << 22
"""Bytes of an item up to which there are three times as many rounds: a change of thread takes as long as all the rest."""
_EXAMPLE, _RAW = "ECExampleConnector on tmpfs", "raw pyzmq REQ/REP"
WIDTH = 1024
SIZES = [1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26]
WARM_UP = 3
MEMORY = 640 << 20
CONCURRENT: Final = 32
CONCURRENT_SIZE: Final = 1 << 20
PATIENCE = {"probe_timeout": 20.0, "start_timeout": 20.0, "idle_timeout": 20.0}
_LIMITS: Final = {
    _EXAMPLE: 1.0,
    _RAW: 1.1,
}
POLL = 50e-6
"""Seconds between two polls of the scheduler, at first; a real one runs a step in between, which takes longer. Later it is a
twentieth of the time that it has waited, because a poll of 32 items takes the processor from their transfer."""

MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 8, "vocab_size": 512, "max_position_embeddings": 2048,
}  # fmt: skip


DESTINATION = torch.zeros(1, WIDTH)
"""The consumer's input buffer, as vLLM's for the model; allocated in :func:`measure`."""


class Producer(Protocol):
    """Its side of one way."""

    def save(self, items: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Make the items available."""


class Consumer(Protocol):
    """The other side."""

    def load(self, items: Sequence[str], rows: int) -> list[torch.Tensor]:
        """Return the items."""


def connector(name: str, role: str, side: str, directory: str, **extra: Any) -> Any:
    """Return a connector as vLLM's factory builds it."""
    from vllm.config import DeviceConfig, ECTransferConfig, ModelConfig, VllmConfig
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
    from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory

    (Path(directory) / "config.json").write_text(json.dumps(MODEL))
    config = VllmConfig(
        model_config=ModelConfig(
            model=directory,
            tokenizer=directory,
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=1024,
        ),
        device_config=DeviceConfig("cpu"),
    )
    config.ec_transfer_config = ECTransferConfig(
        ec_connector=name,
        ec_role=role,
        ec_port=0,
        ec_connector_module_path="penstock.instrumentation.vllm.zmq_ec" if name == "ZmqECConnector" else None,
        ec_connector_extra_config=extra,
    )
    return ECConnectorFactory.create_connector(config, ECConnectorRole[side])


class ConnectorProducer:
    """The encoder side of either connector."""

    def __init__(self, made: Any) -> None:
        self._connector = made

    def save(self, items: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Save as vLLM's runner does."""
        cache = dict(items)
        for item in cache:
            self._connector.save_caches(cache, item)


class ConnectorConsumer:
    """The language model side of either connector: scheduler and worker."""

    def __init__(self, scheduler: Any, worker: Any) -> None:
        self._scheduler = scheduler
        self._worker = worker
        self._freed: list[str] = []
        self._step()  # the worker learns where the memory is

    def load(self, items: Sequence[str], rows: int) -> list[Any]:
        """Ask, schedule, load and report as vLLM does."""
        position = SimpleNamespace(offset=0, length=rows, get_num_embeds=lambda: rows)
        features = [
            SimpleNamespace(
                identifier=item, mm_position=position, data={"x": SimpleNamespace(data=1)}, modality="image"
            )
            for item in items
        ]
        request = SimpleNamespace(
            request_id="r",
            mm_features=features,
            ec_transfer_params=None,
            get_num_encoder_embeds=lambda _: rows,
        )
        began = time.perf_counter()
        while not self._scheduler.ensure_cache_available(request, 0):
            time.sleep(max(POLL, (time.perf_counter() - began) / 20))
        for index, item in enumerate(items):
            assert self._scheduler.has_cache_item(item), item
            self._scheduler.update_state_after_alloc(request, index)
        cache = self._step()
        self._freed = list(items)
        return [cache[item] for item in items]

    def _step(self) -> dict[str, torch.Tensor]:
        from vllm.v1.outputs import ECConnectorOutput

        step = SimpleNamespace(scheduled_new_reqs=[], free_encoder_mm_hashes=self._freed)
        cache: dict[str, torch.Tensor] = {}
        self._worker.bind_connector_metadata(self._scheduler.build_connector_meta(step))
        self._worker.start_load_caches(cache)
        report = self._worker.build_connector_worker_meta()
        self._worker.clear_connector_metadata()
        self._scheduler.update_connector_output(ECConnectorOutput(ec_connector_worker_meta=report))
        return cache


class RawProducer:
    """A REP socket; sends without copying."""

    def __init__(self) -> None:
        self._socket = zmq.Context().socket(zmq.REP)
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._items: dict[bytes, memoryview] = {}

    def save(self, items: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Remember where they are."""
        self._items = {item.encode(): memoryview(tensor.numpy()).cast("B") for item, tensor in items}

    def serve(self) -> None:
        """Answer for each item."""
        for _ in range(len(self._items)):
            self._socket.send(self._items[self._socket.recv()], copy=False)


class RawConsumer:
    """A REQ socket; received frames stay in libzmq's memory."""

    def __init__(self, port: int) -> None:
        self._socket = zmq.Context().socket(zmq.REQ)
        self._socket.connect(f"tcp://127.0.0.1:{port}")

    def load(self, items: Sequence[str], rows: int) -> list[Any]:
        """Ask for one after the other."""
        found = []
        for item in items:
            self._socket.send(item.encode())
            frame = self._socket.recv(copy=False)
            found.append(torch.frombuffer(frame.buffer, dtype=torch.float32).view(rows, WIDTH))
        return found


def produce(pipe: Connection, directory: str) -> None:
    """Run the encoder's process: save the requested items by the requested way."""
    torch.set_num_threads(1)
    zmq_ec = connector("ZmqECConnector", "ec_producer", "WORKER", directory, host_cache_bytes=MEMORY)
    example = connector(
        "ECExampleConnector", "ec_producer", "WORKER", directory, shared_storage_path=directory
    )
    raw = RawProducer()
    ways: dict[str, Producer] = {
        "zmq_ec": ConnectorProducer(zmq_ec), "zmq_tcp": ConnectorProducer(zmq_ec), "example": ConnectorProducer(example), "raw": raw,
    }  # fmt: skip
    pipe.send((zmq_ec._publisher.server.address, raw.port))  # noqa: SLF001
    source = torch.randn(max(SIZES) // 4 // WIDTH * 2, WIDTH)
    while (order := pipe.recv()) is not None:
        way, items, rows = order
        given = [(item, source[index : index + rows]) for index, item in enumerate(items)]
        began = time.perf_counter()
        ways[way].save(given)
        pipe.send(time.perf_counter() - began)
        if way == "raw":
            raw.serve()
    zmq_ec.shutdown()


def rounds_of(
    pipe: Connection,
    consumers: dict[str, Consumer],
    size: int,
    count: int,
    rounds: int,
    clean: Callable[[], None],
) -> dict[str, list[tuple[float, float]]]:
    """Return (seconds in all, of these in the producer's save) of each way and round."""
    rows = size // 4 // WIDTH
    order = random.Random(size)
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in consumers}
    for number in range(-WARM_UP, rounds):
        for way in order.sample(list(consumers), len(consumers)):
            consumer = consumers[way]
            items = [f"{way}-{size}-{number}-{index}" for index in range(count)]
            began = time.perf_counter()
            pipe.send((way, items, rows))
            saving = pipe.recv()
            loaded = consumer.load(items, rows)
            for index, each in enumerate(loaded):
                DESTINATION[index * rows : (index + 1) * rows].copy_(each)
            passed = time.perf_counter() - began
            del loaded
            if number >= 0:
                found[way].append((passed, saving))
        clean()
    return found


def measure(run: Run) -> Section:
    """Measure the area."""
    torch.set_num_threads(1)
    DESTINATION.resize_(max(SIZES) // 4 // WIDTH, WIDTH).zero_()
    warnings.filterwarnings("ignore", message="The given buffer is not writable")
    rows: list[Row] = []
    with ExitStack() as parts:
        directory = tempfile.mkdtemp(prefix="ec-bench-", dir="/dev/shm")
        parts.callback(shutil.rmtree, directory)
        pipe = parts.enter_context(_running_producer(directory))
        address, port = pipe.recv()
        consumers = _consumers(directory, address, port, parts)

        def clean() -> None:
            for each in Path(directory).iterdir():
                if each.is_dir():
                    shutil.rmtree(each)

        run.say("warm up")
        # A process touches a page for the first time once: afterwards both memories are as in a server that has run for a while.
        for way in ("zmq_ec", "zmq_tcp"):
            rounds = MEMORY // CONCURRENT_SIZE // CONCURRENT
            rounds_of(pipe, {way: consumers[way]}, CONCURRENT_SIZE, CONCURRENT, rounds, clean)
        for size in SIZES:
            run.say(f"{size >> 10:,} KiB")
            rounds = _ROUNDS if size > _SMALL else 3 * _ROUNDS
            rows += _rows(f"{size >> 10:,} KiB", rounds_of(pipe, consumers, size, 1, rounds, clean))
        what = f"{CONCURRENT} at once of {CONCURRENT_SIZE >> 10:,} KiB"
        run.say(what)
        rows += _rows(what, rounds_of(pipe, consumers, CONCURRENT_SIZE, CONCURRENT, _ROUNDS, clean))
    return Section(AREA, TITLE, _NOTES, rows)


@contextmanager
def _running_producer(directory: str) -> Iterator[Connection]:
    """Run the encoder's process; give the pipe to it."""
    spawn = multiprocessing.get_context("spawn")
    pipe, theirs = spawn.Pipe()
    child = spawn.Process(target=produce, args=(theirs, directory))
    child.start()
    # So that the end of the child ends our waiting for it.
    theirs.close()
    try:
        yield pipe
    finally:
        with suppress(OSError):  # it has ended
            pipe.send(None)
        child.join(10)
        if child.is_alive():
            child.terminate()
            child.join()


def _consumers(directory: str, address: str, port: int, parts: ExitStack) -> dict[str, Consumer]:
    """Return the ways of the language model's process, by name, to the producer at *address* and the socket at *port*."""
    name, role = "ZmqECConnector", "ec_consumer"

    def zmq_ec(**extra: Any) -> ConnectorConsumer:
        common = {"producers": [address], "region_bytes": MEMORY, **PATIENCE}
        scheduler = connector(name, role, "SCHEDULER", directory, **common, **extra)
        worker = connector(name, role, "WORKER", directory)
        parts.callback(scheduler.shutdown)
        parts.callback(worker.shutdown)
        return ConnectorConsumer(scheduler, worker)

    scheduler, worker = (
        connector("ECExampleConnector", role, side, directory, shared_storage_path=directory)
        for side in ("SCHEDULER", "WORKER")
    )
    return {
        "zmq_ec": zmq_ec(),
        "zmq_tcp": zmq_ec(same_host=False),
        "example": ConnectorConsumer(scheduler, worker),
        "raw": RawConsumer(port),
    }


def _rows(what: str, found: dict[str, list[tuple[float, float]]]) -> list[Row]:
    took = {way: [passed * 1e3 for passed, _ in rounds] for way, rounds in found.items()}
    peers = {_EXAMPLE: took["example"], _RAW: took["raw"]}
    return [
        against(f"{what}{how}", "ms", took[way], peer, theirs, budget=None if how else _budget(what, peer))
        for way, how in (("zmq_ec", ""), ("zmq_tcp", ", over TCP"))
        for peer, theirs in peers.items()
    ]


def _budget(what: str, peer: str) -> Budget:
    return Budget(f"encoder outputs on one host ÷ {peer}: {what}", _LIMITS[peer], of="ratio")
