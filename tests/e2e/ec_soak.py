"""Random faults for encoder outputs, round after round; the tokens must be those of runs without a fault.

python -m tests.e2e.ec_soak files|zmq [--rounds 300] [--seed 1]

Requests of a round share pictures and prefixes, differ in length, and are sent at the same time. `files`: vLLM's
ECExampleConnector, whose files are damaged. `zmq`: ZmqECConnector, whose link is held, cut or goes down, and whose encoder evicts.
It ends with 1 if tokens were wrong, and says in which round; the same seed makes the same rounds.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from demo.ec.stack import start_ec_stack
from tests.support.agent.agent import short_directory
from tests.support.ec.bench import Ask, new_picture
from tests.support.ec.files import FileBench, fewer_rows, garble, truncate_to, wider
from tests.support.ec.stacks import file_bench
from tests.support.ec.zmq_server import SMALL_HOST_CACHE, ZmqBench, zmq_bench
from tests.support.engine.pairs import CPU_DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from demo.common.images import Picture
    from tests.support.ec.bench import EcBench

_TOGETHER = 4
_WORDS = "The gate of a penstock regulates the flow at the head of a channel."
_LONGEST_STILL = 0.3  # seconds


class Soak(ABC):
    """Rounds of one kind of fault on one server, whose policy is to recompute.

    Attributes:
        counts: rounds, requests, faults by kind.
        wrong: what was not as it should be, with its round.

    """

    def __init__(self, bench: EcBench, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.choose = random.Random(seed)
        self._bench = bench

    def run(self, rounds: int) -> None:
        """Run so many rounds."""
        self._bench.enforce(ecLoadFailure={"action": "recompute"})
        with ThreadPoolExecutor(_TOGETHER) as senders:
            for number in range(rounds):
                self._round(f"{number}", senders)

    @abstractmethod
    def prepare(self, asks: Sequence[Ask], senders: ThreadPoolExecutor) -> list[tuple[int, ...]]:
        """Return the tokens of runs without a fault; afterwards what *asks* need can be loaded, and is not yet."""

    @abstractmethod
    @contextmanager
    def faults(self) -> Iterator[None]:
        """Break things at random while the requests of a round are answered."""

    def _round(self, name: str, senders: ThreadPoolExecutor) -> None:
        asks = self._asks()
        expected = self.prepare(asks, senders)
        order = list(range(len(asks)))
        self.choose.shuffle(order)
        again = self.choose.random() < 0.3
        with self.faults():
            self._compare(name, asks, expected, order, senders)
        if again:  # with what the faults have left in all caches
            self._compare(f"{name}, again", asks, expected, order, senders)
        self.counts["rounds"] += 1

    def _compare(
        self,
        name: str,
        asks: Sequence[Ask],
        expected: Sequence[tuple[int, ...]],
        order: Sequence[int],
        senders: ThreadPoolExecutor,
    ) -> None:
        sent = [asks[index].again() for index in order]
        for index, ask, answer in zip(order, sent, senders.map(self._bench.send, sent), strict=True):
            self.counts["requests"] += 1
            found = answer.tokens if answer.status == 200 else answer.text[:200]
            if found != expected[index]:
                self.wrong.append(f"round {name}: {ask.name}: {found}, not {expected[index]}")

    def _asks(self) -> list[Ask]:
        pictures = [new_picture() for _ in range(self.choose.randint(1, 3))]
        asks: list[Ask] = []
        for _ in range(self.choose.randint(1, 3)):
            if asks and self.choose.random() < 0.4:
                asks.append(self.choose.choice(asks).again(" And so on?"))
                continue
            parts: list[str | Picture] = [f"{self.choose.random()} {self._words()}"]
            for picture in self.choose.sample(pictures, self.choose.randint(1, len(pictures))):
                parts += [picture, self._words()]
            asks.append(Ask(parts))
        return asks

    def _words(self) -> str:
        return " ".join([_WORDS] * self.choose.randint(0, 2)) + " And now?"


class FileSoak(Soak):
    """Damages the files of ECExampleConnector."""

    def __init__(self, bench: FileBench, seed: int) -> None:
        super().__init__(bench, seed)
        self._files = bench
        self._fresh: list[Path] = []

    def prepare(self, asks: Sequence[Ask], senders: ThreadPoolExecutor) -> list[tuple[int, ...]]:
        """Have all encoded and written."""
        before = self._files.files()
        answers = list(senders.map(self._bench.send, [ask.again() for ask in asks]))
        self._bench.empty()
        self._fresh = sorted(self._files.files() - before)
        return [answer.tokens for answer in answers]

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Damage some of the files; what was damaged once is never loaded again, so the rest of the round is quiet."""
        for file in self._fresh:
            kind = self.choose.choice(
                ["none", "truncate", "garble", "fewer rows", "wider", "vanish", "missing"]
            )
            self.counts[kind] += 1
            match kind:
                case "truncate":
                    truncate_to(file, self.choose.random())
                case "garble":
                    garble(file)
                case "fewer rows":
                    fewer_rows(file)
                case "wider":
                    wider(file)
                case "vanish":
                    self._files.vanish(file)
                case "missing":
                    file.unlink()
        yield


