"""The file source on real files and stores; the test triggers each poll."""

from __future__ import annotations

import asyncio
import os
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import yaml
from penstock.agent.policy.files.file_source import POLL_SECONDS, SETTLE_SECONDS, DirectoryState, FileSource
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.policy.store.sqlite_store import PolicyStore
from structlog.testing import capture_logs

from tests.support.files import write
from tests.support.policy.policies import NOW, action, document, manifest

if TYPE_CHECKING:
    from pathlib import Path

_CLOCK = NOW.timestamp()


def _text(*names: str, value: str = "auto") -> str:
    return yaml.safe_dump_all([document(name, kvLoadFailure=action(value)) for name in names])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Make a policy directory with one file."""
    path = tmp_path / "policies"
    path.mkdir()
    path.joinpath("a.yaml").write_text(_text("a"))
    return path


def _source(path: Path, store: PolicyStore) -> FileSource:
    return FileSource(path, store, clock=lambda: _CLOCK)


async def _settled(source: FileSource) -> None:
    """Poll until a poll finds nothing new."""
    for _ in range(5):
        if await source.poll() == POLL_SECONDS:
            return
    raise AssertionError("the files do not come to rest")


def _held(store: PolicyStore) -> dict[str, str]:
    return {
        item.manifest.name: str(item.manifest.leaves["kvLoadFailure.action"]) for item in store.policies()
    }


async def test_a_change_is_taken_once_it_has_come_to_rest(directory: Path, store: PolicyStore) -> None:
    """A change is applied at the second poll that sees the same content, once."""
    source = _source(directory, store)
    assert await source.poll() == SETTLE_SECONDS
    assert _held(store) == {}
    write(directory / "a.yaml", _text("a", "b"))
    assert await source.poll() == SETTLE_SECONDS
    assert _held(store) == {}
    assert await source.poll() == POLL_SECONDS
    assert _held(store) == {"a": "auto", "b": "auto"}
    assert await source.poll() == POLL_SECONDS
    assert (source.status.applied, source.status.refused, source.status.last_success) == (1, 0, _CLOCK)


async def test_writes_moves_and_removals(directory: Path, store: PolicyStore) -> None:
    """A write in place, an atomic rename, a new file and a removal are one change of the store each."""
    source = _source(directory, store)
    await _settled(source)
    assert _held(store) == {"a": "auto"}
    write(directory / "a.yaml", _text("a", value="fail"))
    await _settled(source)
    assert _held(store) == {"a": "fail"}
    write(directory / "a.yaml.tmp", _text("a", value="auto"))
    directory.joinpath("a.yaml.tmp").replace(directory / "a.yaml")
    write(directory / "b.yml", _text("b"))
    write(directory / ".hidden.yaml", "not: read")
    write(directory / "notes.txt", "not read")
    await _settled(source)
    assert _held(store) == {"a": "auto", "b": "auto"}
    directory.joinpath("a.yaml").unlink()
    await _settled(source)
    assert _held(store) == {"b": "auto"}
    assert store.generation == 4


async def test_a_policy_moves_from_file_to_file(directory: Path, store: PolicyStore) -> None:
    """A policy moved between files stays in force; its owner is the new file."""
    source = _source(directory, store)
    await _settled(source)
    directory.joinpath("a.yaml").rename(directory / "b.yaml")
    await _settled(source)
    assert [(item.owner, item.generation) for item in store.policies()] == [("file:b.yaml", 2)]


async def test_a_single_file(directory: Path, store: PolicyStore) -> None:
    """The removal of the only file leaves its policies in force."""
    file = directory / "a.yaml"
    source = _source(file, store)
    await _settled(source)
    file.unlink()
    await _settled(source)
    assert source.status.error == f"{file} cannot be read (No such file or directory)"
    assert _held(store) == {"a": "auto"}
    write(file, _text("z"))
    await _settled(source)
    assert (_held(store), source.status.error) == ({"z": "auto"}, "")


class _ConfigMap:
    """A volume in the layout of kubelet's atomic writer: ``a.yaml -> ..data/a.yaml``, ``..data -> ..VERSION``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._versions = 0
        path.mkdir()

    def stage(self, **files: str) -> Path:
        """Write a version beside the current one."""
        self._versions += 1
        version = self.path / f"..2026_11_20.{self._versions}"
        version.mkdir()
        for name, text in files.items():
            write(version.joinpath(f"{name}.yaml"), text)
        self.path.joinpath("..data_tmp").symlink_to(version.name)
        return version

    def swap(self) -> None:
        """Point ``..data`` to the staged version."""
        self.path.joinpath("..data_tmp").rename(self.path / "..data")

    def clean(self, version: Path, *, old: Path | None = None) -> None:
        """Update the links of the files and remove the old version."""
        names = {file.name for file in version.iterdir()}
        for link in self.path.glob("*.yaml"):
            if link.name not in names:
                link.unlink()
        for name in names:
            if not self.path.joinpath(name).is_symlink():
                self.path.joinpath(name).symlink_to(f"..data/{name}")
        if old is not None:
            for file in old.iterdir():
                file.unlink()
            old.rmdir()


