"""An EC connector with a store of items, and a worker with a memory that attends to them, under a real scheduler.

The worker's tokens are right only if every embedding and every block that they attend to is: see ``tests/support/engine/fake_worker.py``.
"""

from __future__ import annotations

import warnings
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.ec.protocol import EcFailure, EcTransfer
from penstock.instrumentation.vllm.messages.worker_report import CheckedItem, EcReport, ItemFailure
from penstock.instrumentation.vllm.naming.peers import Peer

from tests.support.engine.fake_worker import GARBAGE, ToyEngine, fingerprint, sample
from tests.support.engine.schedulers import PEER, request
from tests.support.engine.versions import encoder_output

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorMetadata
    from vllm.multimodal.inputs import MultiModalFeatureSpec, MultiModalKwargsItem, PlaceholderRange
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import RequestStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.instrumentation.vllm.ec.protocol import EcListener

    from tests.support.kv.fake_connector import Load

TOY_PEER = Peer(PEER)
PRODUCERS = ("10.0.0.1:7000", "10.0.0.2:7000")
LEFT = RequestStatus.FINISHED_ABORTED
ERROR = RequestStatus.FINISHED_ERROR
RUNNING = RequestStatus.RUNNING


@dataclass
class ToyEcMetadata(ECConnectorMetadata):
    """The items to load in a step."""

    items: list[str] = field(default_factory=list)


class ToyEcConnector(ECConnectorBase):
    """Has what is in ``store``; lets requests wait for what is in ``coming``; fails those in ``lost``."""

    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config, role)
        self.store: set[str] = set()
        self.coming: set[str] = set()
        self.lost: set[str] = set()
        self.asked: list[tuple[str, int]] = []
        self._loads: list[str] = []

    def has_cache_item(self, identifier: str) -> bool:
        """Look into the store."""
        return identifier in self.store

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        """Wait for what is coming beyond the computed tokens."""
        self.asked.append((request.request_id, num_computed_tokens))
        return not any(
            feature.identifier in self.coming
            for feature in request.mm_features
            if feature.mm_position.offset + feature.mm_position.length > num_computed_tokens
        )

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        """Load what is in the store; asks itself again, as vLLM's ECExampleConnector does."""
        item = request.mm_features[index].identifier
        if self.has_cache_item(item):
            self._loads.append(item)

    def build_connector_meta(self, scheduler_output: Any) -> ToyEcMetadata:
        """Hand over the loads of this step."""
        del scheduler_output
        loads, self._loads = self._loads, []
        return ToyEcMetadata(loads)

    def take_unavailable_requests(self) -> set[str]:
        """Return the lost requests, once."""
        lost, self.lost = self.lost, set()
        return lost

    def start_load_caches(self, encoder_cache: Any, **kwargs: Any) -> None:
        """Belongs to the worker's side."""

    def save_caches(self, encoder_cache: Any, mm_hash: str, **kwargs: Any) -> None:
        """Belongs to the worker's side."""


class ToyLoader(ToyEcConnector):
    """Moves items ahead of scheduling: ``began`` says when, ``failed`` what was given up."""

    load_failure_default = "recompute"

    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config, role)
        self.began: dict[str, int] = {}
        self.failed: list[EcFailure] = []
        self.given_up: list[str] = []
        self.observers: list[EcListener] = []
        extra = vllm_config.ec_transfer_config.get_from_extra_config("load_failure", "recompute")
        self.load_failure_default = extra

    def observe(self, observer: EcListener) -> None:
        """Note who is to be told."""
        self.observers.append(observer)

    def take_failed_loads(self) -> list[EcFailure]:
        """Return what was given up, once."""
        failed, self.failed = self.failed, []
        self.coming -= {each.item for each in failed}
        return failed

    def waits_for(self, item: str) -> bool:
        """Tell whether it is coming."""
        return item in self.coming

    def transfer_began(self, item: str) -> int | None:
        """Return when it began."""
        return self.began.get(item)

    def peer_of(self, item: str) -> Peer | None:
        """Return the one peer of all that is on its way or there."""
        return TOY_PEER if item in self.began or item in self.store else None

    def give_up(self, item: str) -> None:
        """Stop moving it."""
        self.given_up.append(item)
        self.coming.discard(item)
        self.store.discard(item)

    def in_flight(self) -> list[tuple[Peer, int, int]]:
        """Return the transfers that have begun."""
        return [(TOY_PEER, len(self.began), min(self.began.values()))] if self.began else []


