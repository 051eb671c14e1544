"""Known engines, those that a request selects, and what the policy feed has of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.errors import ContractError, NotFoundError
from penstock.agent.model import EngineKey
from penstock.agent.parsing import MAX_GLOB, MAX_GLOBS, Selection, Target, no_engine, parse_labels, select
from penstock.agent.policy.distribution import KnownEngine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.agent.admin.lookups.context import AgentContext
    from penstock.agent.model import Source
    from penstock.agent.policy.distribution import EngineAck, Subscriber
    from penstock.agent.policy.orders import Pause
    from penstock.agent.sources import EngineView, LiveSource
    from penstock.proto.v1.admin_pb2 import EngineSelector
    from penstock.proto.v1.common_pb2 import EngineKey as EngineKeyMessage


class PolicyStates(NamedTuple):
    """Engines by the state of their policy."""

    in_force: frozenset[EngineKey]
    paused: frozenset[EngineKey]


def engine_key_of(message: EngineKeyMessage) -> EngineKey:
    """Return the key of a message."""
    return EngineKey(message.server, message.engine)


def selection_of(selector: EngineSelector) -> Selection:
    """Return the selection of a selector message.

    Raises:
        ContractError: its labels are invalid, or its models are too many or too long.

    """
    if len(selector.models) > MAX_GLOBS or any(len(glob) > MAX_GLOB for glob in selector.models):
        raise ContractError(
            f"the selector's models are too long; give at most {MAX_GLOBS} globs of at most {MAX_GLOB} characters"
        )
    try:
        requirements = parse_labels(selector.labels)
    except ValueError as error:
        raise ContractError(str(error)) from None
    return Selection(requirements, tuple(selector.models), frozenset(map(engine_key_of, selector.engines)))


def source_target(source: Source) -> Target:
    """Return the selectable target of a source."""
    return Target(source.key, source.model, _with_role(source.labels, source.role))


def known_engines(agent: AgentContext, *, with_processes: bool = False) -> list[KnownEngine]:
    """Return all engines of the registry, ordered by key; *with_processes*: with the number of processes of each."""
    views = agent.registry.engines()
    return [
        KnownEngine(
            view_target(view),
            view.connected,
            view.cores,
            *(_count_processes(agent, view) if with_processes else (0, 0)),
            missing=_is_missing(view, views),
        )
        for view in views
    ]


def view_target(view: EngineView) -> Target:
    """Return the selectable target of an engine of the registry."""
    return Target(view.key, view.model, _with_role(view.labels, view.role))


def _is_missing(view: EngineView, views: Iterable[EngineView]) -> bool:
    """Return ``KnownEngine.missing``.

    A connected engine that started after *view* was last seen is of a later life of the server, which may have fewer.
    """
    return not (view.connected or view.said_goodbye) and any(
        other.connected
        and other.key.server == view.key.server
        and 0 < other.start_time_unix_nano <= view.last_seen_unix_nano
        for other in views
    )


def _count_processes(agent: AgentContext, view: EngineView) -> tuple[int, int]:
    """Return ``KnownEngine.processes`` and ``KnownEngine.settled``."""
    paused = agent.pauses.is_paused(view.key)
    awaited = [
        live for live in view.sources if live.connected and agent.pauses.is_paused(live.source.key) is paused
    ]
    return len(awaited), sum(_has_settled(live, paused=paused) for live in awaited)


def _has_settled(live: LiveSource, *, paused: bool) -> bool:
    """Return whether the source's last snapshot says *paused*, and that nothing from before a pause is unsent."""
    snapshot = live.snapshot
    if snapshot is None or live.kill_switch_unread or snapshot.paused is not paused:
        return False
    return not (paused and snapshot.emitter.pending_entries)


def targets_by_key(agent: AgentContext, views: Iterable[EngineView] | None = None) -> dict[EngineKey, Target]:
    """Return all engines of the registry and the feed; the feed's data takes precedence.

    With *views* the registry's engines are these.
    """
    views = agent.registry.engines() if views is None else views
    found = {view.key: view_target(view) for view in views}
    found |= {subscriber.target.key: subscriber.target for subscriber in agent.feed.subscribers()}
    return found


