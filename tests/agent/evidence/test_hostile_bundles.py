"""A bundle that anybody made: one sentence of agentctl for each, bounded memory, no wait, and nothing is left."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import zipfile
import zlib
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.bundle import BundleBuilder, check_values
from penstock.agent.errors import BundleError
from penstock.agent.evidence import restored
from penstock.agent.evidence.restored import read_state
from penstock.proto.v1.admin_pb2 import BundlePart

from tests.support.variants import product

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Files = dict[str, bytes]

_RECORDED = Path(__file__).parents[2] / "golden/incidents/prefill-killed.bundle"
_AGENTCTL = Path(sys.executable).with_name("agentctl")
# Of the whole process, interpreter and libraries included.
_ADDRESS_SPACE = 2 << 30


def _files() -> Files:
    with zipfile.ZipFile(_RECORDED) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _write(path: Path, files: Files) -> None:
    """Write a bundle whose manifest fits to its *files*."""
    manifest = json.loads(files["manifest.json"])
    manifest["files"] = [
        {"name": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
        if name != "manifest.json"
    ]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name, content in files.items():
            if name != "manifest.json":
                archive.writestr(name, content)


def _ask(path: Path, scratch: Path, command: str = "get events") -> subprocess.CompletedProcess[str]:
    """Ask a bundle with a process that has little memory, and nothing beside *scratch* for its files."""
    # A shell sets the limit: Python code between fork and exec meets the threads of gRPC.
    limited = f'ulimit -v {_ADDRESS_SPACE >> 10} && exec "$@"'
    return subprocess.run(
        ["sh", "-c", limited, "sh", _AGENTCTL, "--bundle", path, *command.split()],
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _state(**fields: Any) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        files["state.json"] = json.dumps(json.loads(files["state.json"]) | fields).encode()

    return change


def _manifest(**fields: Any) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        files["manifest.json"] = json.dumps(json.loads(files["manifest.json"]) | fields).encode()

    return change


def _sources(megabytes: int) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        text = json.loads(files["state.json"]) | {"sources": []}
        empty = b",".join([b"{}"] * ((megabytes << 20) // 3))
        files["state.json"] = json.dumps(text).encode().replace(b'"sources": []', b'"sources":[%b]' % empty)

    return change


def _journal(statement: str, *values: object) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
            database.deserialize(files["journal.db"])
            database.execute(statement, values)
            files["journal.db"] = database.serialize()

    return change


def _large(statement: str, body: Callable[[], bytes]) -> Callable[[Files], None]:
    """Return the same with a value that is made when it is needed: not in each process that collects tests."""

    def change(files: Files) -> None:
        _journal(statement, body())(files)

    return change


def _counters() -> bytes:
    return zlib.compress(b'{"version":[' + b"[]," * (30 << 20) + b"[]]}")


HOSTILE: dict[str, tuple[Callable[[Files], None], str]] = {
    "sixty megabytes of sources in as many kilobytes": (_sources(60), "state.json would unpack from"),
    "too many values in a file that may swell": (_sources(3), "more than 2,000,000 values"),
    "too many sources": (_state(sources=[{}] * 50_001), "50,001 sources; an agent keeps at most 50,000"),
    "saved metrics that swell": (
        _large("UPDATE folds SET body = ?", _counters),
        "journal.db (saved metrics) has more than 4,000,000 values",
    ),
    "a row that is larger than any": (
        _large(
            "UPDATE batches SET body = ? WHERE id = (SELECT min(id) FROM batches)",
            lambda: os.urandom(17 << 20),
        ),
        "a row of 17.0 MiB in batches",
    ),
    "more of a table than an agent keeps": (
        _journal(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200001)"
            " INSERT INTO meta SELECT hex(randomblob(4)) || i, i FROM n"
        ),
        "rows and",
    ),
    "a number that is infinite": (_manifest(first_batch=1e400), "manifest.json cannot be read"),
    "a version that is infinite": (_manifest(format=1e400), "manifest.json cannot be read"),
    "a number that no float holds": (_manifest(left_out_bytes=10**400), "manifest.json cannot be read"),
    "the last time of the calendar": (
        _state(time="9999-12-31T23:59:59.999999999Z"),
        "before 1970 or after 2554",
    ),
    "the first time of the calendar": (_state(time="0001-01-01T00:00:00Z"), "before 1970 or after 2554"),
    "seconds that no clock shows": (_state(retireAfterSeconds=1e300), "retire_after_seconds 1e+300"),
    "seconds that are no number": (_state(retireAfterSeconds="NaN"), "retire_after_seconds nan"),
    "saved metrics of nothing but brackets": (
        _journal("UPDATE folds SET body = ?", zlib.compress(b"[" * 100_000)),
        "it holds what no agent writes; it is damaged (RecursionError",
    ),
}


# What is wrong with them is wrong with another one, too.
_LIKE_OTHERS = {
    "too many values in a file that may swell",
    "a version that is infinite",
    "a number that no float holds",
    "the first time of the calendar",
    "seconds that are no number",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in _LIKE_OTHERS)) for name in HOSTILE]
)
def test_a_hostile_one_gets_a_sentence(tmp_path: Path, name: str) -> None:
    """Within 2 GiB of address space; no traceback, and no file is left."""
    change, words = HOSTILE[name]
    files = _files()
    change(files)
    _write(tmp_path / "b.penstock", files)
    (scratch := tmp_path / "scratch").mkdir()
    result = _ask(tmp_path / "b.penstock", scratch)
    assert words in result.stderr
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert not list(scratch.iterdir())


def test_a_damaged_log_is_told_as_one(tmp_path: Path) -> None:
    """What the agent would write to its log about it is not in a command's output."""
    files = _files()
    _journal("UPDATE batches SET body = ?, packed = 0", b"\xff")(files)
    _write(tmp_path / "b.penstock", files)
    result = _ask(tmp_path / "b.penstock", tmp_path, "get requests -o json")
    assert json.loads(result.stdout)["requests"] == []
    assert "damaged batch" not in result.stderr
    assert "Traceback" not in result.stderr


