"""The mixins over a KV connector: in the scheduler, and in a worker that has a report to send."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any, Protocol

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.nixl import compatibility
from penstock.instrumentation.vllm.kv.request_peers import LoadAdmission
from penstock.instrumentation.vllm.messages import WorkerReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.instrumentation.vllm.kv.abandoned_loads import AbandonedLoads
    from penstock.instrumentation.vllm.kv.base import KvStepLoads, LMCacheLookups
    from penstock.instrumentation.vllm.kv.load_controller import KvLoadController
    from penstock.instrumentation.vllm.kv.nixl import NixlObserver
    from penstock.instrumentation.vllm.requests import SchedulerObserver

_GUARD = guard("kv_connector")

# What get_num_new_matched_tokens answers in the connector's place: nothing to load, or "ask again later", which
# keeps a request that is about to fail out of the batch.
_ANSWERS = {LoadAdmission.LOCAL: (0, False), LoadAdmission.FAIL: (None, False)}


class KvSession(Protocol):
    """What the mixin uses of the scheduler's session."""

    @property
    def observer(self) -> SchedulerObserver:
        """The scheduler's requests."""

    @property
    def loads(self) -> KvLoadController:
        """The scheduler's remote loads."""

    @property
    def has_tiers(self) -> bool:
        """Whether its KV may come through a P2P tier."""

    @property
    def abandoned(self) -> AbandonedLoads:
        """Loads that go on although a deadline has given them up."""


class SchedulerSideMixin(ABC):  # noqa: B024  (like the connectors' own base: the layouts must agree for a swap)
    """Over a connector in the scheduler.

    The scheduler's session sets itself on the outermost connector. The hook sets the loads of the step that is being put together on
    those that move something themselves, and what watches look-ups on those whose look-ups can fail unseen.
    """

    _penstock: KvSession | None = None
    _penstock_step: KvStepLoads | None = None
    _penstock_lookups: LMCacheLookups | None = None
    _penstock_tiers: Sequence[Any] = ()

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Record a look-up that the connector defers; keep requests from quarantined peers."""
        upstream: Any = super()
        asked = self._penstock
        if asked is not None and asked.has_tiers and runtime.active:
            with _GUARD:
                asked.loads.sources.before_lookup(request, num_computed_tokens)
        result = upstream.get_num_new_matched_tokens(request, num_computed_tokens, *args, **kwargs)
        session, step = asked, self._penstock_step
        if step is not None and result[0] and runtime.active:
            with _GUARD:
                step.on_match(request.request_id, waits=bool(result[1]))
        lookups = self._penstock_lookups
        if lookups is not None and result[0] is not None and runtime.active:
            with _GUARD:
                (lookups.on_found if result[0] else lookups.on_nothing_found)(request.request_id)
        if session is None:
            return result
        observer = session.observer
        if result[0] is None:
            if runtime.active:
                with _GUARD:
                    observer.on_deferred(request, c.DEFERRAL_REASON_KV_LOOKUP)
                    session.loads.deadlines.on_looking_up(request.request_id)
            return result
        if observer.is_deferred(request.request_id):
            with _GUARD:
                observer.on_ready(request.request_id, c.DEFERRAL_REASON_KV_LOOKUP)
                session.loads.deadlines.on_ended(request.request_id)
        if runtime.active:
            with _GUARD:
                return _ANSWERS.get(session.loads.admit(request, num_computed_tokens, result[0]), result)
        return result

    def update_state_after_alloc(
        self, request: Any, blocks: Any, num_external_tokens: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Record that a remote load begins, before vLLM lets the request wait for it."""
        upstream: Any = super()
        session, step = self._penstock, self._penstock_step
        if session is not None and runtime.active:
            with _GUARD:
                session.loads.on_allocated(request, num_external_tokens)
        if step is not None and num_external_tokens and runtime.active:
            with _GUARD:
                step.on_load_allocated(request.request_id, num_external_tokens)
        return upstream.update_state_after_alloc(request, blocks, num_external_tokens, *args, **kwargs)

    def get_external_cache_hit_sources(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Record where a load comes from; vLLM asks once it has begun, in versions that have the question."""
        upstream: Any = super()
        sources = upstream.get_external_cache_hit_sources(request, *args, **kwargs)
        step = self._penstock_step
        if step is not None and runtime.active:
            with _GUARD:
                step.set_source(request.request_id, sources)
        return sources

    def request_finished(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Keep the connector from notifying a quarantined peer."""
        upstream: Any = super()
        self._penstock_forget(request)
        return upstream.request_finished(request, *args, **kwargs)

    def request_finished_all_groups(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Keep the connector from notifying a quarantined peer; only connectors for several groups have this method."""
        upstream: Any = super()
        self._penstock_forget(request)
        return upstream.request_finished_all_groups(request, *args, **kwargs)

    def _penstock_forget(self, request: Any) -> None:
        session, step = self._penstock, self._penstock_step
        if step is not None:
            with _GUARD:
                step.on_finished(request.request_id)
        if self._penstock_lookups is not None:
            with _GUARD:
                self._penstock_lookups.on_finished(request.request_id)
        if session is not None and runtime.active:
            with _GUARD:
                session.loads.forget_peer(request)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Put the scheduler's orders for the workers on the metadata of the step (``messages/step_metadata.py``)."""
        upstream: Any = super()
        metadata = upstream.build_connector_meta(scheduler_output)
        session, step = self._penstock, self._penstock_step
        if step is not None and runtime.active:
            with _GUARD:
                step.attach(self, metadata, scheduler_output)
        if session is not None and runtime.active:
            with _GUARD:
                session.loads.attach(metadata, scheduler_output)
        return metadata

    def update_connector_output(self, connector_output: Any) -> Any:
        """Give the connector its own worker metadata, without our report around it; what it sees, vLLM may not."""
        upstream: Any = super()
        metadata = getattr(connector_output, "kv_connector_worker_meta", None)
        if isinstance(metadata, WorkerReport):
            connector_output.kv_connector_worker_meta = metadata.inner
        result = upstream.update_connector_output(connector_output)
        session = self._penstock
        if session is not None and session.abandoned.any:
            with _GUARD:
                session.abandoned.hide_sends(connector_output)
        return result

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Any) -> Any:
        """Record the compatibility hash that the workers show their peers, and what it is made of."""
        upstream: Any = super()
        session = self._penstock
        if session is not None:
            with _GUARD:
                observer = session.observer
                hashes = {getattr(each, "compatibility_hash", "") for each in metadata.values()}
                if len(hashes) == 1 and (shown := next(iter(hashes))):
                    observer.compatibility_hash = shown
                    connector: Any = self
                    observer.compatibility_factors = compatibility.own_factors(connector._vllm_config, shown)
        return upstream.set_xfer_handshake_metadata_pp_aware(metadata)


class WorkerSideMixin(ABC):  # noqa: B024  (see above)
    """Over a connector in a worker that has a report to send."""

    _penstock_worker: NixlObserver | None = None

    def build_connector_worker_meta(self) -> Any:
        """Send our report with the connector's own metadata in it."""
        upstream: Any = super()
        metadata = upstream.build_connector_worker_meta()
        observer = self._penstock_worker
        with _GUARD:
            if observer is not None:
                return observer.report(metadata)
        return metadata
