"""Damaged states: whatever a bad disk does to one, the agent starts on it, serves, and takes in what comes.

``python -m tests.faults.damage --cases 500`` leaves states behind as real agents do, after SIGKILL and after SIGTERM, damages a
copy of one in each case, and starts on it. Most starts are those of the daemon in this process; some are real processes.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import sqlite3
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import structlog
from penstock.agent.daemon.config import resolve
from penstock.agent.daemon.daemon import Daemon
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub

from tests.faults.extent import LEFT_BATCHES
from tests.faults.spoil import Case
from tests.support.agent.agent import AgentProcess, running_agent, short_directory, wait_until
from tests.support.agent.batches import deferral_start, noise, transfer_failure
from tests.support.agent.ingest_client import FakeEngine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from google.protobuf.message import Message

_MANIFEST = """
{"apiVersion": "penstock.dev/v1alpha1", "kind": "TransferPolicy", "metadata": {"name": "p%d"},
 "spec": {"selector": {}, "kvLoadFailure": {"action": "recompute"}}}
"""
_LARGE = 10
_POLICIES = 12
# Damage that a start does not meet ends a life; what the next one begins with is whole.
_LIVES = 3
_PATIENCE = 60.0


@dataclass(slots=True)
class Life:
    """What a client of one life of the agent found.

    Attributes:
        events: that the log showed.
        ended_by: why the agent cannot go on; empty for a sound life.

    """

    events: int = 0
    ended_by: str = ""


def leave(ended: str, target: Path) -> None:
    """Have a real agent leave a state in *target*: ``kill`` or ``terminate`` it after some traffic."""
    with running_agent(["--source-grace=1h"]) as agent:
        _publish(agent, LEFT_BATCHES)
        _set_policies(agent)
        # As in any life but the shortest: most of the log is in the file, and the latest of it beside that.
        _check_point(agent.state_dir / "journal.db")
        wait_until((agent.state_dir / "policy-copy.db").exists, "a copy of the policies")
        _publish(agent, LEFT_BATCHES // 6)
        if ended == "kill":
            agent.kill()
        else:
            assert agent.stop() == 0
        shutil.copytree(agent.state_dir, target)


def _check_point(path: Path) -> None:
    """Wait until all of the write-ahead log is in the file: the next commit begins it anew."""
    with closing(sqlite3.connect(path)) as database:

        def done() -> bool:
            busy, pages, copied = database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            return not busy and pages == copied

        wait_until(done, "a checkpoint")


def _publish(agent: AgentProcess, batches: int) -> None:
    with FakeEngine(agent.listen) as engine:
        for number in range(batches):
            name = f"{engine.epoch}-{number}"
            many = range(1 + _LARGE * (number % _LARGE == 0))
            events = [transfer_failure(f"{name}-{n}", error_text=noise(80)) for n in many]
            engine.publish(*events, deferral_start(name), transfers=[name])


def _set_policies(agent: AgentProcess) -> None:
    with grpc.insecure_channel(agent.admin) as channel:
        stub = AdminStub(channel)
        for number in range(_POLICIES):
            stub.ApplyPolicy(
                admin.ApplyPolicyRequest(manifest_json=_MANIFEST % number, author="test", all=True),
                timeout=_PATIENCE,
            )


async def live_here(state_dir: Path) -> Life:
    """Start the daemon in this process, ask it and have it take in a batch; raises if it does not start."""
    directory = state_dir.parent
    flags = {
        "listen": f"unix://{directory}/ingest.sock",
        "admin-listen": f"unix://{directory}/admin.sock",
        "http": "127.0.0.1:0",
        "page": "off",
        "state-dir": str(state_dir),
        "drain-deadline": "2s",
        "source-grace": "1h",
        # This process may hold whatever else a test run has imported.
        "memory-limit": "64GiB",
    }
    daemon = Daemon(resolve(flags, {}))
    try:
        await asyncio.wait_for(daemon.start(), _PATIENCE)
        return await asyncio.to_thread(_use, flags["listen"], flags["admin-listen"])
    finally:
        await daemon.stop()


def live_apart(state_dir: Path) -> Life:
    """As :func:`live_here`, with an agent's own process."""
    agent = AgentProcess(state_dir.parent, ["--source-grace=1h", "--drain-deadline=2s"])
    try:
        agent.start()
        return _use(agent.listen, agent.admin)
    finally:
        agent.stop()


