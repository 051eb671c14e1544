"""Profiles a real engine and the agent under load with py-spy, by function and thread: ``make profile``.

    python -m benchmarks.profile [engine] [agent] [--seconds 20] [--keep DIRECTORY]

``--keep`` leaves the recordings there; https://www.speedscope.app shows them. py-spy has to be allowed to look into
our own processes (root, or ``kernel.yama.ptrace_scope=0``).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc

from benchmarks.harness.stack_samples import Profile, top
from benchmarks.load.engines import MODULE, VARIANT, pids, start_servers
from benchmarks.load.otlp_peer import running_peer
from benchmarks.load.sources import Result, Sender
from benchmarks.load.traffic import Load, Route, run_under_load
from demo.common.agent import Agent
from demo.servers import ServerSpec
from tests.support.agent.agent import running_agent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_RATE: Final = 100
_MOST: Final = 20
_LEAST: Final = 0.001
_OURS: Final = "penstock/instrumentation"
_OUR_THREADS: Final = ("penstock-",)
_PAIR_LOAD: Final = Load("prefill → decode", 16, 64, 256, 16)
_LOAD: Final = Load("decode-heavy", 64, 64, 16, 32)
_SOURCES: Final = 64
_EVENTS: Final = 2_000.0
_SETTLE: Final = 2.0


@dataclass(frozen=True, slots=True)
class Recording:
    """One process's samples over some seconds.

    Attributes:
        held: the stacks of threads that held the interpreter's lock.
        cpu: seconds of CPU by thread; what holds no Python (gRPC's, SQLite's, PyTorch's own) is in it, too.

    """

    seconds: float
    held: Profile
    cpu: Counter[str]

    @property
    def share(self) -> float:
        """The share of samples in which a thread held the GIL."""
        return self.held.samples / (self.seconds * _RATE)


def record(pid: int, seconds: float, file: Path) -> Recording:
    """Sample a process; *file* gets the stacks.

    Raises:
        RuntimeError: py-spy could not.

    """
    # Only who holds the interpreter's lock: py-spy takes some threads that wait for running ones.
    command = [
        str(Path(sys.executable).with_name("py-spy")), "record", "--pid", str(pid), "--duration", str(int(seconds)), "--gil",
        "--rate", str(_RATE), "--format", "raw", "--nolineno", "--threads", "--full-filenames", "--output", str(file),
    ]  # fmt: skip
    before, began = _cpu(pid), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds * 5 + 60, check=False)
    took, after = time.monotonic() - began, _cpu(pid)
    if done.returncode:
        raise RuntimeError(f"py-spy could not sample process {pid}: {done.stderr.strip()[-500:]}")
    held = Profile.parse(file.read_text())
    names, cpu = held.names(), Counter[str]()
    for thread, (name, nanoseconds) in after.items():
        cpu[names.get(thread, f"{name}, of no Python seen")] += nanoseconds - before.get(thread, ("", 0))[1]
    return Recording(seconds, held, Counter({name: used / 1e9 / took for name, used in cpu.items()}))


def _cpu(pid: int) -> dict[int, tuple[str, int]]:
    """Return the name and the nanoseconds of CPU of each thread."""
    found = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            found[int(thread.name)] = (
                thread.joinpath("comm").read_text().strip(),
                int(thread.joinpath("schedstat").read_text().split()[0]),
            )
    return found


def _cpu_by_thread(found: Recording) -> str:
    busy = [(name, share) for name, share in found.cpu.most_common(_MOST) if share >= _LEAST]
    return "\n".join(f"{100 * share:5.1f} %  {name}" for name, share in busy)


# What is sampled.


def engine(directory: Path, seconds: float, say: Callable[[str], None]) -> None:
    """Sample the EngineCore of a single server, and of a decode server that loads over NIXL."""
    with ExitStack() as parts:
        traces = parts.enter_context(running_peer())
        agent = Agent(directory, otlp_endpoint=traces.endpoint, engines=3)
        parts.callback(agent.stop)
        agent.start()
        specs = [
            ServerSpec(name, role, module=MODULE, env={**VARIANT, "PENSTOCK_ENDPOINT": agent.endpoint, "PENSTOCK_SERVER": name})
            for name, role in (("single", None), ("prefill", "kv_producer"), ("decode", "kv_consumer"))
        ]  # fmt: skip
        servers = start_servers(specs, directory, parts, say)
        single, prefill, decode = (servers[spec.name] for spec in specs)
        for server, route, load in (
            (single, Route(single.url), _LOAD),
            (decode, Route(decode.url, prefill.url), _PAIR_LOAD),
        ):
            file = directory / f"engine-core-{server.spec.name}.txt"
            found = _during(route, load, partial(record, _engine_core(pids(server)), seconds, file))
            print(
                f"\n## EngineCore of {server.spec.name}, {load.name}, {load.clients} at a time\n\n{told_of_engine(found)}",
                flush=True,
            )


def _during(route: Route, load: Load, work: Callable[[], Recording]) -> Recording:
    found: list[Recording] = []
    run_under_load(route, load, lambda: found.append(work()))
    return found[0]


def _engine_core(found: Mapping[int, str]) -> int:
    for pid, name in found.items():
        if name.startswith("VLLM::Engine"):
            return pid
    raise RuntimeError(f"No EngineCore among the processes of the server: {sorted(found.values())}")


def told_of_engine(found: Recording) -> str:
    """Return Penstock's share of an EngineCore, by thread and by entry point from vLLM's threads."""
    held = found.held
    ours, host = held.only(_OUR_THREADS), held.without(_OUR_THREADS)
    return "\n".join(
        [
            f"Interpreter's lock held: {100 * found.share:.0f} % of the time. Of that ({held.samples} samples):",
            f"in Penstock's own threads {_share(ours.samples, held)}, in vLLM's threads with Penstock's frame running {_share(host.run_by(_OURS), held)}.",
            "\nCPU by thread, of a core:\n",
            _cpu_by_thread(found),
            "\nvLLM's threads, by the first frame of Penstock (hooks hold what vLLM does inside them):\n",
            top(host.within(_OURS), held.samples, _MOST),
            "\nvLLM's threads, Penstock's functions by own time:\n",
            top(_ours(host.own()), held.samples, _MOST),
            "\nPenstock's threads, by own time:\n",
            top(ours.own(), held.samples, _MOST),
            "\nAll, by own time:\n",
            top(held.own(), held.samples, _MOST),
        ]
    )


def _ours(found: Counter[str]) -> Counter[str]:
    return Counter({frame: count for frame, count in found.items() if _OURS in frame})


def _share(samples: int, whole: Profile) -> str:
    return f"{100 * samples / whole.samples:.2f} %"


def agent(directory: Path, seconds: float, say: Callable[[str], None]) -> None:
    """Sample the agent at 2,000 events a second from 64 sources, and at as much as it takes."""
    with (
        running_peer() as traces,
        running_agent(["--log-level=warning"], {"OTEL_EXPORTER_OTLP_ENDPOINT": traces.endpoint}) as running,
    ):
        assert running.process is not None
        for name, rate in (
            ("2,000 events a second from 64 sources", _EVENTS),
            ("as many samples as it takes", 0.0),
        ):
            say(f"agent: {name}")
            file = directory / ("agent-events.txt" if rate else "agent-samples.txt")
            sampling = partial(record, running.process.pid, seconds, file)
            found = asyncio.run(_loaded(running.listen, rate, seconds, sampling))
            print(
                f"\n## Agent, {name}\n\nCPU by thread, of a core:\n\n{_cpu_by_thread(found)}\n\nInterpreter's lock held "
                f"{100 * found.share:.0f} % of the time. Of that, by thread:\n\n{top(found.held.by_thread(), found.held.samples, _MOST)}\n\n"
                f"By own time:\n\n{top(found.held.own(), found.held.samples, _MOST)}",
                flush=True,
            )


async def _loaded(address: str, rate: float, seconds: float, work: Callable[[], Recording]) -> Recording:
    """Return what *work* found while the agent had that many events a second, or with 0 as many samples as it took."""
    async with grpc.aio.insecure_channel(address) as channel:
        senders = [Sender(number, Result(_SOURCES)) for number in range(_SOURCES)]
        for sender in senders:
            await sender.connect(channel)
        end = time.monotonic() + seconds + _SETTLE
        sending = [
            asyncio.create_task(each.trickle(rate / _SOURCES, end) if rate else each.flood(end))
            for each in senders
        ]
        found = await asyncio.to_thread(work)
        await asyncio.gather(*sending)
    return found


def main() -> None:
    """Sample and print."""
    subjects = {"engine": engine, "agent": agent}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("subjects", nargs="*", choices=[[], *subjects], default=list(subjects))
    parser.add_argument("--seconds", type=float, default=20, help="of each recording (default: 20)")
    parser.add_argument("--keep", type=Path, help="a directory for the recordings")
    options = parser.parse_args()
    # The engines end with this process, however it ends.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="penstock-profile-") as place:
        try:
            for name in options.subjects:
                subjects[name](
                    Path(place), options.seconds, lambda text: print(text, file=sys.stderr, flush=True)
                )
        finally:
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                for file in Path(place).glob("*.txt"):
                    shutil.copy(file, options.keep)


if __name__ == "__main__":
    main()