async def test_a_configmap_is_swapped(tmp_path: Path, store: PolicyStore) -> None:
    """At each step of a swap the policies are those of one version, and no error is reported."""
    volume = _ConfigMap(tmp_path / "volume")
    first = volume.stage(a=_text("a"), b=_text("b"))
    volume.swap()
    volume.clean(first)
    source = _source(volume.path, store)
    await _settled(source)
    assert _held(store) == {"a": "auto", "b": "auto"}
    second = volume.stage(a=_text("a", value="fail"), c=_text("b", value="fail"))
    await _settled(source)
    assert (_held(store), source.status.applied) == ({"a": "auto", "b": "auto"}, 1)
    volume.swap()
    # b.yaml still points at what is no longer there, and c.yaml has no link yet.
    await _settled(source)
    assert _held(store) == {"a": "fail", "b": "fail"}
    volume.clean(second, old=first)
    await _settled(source)
    assert {item.manifest.name: item.owner for item in store.policies()} == {
        "a": "file:a.yaml",
        "b": "file:c.yaml",
    }
    assert (source.status.applied, source.status.refused) == (2, 0)


async def test_a_file_of_a_configmap(tmp_path: Path, store: PolicyStore) -> None:
    """``--policy-file`` follows one file of a mounted ConfigMap."""
    volume = _ConfigMap(tmp_path / "volume")
    first = volume.stage(a=_text("a"))
    volume.swap()
    volume.clean(first)
    source = _source(volume.path / "a.yaml", store)
    await _settled(source)
    second = volume.stage(a=_text("a", value="fail"))
    volume.swap()
    volume.clean(second, old=first)
    await _settled(source)
    assert _held(store) == {"a": "fail"}


async def test_a_swap_between_a_look_and_the_reading(tmp_path: Path, store: PolicyStore) -> None:
    """A version that disappears during a poll is polled again without an error."""
    volume = _ConfigMap(tmp_path / "volume")
    first = volume.stage(a=_text("a"))
    volume.swap()
    volume.clean(first)
    source = _source(volume.path, store)
    assert await source.poll() == SETTLE_SECONDS
    second = volume.stage(a=_text("b"))
    volume.swap()
    volume.clean(second, old=first)
    await _settled(source)
    assert (_held(store), source.status.refused) == ({"b": "auto"}, 0)


