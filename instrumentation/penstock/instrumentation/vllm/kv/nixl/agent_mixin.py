"""The mixin over the NIXL agent that a worker holds: every transfer and notification passes here.

Below vLLM's own failure handling, so it is also the place where drills play.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.nixl.fault_injection import RehearsedFaultError

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.kv.nixl.observer import NixlObserver

_GUARD = guard("nixl")
_HEARTBEAT = b"HB:"
_GOOD = frozenset({"DONE", "PROC"})


class NixlAgentMixin:
    """Over the NIXL agent: it sees every handle that is prepared, posted, polled, completed and released."""

    _penstock: NixlObserver | None = None
    _penstock_notified: Any = None

    def make_prepped_xfer(self, *args: Any, **kwargs: Any) -> Any:
        """Prepare a transfer, unless a drill says that it fails or that its reader is not heard of."""
        host: Any = super()
        observer = self._penstock
        if observer is None or not observer.faults.armed:
            return host.make_prepped_xfer(*args, **kwargs)
        fault: RehearsedFaultError | None = None
        with _GUARD:
            peer = observer.here.transfer.peer.address
            drill = observer.faults.hit(c.FAILURE_MODE_SETUP, peer)
            fault = RehearsedFaultError(drill) if drill is not None else None
            if fault is None and kwargs.get("notif_msg"):
                drill = observer.faults.hit(c.FAILURE_MODE_NOTIFICATION, peer)
                if drill is not None:
                    kwargs["notif_msg"] = b""
                    observer.notification_left_out(drill)
        if fault is not None:
            raise fault
        return host.make_prepped_xfer(*args, **kwargs)

    def transfer(self, handle: Any, *args: Any, **kwargs: Any) -> Any:
        """Note whose transfer is posted."""
        host: Any = super()
        observer = self._penstock
        if observer is not None and runtime.active:
            with _GUARD:
                observer.posting(handle)
        return host.transfer(handle, *args, **kwargs)

    def check_xfer_state(self, handle: Any) -> Any:
        """Show vLLM a transfer as a drill has it; remember one that is in trouble."""
        host: Any = super()
        observer = self._penstock
        if observer is None:
            return host.check_xfer_state(handle)
        try:
            state = host.check_xfer_state(handle)
            if observer.faults.playing:
                state = self._penstock_seen(observer, handle, state)
        except Exception:
            with _GUARD:
                observer.at_hand(handle)
            raise
        if state not in _GOOD:
            with _GUARD:
                observer.at_hand(handle)
        return state

    @staticmethod
    def _penstock_seen(observer: NixlObserver, handle: Any, state: str) -> str:
        """Return the state that vLLM is to see; raises what a drill says."""
        fault: RehearsedFaultError | None = None
        with _GUARD:
            try:
                state = observer.faults.judge(handle, state)
            except RehearsedFaultError as rehearsed:
                fault = rehearsed
        if fault is not None:
            raise fault
        return state

    def get_xfer_telemetry(self, handle: Any) -> Any:
        """Note a transfer that is done; vLLM asks once for each."""
        host: Any = super()
        telemetry = host.get_xfer_telemetry(handle)
        if self._penstock is not None:
            with _GUARD:
                self._penstock.completed(handle, telemetry)
        return telemetry

    def release_xfer_handle(self, handle: Any) -> Any:
        """Note that a handle is let go."""
        host: Any = super()
        observer = self._penstock
        try:
            result = host.release_xfer_handle(handle)
        except Exception:
            if observer is not None:
                with _GUARD:
                    observer.at_hand(handle)
            raise
        if observer is not None:
            with _GUARD:
                observer.released(handle)
        return result

    def send_notif(self, remote_agent_name: str, notif_msg: bytes, *args: Any, **kwargs: Any) -> Any:
        """Report a heartbeat that cannot be sent, which vLLM keeps to itself; fail where a drill says so."""
        host: Any = super()
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
            return host.send_notif(remote_agent_name, notif_msg, *args, **kwargs)
        except Exception as error:
            if heartbeat and observer is not None and runtime.active:
                with _GUARD:
                    observer.heartbeat_failed(remote_agent_name, error)
            raise

    def get_new_notifs(self, *args: Any, **kwargs: Any) -> Any:
        """Look at the notifications before vLLM does."""
        host: Any = super()
        notifications = host.get_new_notifs(*args, **kwargs)
        if notifications and self._penstock_notified is not None and runtime.active:
            with _GUARD:
                self._penstock_notified(notifications)
        return notifications