class ToyChecksums(ToyLoader):
    """Knows the checksums of the items in its store, but for those in ``unnamed``."""

    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config, role)
        self.unnamed: set[str] = set()

    def checksum(self, item: str) -> int | None:
        """Return that of the item's name, which stands for its content."""
        return None if item in self.unnamed else zlib.crc32(item.encode())


class ToySources(ToyLoader):
    """Asks its producers for what it does not know; the test answers for them."""

    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config, role)
        self.producers = PRODUCERS
        self.orders: list[tuple[str, tuple[str, ...]]] = []
        self.absent: set[str] = set()
        self._kept: dict[str, tuple[str, ...]] = {}

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        """Ask for what is needed beyond the computed tokens."""
        for feature in request.mm_features:
            item = feature.identifier
            needed = feature.mm_position.offset + feature.mm_position.length > num_computed_tokens
            asked = self._kept.pop(item, self.producers)
            if asked and needed and self._is_unknown(item):
                self.orders.append((item, asked))
                self.coming.add(item)
        return super().ensure_cache_available(request, num_computed_tokens)

    def candidates(self, request: Any, feature: Any) -> tuple[str, ...]:
        """Return the producers, for what is unknown."""
        del request
        return self.producers if self._is_unknown(feature.identifier) else ()

    def keep_to(self, request: Any, feature: Any, peers: tuple[str, ...]) -> None:
        """Ask only those."""
        del request
        self._kept[feature.identifier] = peers

    def connected(self) -> frozenset[str]:
        """Return none."""
        return frozenset()

    def give_up(self, item: str) -> None:
        """Do without it from now on."""
        super().give_up(item)
        self.absent.add(item)

    def deliver(self, item: str, peer: str) -> None:
        """Let an item come from a producer."""
        self.observers[0].received(EcTransfer(item, Peer(peer), 1, 2, 3, ok=True))
        self._end(item, self.store)

    def miss(self, item: str, peer: str) -> None:
        """Let a producer answer that it does not have the item."""
        self.observers[0].probed(item, Peer(peer), c.PROBE_RESULT_MISS, 1, 2, "")
        self._end(item, self.absent)

    def fail(self, item: str, peer: str, mode: int = c.FAILURE_MODE_PROBE, **fields: Any) -> None:
        """Let an attempt fail; the item is then encoded here."""
        given = {"error_type": c.ERROR_TYPE_REFUSED, "text": "it was refused", **fields}
        self.observers[0].failed(EcFailure(item=item, mode=mode, peer=Peer(peer), **given))
        self._end(item, self.absent)

    def _is_unknown(self, item: str) -> bool:
        return item not in self.coming | self.store | self.absent

    def _end(self, item: str, known: set[str]) -> None:
        known.add(item)
        self.coming.discard(item)


def image_request(
    request_id: str,
    items: Mapping[int, tuple[str, int]],
    *,
    tokens: int,
    media: bool = True,
    **arguments: Any,
) -> Any:
    """Return a request with *items*: (name, length) by offset; *media* says whether it can be encoded here."""
    made = request(request_id, tokens=tokens, **arguments)
    made.mm_features = [
        MultiModalFeatureSpec(
            data=MultiModalKwargsItem.dummy() if media else None,
            modality="image",
            identifier=name,
            mm_position=PlaceholderRange(offset=offset, length=length),
        )
        for offset, (name, length) in sorted(items.items())
    ]
    # The hashes of its blocks have to know the items.
    made.block_hashes.clear()
    made.update_block_hashes()
    return made


def embedding(request: Any, position: int, item_of: Callable[[str], int]) -> int:
    """Return what a request computes a prompt position from: an item's embedding, or its token."""
    for feature in request.mm_features:
        inside = position - feature.mm_position.offset
        if 0 <= inside < feature.mm_position.length:
            return hash((item_of(feature.identifier), inside))
    return int(request.all_token_ids[position])


def contents(request: Any, length: int) -> list[int]:
    """Return the right KV of the first *length* prompt tokens."""
    kv: list[int] = []
    for position in range(length):
        kv.append(fingerprint(kv, embedding(request, position, hash)))
    return kv


