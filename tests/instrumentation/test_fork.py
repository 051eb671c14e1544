"""Forks: a child begins a new life, its parent goes on, and neither hangs or dies of the other's grpc."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest
from penstock.instrumentation.core.settings import Settings
from penstock.instrumentation.runtime import Runtime

from tests.support.script import run_script

if TYPE_CHECKING:
    import subprocess

    from tests.support.agent.fake_agent import FakeAgent

PRELUDE = """
import faulthandler, os, sys, threading, time

# A process that hangs says where, and ends before its parent loses patience; a child does before its own.
def watch(seconds):
    faulthandler.dump_traceback_later(seconds, exit=True)

watch(240)
os.register_at_fork(
    before=faulthandler.cancel_dump_traceback_later,
    after_in_parent=lambda: watch(240),
    after_in_child=lambda: watch(200),
)

from penstock.instrumentation.runtime import Runtime, runtime
from penstock.instrumentation.core.settings import Settings
from penstock.instrumentation.transport import streams

if sys.argv[2] == "threads":
    streams.SEPARATE_SINCE = (1_000_000,)
import penstock.instrumentation.runtime as module
module.FORK_DEADLINE = 60.0  # a busy machine needs more than two seconds
Runtime.stop.__defaults__ = (60.0,)  # also without a given deadline: a busy machine needs more than a second
runtime.configure(Settings(endpoint=sys.argv[1]))
runtime.identify(process="engine-core", key="0", model="tiny")

def emit(name):
    runtime.emit_event("load_outcome", {"outcome": 1}, component=1, request_id=name)

def until(condition):
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("not within 60 s")
        time.sleep(0.005)

def child(body):
    pid = os.fork()
    if pid == 0:
        code = 9
        try:
            body()
            code = 0
        finally:
            os._exit(code)
    return pid

def reap(pid):
    status = os.waitpid(pid, 0)[1]
    assert status == 0, f"the child ended with {status}"
"""


def host(
    agent: FakeAgent, script: str, kind: str = "loop", *, before: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a host process to its end, which must be a good one; *before* comes before the import of Penstock."""
    return run_script(before + PRELUDE + textwrap.dedent(script), agent.listen, kind)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("kind", ["loop", "threads"])
def test_parent_with_a_live_channel_forks(agent: FakeAgent, kind: str, busy: bool) -> None:
    """Parent and children deliver everything once, each under an epoch of its own."""
    host(
        agent,
        f"""
        runtime.start_policy(("kv_load_failure",))
        emit("parent-0")
        until(lambda: runtime._exporter and runtime._exporter._sent)
        halt = threading.Event()

        def work():
            while not halt.wait(0.0005):
                emit("busy")

        worker = threading.Thread(target=work)
        if {busy}:
            worker.start()
        for number in range(6):
            def life(number=number):
                assert runtime._exporter is None and runtime._policy_client is None
                assert runtime.active and not runtime.emitter.queued()
                runtime.identify(process="worker", key="0", rank=number)
                emit(f"child-{{number}}")
                runtime.stop(60)
            reap(child(life))
            emit(f"parent-{{number + 1}}")
        halt.set()
        if {busy}:
            worker.join()
        runtime.stop(60)
        """,
        kind,
    )
    names = sorted(name for _, name in agent.received.entries() if name != "busy")
    assert names == [f"child-{n}" for n in range(6)] + [f"parent-{n}" for n in range(7)]
    assert len(agent.received.log) == 7
    assert all(log[-1].HasField("goodbye") for log in agent.received.log.values())
    ranks = {hello.rank for _, hello in agent.received.hellos if hello.process == "worker"}
    assert ranks == set(range(6))
    # No child shows its parent's secret, whichever of them the agent hears first.
    assert len({(epoch, hello.secret) for epoch, hello in agent.received.hellos}) == 7
    assert len({hello.secret for _, hello in agent.received.hellos}) == 7


