"""Servers of policy sources killed at random under changes: ``python -m tests.faults.fleet.chaos --seconds 600 --changes 100``.

Three nats-servers, of which mostly the stream's leader is killed, an API server with its etcd where ``make kube-apiserver``
has built it, and a relay: each with SIGKILL, again and again. Meanwhile writers change policies by compare-and-set, and
somebody without the role tries to. In the end each engine has the effective policy that a model computes from the
confirmed writes.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import signal
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import nats
import pytest
import structlog
from nats.js.api import KeyValueConfig

from tests.faults.fleet.expected import Ledger
from tests.faults.fleet.fleet import OBJECTS, Fleet
from tests.faults.fleet.intruder import MARK, REFUSING, Intruder
from tests.faults.fleet.writers import BUCKET, ClusterWriter, NatsWriter, change, random_change, read_now
from tests.support.agent.agent import short_directory
from tests.support.kubernetes.api_server import ApiServer
from tests.support.nats.cluster import NatsCluster, leader_of, users_of_guide

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping
    from pathlib import Path

    from tests.faults.fleet.writers import Writer

LEADER = "leader of the stream"
# Between two kills of one kind, and until what was killed starts again.
_PAUSE = (2.0, 8.0)
_DOWN = (0.1, 3.0)
# Of the API server, in a row.
_STARTS = 10
# A token lasts 600 s; the kubelet renews it before.
_RENEW_SECONDS = 120.0
# Until a server has what the cluster has confirmed.
_CATCH_UP_SECONDS = 60.0
# What nobody changes: if an engine loses one of these fields, something was withdrawn by accident.
_LASTING: Mapping[str, Mapping[str, Any]] = {
    "nats-base": {"priority": 0, "telemetry": {"failureLogInterval": "7s"}},
    "objects-base": {"priority": 0, "peerQuarantine": {"failures": 7}},
}


class Chaos:
    """The servers, what kills them, and the fleet that follows.

    Attributes:
        done: kills by what was killed.

    """

    def __init__(self, directory: Path, seed: int, cluster: ApiServer | None) -> None:
        self._directory = directory
        self._random = random.Random(seed)
        self._cluster = cluster
        self.servers = NatsCluster(directory / "nats", users_of_guide())
        name = ",".join([self.servers.urls[0], *(url.partition("//")[2] for url in self.servers.urls[1:])])
        self.places = {f"{name}/{BUCKET}": Ledger()}
        if cluster is not None:
            self.places[OBJECTS] = Ledger()
        self.writers: list[Writer] = []
        self.done: Counter[str] = Counter()
        self._parts = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start the servers with the lasting policies, and the fleet."""
        parts = self._parts
        try:
            parts.callback(self.servers.kill)
            await asyncio.to_thread(self.servers.start)
            bucket, *objects = self.places.values()
            clients = [await self._client() for _ in range(3)]
            await _created(clients[0])
            self._stream = clients[2].jetstream(timeout=2)
            self.writers = [NatsWriter(client, bucket) for client in clients[:2]]
            flags: list[str] = []
            if self._cluster is not None:
                await self._start_cluster(self._cluster)
                self.writers.append(ClusterWriter(self._cluster, objects[0]))
                flags = [
                    f"--kube-api={self._cluster.url}", f"--kube-token-file={self._cluster.place}/token",
                    f"--kube-ca={self._cluster.ca}",
                ]  # fmt: skip
            for writer, (name, spec) in zip(
                (self.writers[0], *self.writers[2:]), _LASTING.items(), strict=False
            ):
                await change(writer, 1, name, spec)
            lasting = [f"{section}.{key}" for spec in _LASTING.values() for section, values in spec.items()
                       if isinstance(values, dict) for key in values]  # fmt: skip
            self.fleet = await parts.enter_async_context(
                Fleet(self._directory, self.servers.urls, self.places, flags, lasting)
            )
            self.intruder = Intruder(self.servers.urls, self._cluster, list(self.fleet.agents.values()))
            await self.fleet.settles()
        except BaseException:
            await parts.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Kill all."""
        await self._parts.aclose()

    async def run(self, seconds: float, changes: int, kills: int = 0) -> None:
        """Make *changes*, evenly over *seconds*, while servers are killed.

        Go on until the leader was killed *kills* times, and the intruder refused at each place.
        """
        over = asyncio.Event()
        faults = [self._again(self._kill_nats, over), self._again(self._kill_relay, over)]
        faults.append(self._again(self.intruder.attempt, over))
        if self._cluster is not None:
            faults += [self._again(self._kill_api_server, over), self._again(self._kill_etcd, over)]
            faults.append(self._renew(self._cluster, over))
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                group.create_task(fault)
            writes = [group.create_task(each) for each in self._writes(seconds, changes)]
            await asyncio.gather(*writes)
            # Each kill and each refusal is counted elsewhere.
            while self.done[LEADER] < kills or not all(map(self.intruder.refused.get, REFUSING)):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            over.set()

    async def check(self) -> None:
        """Wait until all engines have what the model says, and check that nobody else changed anything."""
        if self._cluster is not None:
            await self._objects_answer(self._cluster)
        for writer in self.writers:
            for name, each in writer.ledger.newest.items():
                await _keeps(writer, name, each.number if each.spec is not None else 0)
        await self.fleet.settles()
        assert not self.fleet.losses(), f"withdrawn by accident: {self.fleet.losses()[:3]}"
        bucket = self.writers[0]
        assert isinstance(bucket, NatsWriter)
        lost = await bucket.lost_updates()
        assert not lost, lost
        assert self.intruder.taken == []
        assert await self.fleet.authors() <= set(self.places)
        assert MARK not in {name for ledger in self.places.values() for name in ledger.newest}
        relay = self.fleet.relay
        await asyncio.to_thread(relay.wait_for, a="up", b="up")
        listed = await asyncio.to_thread(relay.agentctl, "get", "engines")
        assert listed.exit_code == 0, listed.stderr
        found = sorted(line.split()[0] for line in listed.stdout.splitlines()[1:])
        assert found == ["a/decode", "a/prefill", "b/decode", "b/prefill"]

    async def _client(self) -> Any:
        client = await nats.connect(
            self.servers.urls, user="ops", password="o", max_reconnect_attempts=-1, reconnect_time_wait=0.1,
            connect_timeout=2, ping_interval=2, error_cb=_ignored,
        )  # fmt: skip
        self._parts.push_async_callback(client.close)
        return client

    async def _start_cluster(self, cluster: ApiServer) -> None:
        self._parts.callback(cluster.stop)
        cluster.start_etcd()
        cluster.start_server()
        await cluster.ready()
        await cluster.install()
        await cluster.write_token()

    def _writes(self, seconds: float, changes: int) -> list[Coroutine[Any, Any, None]]:
        """Return what each writer does: one of *changes* after the other, at random times."""
        begun = time.monotonic()
        shares: dict[int, list[tuple[float, int, str, Mapping[str, Any] | None]]] = {}
        for number in range(changes):
            at = begun + seconds * (number + self._random.random()) / changes
            name, spec = random_change(self._random)
            shares.setdefault(number % len(self.writers), []).append((at, number + 2, name, spec))

        async def write(
            writer: Writer, share: list[tuple[float, int, str, Mapping[str, Any] | None]]
        ) -> None:
            for at, number, name, spec in share:
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                await change(writer, number, name, spec)

        return [write(self.writers[index], share) for index, share in shares.items()]

    async def _again(self, fault: Callable[[], Awaitable[None]], over: asyncio.Event) -> None:
        while not over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), self._random.uniform(*_PAUSE))
                return
            await fault()

    async def _kill_nats(self) -> None:
        """Kill the stream's leader, or now and then another server; never the second before the first has caught up.

        A server keeps its last writes in memory for a moment, so two that are killed together may lose what was confirmed.
        """
        try:
            leader = await leader_of(self._stream, BUCKET)
        except (nats.errors.Error, TimeoutError, OSError):
            leader = ""
        if not leader:
            return
        victim = (
            leader
            if self._random.random() < 0.8
            else self._random.choice(sorted({*self.servers.servers} - {leader}))
        )
        self.servers.servers[victim].kill()
        self.done[LEADER if victim == leader else "another nats-server"] += 1
        await asyncio.sleep(self._random.uniform(*_DOWN))
        await asyncio.to_thread(self.servers.servers[victim].start)

    async def _kill_relay(self) -> None:
        process = self.fleet.relay.process
        assert process is not None
        process.kill()
        await asyncio.to_thread(process.wait)
        self.done["relay"] += 1
        await asyncio.to_thread(self.fleet.relay.start)

    async def _kill_api_server(self) -> None:
        cluster = self._cluster
        assert cluster is not None
        assert cluster.server is not None
        cluster.server.kill()
        await asyncio.to_thread(cluster.server.wait)
        self.done["API server"] += 1
        await asyncio.sleep(self._random.uniform(*_DOWN))
        await self._objects_answer(cluster)

    async def _objects_answer(self, cluster: ApiServer) -> None:
        """Wait for the API server; start it again if it has ended, as the kubelet does: it ends if etcd is killed at its start."""
        for _ in range(_STARTS):
            if cluster.server is None or cluster.server.poll() is not None:
                cluster.start_server()
            try:
                await cluster.ready()
            except pytest.fail.Exception:
                if cluster.server is None or cluster.server.poll() is None:
                    raise
            else:
                return
        raise AssertionError(f"the API server did not come up in {_STARTS} starts")

    async def _kill_etcd(self) -> None:
        cluster = self._cluster
        assert cluster is not None
        assert cluster.etcd is not None
        cluster.etcd.kill()
        await asyncio.to_thread(cluster.etcd.wait)
        self.done["etcd"] += 1
        await asyncio.sleep(self._random.uniform(*_DOWN))
        cluster.start_etcd()

    async def _renew(self, cluster: ApiServer, over: asyncio.Event) -> None:
        """Renew the agents' token, as the kubelet does."""
        pause = _RENEW_SECONDS
        while not over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), pause)
                return
            try:
                await cluster.write_token()
                pause = _RENEW_SECONDS
            except (AssertionError, aiohttp.ClientError, TimeoutError):
                # The API server is away.
                pause = 1.0