async def test_what_is_refused_leaves_everything_as_it_was(directory: Path, store: PolicyStore) -> None:
    """One invalid file keeps all policies unchanged; its error is logged once until it is fixed."""
    source = _source(directory, store)
    await _settled(source)
    write(directory / "a.yaml", _text("a", value="recompute"))
    write(directory / "b.yaml", "spec: {}\n")
    with capture_logs() as logs:
        await _settled(source)
        await _settled(source)
    assert [(log["event"], log["log_level"], log["in_force"]) for log in logs] == [
        ("policy files refused; the last valid ones stay in force", "error", 1)
    ]
    sentence = "b.yaml:1: apiVersion is missing; use penstock.dev/v1alpha1"
    assert logs[0]["error"] == source.status.error == sentence
    assert (_held(store), source.status.applied, source.status.refused) == ({"a": "auto"}, 1, 1)
    directory.joinpath("b.yaml").unlink()
    with capture_logs() as logs:
        await _settled(source)
    assert (_held(store), source.status.error, source.status.applied) == ({"a": "recompute"}, "", 2)
    assert [(log["event"], log["changes"]) for log in logs] == [("policy files in force", ["a changed"])]


async def test_a_bad_file_at_the_start(tmp_path: Path, directory: Path, database: PolicyDatabase) -> None:
    """With an invalid file at the start the stored policies stay in force."""
    before = PolicyStore(database, clock=lambda: _CLOCK)
    await _settled(_source(directory, before))
    write(directory / "a.yaml", "{")
    database.close()
    reopened = PolicyDatabase.open(tmp_path)
    store = PolicyStore(reopened, clock=lambda: _CLOCK)
    source = _source(directory, store)
    await source.start()
    await source.stop()
    await source.stop()
    assert (_held(store), source.status.refused) == ({"a": "auto"}, 1)
    assert source.status.error.startswith("a.yaml:1: this is not YAML")
    reopened.close()


