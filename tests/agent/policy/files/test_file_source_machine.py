"""State machine of files, store and agent: in force is the last valid set of files."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from penstock.agent.errors import NotFoundError, OwnedError
from penstock.agent.policy.files.file_source import POLL_SECONDS, FileSource
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.policy.store.sqlite_store import PolicyStore

from tests.support.files import write
from tests.support.policy.policies import NOW, action, document, manifest

_CLOCK = NOW.timestamp()
_NAMES = st.sampled_from("abc")
_FILES = st.sampled_from(["x.yaml", "y.yml"])
_VALUES = st.sampled_from(["recompute", "fail", "auto"])
_BAD = st.sampled_from(["", "{", "kind: Pod\n", "a: 1\na: 2\n", "- 1\n"])
_SETS = st.dictionaries(_NAMES, _VALUES, max_size=3)

Policies = dict[str, tuple[str, str]]


class Files(RuleBasedStateMachine):
    """A directory, a store and a source, with the expected content.

    ``written`` is the files' content (None for an invalid one), ``owned`` the last valid set, and
    ``by_hand`` the imperative policies that no file has taken over.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp(prefix="ps-"))
        self.directory = self.root / "policies"
        self.directory.mkdir()
        self.written: dict[str, dict[str, str] | None] = {}
        self.owned: Policies = {}
        self.by_hand: dict[str, str] = {}
        self.generation = 0
        self.at_rest = True
        self._open()

    def _open(self) -> None:
        self.database = PolicyDatabase.open(self.root)
        self.store = PolicyStore(self.database, clock=lambda: _CLOCK)
        self.source = FileSource(self.directory, self.store, clock=lambda: _CLOCK)

    def teardown(self) -> None:
        """Close the database and remove the directory."""
        self.database.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.root)

    def _run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def _expected(self) -> Policies | None:
        """Return the policies of all files; None if one is invalid."""
        if not self.written or None in self.written.values():
            return None
        pairs = [
            (name, (value, f"file:{file}"))
            for file, names in self.written.items()
            for name, value in (names or {}).items()
        ]
        return dict(pairs) if len(dict(pairs)) == len(pairs) else None

    def _hold(self, files: Policies) -> None:
        """Let *files* be the last valid set, which takes over what was set by hand."""
        self.owned = files
        self.by_hand = {name: value for name, value in self.by_hand.items() if name not in files}

    @initialize()
    def first(self) -> None:
        """Start the agent on an empty directory."""
        self.come_to_rest()

    @rule(file=_FILES, names=_SETS, atomic=st.booleans())
    def write(self, file: str, names: dict[str, str], atomic: bool) -> None:
        """Write a valid file, in place or by a rename."""
        items = [document(name, kvLoadFailure=action(value)) for name, value in names.items()]
        text = yaml.safe_dump({"kind": "List", "items": items})
        if atomic:
            write(self.directory / ".new", text)
            self.directory.joinpath(".new").replace(self.directory / file)
        else:
            write(self.directory / file, text)
        self.written[file] = names
        self.at_rest = False

    @rule(file=_FILES, text=_BAD)
    def spoil(self, file: str, text: str) -> None:
        """Write an invalid file."""
        write(self.directory / file, text)
        self.written[file] = None
        self.at_rest = False

    @rule(file=_FILES)
    def remove(self, file: str) -> None:
        """Remove a file."""
        self.directory.joinpath(file).unlink(missing_ok=True)
        self.written.pop(file, None)
        self.at_rest = False

    @rule()
    def look_once(self) -> None:
        """Poll once; a change that this applies is a valid set."""
        if not self.at_rest:
            before, applied = self.store.policies(), self.source.status.applied
            self._run(self.source.poll())
            assert self.store.policies() == before or self.source.status.applied > applied
            if self.source.status.applied > applied:
                expected = self._expected()
                assert expected is not None
                self._hold(expected)

    @rule()
    def come_to_rest(self) -> None:
        """Poll until nothing changes."""
        for _ in range(6):
            if self._run(self.source.poll()) == POLL_SECONDS:
                break
        else:
            raise AssertionError("the files do not come to rest")
        expected = self._expected()
        if expected is not None:
            self._hold(expected)
        assert bool(self.source.status.error) == (expected is None)
        self.at_rest = True

    @precondition(lambda self: self.at_rest)
    @rule(name=_NAMES, value=_VALUES)
    def apply(self, name: str, value: str) -> None:
        """Apply an imperative policy."""
        try:
            self._run(self.store.apply(manifest(name, kvLoadFailure=action(value)), author="me"))
            assert name not in self.owned
            self.by_hand[name] = value
        except OwnedError:
            assert name in self.owned

    @precondition(lambda self: self.at_rest)
    @rule(name=_NAMES)
    def delete(self, name: str) -> None:
        """Delete an imperative policy."""
        try:
            self._run(self.store.delete(name, author="me"))
            assert name not in self.owned
            del self.by_hand[name]
        except OwnedError:
            assert name in self.owned
        except NotFoundError:
            assert name not in {**self.owned, **self.by_hand}

    @precondition(lambda self: self.at_rest)
    @rule()
    def restart(self) -> None:
        """Restart the agent on the same state and files."""
        self.database.close()
        self._open()
        self.come_to_rest()

    @invariant()
    def what_holds_is_the_last_good_set(self) -> None:
        """In force are the last valid set and the imperative policies; the store's generation never decreases."""
        if self.at_rest:
            held = {
                policy.manifest.name: (str(policy.manifest.leaves["kvLoadFailure.action"]), policy.owner)
                for policy in self.store.policies()
            }
            assert held == self.owned | {name: (value, "imperative") for name, value in self.by_hand.items()}
        assert self.store.generation >= self.generation
        self.generation = self.store.generation


TestFiles = Files.TestCase
TestFiles.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