def _use(listen: str, address: str) -> Life:
    life = Life()
    with grpc.insecure_channel(address) as channel:
        stub = AdminStub(channel)
        try:
            answer = stub.ListEvents(admin.ListEventsRequest(limit=10_000), timeout=_PATIENCE)
            life.events = len(answer.events)
            for method, question in _questions(answer):
                _ask(stub, method, question)
            with FakeEngine(listen) as engine:
                # An earlier life may have taken in one of its own before it ended.
                new = f"new-{engine.epoch}"
                engine.publish(transfer_failure(new), transfers=[new])
            named = stub.ListEvents(admin.ListEventsRequest(request_id=new), timeout=_PATIENCE).events
            assert [logged.event.request_id for logged in named] == [new]
            stub.ApplyPolicy(
                admin.ApplyPolicyRequest(manifest_json=_MANIFEST % 99, author="test", all=True),
                timeout=_PATIENCE,
            )
        except grpc.RpcError as error:
            life.ended_by = str(error.details())
    return life


def _questions(answer: admin.ListEventsResponse) -> Iterator[tuple[str, Message]]:
    yield "ListRequests", admin.ListRequestsRequest(limit=200)
    yield "ListRequests", admin.ListRequestsRequest(deferred=True)
    yield "ListEvents", admin.ListEventsRequest(kinds=["transfer_failure"], limit=10)
    yield "ListAudit", admin.ListAuditRequest()
    yield "ListPolicies", admin.ListPoliciesRequest()
    yield "GetStatus", admin.GetStatusRequest()
    for logged in answer.events[:3]:
        yield "GetTrace", admin.GetTraceRequest(request_id=logged.event.request_id)


def _ask(stub: AdminStub, method: str, request: Message) -> None:
    """Ask; a request that went with the damage is not found."""
    try:
        getattr(stub, method)(request, timeout=_PATIENCE)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.NOT_FOUND:
            raise


class Bench:
    """Two states that agents left, and what has come of damage to copies of them.

    Attributes:
        outcomes: how often each came out.
        kept: of the events of a state whose journal was damaged, how much of it each case showed afterwards.

    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.outcomes: Counter[str] = Counter()
        self.kept: list[float] = []
        self._whole: dict[str, int] = {}
        for ended in ("kill", "terminate"):
            leave(ended, directory / ended)
            with short_directory() as place:
                shutil.copytree(directory / ended, place / "state")
                self._whole[ended] = asyncio.run(live_here(place / "state")).events

    def run(self, case: Case, *, apart: bool = False) -> str:
        """Do one case; returns how it came out, and raises if an agent does not start, or never gets well."""
        with short_directory() as directory:
            state_dir = directory / "state"
            shutil.copytree(self._directory / case.ended, state_dir)
            if not case.do(state_dir):
                outcome = "nothing there to damage"
            else:
                try:
                    outcome = self._live(case, state_dir, apart=apart)
                except Exception as error:
                    raise AssertionError(f"{case}: {error}") from error
        self.outcomes[outcome] += 1
        return outcome

    def _live(self, case: Case, state_dir: Path, *, apart: bool) -> str:
        for _ in range(_LIVES):
            life = live_apart(state_dir) if apart else asyncio.run(live_here(state_dir))
            if not life.ended_by:
                break
        else:
            raise AssertionError(f"life after life ends: {life.ended_by}")
        aside = len(list(state_dir.glob("state.corrupt-*")))
        if case.file.startswith("journal"):
            self.kept.append(life.events / self._whole[case.ended])
        return f"set aside {aside} times" if aside else "went on"


def main() -> int:
    """Run the cases and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--apart", type=int, default=20, help="how many of them with an agent's own process")
    options = parser.parse_args()
    logging.disable()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    print(f"seed {options.seed}")
    begun, failed = time.monotonic(), 0
    with short_directory() as directory:
        bench = Bench(directory)
        for number in range(options.cases):
            try:
                bench.run(Case.of(options.seed + number), apart=number < options.apart)
            except AssertionError as error:
                failed += 1
                print(f"FAILED {error}", flush=True)
    for outcome, count in bench.outcomes.most_common():
        print(f"{count:6} {outcome}")
    kept = sorted(bench.kept)
    print(f"of the events of a damaged journal the median case kept {kept[len(kept) // 2]:.0%}")
    print(f"{options.cases} cases, {failed} that failed; {time.monotonic() - begun:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