async def test_a_start_does_not_wait_for_ever(
    directory: Path, store: PolicyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filesystem that hangs delays only its own policies, not the start."""
    monkeypatch.setattr("penstock.agent.policy.files.file_source.START_SECONDS", 0.0)
    source, taken = _source(directory, store), asyncio.Event()
    store.subscribe(taken.set)
    with capture_logs() as logs:
        await source.start()
    assert [log["event"][:29] for log in logs] == ["policy files not read in time"]
    await asyncio.wait_for(taken.wait(), 60)
    await source.stop()
    assert _held(store) == {"a": "auto"}


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.yaml", b"", "a.yaml:1: the file has no policy"),
        ("a.yaml", b"x: 1\nb: \xff\n", "a.yaml:2: this is not UTF-8; save it as UTF-8"),
        ("a.yaml", b"#" * (512 * 1024 + 1), "has more than 524288 bytes of policies"),
        ("b.yaml", None, "is not a regular file"),
        ("only", None, "has no file *.yaml or *.yml; for no policies, write one with kind: List and items: []"),
    ],
)  # fmt: skip
async def test_what_is_no_policy_file_is_refused(
    directory: Path, store: PolicyStore, name: str, content: bytes | None, error: str
) -> None:
    """An empty, binary, oversized or special file, or no file at all, is refused; policies stay in force."""
    source = _source(directory, store)
    await _settled(source)
    if name == "only":
        directory.joinpath("a.yaml").unlink()
    elif content is None:
        os.mkfifo(directory / name)
    else:
        directory.joinpath(name).write_bytes(content)
    await _settled(source)
    assert error in source.status.error
    assert _held(store) == {"a": "auto"}


async def test_too_many_files(directory: Path, store: PolicyStore) -> None:
    """More files than the limit are refused."""
    for number in range(64):
        write(directory / f"p{number}.yaml", _text(f"p{number}"))
    source = _source(directory, store)
    await _settled(source)
    assert "has 65 files, the limit is 64; combine policies" in source.status.error


async def test_a_full_store_is_tried_again(directory: Path, store: PolicyStore) -> None:
    """A change that a full store refused is applied once there is room."""
    await store.apply_all([manifest(f"p{number}") for number in range(256)], author="me")
    source = _source(directory, store)
    with capture_logs() as logs:
        await _settled(source)
        await _settled(source)
    assert "there would be 257 policies" in source.status.error
    assert (len(logs), source.status.refused) == (1, 1)
    await store.delete("p0", author="me")
    await _settled(source)
    assert (source.status.error, store.policies()[0].manifest.name) == ("", "a")


async def test_a_takeover_is_logged(directory: Path, store: PolicyStore) -> None:
    """A file that takes over an imperative policy owns its name; the takeover is logged and audited."""
    await store.apply(manifest("a", kvLoadFailure=action("fail")), author="me@host")
    source = _source(directory, store)
    with capture_logs() as logs:
        await _settled(source)
    assert (logs[0]["policy"], logs[0]["file"], logs[0]["author"]) == ("a", "file:a.yaml", "me@host")
    assert "takes over a policy that was set by hand" in logs[0]["event"]
    assert store.policies()[0].owner == "file:a.yaml"


async def test_an_expired_policy_is_logged(directory: Path, store: PolicyStore) -> None:
    """An expired policy in a file is logged and not in force."""
    write(
        directory.joinpath("a.yaml"),
        yaml.safe_dump_all([document("old", expiresAt="2026-01-01T00:00:00Z"), document("b")]),
    )
    source = _source(directory, store)
    with capture_logs() as logs:
        await _settled(source)
    assert (logs[0]["log_level"], logs[0]["policy"]) == ("warning", "a.yaml:1: policy old")
    assert _held(store) == {"b": "recompute"}


async def test_a_policy_that_expires_while_it_is_followed(directory: Path, database: PolicyDatabase) -> None:
    """An expired policy is deleted at the next change of the files; the audit log has the reason."""
    now = [_CLOCK]
    store = PolicyStore(database, clock=lambda: now[0])
    source = FileSource(directory, store, clock=lambda: now[0])
    ends = (NOW + timedelta(minutes=1)).isoformat()
    write(directory / "a.yaml", yaml.safe_dump(document("short", expiresAt=ends)))
    await _settled(source)
    now[0] += 61
    await _settled(source)
    assert list(_held(store)) == ["short"]
    write(directory / "b.yaml", _text("b"))
    await _settled(source)
    assert list(_held(store)) == ["b"]
    (entry,) = await store.changes("short", 1)
    assert (entry.change.action, entry.change.reason) == ("delete", "it has expired")


async def test_fail_everywhere_is_logged_once(directory: Path, store: PolicyStore) -> None:
    """A policy that fails every load is logged as a warning once."""
    write(directory / "a.yaml", _text("a", value="fail"))
    source = _source(directory, store)
    with capture_logs() as logs:
        await _settled(source)
        write(directory / "b.yaml", _text("b"))
        await _settled(source)
    warnings = [log for log in logs if log["log_level"] == "warning"]
    assert [(log["event"], log["policy"]) for log in warnings] == [
        ("a policy of a file makes every engine fail loads", "a")
    ]


def test_a_filesystem_that_hangs_does_not_hold_up_the_end(
    directory: Path, database: PolicyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop ends while a poll hangs."""
    looking, answered = threading.Event(), threading.Event()

    def hang(_: Path) -> DirectoryState:
        looking.set()
        answered.wait()
        return DirectoryState()

    monkeypatch.setattr("penstock.agent.policy.files.file_source.scan_directory", hang)
    monkeypatch.setattr("penstock.agent.policy.files.file_source.START_SECONDS", 0.0)

    async def serve() -> None:
        source = _source(directory, PolicyStore(database, clock=lambda: _CLOCK))
        await source.start()
        await asyncio.to_thread(looking.wait)
        await source.stop()

    agent = threading.Thread(target=asyncio.run, args=(serve(),))
    agent.start()
    agent.join(60)
    ended = not agent.is_alive()
    answered.set()
    agent.join()
    assert ended
