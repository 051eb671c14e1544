"""What has happened before the first command of a document: one story for each of the incidents.

A block of a document names its story: ``console upgrade``; ``console`` alone is ``flap``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.proto.constants import (
    CHANNEL_EC,
    CHANNEL_EPLB,
    CHANNEL_KV,
    COMPONENT_WORKER,
    DECIDED_BY_POLICY,
    DECIDED_BY_VLLM,
    DEFERRAL_ENDING_READY,
    DEFERRAL_REASON_ENCODER_CACHE,
    DEFERRAL_REASON_REMOTE_KV,
    DIRECTION_RECEIVE,
    EPLB_TRIGGER_INTERVAL,
    ERROR_TYPE_INCOMPATIBLE,
    ERROR_TYPE_REMOTE_RESET,
    ERROR_TYPE_TIMEOUT,
    FAILURE_MODE_HANDSHAKE,
    FAILURE_MODE_TRANSFER,
    OUTCOME_FAILED,
    OUTCOME_RECOMPUTED,
    PROBE_RESULT_ERROR,
    PROBE_RESULT_HIT,
    TRANSFER_RESULT_ERROR,
    TRANSFER_RESULT_OK,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.samples.stand_in_engine import StandInEngine

    Run = Callable[[str], list[str]]

GOOD, BAD, ENCODER = "10.0.0.7:5600", "10.0.0.8:5600", "10.0.0.5:14579"
REQUEST = "cmpl-8d41-0"
DEFAULT = "flap"
_MILLISECOND = 1_000_000
_SECOND = 1_000 * _MILLISECOND


def _transfers(
    engine: StandInEngine,
    peer: str,
    count: int,
    *,
    channel: int = CHANNEL_KV,
    connector: str = "NixlConnector",
) -> None:
    """Emit good transfers of 4 MiB in 12 ms, two a second."""
    for number in range(count):
        engine.runtime.emit_transfer(
            engine.moment(30.0 - number / 2), 12 * _MILLISECOND, 4 << 20, 32, 40_000, 0, channel, DIRECTION_RECEIVE,
            TRANSFER_RESULT_OK, COMPONENT_WORKER, 0, connector, peer, "engine-of-" + peer, f"cmpl-{number:04d}-0",
        )  # fmt: skip


def _closed(
    engine: StandInEngine, request_id: str, *, ago: float, waited: float, peer: str, **fields: Any
) -> None:
    """Emit the end of a request that waited for remote KV before its first token."""
    arrival = ago + waited + 0.9
    fields = {
        "external_request_id": request_id,
        "kv_role": 2,
        "remote_request_id": f"prefill-{request_id}",
        "peer": {"address": peer},
        "arrival_time_unix_nano": engine.moment(arrival),
        "scheduled_time_unix_nano": engine.moment(arrival - 0.01),
        "first_token_time_unix_nano": engine.moment(ago + 0.3),
        "prompt_tokens": 4096,
        "output_tokens": 128,
        "finish_reason": "stop",
        **fields,
    }
    engine.emit("request_closed", request_id, ago=ago, **fields)


def _handshake(
    engine: StandInEngine, number: int, *, ago: float, error: int, text: str, waiting: list[str]
) -> None:
    engine.emit(
        "handshake",
        ago=ago,
        worker=True,
        id=number,
        connector="NixlConnector",
        peer={"address": BAD},
        result=TRANSFER_RESULT_ERROR,
        error_type=error,
        error_text=text,
        queued_time_unix_nano=engine.moment(ago + 5.0),
        start_time_unix_nano=engine.moment(ago + 5.0),
        end_time_unix_nano=engine.moment(ago),
        waiting_request_ids=waiting,
        waiters_total=len(waiting),
    )


def _failed_load(
    engine: StandInEngine, request_id: str, number: int, *, ago: float, error: int, text: str, **more: Any
) -> None:
    """Emit a handshake that failed for a request which waited for it, and what was done about it."""
    outcome = more.pop("outcome", OUTCOME_RECOMPUTED)
    by_policy, decoded = more.pop("policy_hash", ""), more.pop("decoded", 0.8)
    wait: dict[str, Any] = {
        "reason": DEFERRAL_REASON_REMOTE_KV,
        "channel": CHANNEL_KV,
        "peer": {"address": BAD},
    }
    engine.emit("deferral_start", request_id, ago=ago + 5.0, **wait)
    _handshake(engine, number, ago=ago, error=error, text=text, waiting=[request_id])
    engine.emit(
        "transfer_failure",
        request_id,
        ago=ago,
        worker=True,
        channel=CHANNEL_KV,
        connector="NixlConnector",
        direction=DIRECTION_RECEIVE,
        mode=FAILURE_MODE_HANDSHAKE,
        error_type=error,
        error_text=text,
        peer={"address": BAD},
        start_time_unix_nano=engine.moment(ago + 5.0),
        handshake_id=number,
        attempt=1,
        **more,
    )
    failed = outcome == OUTCOME_FAILED
    rule = "kvLoadFailure.action" if by_policy else "vLLM's own kv_load_failure_policy"
    engine.emit(
        "load_outcome",
        request_id,
        ago=ago,
        channel=CHANNEL_KV,
        connector="NixlConnector",
        outcome=outcome,
        decided_by=DECIDED_BY_POLICY if by_policy else DECIDED_BY_VLLM,
        policy_hash=by_policy,
        mode=FAILURE_MODE_HANDSHAKE,
        error_type=error,
        peer={"address": BAD},
        attempt=1,
        tokens_recomputed=4096,
        reason=f"{rule}: {'fail' if failed else 'recompute'}",
    )
    ending: dict[str, Any] = {
        "ending": DEFERRAL_ENDING_READY,
        "start_time_unix_nano": engine.moment(ago + 5.0),
    }
    engine.emit("deferral_end", request_id, ago=ago, **wait, **ending)
    reason: dict[str, Any] = {"finish_reason": "error", "output_tokens": 0} if failed else {}
    _closed(engine, request_id, ago=ago - decoded, waited=5.0, peer=BAD, **reason)


def flap(engine: StandInEngine, _: Run) -> None:
    """One prefill pod's network flaps: its handshakes time out, and requests to a healthy peer wait behind them."""
    _transfers(engine, GOOD, 40)
    _transfers(engine, BAD, 6)
    for number in range(3):
        request_id = REQUEST if number == 2 else f"cmpl-8d3{number}-0"
        _failed_load(
            engine,
            request_id,
            17 + number,
            ago=24.0 - 6 * number,
            error=ERROR_TYPE_TIMEOUT,
            text="the peer did not answer before the receive timeout",
        )
        engine.emit(
            "transfer_delayed",
            f"cmpl-9a0{number}-0",
            ago=24.0 - 6 * number,
            worker=True,
            channel=CHANNEL_KV,
            peer={"address": GOOD},
            delay_nano=4_800 * _MILLISECOND,
            caused_by_peer={"address": BAD},
            handshake_id=17 + number,
        )
    engine.defer("cmpl-9b77-0", ago=12.0, reason=DEFERRAL_REASON_REMOTE_KV, channel=CHANNEL_KV, peer=BAD)


