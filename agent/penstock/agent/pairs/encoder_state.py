"""What the engine behind an encoder's address does, where one is known: why it did not answer. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.model import EngineKey
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.proto.v1 import admin_pb2 as admin
    from penstock.proto.v1.snapshot_pb2 import SchedulerQueue

# An engine tells its queue once a second.
_SILENT: Final = 5 * NANOS
# Why an engine as a whole encodes nothing; others of its stalls concern single requests.
_STANDSTILLS: Final = frozenset(
    {"call_stuck", "step_stuck", "no_steps", "scheduler_paused", "steps_without_tokens", "thread_dead"}
)


class EncoderStates(NamedTuple):
    """The engines that announce an address for their encoder outputs.

    Attributes:
        engines: by that address.
        now: nanoseconds.

    """

    engines: Mapping[str, Sequence[admin.Engine]]
    now: int

    @classmethod
    def of(
        cls, engines: Iterable[admin.Engine], now: int, last: Callable[[EngineKey], str] = lambda _: ""
    ) -> EncoderStates:
        """Return those of *engines*; of one address the connected ones, where any is.

        Args:
            engines: those that are away tell no facts.
            now: nanoseconds.
            last: returns the address that an engine announced last.

        """
        found: dict[str, list[admin.Engine]] = defaultdict(list)
        for each in engines:
            address = each.facts.ec_address or last(EngineKey(each.key.server, each.key.engine))
            if address:
                found[address].append(each)
        return cls(
            {address: [each for each in one if each.connected] or one for address, one in found.items()}, now
        )

    def one(self, address: str) -> admin.Engine | None:
        """Return the engine behind an address; None where none, or more than one, announces it."""
        found = self.engines.get(address, ())
        return found[0] if len(found) == 1 else None

    def name(self, address: str) -> str:
        """Return the name of the engine behind an address; empty where :meth:`one` is None."""
        engine = self.one(address)
        return "" if engine is None else _name(engine)

    def sentence(self, address: str, asked: int) -> str:
        """Return what the encoder at *address*, asked at *asked*, does, or that this is not known."""
        engine = self.one(address)
        if engine is None:
            several = [_name(each) for each in self.engines.get(address, ())]
            who = (
                f"engines {' and '.join(several[:4])} announce"
                if several
                else "no engine known here announces"
            )
            return f"{who} {address}, so what that encoder did is not known"
        gone = () if engine.connected else (_gone(engine, self.now),)
        return f"{address} is engine {_name(engine)}: {'; '.join((*gone, *self.present(address, asked)))}"

    def present(self, address: str, asked: int) -> Iterator[str]:
        """Yield what a connected engine behind *address* does; nothing where there is no such engine, or not only one.

        Args:
            address: the encoder's.
            asked: when it was asked last, nanoseconds; 0 for not known.

        """
        engine = self.one(address)
        if engine is None or not engine.connected:
            return
        started = engine.facts.start_time_unix_nano
        if 0 < asked < started:
            yield (
                f"it was started {_span(self.now - started)} ago, after it was asked: "
                "it has nothing of what was encoded before"
            )
        silent = self.now - (engine.last_seen.ToNanoseconds() or self.now)
        if silent >= _SILENT:
            # What it told last is not what it does now.
            yield f"nothing was heard of it for {_span(silent)}, though it is connected"
            return
        stalls = [each.sentence for each in engine.stalls if each.kind in _STANDSTILLS]
        yield from stalls
        if engine.HasField("queue"):
            yield _queue(engine.queue, self.now)
        elif not stalls:
            yield "it is connected; its scheduler's queue is not known"


def _gone(engine: admin.Engine, now: int) -> str:
    how = "said goodbye and ended" if engine.said_goodbye else "is not connected"
    seen = engine.last_seen.ToNanoseconds()
    return f"it {how}; it was last seen {_span(now - seen)} ago" if seen else f"it {how}"


def _queue(queue: SchedulerQueue, now: int) -> str:
    """Return what waits and runs in a scheduler, as its last snapshot has it."""
    waiting = sum(row.count for row in queue.waiting)
    if not waiting:
        return f"no request waits in its scheduler now, {_count(queue.running)} running"
    begins = [row.oldest_start_time_unix_nano for row in queue.waiting if row.oldest_start_time_unix_nano]
    oldest = f", the oldest for {_span(now - min(begins))}" if begins else ""
    wait = "request waits" if waiting == 1 else "requests wait"
    return (
        f"{waiting} {wait} in its scheduler now{oldest}, {_count(queue.running)} running; "
        "an item is encoded once its request runs"
    )


def _count(number: int) -> str:
    return f"{number or 'none'} {'is' if number == 1 else 'are'}"


def _name(engine: admin.Engine) -> str:
    return f"{engine.key.server}/{engine.key.engine}"


def _span(nanoseconds: int) -> str:
    seconds = max(nanoseconds, 0) / NANOS
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"  # noqa: PLR2004