def expected(request: Any, count: int) -> list[int]:
    """Return the output of a request to which nothing happens."""
    kv = contents(request, request.num_prompt_tokens)
    tokens: list[int] = []
    for _ in range(count):
        tokens.append(sample(kv))
        kv.append(fingerprint(kv, tokens[-1]))
    return tokens


class ToyEcEngine(ToyEngine):
    """As :class:`ToyEngine`, with an encoder cache in its worker, as vLLM's runner has; with a KV connector, an EC connector or both."""

    def __init__(
        self,
        scheduler: Any,
        *,
        ahead: bool,
        bad: Callable[[str], bool] = lambda _item: False,
        damaged: Callable[[str], bool] = lambda _item: False,
        keeps_held: bool = False,
        fails: Callable[[str, int], bool] = lambda _request, _block: False,
        by_blocks: bool = True,
    ) -> None:
        """Run *scheduler*; a load of an item fails where *bad* says so, one of KV as in :class:`ToyEngine`.

        *damaged*: it brings something else without an error.
        *keeps_held*: what the worker holds is not encoded again, as in vLLM's V2 runner; the V1 runner does it, and overwrites.
        """
        super().__init__(scheduler, ahead=ahead, fails=fails, by_blocks=by_blocks)
        self.keeps_held = keeps_held
        self.cache: dict[str, int] = {}
        self.loaded: list[str] = []
        self.encoded: list[str] = []
        self.bad = bad
        self.damaged = damaged
        self._inputs: dict[str, list[int]] = {}
        self._requests: dict[str, Any] = {}
        # The inputs as the worker was given them with a request; vLLM leaves out media that lie in the cached prefix, and the V1
        # runner gets nothing new when it is resumed.
        self.given: dict[str, list[Any]] = {}

    def _execute(self, scheduled: Any) -> Any:
        self._update(scheduled)
        for new in scheduled.scheduled_new_reqs:
            request = self._requests[new.req_id] = self.scheduler.requests[new.req_id]
            self.given[new.req_id] = request.mm_features if self.keeps_held else new.mm_features
        for item in scheduled.free_encoder_mm_hashes:
            self.cache.pop(item, None)
        items, blocks = scheduled.ec_connector_metadata, scheduled.kv_connector_metadata
        report = self._load_items(items) if items is not None else None
        transfer = self._load(blocks.loads) if blocks is not None else None
        for request_id, indexes in scheduled.scheduled_encoder_inputs.items():
            for index in indexes:
                feature = self.given[request_id][index]
                assert feature.data is not None, (
                    f"{request_id} is to encode {feature.identifier} without media"
                )
                if self.keeps_held and feature.identifier in self.cache:
                    continue
                self.cache[feature.identifier] = hash(feature.identifier)
                self.encoded.append(feature.identifier)
        ids = list(scheduled.num_scheduled_tokens)
        sampled = [self._compute(each, scheduled.num_scheduled_tokens[each]) for each in ids]
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={each: index for index, each in enumerate(ids)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=transfer,
            ec_connector_output=encoder_output(report) if report else None,
        )

    def _stored(self, load: Load) -> list[int]:
        return contents(self.scheduler.requests[load.request_id], load.end)

    def _load_items(self, metadata: Any) -> EcReport | None:
        broken, checked = [], []
        checksums = getattr(metadata, "penstock_checksums", {})
        for item in metadata.items:
            if item in self.cache:
                continue
            self.loaded.append(item)
            damaged = self.damaged(item)
            if item in checksums:
                assert checksums[item] == zlib.crc32(item.encode())
                checked.append(CheckedItem(item, damaged))
            if not self.bad(item):
                self.cache[item] = GARBAGE if damaged else hash(item)
                if damaged and item in checksums and getattr(metadata, "penstock_enforced", False):
                    broken.append(ItemFailure(item, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_CORRUPT))
                continue
            if not getattr(metadata, "penstock_guarded", False):
                raise RuntimeError(f"cannot load {item}")
            self.cache[item] = GARBAGE
            broken.append(ItemFailure(item, c.FAILURE_MODE_LOAD, c.ERROR_TYPE_CORRUPT))
        return EcReport(tuple(broken), tuple(checked)) if broken or checked else None

    def _source(self, request_id: str, position: int) -> int:
        request = self._requests[request_id]
        if position < request.num_prompt_tokens:
            return embedding(request, position, self.cache.__getitem__)
        return super()._source(request_id, position)
