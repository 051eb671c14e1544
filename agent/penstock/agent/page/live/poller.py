"""Asks the admin service for all tabs, what and how often, and makes the screen; works only while a tab is open."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.agent.aio import ThreadYield
from penstock.agent.page.live.entries import Message
from penstock.agent.page.screen import (
    MOST_ENGINES,
    MOST_PEERS,
    Peers,
    Screen,
    ScreenAnswers,
    build_screen,
    diagnose_request,
    fitted,
    hashes,
    peer_table,
)
from penstock.agent.page.wire import AnswerError
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message as ProtobufMessage
    from penstock.agent.page.wire import AdminCalls

# Between two screens, at least.
_SCREEN_SECONDS = 1.0
_LEAST_SECONDS = 0.25
_AGAIN_SECONDS = 2.0
# Between two questions: long enough that a commit which has waited for the loop ends.
_BETWEEN_SECONDS = 0.002
# The first screen waits for the first diagnosis, but not for long.
_DIAGNOSIS_SECONDS = 0.25
# Different policies that are looked up.
_MAX_HASHES = 64


SHARE = 0.008
"""Share of a core that one question may take: what costs more is asked for less often.

Four of them cost so much in a large fleet, and the page has a twentieth in all.
"""

_LONGEST_SECONDS = 60.0
_WAITS = 30


class ScreenPoller:
    """Keeps the last answers, and gives each new screen to *publish*.

    Attributes:
        answers: the last ones.
        screen: the last screen; None before the first.

    """

    def __init__(
        self, calls: AdminCalls, publish: Callable[[Message], None], since: float | None = None
    ) -> None:
        self._calls = calls
        self._publish = publish
        self._since = since
        self._questions = questions(since)
        self._due: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        self._shown: Screen | None = None
        self._peers: tuple[tuple[object, object], Peers | None] = ((None, None), None)
        self._diagnosed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.answers = self._nothing()
        self.screen: Message | None = None

    def start(self) -> None:
        """Begin to ask. Idempotent."""
        if not self._tasks:
            self._due, self._shown, self.screen = {}, None, None
            self._diagnosed.clear()
            work = [self._run(), *(self._run_costly(each) for each in self._questions if each.costly)]
            self._tasks = [asyncio.ensure_future(each) for each in work]

    async def stop(self) -> None:
        """End. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
            self.answers = self._nothing()

    def _nothing(self) -> ScreenAnswers:
        return ScreenAnswers(self._calls.clock(), since=self._since)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            due = [
                each for each in self._questions if not each.costly and self._due.get(each.name, 0.0) <= began
            ]
            async with asyncio.TaskGroup() as asking:
                for each in due:
                    asking.create_task(self._ask(each))
                    # An agent's answer is computed on this loop: what comes in need not wait for all of them.
                    await asyncio.sleep(_BETWEEN_SECONDS)
            await self._look_up()
            if self._shown is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_DIAGNOSIS_SECONDS):
                        await self._diagnosed.wait()
            await self._show()
            await asyncio.sleep(max(_LEAST_SECONDS, _SCREEN_SECONDS - (loop.time() - began)))

    async def _run_costly(self, question: Question) -> None:
        """Ask a question whose answer takes its time, beside the others."""
        while True:
            await self._ask(question)
            self._diagnosed.set()
            await asyncio.sleep(self._due[question.name] - asyncio.get_running_loop().time())

    async def _ask(self, question: Question) -> None:
        """Ask once; what fails is asked again, and the old answer stays."""
        loop = asyncio.get_running_loop()
        began, asked = loop.time(), self._calls.clock()
        try:
            answer = await self._calls.call(question.method, question.request)
        except AnswerError as error:
            self._due[question.name] = loop.time() + max(_AGAIN_SECONDS, question.every)
            self.answers = replace(self.answers, trouble=error.sentence)
            return
        self._due[question.name] = loop.time() + question.pause(answer, loop.time() - began)
        self._asked[question.name] = asked
        changed: dict[str, Any] = {question.name: answer, "trouble": ""}
        if question.costly:
            changed["diagnosed"] = asked
        self.answers = replace(self.answers, **changed)

    async def _look_up(self) -> None:
        """Ask for the policies whose hashes are new."""
        if self.answers.engines is None:
            return
        wanted = dict([*hashes(self.answers.engines).items()][:_MAX_HASHES])
        found = {hash_: merged for hash_, merged in self.answers.effective.items() if hash_ in wanted}
        for hash_, engine in wanted.items():
            if hash_ not in found:
                try:
                    request = admin.GetEffectivePolicyRequest(key=engine.key)
                    found[hash_] = await self._calls.call("GetEffectivePolicy", request)
                except AnswerError:
                    # The engine has gone meanwhile; it is asked for again.
                    continue
                await asyncio.sleep(_BETWEEN_SECONDS)
        self.answers = replace(self.answers, effective=found)

    async def _show(self) -> None:
        """Make the screen, and publish it if it says something else than the last one."""
        dates = [
            self._asked[each.name] for each in self._questions if each.dated and each.name in self._asked
        ]
        self.answers = replace(
            self.answers,
            now=self._calls.clock(),
            data_time=min(dates, default=0.0),
            coverage=self._calls.coverage,
        )
        news = await asyncio.to_thread(self._news, self.answers, self._shown)
        if news is not None:
            self._shown, self.screen = news
            self._publish(self.screen)

    def _news(self, answers: ScreenAnswers, shown: Screen | None) -> tuple[Screen, Message] | None:
        """Return the screen without its times, and its message; None where it says what *shown* says. On any thread."""
        let_go = ThreadYield()
        screen = self._build(answers, let_go)
        compared = replace(screen, now=0.0, data_time=0.0, verdict=replace(screen.verdict, computed=0.0))
        return None if compared == shown else (compared, Message("screen", fitted(screen, between=let_go)[1]))

    def _build(self, answers: ScreenAnswers, let_go: ThreadYield) -> Screen:
        """Make the screen; the table of peers only once for each answer about them and each diagnosis."""
        (peers, diagnosis), table = self._peers
        if table is None or peers is not answers.peers or diagnosis is not answers.diagnosis:
            table = peer_table(answers, between=let_go)
            self._peers = ((answers.peers, answers.diagnosis), table)
        return build_screen(answers, table, between=let_go)