async def _created(client: Any) -> None:
    """Create the bucket; a cluster that has just started has no leader yet."""
    config = KeyValueConfig(bucket=BUCKET, history=64, replicas=3)
    limit = time.monotonic() + 60
    while True:
        try:
            await client.jetstream(timeout=5).create_key_value(config)
        except (nats.errors.Error, TimeoutError):
            assert time.monotonic() < limit, "the cluster creates no bucket"
            await asyncio.sleep(0.25)
        else:
            return


async def _keeps(writer: Writer, name: str, wanted: int) -> None:
    """Check that a confirmed change is there. A server that leads since a moment ago may answer from before it; a loss lasts."""
    limit = time.monotonic() + _CATCH_UP_SECONDS
    while (found := await read_now(writer, name)).number != wanted:
        assert time.monotonic() < limit, (
            f"the server lost change {wanted} of {name}: it has change {found.number} at revision {found.revision},"
            f" the ledger {writer.ledger.newest[name]}"
        )
        await asyncio.sleep(0.5)


async def _ignored(_: Exception) -> None:
    """Do nothing: each call sees its own error."""


async def _main(options: argparse.Namespace) -> int:
    begun = time.monotonic()
    with short_directory() as directory:
        cluster = None
        if not options.without_objects:
            try:
                (directory / "cluster").mkdir()
                cluster = ApiServer(directory / "cluster")
            except pytest.skip.Exception as missing:
                print(f"without Kubernetes objects: {missing}")
        async with Chaos(directory, options.seed, cluster) as chaos:
            print(f"started after {time.monotonic() - begun:.0f} s", flush=True)
            await chaos.run(options.seconds, options.changes)
            print(f"{options.changes} changes confirmed after {time.monotonic() - begun:.0f} s", flush=True)
            last = time.monotonic()
            await chaos.check()
            print(
                f"all engines have what the model says, {time.monotonic() - last:.1f} s after the last fault"
            )
            counts = sum((writer.counts for writer in chaos.writers), Counter[str]())
        for what, count in chaos.done.most_common():
            print(f"{count:6} kills: {what}")
        for what, count in counts.most_common():
            print(f"{count:6} attempts: {what}")
        for place, count in chaos.intruder.refused.most_common():
            print(f"{count:6} attempts without the role refused: {place}")
    engines = sum(len(each) for each in chaos.fleet.engines.values())
    print(
        f"{engines} engines, 0 policies withdrawn by accident, 0 lost updates; {time.monotonic() - begun:.0f} s"
    )
    return 0


def main() -> int:
    """Run it and print a summary; raises what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--changes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--without-objects", action="store_true", help="without the Kubernetes API server")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return asyncio.run(_main(options))


if __name__ == "__main__":
    sys.exit(main())
