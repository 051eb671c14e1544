"""Samples a real engine and the agent under load with py-spy, and says whose functions were running: ``make profile``.

    python -m benchmarks.profile [engine] [agent] [--seconds 20] [--keep DIRECTORY]

``--keep`` leaves the recordings there; https://www.speedscope.app shows them. py-spy has to be allowed to look into
our own processes (root, or ``kernel.yama.ptrace_scope=0``).
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc

from benchmarks.engines import MODULE, VARIANT, pids, started
from benchmarks.otlp_peer import running_peer
from benchmarks.scale import Result, Sender
from benchmarks.stacks import Profile, top
from benchmarks.traffic import Load, Route, meanwhile
from demo.agent import Agent
from demo.servers import ServerSpec
from tests.support.agent import running_agent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_RATE: Final = 100
_MOST: Final = 20
_OURS: Final = "penstock/instrumentation"
_OUR_THREADS: Final = ("penstock-",)
_PAIR_LOAD: Final = Load("prefill → decode", 16, 64, 256, 16)
_LOAD: Final = Load("decode-heavy", 64, 64, 16, 32)
_SOURCES: Final = 64
_EVENTS: Final = 2_000.0
_SETTLE: Final = 2.0


def record(pid: int, seconds: float, file: Path) -> Profile:
    """Sample a process; *file* gets the stacks.

    Raises:
        RuntimeError: py-spy could not.

    """
    command = [
        str(Path(sys.executable).with_name("py-spy")), "record", "--pid", str(pid), "--duration", str(int(seconds)),
        "--rate", str(_RATE), "--format", "raw", "--nolineno", "--threads", "--full-filenames", "--output", str(file),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    if done.returncode:
        raise RuntimeError(f"py-spy could not sample process {pid}: {done.stderr.strip()[-500:]}")
    return Profile.parse(file.read_text())


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
        servers = started(specs, directory, parts, say)
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


def _during(route: Route, load: Load, work: Callable[[], Profile]) -> Profile:
    found: list[Profile] = []
    meanwhile(route, load, lambda: found.append(work()))
    return found[0]


def _engine_core(found: Mapping[int, str]) -> int:
    for pid, name in found.items():
        if name.startswith("VLLM::Engine"):
            return pid
    raise RuntimeError(f"No EngineCore among the processes of the server: {sorted(found.values())}")


def told_of_engine(found: Profile) -> str:
    """Return our share of an EngineCore's samples, by thread and by what vLLM's own threads entered."""
    ours, host = found.only(_OUR_THREADS), found.without(_OUR_THREADS)
    entered = host.within(_OURS)
    return "\n".join(
        [
            (
                f"{found.samples} samples; in Penstock's own threads {_share(ours.samples, found)}, in vLLM's threads with Penstock's frame running "
                f"{_share(host.run_by(_OURS), found)}."
            ),
            "\nvLLM's threads, by the first frame of Penstock (hooks hold what vLLM does inside them):\n",
            top(entered, found.samples, _MOST),
            "\nvLLM's threads, Penstock's functions by own time:\n",
            top(_ours(host.own()), found.samples, _MOST),
            "\nPenstock's threads, by own time:\n",
            top(ours.own(), found.samples, _MOST),
            "\nAll, by own time:\n",
            top(found.own(), found.samples, _MOST),
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
            threads = top(found.by_thread(), found.samples, _MOST)
            print(
                f"\n## Agent, {name}\n\n{found.samples} samples.\n\nBy thread:\n\n{threads}\n\nBy own time:\n\n"
                f"{top(found.own(), found.samples, _MOST)}",
                flush=True,
            )


async def _loaded(address: str, rate: float, seconds: float, work: Callable[[], Profile]) -> Profile:
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
    # Whoever ends us, the engines have to go too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="penstock-profile-") as place:
        for name in options.subjects:
            subjects[name](
                Path(place), options.seconds, lambda text: print(text, file=sys.stderr, flush=True)
            )
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            for file in Path(place).glob("*.txt"):
                shutil.copy(file, options.keep)


if __name__ == "__main__":
    main()
