"""A disk that is really full: nothing is acknowledged that is not kept, and all goes on when there is room again."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from click.testing import CliRunner
from penstock.agent.ctl.main import cli
from penstock.agent.daemon.backup_command import request_backup
from penstock.agent.journal.query.reader import Reader
from penstock.agent.server.addresses import UnixAddress
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.agent import AgentProcess, running_agent, short_directory, wait_until
from tests.support.agent.batches import noise, transfer_failure
from tests.support.agent.ingest_client import FakeEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

# Of a batch of some 100 KiB; a limit is reached after a hundred at most.
EVENTS, TEXT_BYTES, BATCHES = 25, 4000, 200
# A refusal that ends by itself, because the agent makes room, is followed by another one.
TRIES = 20


def publish_until_refused(engine: FakeEngine) -> None:
    """Publish until the agent ends the stream, and the next one with what is sent again."""
    for n in range(BATCHES):
        events = [transfer_failure(f"{n}-{m}", error_text=noise(TEXT_BYTES)) for m in range(EVENTS)]
        if refused(partial(engine.publish, *events)) and refused(engine.connect):
            return
    raise AssertionError(f"{BATCHES} batches found room")


def refused(send: Callable[[], object]) -> bool:
    """Tell whether the agent refuses for want of room; any other error is raised."""
    try:
        send()
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return True
        raise
    return False


def check_log(state_dir: Path, engine: FakeEngine) -> None:
    """Check that the log holds what was acknowledged, each batch once, as it came."""
    with Reader(state_dir / "journal.db") as reader:
        rows = reader.batches(0, limit=10_000)
        assert [row.seq for row in rows] == list(range(1, engine.acknowledged + 1))
        assert all(len(Batch.FromString(row.body).events) in (1, EVENTS) for row in rows)


def check_outage(agent: AgentProcess, make_room: Callable[[], object], state_dir: Callable[[], Path]) -> None:
    """Fill the disk by publishing, look, make room, look again."""
    with FakeEngine(agent.listen) as engine:
        for _ in range(TRIES):
            publish_until_refused(engine)
            status, text = agent.get("/readyz")
            if status != HTTPStatus.OK:
                break
            # What it gives up and deletes has made room meanwhile; that ends.
            refused(engine.connect)
        assert len(engine.unacknowledged) == 1
        check_log(state_dir(), engine)
        assert (status, "the journal cannot be written" in text) == (503, True)
        assert agent.get("/healthz") == (200, "ok\n")
        assert agent.metric("penstock_agent_degraded", reason="journal_unwritable") == 1
        make_room()
        # Without anybody sending.
        wait_until(lambda: agent.get("/readyz")[0] == 200, "the journal can be written again")
        engine.connect()
        engine.publish(transfer_failure("after"))
        assert not engine.unacknowledged
        check_log(state_dir(), engine)
        assert agent.metric("penstock_agent_degraded", reason="journal_unwritable") == 0
        counted = (engine.acknowledged - 1) * EVENTS + 1
        assert agent.metric("penstock_transfer_failures_total") == counted


def test_files_that_may_not_grow():
    """By a limit of the system on file sizes, which anybody may set; also over a kill -9."""
    with running_agent() as agent:
        assert agent.process is not None
        pid = agent.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (2 << 20, before[1]))
        check_outage(
            agent, lambda: resource.prlimit(pid, resource.RLIMIT_FSIZE, before), lambda: agent.state_dir
        )
        counted = agent.metric("penstock_transfer_failures_total")
        agent.kill()
        agent.start()
        assert agent.metric("penstock_transfer_failures_total") == counted


class SmallDisk(AgentProcess):
    """An agent whose state is on a disk of 8 MiB of its own."""

    def command(self) -> list[str]:
        """Return the command line."""
        words = (
            f'mkdir -p "{self.state_dir}" && mount -t tmpfs -o size=8m tmpfs "{self.state_dir}" && exec "$@"'
        )
        return ["unshare", "-rm", "sh", "-c", words, "sh", *super().command()]

    def _ready(self) -> bool:
        for record in self.records():
            if record["event"] == "agent ready":
                self.http = str(record["http"])
        return bool(self.http) and self.get("/readyz")[0] == 200


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def copy_of(agent: AgentProcess) -> Path:
    """Return a backup of the state: the disk itself is not to be seen from here."""
    copy = agent.directory / f"copy-{len(list(agent.directory.iterdir()))}"
    request_backup([UnixAddress(Path(agent.admin.removeprefix("unix://")))], agent.state_dir, copy)
    return copy


@pytest.mark.skipif(not _can_mount(), reason="this user may not mount in a namespace of its own")
def test_a_disk_that_others_fill():
    """Another program's file fills the disk and is deleted."""
    with short_directory() as directory:
        agent = SmallDisk(directory)
        try:
            agent.start()
            assert agent.process is not None
            filler = Path(f"/proc/{agent.process.pid}/root{agent.state_dir}/somebody-elses")
            filler.write_bytes(bytes(4 << 20))
            check_outage(agent, filler.unlink, lambda: copy_of(agent))
        finally:
            agent.stop()