def upgrade(engine: StandInEngine, run: Run) -> None:
    """After a rolling upgrade the handshakes with one of two peers are incompatible."""
    _transfers(engine, GOOD, 40)
    difference = {"local_hash": "5f0c1ad2", "remote_hash": "b81e77c4", "factors": ["vllm_version"]}
    for number in range(3):
        _failed_load(
            engine,
            REQUEST if number == 2 else f"cmpl-8d3{number}-0",
            17 + number,
            ago=24.0 - 6 * number,
            error=ERROR_TYPE_INCOMPATIBLE,
            text="NIXL compatibility hash mismatch",
            incompatibility=difference,
        )
    engine.settle()
    # Answers quote a judgement that is a second old, and older where judging takes long.
    for _ in range(150):
        if "incompatible" in "".join(run("agentctl get peers")):
            break
        time.sleep(0.2)


def fail_everywhere(engine: StandInEngine, run: Run) -> None:
    """End requests by a policy that could have been recomputed."""
    _transfers(engine, GOOD, 40)
    engine.settle()
    run(
        "agentctl set-policy everywhere --kv-load-failure fail --all --reason 'no recomputation in production' --wait"
    )
    engine.rebase()
    for number in range(3):
        _failed_load(
            engine,
            REQUEST if number == 2 else f"cmpl-8d3{number}-0",
            17 + number,
            ago=0.04 - 0.02 * number,
            decoded=0.0,
            error=ERROR_TYPE_TIMEOUT,
            text="the peer did not answer before the receive timeout",
            outcome=OUTCOME_FAILED,
            policy_hash=engine.runtime.policy.current.hash,
        )


def outage(engine: StandInEngine, _: Run) -> None:
    """Lose a third of the loads, without a policy, while a prefill pod is gone."""
    for number in range(36):
        ago = 240.0 - number
        if number % 3 == 0:
            _failed_load(
                engine,
                f"cmpl-8e{number:02d}-0",
                17 + number,
                ago=ago,
                decoded=0.0,
                error=ERROR_TYPE_TIMEOUT,
                text="the peer did not answer before the receive timeout",
                outcome=OUTCOME_FAILED,
            )
            continue
        engine.emit(
            "deferral_end",
            f"cmpl-8e{number:02d}-0",
            ago=ago,
            reason=DEFERRAL_REASON_REMOTE_KV,
            channel=CHANNEL_KV,
            peer={"address": GOOD},
            ending=DEFERRAL_ENDING_READY,
            start_time_unix_nano=engine.moment(ago + 0.1),
            transfer_start_time_unix_nano=engine.moment(ago + 0.05),
        )