def policy_states(agent: AgentContext, views: Sequence[EngineView] | None = None) -> PolicyStates:
    """Return the engines that acknowledged their policy, and those where a pause holds it back; *views* as above."""
    views = agent.registry.engines() if views is None else views
    # Of an engine with two EngineCores it is not known which one has acknowledged.
    contested = {view.key for view in views if view.cores > 1}
    in_force: set[EngineKey] = set()
    paused: set[EngineKey] = set()
    for subscriber in agent.feed.subscribers():
        key, answer = subscriber.target.key, subscriber.answer
        if key in contested:
            continue
        if subscriber.in_force:
            in_force.add(key)
        elif subscriber.connected and subscriber.settled and answer is not None and not answer.error:
            # The kill switch holds it back.
            paused.add(key)
    return PolicyStates(frozenset(in_force), frozenset(paused))


def find_target(agent: AgentContext, key: EngineKey) -> Target:
    """Return the engine of that key.

    Raises:
        NotFoundError: no such engine.

    """
    known_targets = targets_by_key(agent)
    if key not in known_targets:
        raise NotFoundError(no_engine(key, known_targets))
    return known_targets[key]


def selected_views(agent: AgentContext, selection: Selection) -> list[EngineView]:
    """Return the selected engines of the registry, ordered by key."""
    views = agent.registry.engines()
    if selection.everything:
        return views
    all_targets = targets_by_key(agent)
    return [view for view in views if selection.matches(all_targets[view.key])]


def check_engine_names(agent: AgentContext, selection: Selection) -> Mapping[EngineKey, Target]:
    """Return all engines by key.

    Raises:
        NotFoundError: *selection* names an unknown engine.

    """
    known = targets_by_key(agent)
    for key in sorted(selection.keys - known.keys()):
        raise NotFoundError(no_engine(key, known))
    return known


def selected_targets(agent: AgentContext, selection: Selection) -> list[Target]:
    """Return the selected engines.

    Raises:
        NotFoundError: none matches, or *selection* names an unknown engine.

    """
    known = check_engine_names(agent, selection)
    found = select(known.values(), selection)
    if not found:
        raise NotFoundError("no engine matches the selector; 'agentctl get engines -o wide' shows labels")
    return found


def subscribed_engines(agent: AgentContext, found: list[Target]) -> Iterator[Subscriber]:
    """Yield the connected subscribers among *found*."""
    for target in found:
        subscriber = agent.feed.subscriber(target.key)
        if subscriber is not None and subscriber.connected:
            yield subscriber


def _with_role(labels: Mapping[str, str], role: str) -> dict[str, str]:
    return dict(labels) if role == "unspecified" else {"role": role, **labels}


class FeedState(NamedTuple):
    """One engine's.

    Attributes:
        pause: what the kill switch orders for it.
        wanted: hash of the policy that it should have, empty for vLLM's own configuration; None before it subscribes.
        connected: its stream is open.
        answer: its answer to the state that it should have; None before, and without a stream.
        hash_in_force: as it reports it.

    """

    pause: Pause | None
    wanted: str | None = None
    connected: bool = False
    answer: EngineAck | None = None
    hash_in_force: str = ""

    @property
    def refusal(self) -> str:
        """Why the engine refuses its policy; empty if it does not."""
        if self.answer is None or not self.answer.error:
            return ""
        return f"{self.answer.field}: {self.answer.error}" if self.answer.field else self.answer.error


def feed_states(agent: AgentContext, keys: Iterable[EngineKey]) -> dict[EngineKey, FeedState]:
    """Return the state of each engine now. On the loop."""
    return {key: _feed_state(agent, key) for key in keys}


def _feed_state(agent: AgentContext, key: EngineKey) -> FeedState:
    pause, subscriber = agent.pauses.of(key), agent.feed.subscriber(key)
    if subscriber is None:
        return FeedState(pause)
    settled = subscriber.connected and subscriber.settled
    return FeedState(
        pause,
        agent.feed.wanted(key),
        subscriber.connected,
        subscriber.answer if settled else None,
        subscriber.hash_in_force,
    )