def test_a_pipe_without_a_writer_is_not_waited_for(tmp_path: Path) -> None:
    """It is refused as what it is."""
    os.mkfifo(tmp_path / "pipe")
    result = _ask(tmp_path / "pipe", tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert "pipe cannot be opened: it is not a file" in result.stderr


@product(
    number={each.name: each for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)},
    opened={"while it is opened": False, "while it is served": True},
)
def test_a_signal_leaves_nothing(tmp_path: Path, number: signal.Signals, *, opened: bool) -> None:
    """Neither while the bundle is unpacked nor later; a word at most is said."""
    files = _files()
    if not opened:
        # For a while.
        _state(sources=[{"source": {"epoch": str(epoch)}} for epoch in range(1, 40_000)])(files)
    _write(tmp_path / "b.penstock", files)
    (scratch := tmp_path / "scratch").mkdir()
    with subprocess.Popen(
        [_AGENTCTL, "--bundle", tmp_path / "b.penstock", "page"],
        env={**os.environ, "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        if opened:
            assert process.stdout.readline().startswith("http://")
        else:
            _until(lambda: any(scratch.rglob("journal.db")))
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode > 0
    assert "Traceback" not in errors
    assert not list(scratch.iterdir())


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_value_that_no_check_knows_gets_a_sentence(tmp_path: Path) -> None:
    """Where a call meets it, once the bundle is open."""
    files = _files()
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.deserialize(files["policy.db"])
        database.execute("INSERT INTO audit VALUES (99, 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x')")
        files["policy.db"] = database.serialize()
    _write(tmp_path / "b.penstock", files)
    (scratch := tmp_path / "scratch").mkdir()
    result = _ask(tmp_path / "b.penstock", scratch, "get audit")
    assert result.returncode == 1
    assert "the bundle holds what no agent writes; it is damaged (" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(scratch.iterdir())


def test_values_are_counted_before_they_are_parsed() -> None:
    """Commas and opening brackets, over all pieces."""
    text = json.dumps({"a": [1, 2, {"b": []}]}).encode()
    check_values("x", (text[:5], text[5:]), most=6)
    with pytest.raises(BundleError, match="its x has more than 5 values"):
        check_values("x", (text[:5], text[5:]), most=5)


def test_every_table_has_a_bound(tmp_path: Path) -> None:
    """Of both databases, but for those whose rows are numbers; a recorded bundle is within all of them."""
    numbers = {"journal.db": {"kinds", "pruned"}, "policy.db": {"counter", "audit_extent"}}
    for name, content in _files().items():
        if name not in numbers:
            continue
        (tmp_path / name).write_bytes(content)
        restored.check_tables(tmp_path / name)
        with closing(sqlite3.connect(tmp_path / name)) as database:
            tables = {
                table
                for (table,) in database.execute(
                    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
                )
            }
        bounded = {*restored._WHOLE[name], *restored._BY_ROW[name]}
        assert bounded | numbers[name] == tables


def _parts(state: bytes) -> Iterator[BundlePart]:
    yield BundlePart(file={"name": "state.json", "content": state})
    yield BundlePart(file={"name": "policy.db", "content": _files()["policy.db"]})
    yield BundlePart(journal={})
    yield BundlePart(end={})


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (b"[]", "the agent's state.json cannot be read"),
        (b'{"time": 1}', "the agent's state.json cannot be read"),
        (b"\xff", "the agent's state.json cannot be read"),
        (b"[" * 100_000, "the agent's state.json cannot be read"),
        (b"[" + b"{}," * 1_000_000, "state.json has more than 2,000,000 values"),
        (bytes((64 << 20) + 1), "the agent's state.json is larger than 64.0 MiB"),
    ],
)
def test_what_no_agent_sends_is_not_written(tmp_path: Path, state: bytes, words: str) -> None:
    """A bundle is made of what can be read later."""

    def build() -> None:
        with closing(BundleBuilder(tmp_path)) as builder:
            for part in _parts(state):
                builder.add(part)
            builder.write(tmp_path / "b.penstock", address="", since_seconds=1.0)

    with pytest.raises(BundleError, match=words):
        build()
    assert not (tmp_path / "b.penstock").exists()


def test_a_recorded_state_is_within_the_bounds(tmp_path: Path) -> None:
    """As each of the recorded incidents is."""
    for number, bundle in enumerate(sorted(_RECORDED.parent.iterdir())):
        (place := tmp_path / str(number)).mkdir()
        with zipfile.ZipFile(bundle) as archive:
            archive.extract("state.json", place)
        assert read_state(place).time.seconds