@dataclass(frozen=True, slots=True)
class Question:
    """A call of the admin service.

    Attributes:
        name: the field of the answers.
        every: seconds between two calls, at least.
        cost: seconds of CPU that an answer takes, by what it says of the fleet.
        costly: it reads the log, so that its time says what it costs, and the others do not wait for it.
        dated: its age is the age of the screen.

    """

    name: str
    method: str
    request: ProtobufMessage
    every: float
    cost: Callable[[Any], float] = lambda _: 0.0
    costly: bool = False
    dated: bool = False

    def pause(self, answer: ProtobufMessage, took: float) -> float:
        """Return the seconds to the next call, after an *answer* that *took* seconds: of a large fleet it is longer."""
        cost = took if self.costly else self.cost(answer)
        return max(self.every, min(cost / SHARE, _LONGEST_SECONDS))


def cost_of_engines(answer: admin.ListEnginesResponse) -> float:
    """Return the seconds of CPU that an answer about engines takes."""
    return 80e-6 * len(answer.engines)


def cost_of_peers(answer: admin.ListPeersResponse) -> float:
    """Return the same of one about peers."""
    # To rank one and to make its row; an agent that does not rank answers with a row for each.
    return 1.6e-6 * answer.total + 20e-6 * len(answer.peers)


def questions(since: float | None = None) -> tuple[Question, ...]:
    """Return what is asked; *since*: seconds that the diagnosis is about, None for those of ``agentctl diagnose``."""
    return (
        Question("status", "GetStatus", admin.GetStatusRequest(), 2.0),
        Question(
            "engines",
            "ListEngines",
            admin.ListEnginesRequest(without_counters=True),
            1.0,
            cost=cost_of_engines,
            dated=True,
        ),
        Question(
            "peers",
            "ListPeers",
            admin.ListPeersRequest(most_peers=MOST_PEERS, most_engines=MOST_ENGINES),
            1.0,
            cost=cost_of_peers,
            dated=True,
        ),
        Question(
            "waits", "ListRequests", admin.ListRequestsRequest(deferred=True, limit=_WAITS), 1.0, dated=True
        ),
        Question("diagnosis", "Diagnose", diagnose_request(since), 10.0, costly=True),
        Question("drills", "ListDrills", admin.ListDrillsRequest(), 5.0),
        Question("quarantines", "ListQuarantines", admin.ListQuarantinesRequest(), 5.0),
        Question("rollouts", "ListPolicyRollouts", admin.ListPolicyRolloutsRequest(), 5.0),
        Question("policies", "ListPolicies", admin.ListPoliciesRequest(), 5.0),
    )
