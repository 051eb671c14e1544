"""The mixin over a worker's NIXL agent: observes every transfer, and every notification just before vLLM handles it.

The agent lies below vLLM's failure handling, so fault drills are injected here. vLLM forgets a request with its last expected
notification. Whether one comes too late is therefore known only when its turn has come, not when a poll begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.nixl.fault_injection import RehearsedFaultError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.instrumentation.vllm.kv.nixl.observer import NixlObserver

_GUARD = guard("nixl")
_HEARTBEAT = b"HB:"
_GOOD = frozenset({"DONE", "PROC"})


class WatchedMessages(list[bytes]):
    """The messages of one peer; *observe* is called with each when it is iterated over."""

    def __init__(self, messages: Iterable[bytes], observe: Callable[[bytes], None]) -> None:
        """Copy *messages*."""
        super().__init__(messages)
        self._observe = observe

    def __iter__(self) -> Iterator[bytes]:
        """Yield each message after it has been observed."""
        for message in super().__iter__():
            with _GUARD:
                self._observe(message)
            yield message


class WatchedQueue:
    """The queue of a push worker's forwarded messages; *observe* is called with each that is taken out of it."""

    def __init__(self, queue: Any, observe: Callable[[bytes], None]) -> None:
        """Stand in for *queue*."""
        self._queue = queue
        self._observe = observe

    def get_nowait(self) -> Any:
        """Return the next message, after it has been observed; raises as the queue does."""
        message = self._queue.get_nowait()
        with _GUARD:
            self._observe(message)
        return message

    def __getattr__(self, name: str) -> Any:
        """Return what the queue has."""
        return getattr(self._queue, name)


class NixlAgentMixin:
    """Over the NIXL agent: observes every handle from preparation to release."""

    _penstock: NixlObserver | None = None
    _penstock_on_notification: Any = None

    def make_prepped_xfer(self, *args: Any, **kwargs: Any) -> Any:
        """Prepare a transfer; a drill may fail it or drop its notification."""
        upstream: Any = super()
        observer = self._penstock
        if observer is None or not observer.faults.armed:
            return upstream.make_prepped_xfer(*args, **kwargs)
        fault: RehearsedFaultError | None = None
        with _GUARD:
            peer = observer.context.transfer.peer.address
            drill = observer.faults.hit(c.FAILURE_MODE_SETUP, peer)
            fault = RehearsedFaultError(drill) if drill is not None else None
            if fault is None and kwargs.get("notif_msg"):
                drill = observer.faults.hit(c.FAILURE_MODE_NOTIFICATION, peer)
                if drill is not None:
                    kwargs["notif_msg"] = b""
                    observer.on_notification_dropped(drill)
        if fault is not None:
            raise fault
        return upstream.make_prepped_xfer(*args, **kwargs)

    def transfer(self, handle: Any, *args: Any, **kwargs: Any) -> Any:
        """Record the transfer that is posted."""
        upstream: Any = super()
        observer = self._penstock
        if observer is not None and runtime.active:
            with _GUARD:
                observer.on_posted(handle)
        return upstream.transfer(handle, *args, **kwargs)

    def check_xfer_state(self, handle: Any) -> Any:
        """Return the state of a transfer, as a drill changes it; select one that has failed."""
        upstream: Any = super()
        observer = self._penstock
        if observer is None:
            return upstream.check_xfer_state(handle)
        try:
            state = upstream.check_xfer_state(handle)
            if observer.faults.has_hits:
                state = self._penstock_apply_drill(observer, handle, state)
        except Exception:
            with _GUARD:
                observer.set_current(handle)
            raise
        if state == "PROC":
            with _GUARD:
                observer.on_running(handle)
        elif state not in _GOOD:
            with _GUARD:
                observer.set_current(handle)
        return state

    @staticmethod
    def _penstock_apply_drill(observer: NixlObserver, handle: Any, state: str) -> str:
        """Return the state that vLLM sees; raise what a drill injects."""
        fault: RehearsedFaultError | None = None
        with _GUARD:
            try:
                state = observer.faults.apply(handle, state)
            except RehearsedFaultError as rehearsed:
                fault = rehearsed
        if fault is not None:
            raise fault
        return state

    def get_xfer_telemetry(self, handle: Any) -> Any:
        """Record a completed transfer; vLLM asks once for each."""
        upstream: Any = super()
        telemetry = upstream.get_xfer_telemetry(handle)
        if self._penstock is not None:
            with _GUARD:
                self._penstock.on_completed(handle, telemetry)
        return telemetry

    def release_xfer_handle(self, handle: Any) -> Any:
        """Record that a handle is released."""
        upstream: Any = super()
        observer = self._penstock
        try:
            result = upstream.release_xfer_handle(handle)
        except Exception:
            if observer is not None:
                with _GUARD:
                    observer.set_current(handle)
            raise
        if observer is not None:
            with _GUARD:
                observer.on_released(handle)
        return result

    def send_notif(self, remote_agent_name: str, notif_msg: bytes, *args: Any, **kwargs: Any) -> Any:
        """Send a notification or fail by a drill; record a failed heartbeat, which vLLM does not log."""
        upstream: Any = super()
        observer = self._penstock
        heartbeat = notif_msg.startswith(_HEARTBEAT)
        fault: RehearsedFaultError | None = None
        if observer is not None and observer.faults.armed and not heartbeat:
            with _GUARD:
                peer = observer.peer_of_agent(remote_agent_name).address
                drill = observer.faults.hit(c.FAILURE_MODE_NOTIFICATION, peer)
                fault = RehearsedFaultError(drill) if drill is not None else None
        if fault is not None:
            raise fault
        try:
            return upstream.send_notif(remote_agent_name, notif_msg, *args, **kwargs)
        except Exception as error:
            if heartbeat and observer is not None and runtime.active:
                with _GUARD:
                    observer.on_heartbeat_failed(remote_agent_name, error)
            raise

    def get_new_notifs(self, *args: Any, **kwargs: Any) -> Any:
        """Return the notifications so that each is inspected just before vLLM handles it."""
        upstream: Any = super()
        notifications = upstream.get_new_notifs(*args, **kwargs)
        observe = self._penstock_on_notification
        watched = notifications
        if notifications and observe is not None and runtime.active:
            with _GUARD:
                watched = {
                    agent: WatchedMessages(messages, observe) for agent, messages in notifications.items()
                }
        return watched