def test_queued_entries_are_the_parents(agent: FakeAgent) -> None:
    """What waits at the fork is sent by the parent alone."""
    host(
        agent,
        """
        emit("waiting")
        def life():
            runtime.identify(process="worker", key="0")
            runtime.start()
            runtime.stop(60)
        reap(child(life))
        runtime.stop(60)
        """,
    )
    assert agent.received.entries() == [("load_outcome", "waiting")]


def test_fork_at_the_first_emit(agent: FakeAgent) -> None:
    """A fork in the middle of the exporter's start leaves child and parent able to import and to serve."""
    host(
        agent,
        """
        emit("parent")
        def life():
            import google.protobuf.message, grpc
        reap(child(life))
        until(lambda: runtime._exporter._greeted and not runtime.emitter.queued())
        runtime.stop(60)
        """,
    )
    assert agent.received.entries() == [("load_outcome", "parent")]


def test_host_that_uses_grpc_itself(agent: FakeAgent) -> None:
    """Where the host's own channel is alive at the fork, the child does without telemetry rather than risk its life."""
    done = host(
        agent,
        """
        import grpc
        channel = grpc.insecure_channel(sys.argv[1])
        grpc.channel_ready_future(channel).result(60)
        emit("parent")
        module.FORK_DEADLINE = 0.3
        def life():
            assert not runtime.active
            emit("child")
            runtime.start()
            assert runtime._exporter is None
        reap(child(life))
        assert runtime.active
        runtime.stop(60)
        channel.close()
        """,
    )
    assert agent.received.entries() == [("load_outcome", "parent")]
    assert "grpc was in use at its fork" in done.stderr


def test_child_of_multiprocessing_says_goodbye(agent: FakeAgent) -> None:
    """A forked worker of multiprocessing, which skips atexit, still sends what is left."""
    host(
        agent,
        """
        import multiprocessing

        def life():
            runtime.identify(process="worker", key="0")
            emit("child")

        emit("parent")
        process = multiprocessing.get_context("fork").Process(target=life)
        process.start()
        process.join(60)
        assert process.exitcode == 0
        # This is about the child: an ending CPython 3.12.1 starts no thread, and the fork has ended the parent's stream.
        runtime.flush(60)
        """,
    )
    assert sorted(agent.received.entries()) == [("load_outcome", "child"), ("load_outcome", "parent")]
    assert all(log[-1].HasField("goodbye") for log in agent.received.log.values())


def test_fork_without_penstock_costs_nothing() -> None:
    """In a process that has emitted nothing a fork does not wait and imports nothing."""
    script = """
    runtime.configure(None)
    reap(child(lambda: None))
    assert not any(name.startswith(("grpc", "google")) for name in sys.modules)
    """
    run_script(PRELUDE + textwrap.dedent(script), "unix:///nowhere", "loop")


def test_threads_of_the_hosts_own_grpc_delay_no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a stream of ours a fork waits for nothing; with one it waits in vain once, not at every fork."""
    deadlines: list[float] = []

    def never_ends(deadline: float) -> bool:
        deadlines.append(deadline)
        return False

    monkeypatch.setattr("penstock.instrumentation.runtime.wait_for_grpc_to_end", never_ends)
    runtime = Runtime()
    runtime.before_fork()
    runtime.after_fork_in_parent()
    assert deadlines == [0.0]
    runtime.configure(Settings(endpoint="unix:///nonexistent/penstock.sock"))
    runtime.start()
    for _ in range(2):
        runtime.before_fork()
        runtime.after_fork_in_parent()
    runtime.stop(5.0)
    assert deadlines[1] > 0.0
    assert deadlines[2] == 0.0


def test_a_fork_waits_for_what_is_inside_grpc(agent: FakeAgent) -> None:
    """A Python thread of grpc's, or one of our streams, may hold the core's lock when the core's threads have ended already."""
    host(
        agent,
        """
        from grpc._cython import cygrpc
        from penstock.instrumentation.core import READER_THREAD, STREAMS_THREAD, wait_for_grpc_to_end

        halt = threading.Event()
        for inside in (
            cygrpc.ForkManagedThread(target=halt.wait),
            threading.Thread(target=halt.wait, name=READER_THREAD),
            threading.Thread(target=halt.wait, name=STREAMS_THREAD),
        ):
            halt.clear()
            assert wait_for_grpc_to_end(time.monotonic() + 60)
            inside.start()
            assert not wait_for_grpc_to_end(time.monotonic() + 0.05)
            halt.set()
            inside.join()
        other = threading.Thread(target=halt.wait)
        halt.clear()
        other.start()
        assert wait_for_grpc_to_end(time.monotonic() + 60)
        assert wait_for_grpc_to_end(0.0)
        halt.set()
        """,
    )