class OwnDisk(AgentProcess):
    """An agent whose state is on a disk of 8 MiB that outlives it, in a namespace that a process of ours holds."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, ["--state-limit=32MiB"])
        self.state_dir.mkdir(0o700)
        words = f'mount -t tmpfs -o size=8m,mode=0700 tmpfs "{self.state_dir}" && echo mounted && exec cat'
        self.holder = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == b"mounted\n"
        self.disk = Path(f"/proc/{self.holder.pid}/root{self.state_dir}")

    def command(self) -> list[str]:
        """Return the command line."""
        return [
            "nsenter",
            "-t",
            str(self.holder.pid),
            "-U",
            "-m",
            "--preserve-credentials",
            *super().command(),
        ]

    def _ready(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the agent ended with {self.process.returncode}:\n{self.log()}")
        for record in self.records():
            if record["event"] == "agent ready" and record["pid"] == self.process.pid:
                self.http = str(record["http"])
                return self.get("/healthz")[0] == 200
        return False

    def fill(self) -> None:
        """Leave no byte on the disk."""
        with (self.disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass

    def release(self) -> None:
        """Stop it and let the disk go."""
        self.stop()
        self.holder.communicate(timeout=60)


@pytest.fixture
def own_disk():
    """Give an agent a disk of its own."""
    with short_directory() as directory:
        agent = OwnDisk(directory)
        try:
            yield agent
        finally:
            agent.release()


def policy(name: str) -> dict[str, object]:
    """Return a manifest."""
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "TransferPolicy",
        "metadata": {"name": name},
        "spec": {"kvLoadFailure": {"action": "fail"}, "selector": {"matchLabels": {"role": "decode"}}},
    }


def apply_policy(agent: AgentProcess) -> None:
    """Give the agent the policy ``p``."""
    path = agent.directory / "p.json"
    path.write_text(json.dumps(policy("p")))
    assert agentctl(agent, "apply", "-f", str(path)).exit_code == 0


def agentctl(agent: AgentProcess, *args: str) -> Result:
    """Run agentctl against the agent."""
    return CliRunner().invoke(cli, ["--address", agent.admin, *args])


@pytest.mark.skipif(not _can_mount(), reason="this user may not mount in a namespace of its own")
@pytest.mark.parametrize(
    "gone",
    [
        pytest.param((), id="as it was"),
        pytest.param(("reserve", "policy.db-shm"), id="with less", marks=pytest.mark.long),
    ],
)
def test_a_start_on_a_full_disk_after_a_kill(own_disk, gone):
    """Counters and policies are there without a byte to spare; when there is room, it goes on in place."""
    agent = own_disk
    file = agent.directory / "f.json"
    file.write_text(json.dumps(policy("of-a-file")))
    agent._args.append(f"--policy-file={file}")
    agent.start()
    apply_policy(agent)
    with FakeEngine(agent.listen) as engine:
        engine.publish(transfer_failure("a"))
        agent.kill()
        for name in gone:
            (agent.disk / name).unlink()
        agent.fill()
        # Its policy changes hands then, which cannot be written.
        agent._args.pop()
        agent.start()
        assert agent.metric("penstock_transfer_failures_total") == 1
        assert {"p", "of-a-file"} <= set(agentctl(agent, "get", "policy").output.split())
        assert agent.metric("penstock_agent_degraded", reason="state_volatile") == 0
        (agent.disk / "filler").unlink()
        wait_until(lambda: agent.get("/readyz")[0] == 200, "the journal can be written")
        engine.connect()
        engine.publish(transfer_failure("b"))
    assert agentctl(agent, "delete", "policy", "p", "--reason", "done").exit_code == 0
    agent.kill()
    agent.start()
    assert agent.metric("penstock_transfer_failures_total") == 2
    assert "p " not in agentctl(agent, "get", "policy").output


@pytest.mark.skipif(not _can_mount(), reason="this user may not mount in a namespace of its own")
def test_a_first_start_on_a_full_disk(own_disk):
    """What must be written has no place there: it runs on a substitute, and says so."""
    own_disk.fill()
    own_disk.start()
    with FakeEngine(own_disk.listen) as engine:
        engine.publish(transfer_failure("a"))
    assert own_disk.metric("penstock_transfer_failures_total") == 1
    apply_policy(own_disk)
    assert own_disk.metric("penstock_agent_degraded", reason="state_volatile") == 1
    status, text = own_disk.get("/readyz")
    assert (status, "free disk space there and restart the agent; until then" in text) == (200, True)


# Fills a disk after a first life of the journal, then begins a second one and looks whether it can delete.
CHILD = """
import asyncio, sys
from pathlib import Path
from penstock.agent.journal import Journal
from penstock.agent.model import EngineKey, Source
from penstock.proto.v1.events_pb2 import Event
from penstock.proto.v1.ingest_pb2 import Batch

