"""The file of a bundle: damaged, hostile and newer ones are refused before they are unpacked."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import struct
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.bundle import unpack_bundle
from penstock.agent.errors import BundleError
from penstock.agent.journal import create_schema
from penstock.agent.state import DamagedError, check_foreign

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Change = Callable[[dict[str, bytes], dict[str, Any]], None]

_FILES = (
    "state.json",
    "journal.db",
    "policy.db",
    "metrics.txt",
    "configuration.json",
    "watchdog-dumps.txt",
)


def _manifest(files: dict[str, bytes]) -> dict[str, Any]:
    return {
        "format": 1,
        "created": "2026-11-24T17:00:00Z",
        "agent_version": "1",
        "agentctl_version": "1",
        "address": "",
        "since_seconds": 3600.0,
        "first_batch": 1,
        "first_time": "",
        "last_batch": 1,
        "batches": 1,
        "left_out_batches": 0,
        "left_out_bytes": 0,
        "files": [
            {"name": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in files.items()
        ],
    }


def _write(path: Path, change: Change = lambda _files, _manifest: None) -> None:
    files = {name: name.encode() * 10 for name in _FILES}
    manifest = _manifest(files)
    change(files, manifest)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name, content in files.items():
            archive.writestr(name, content)


def _unpack(tmp_path: Path) -> set[str]:
    target = tmp_path / "unpacked"
    target.mkdir()
    unpack_bundle(tmp_path / "b.penstock", target)
    return {path.name for path in target.iterdir()}


def test_a_good_one_is_unpacked(tmp_path: Path) -> None:
    """The files that the manifest lists."""
    _write(tmp_path / "b.penstock")
    assert _unpack(tmp_path) == set(_FILES)


def _newer(_files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    manifest["format"] = 2


def _other_bytes(files: dict[str, bytes], _manifest: dict[str, Any]) -> None:
    files["state.json"] = b"x" * len(files["state.json"])


def _other_size(_files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    manifest["files"][0]["size"] = 1


def _missing(files: dict[str, bytes], _manifest: dict[str, Any]) -> None:
    del files["journal.db"]


def _unlisted(files: dict[str, bytes], _manifest: dict[str, Any]) -> None:
    files["more"] = b""


def _traversal(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    files["../evil"] = files.pop("metrics.txt")
    manifest["files"][3]["name"] = "../evil"


def _bomb(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    content = bytes(65 << 20)
    files["metrics.txt"] = content
    manifest["files"][3] |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _too_many(files: dict[str, bytes], _manifest: dict[str, Any]) -> None:
    files.update({f"f{number}": b"" for number in range(20)})


def _no_digest(_files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    manifest["files"][0]["sha256"] = "0"


def _no_list(_files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    manifest["files"] = "all"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_newer, "use a newer agentctl"),
        (_other_bytes, "state.json is damaged: the checksum is wrong"),
        (_other_size, "the manifest says 1"),
        (_missing, "journal.db is missing"),
        (_unlisted, "'more' that its manifest does not list"),
        (_traversal, "cannot be read"),
        (_bomb, "would unpack from"),
        (_too_many, "at most 16"),
        (_no_digest, "cannot be read"),
        (_no_list, "cannot be read"),
    ],
)
def test_a_bad_one_is_refused(tmp_path: Path, change: Change, words: str) -> None:
    """With a sentence, and nothing is written outside of the directory."""
    _write(tmp_path / "b.penstock", change)
    with pytest.raises(BundleError, match=words):
        _unpack(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"b.penstock", "unpacked"}


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_method_whose_unpacking_is_not_bounded_is_refused(tmp_path: Path, method: int) -> None:
    """Before anything is unpacked."""
    path = tmp_path / "b.penstock"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("manifest.json", "{}")
    with pytest.raises(BundleError, match=f"packed by method {method}; a bundle is stored or deflated"):
        _unpack(tmp_path)


def test_an_encrypted_one_is_refused(tmp_path: Path) -> None:
    """By the mark of the entry in the list of files."""
    path = tmp_path / "b.penstock"
    _write(path)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(BundleError, match=r"'manifest\.json' is encrypted"):
        _unpack(tmp_path)


def test_a_long_list_of_files_is_not_read(tmp_path: Path) -> None:
    """Whatever number of files its end announces."""
    size = 3 << 20
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, size, 0, 0)
    (tmp_path / "b.penstock").write_bytes(bytes(size) + end)
    with pytest.raises(BundleError, match="its list of files is larger than 1 MiB"):
        _unpack(tmp_path)


@pytest.mark.parametrize("kept", [0, 1, 30, 200, 0.5, 0.9, -1])
def test_a_cut_one_is_refused(tmp_path: Path, kept: float) -> None:
    """Cut anywhere, it is no bundle."""
    path = tmp_path / "b.penstock"
    _write(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept) if 0 < kept < 1 else int(kept)])
    with pytest.raises(BundleError, match="not a bundle, or it is incomplete"):
        _unpack(tmp_path)


def test_a_stranger_s_database_is_not_opened(tmp_path: Path) -> None:
    """A view, a trigger, another table or another version: it is not the agent's."""
    for number, statement in enumerate(
        (
            "CREATE VIEW v AS SELECT 1",
            "CREATE TRIGGER t AFTER INSERT ON batches BEGIN DELETE FROM meta; END",
            "CREATE TABLE more (x)",
            "PRAGMA user_version = 9",
        )
    ):
        path = tmp_path / str(number)
        database = sqlite3.connect(path, isolation_level=None)
        create_schema(database)
        database.close()
        check_foreign(path, create_schema)
        database = sqlite3.connect(path, isolation_level=None)
        database.execute(statement)
        database.close()
        with pytest.raises(DamagedError):
            check_foreign(path, create_schema)
    (tmp_path / "text").write_text("no database")
    with pytest.raises(DamagedError):
        check_foreign(tmp_path / "text", create_schema)