@pytest.mark.parametrize("by", ["ingest", "policy"])
def test_childs_pause_is_settled_by_its_own_greeting(agent: FakeAgent, by: str) -> None:
    """A child of a paused process stays passive until the agent has greeted it; no policy stream is needed."""
    host(
        agent,
        f"""
        runtime.pause("{by}", paused=True)
        def life():
            assert runtime.paused and not runtime.active
            runtime.identify(process="worker", key="0")
            runtime.start()
            until(lambda: runtime.active)
            runtime.stop(60)
        reap(child(life))
        """,
    )
    assert [hello.process for _, hello in agent.received.hellos] == ["worker"]


BEFORE_PENSTOCK = """
import os, sys, threading

conditions, halt = [], threading.Event()

# What is registered first is called last before a fork: the streams are closed by then.
def hold():
    for condition in conditions:
        holding = threading.Event()

        def run():
            with condition:
                holding.set()
                halt.wait()

        threading.Thread(target=run, daemon=True).start()
        assert holding.wait(60)

os.register_at_fork(before=hold)
"""


@pytest.mark.parametrize("kind", ["loop", "threads"])
def test_a_child_never_lets_go_of_its_parents_grpc(agent: FakeAgent, kind: str) -> None:
    """Neither its collector nor the end of its interpreter, while another thread of the parent holds the locks of the calls.

    On a loop, garbage keeps grpc alive, so that the child does without telemetry.
    """
    host(
        agent,
        f"""
        import gc
        from penstock.instrumentation.core import grpc_objects

        gc.disable()
        runtime.start_policy(("kv_load_failure",))
        emit("parent")
        until(lambda: runtime._exporter and runtime._exporter._sent and len(grpc_objects()) >= 4)
        parent = os.getpid()
        for thing in grpc_objects():
            thing.itself = thing  # only the collector finds it
            if {kind == "threads"} and hasattr(thing, "_state"):
                conditions.append(thing._state.condition)

            def destroy(self, inherited=type(thing).__del__, getpid=os.getpid, exit=os._exit, parent=parent):
                if getpid() != parent and "itself" in self.__dict__:
                    exit(8)
                inherited(self)

            type(thing).__del__ = destroy
        del thing
        assert bool(conditions) is {kind == "threads"}
        module.FORK_DEADLINE = {60.0 if kind == "threads" else 0.5}
        # Nothing holds the calls after the next ones.
        runtime.before_fork()
        runtime.after_fork_in_parent()
        emit("again")
        until(lambda: runtime._exporter._sent >= 2 and len(grpc_objects()) >= 8)
        pid = os.fork()
        if pid == 0:
            gc.collect()
            assert runtime.active is {kind == "threads"}
            runtime.identify(process="worker", key="0")
            emit("child")
            runtime.stop(60)
            sys.exit()
        halt.set()
        reap(pid)
        runtime.stop(60)
        """,
        kind,
        before=BEFORE_PENSTOCK,
    )
    names = {name for _, name in agent.received.entries()}
    assert names == {"parent", "again", *(["child"] if kind == "threads" else [])}