source = Source(epoch=7, key=EngineKey("", "0"), process="engine-core")
place = Path(sys.argv[1])

async def main():
    journal = Journal.open(place, limit=32 << 20)
    for seq in range(1, 101):
        batch = Batch(epoch=7, seq=seq, events=[Event(request_id=f"{seq}-{n}" + "x" * 1000) for n in range(9)])
        await journal.append(source, batch, batch.SerializeToString())
    journal.save_metrics_state(100, b"fold")
    journal.save_cursor("traces", 101, 100)
    await journal.close()
    with (place / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError as error:
            print("full:", error.strerror)
    journal = Journal.open(place, limit=32 << 20)
    print("watermark", await journal.open_source(source))
    for seq in range(101, 301):
        await journal.append(source, Batch(epoch=7, seq=seq), b"")
    print("pruned", journal.usage.pruned > 0, "watermark", journal.watermark(7), journal.error)
    await journal.close()

asyncio.run(main())
"""


@pytest.mark.skipif(not _can_mount(), reason="this user may not mount in a namespace of its own")
def test_a_start_on_a_full_disk(tmp_path):
    """The reserve lets it open and trim its log; it goes on within the place that it has."""
    words = f'mount -t tmpfs -o size=8m tmpfs "{tmp_path}" && exec "$@"'
    child = subprocess.run(
        ["unshare", "-rm", "sh", "-c", words, "sh", sys.executable, "-c", CHILD, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    full, opened, ended = [line for line in child.stdout.splitlines() if not line.startswith("20")]
    assert full == "full: No space left on device"
    assert opened == "watermark 100"
    assert ended == "pruned True watermark 300 "
