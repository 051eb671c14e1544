"""Random faults under traffic, from a seed: ``python -m tests.faults.chaos --kills 200``.

Each round waits for a random time, does one thing to the agent and has the oracle look at the log: most rounds kill
it, a fifth of those while it is starting. At the end the producers settle and everything must add up. With the seed
that it prints, a run does the same again (the machine's own timing apart).
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from tests.faults.bench import Bench, bench
from tests.support.stop import stop

if TYPE_CHECKING:
    from collections.abc import Callable

# Bytes that a file may have while the disk is full: less than the log has after some seconds.
_FULL_AT = 256 << 10
# Between two faults, and from the start of the agent to a kill that is to come before it is ready.
_PAUSE = 0.4
_STARTING = 1.5
_FROZEN = 1.0
_FULL = 2.0
_KILLED_WHILE_FULL = 0.3


class Chaos:
    """Does things to a bench's agent, which is up before and after each.

    Attributes:
        done: how often each thing was done.

    """

    def __init__(self, stand: Bench, seed: int) -> None:
        self._stand = stand
        self._random = random.Random(seed)
        self._faults: dict[str, tuple[int, Callable[[], None]]] = {
            "kill": (16, self._kill),
            "kill while starting": (4, self._kill_starting),
            "freeze": (2, self._freeze),
            "clock": (2, self._clock),
            "disk full": (3, self._fill),
            "terminate": (1, self._terminate),
        }
        self.done: Counter[str] = Counter()

    @property
    def kills(self) -> int:
        """How often the agent was killed."""
        return self.done["kill"] + self.done["kill while starting"]

    def run(self, kills: int) -> None:
        """Go on until the agent has been killed *kills* times."""
        while self.kills < kills:
            time.sleep(self._random.uniform(0, _PAUSE))
            names = list(self._faults)
            (name,) = self._random.choices(names, [self._faults[each][0] for each in names])
            self._faults[name][1]()
            self.done[name] += 1
            self._stand.audit()

    def _kill(self) -> None:
        self._stand.agent.kill()
        # As it is on the disk, and not as the next life has repaired it.
        self._stand.audit()
        self._stand.agent.start()

    def _kill_starting(self) -> None:
        agent = self._stand.agent
        agent.kill()
        agent.launch()
        time.sleep(self._random.uniform(0, _STARTING))
        agent.kill()
        agent.start()

    def _freeze(self) -> None:
        process = self._stand.agent.process
        assert process is not None
        stop(process.pid)
        time.sleep(self._random.uniform(0, _FROZEN))
        process.send_signal(signal.SIGCONT)

    def _fill(self) -> None:
        """No file may grow; now and then it is killed like that."""
        agent = self._stand.agent
        assert agent.process is not None
        pid = agent.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (_FULL_AT, before[1]))
        time.sleep(self._random.uniform(0, _FULL))
        self._stand.audit()
        if self._random.random() < _KILLED_WHILE_FULL:
            agent.kill()
            self._stand.audit()
            agent.start()
        else:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

    def _clock(self) -> None:
        process = self._stand.agent.process
        assert process is not None
        process.send_signal(self._random.choice((signal.SIGUSR1, signal.SIGUSR2)))

    def _terminate(self) -> None:
        assert self._stand.agent.stop() == 0
        self._stand.agent.start()


def main() -> int:
    """Run it and print a summary; raises what the oracle finds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--producers", type=int, default=3)
    parser.add_argument("--rate", type=int, default=300, help="entries a second of each producer")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    begun = time.monotonic()
    with bench(options.producers, options.rate) as stand:
        chaos = Chaos(stand, options.seed)
        chaos.run(options.kills)
        stand.settle()
        stored, lost = stand.oracle.stored.total(), stand.oracle.lost.total()
    for name, count in chaos.done.most_common():
        print(f"{count:6} {name}")
    print(
        f"{stored} entries stored, {lost} counted as dropped, 0 acknowledged lost, 0 doubled; "
        f"{time.monotonic() - begun:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