def encoder(engine: StandInEngine, _: Run) -> None:
    """Break transfers of encoder outputs, as an encoder that dies again and again does; requests with images wait for it."""
    connector = "ZmqECConnector"
    _transfers(engine, ENCODER, 12, channel=CHANNEL_EC, connector=connector)
    for number in range(6):
        result = PROBE_RESULT_HIT if number < 3 else PROBE_RESULT_ERROR
        engine.runtime.emit_probe(
            engine.moment(60.0 - number), 2 * _MILLISECOND, result, connector, ENCODER, f"cmpl-7c0{number}-0"
        )
    wait: dict[str, Any] = {
        "reason": DEFERRAL_REASON_ENCODER_CACHE,
        "channel": CHANNEL_EC,
        "peer": {"address": ENCODER},
    }
    engine.emit("deferral_start", REQUEST, ago=22.0, **wait)
    engine.emit(
        "transfer_failure",
        REQUEST,
        ago=20.0,
        channel=CHANNEL_EC,
        connector=connector,
        direction=DIRECTION_RECEIVE,
        mode=FAILURE_MODE_TRANSFER,
        error_type=ERROR_TYPE_REMOTE_RESET,
        error_text="the producer closed the connection",
        peer={"address": ENCODER},
        start_time_unix_nano=engine.moment(22.0),
        item="image-1",
        attempt=1,
    )
    engine.emit(
        "load_outcome",
        REQUEST,
        ago=20.0,
        channel=CHANNEL_EC,
        connector=connector,
        outcome=OUTCOME_RECOMPUTED,
        decided_by=DECIDED_BY_VLLM,
        mode=FAILURE_MODE_TRANSFER,
        error_type=ERROR_TYPE_REMOTE_RESET,
        peer={"address": ENCODER},
        attempt=1,
        items_recomputed=1,
        reason="the item is encoded here",
    )
    ending: dict[str, Any] = {"ending": DEFERRAL_ENDING_READY, "start_time_unix_nano": engine.moment(22.0)}
    engine.emit("deferral_end", REQUEST, ago=20.0, **wait, **ending)
    _closed(engine, REQUEST, ago=19.0, waited=2.0, peer=ENCODER)
    engine.defer(
        "cmpl-9b77-0", ago=12.0, reason=DEFERRAL_REASON_ENCODER_CACHE, channel=CHANNEL_EC, peer=ENCODER
    )


def experts(engine: StandInEngine, _: Run) -> None:
    """Rebalances of experts stall the engine for half a second each."""
    for number in range(3):
        ago = 30.0 - 10 * number
        layers = [
            {
                "layer": layer,
                "experts_unchanged": 58,
                "experts_received_locally": 2,
                "experts_received_remotely": 4,
                "bytes": 96 << 20,
                "start_time_unix_nano": engine.moment(ago + 0.5),
                "duration_nano": 20 * _MILLISECOND,
                "from_ranks": [{"rank": 3, "bytes": 96 << 20}],
            }
            for layer in range(8)
        ]
        engine.emit(
            "eplb_rebalance",
            ago=ago,
            worker=True,
            trigger=EPLB_TRIGGER_INTERVAL,
            result=TRANSFER_RESULT_OK,
            communicator="torch_nccl",
            model="tiny",
            start_time_unix_nano=engine.moment(ago + 0.5),
            duration_nano=500 * _MILLISECOND,
            pause_nano=480 * _MILLISECOND,
            layers=layers,
            balancedness_before=0.71,
            balancedness_after=0.93,
            step=3000 * (number + 1),
        )
        for source in (1, 3):
            engine.runtime.emit_transfer(
                engine.moment(ago), (8 if source == 1 else 160) * _MILLISECOND, 384 << 20, 16, 40_000, 0, CHANNEL_EPLB,
                DIRECTION_RECEIVE, TRANSFER_RESULT_OK, COMPONENT_WORKER, 0, "torch_nccl", f"rank:{source}", "", "",
            )  # fmt: skip


def installed(_engine: StandInEngine, _: Run) -> None:
    """Nothing has happened to a new engine yet."""


STORIES: dict[str, Callable[[StandInEngine, Run], None]] = {
    story.__name__.replace("_", "-"): story
    for story in (flap, upgrade, fail_everywhere, outage, encoder, experts, installed)
}