class ZmqSoak(Soak):
    """Disturbs the link between language model and encoder."""

    def __init__(self, bench: ZmqBench, seed: int) -> None:
        super().__init__(bench, seed)
        self._zmq = bench

    def prepare(self, asks: Sequence[Ask], senders: ThreadPoolExecutor) -> list[tuple[int, ...]]:
        """Have them answered where nothing is moved, and encoded by the encoder, which may evict the first of them again."""
        expected = list(senders.map(lambda ask: self._zmq.alone(ask)[0], asks))
        list(senders.map(self._zmq.encode, asks))
        return expected

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Hold, cut or take down the link after some bytes, for a moment."""
        kind = self.choose.choice(["none", "still", "cut", "down", "evict"])
        self.counts[kind] += 1
        after, moment = self.choose.randrange(20_000), self.choose.uniform(0, _LONGEST_STILL)
        over = threading.Event()

        def disturb() -> None:
            over.wait(moment)
            if kind == "cut":
                self._zmq.link.take_down()
            elif kind == "evict":
                self._zmq.evict_all()
            if kind != "down":
                self._zmq.link.bring_up()

        if kind in ("still", "cut", "evict"):
            self._zmq.link.hold(after if kind != "evict" else 0)
        elif kind == "down":
            self._zmq.link.take_down()
        disturbing = threading.Thread(target=disturb)
        disturbing.start()
        try:
            yield
        finally:
            over.set()
            disturbing.join()
            self._zmq.link.bring_up()


@contextmanager
def running_soak(kind: str, seed: int) -> Iterator[Soak]:
    """Start what a soak of that kind needs."""
    with ExitStack() as parts:
        logs = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="ec-soak-")))
        if kind == "files":
            files = logs / "files"
            files.mkdir()
            yield FileSoak(parts.enter_context(file_bench(CPU_DEFAULTS, files=files, logs=logs)), seed)
            return
        directory = parts.enter_context(short_directory())
        stack = start_ec_stack(directory, parts, lambda _: None, encoder_extra=SMALL_HOST_CACHE.settings)
        yield ZmqSoak(parts.enter_context(zmq_bench(stack, None, logs=logs)), seed)


def main() -> int:
    """Run and tell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=["files", "zmq"])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for variable in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"):
        os.environ.pop(variable, None)
    with running_soak(arguments.kind, arguments.seed) as soak:
        try:
            soak.run(arguments.rounds)
        finally:
            print(dict(soak.counts))  # noqa: T201
            print("\n".join(soak.wrong) or "nothing was wrong")  # noqa: T201
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
