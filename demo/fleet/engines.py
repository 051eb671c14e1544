"""The simulated engines of one pod: ``python -m demo.fleet.engines --count N --trouble FILE``.

They have Penstock's engine part as vLLM has it, with its real wire and its real policy client; the requests are made up.
One request in a hundred is recomputed. While FILE exists the KV of three in ten cannot be loaded: where a policy fails such
requests, they fail.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from pathlib import Path

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import settings
from penstock.instrumentation.runtime import Runtime

_FIELDS = ("kv_load_failure", "deferral", "peer_quarantine", "telemetry")
_REQUESTS = 20
_SECONDS = 0.2
_MS = 1_000_000
_PEER = {"address": "prefill-0:5600"}


class Engine:
    """One simulated EngineCore."""

    def __init__(self, number: int) -> None:
        """Start it; it reports to ``PENSTOCK_ENDPOINT``."""
        self._runtime = Runtime()
        self._runtime.configure(settings.load(os.environ))
        self._runtime.identify(
            process="engine-core", key=str(number), model="tiny", vllm_version="0.32.0", role="decode"
        )
        self._runtime.start_policy(_FIELDS)
        self._served = 0

    def serve(self, *, trouble: bool) -> None:
        """End some requests; with *trouble*, where KV cannot be loaded."""
        rule = self._runtime.policy.current.kv_load_failure
        fails = rule is not None and rule.action is not None and rule.action.value == "fail"
        now = time.time_ns()
        for _ in range(_REQUESTS):
            self._served += 1
            name = f"cmpl-{self._served}"
            if fails and trouble and self._served % 10 in (0, 1, 2):
                self._emit("load_outcome", name, now, **_outcome(c.OUTCOME_FAILED))
            elif not fails and self._served % 100 == 0:
                self._emit("load_outcome", name, now, **_outcome(c.OUTCOME_RECOMPUTED))
            self._emit(
                "request_closed",
                name,
                now,
                kv_role=c.ROLE_DECODE,
                peer=_PEER,
                arrival_time_unix_nano=now - 500 * _MS,
                scheduled_time_unix_nano=now - 490 * _MS,
                first_token_time_unix_nano=now - 400 * _MS,
                prompt_tokens=512,
                output_tokens=16,
                finish_reason="stop",
            )

    def stop(self) -> None:
        """Say goodbye."""
        self._runtime.stop(5.0)

    def _emit(self, kind: str, request_id: str, now: int, **fields: object) -> None:
        self._runtime.emit_event(
            kind, fields, component=c.COMPONENT_SCHEDULER, request_id=request_id, time_ns=now
        )


def _outcome(kind: int) -> dict[str, object]:
    return {
        "channel": c.CHANNEL_KV,
        "outcome": kind,
        "decided_by": c.DECIDED_BY_POLICY,
        "mode": c.FAILURE_MODE_HANDSHAKE,
        "peer": _PEER,
        "attempt": 1,
        "tokens_recomputed": 512 if kind == c.OUTCOME_RECOMPUTED else 0,
    }


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--trouble", type=Path, required=True, help="while it exists, KV cannot be loaded")
    options = parser.parse_args()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    engines = [Engine(number) for number in range(options.count)]
    while not ended.wait(_SECONDS):
        trouble = options.trouble.exists()
        for engine in engines:
            engine.serve(trouble=trouble)
    for engine in engines:
        engine.stop()


if __name__ == "__main__":
    main()
