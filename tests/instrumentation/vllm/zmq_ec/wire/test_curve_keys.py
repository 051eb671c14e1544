"""Key files: what is read, and what is refused with which sentence."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import zmq
from penstock.instrumentation.vllm.zmq_ec.wire import CurveFiles, curve
from penstock.instrumentation.vllm.zmq_ec.wire.curve import CurveError, load_client_keys, load_server_keys

from tests.support.ec.keys import KeyFiles, consumer_files, make_keys, producer_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def own(tmp_path: Path) -> KeyFiles:
    """Make this engine's pair."""
    return make_keys(tmp_path, "own")


@pytest.fixture
def other(tmp_path: Path) -> KeyFiles:
    """Make the peer's pair."""
    return make_keys(tmp_path, "other")


def test_without_settings_there_are_no_keys() -> None:
    """CURVE is an option."""
    assert load_server_keys(CurveFiles()) is None
    assert load_client_keys(CurveFiles()) is None


def test_no_secret_is_shown(own: KeyFiles, other: KeyFiles) -> None:
    """Neither as text nor as bytes."""
    for keys in (
        load_server_keys(producer_files(own, other.public)),
        load_client_keys(consumer_files(own, other)),
    ):
        assert keys is not None
        assert own.secret_text() not in repr(keys)
        assert repr(keys.pair.secret) not in repr(keys)
        assert repr(keys.pair.public) in repr(keys)


@pytest.mark.parametrize(
    ("load", "files", "missing"),
    [
        (load_server_keys, CurveFiles(key_file="/k"), "curve_allowed_clients is missing"),
        (load_server_keys, CurveFiles(allowed_clients="/k"), "curve_key_file is missing"),
        (load_server_keys, CurveFiles(server_key_file="/k"), "curve_key_file and curve_allowed_clients is missing"),
        (load_client_keys, CurveFiles(key_file="/k"), "curve_server_key_file is missing"),
        (load_client_keys, CurveFiles(server_key_file="/k"), "curve_key_file is missing"),
    ],
)  # fmt: skip
def test_a_setting_that_is_missing(
    load: Callable[[CurveFiles], object], files: CurveFiles, missing: str
) -> None:
    """One of them means CURVE: it is never left out because the others are not there."""
    with pytest.raises(CurveError, match=missing):
        load(files)


def _missing(file: Path) -> None:
    file.unlink()


def _garbled(file: Path) -> None:
    file.write_text('curve\n    public-key = "short"\n')
    file.chmod(0o600)


def _no_key(file: Path) -> None:
    file.write_bytes(bytes(range(256)))
    file.chmod(0o600)


def _bare_word(file: Path) -> None:
    file.write_text("curve\n    public-key\n")
    file.chmod(0o600)


def _directory(file: Path) -> None:
    file.unlink()
    file.mkdir(0o700)


def _huge(file: Path) -> None:
    file.write_bytes(b"#" * (1 << 20))
    file.chmod(0o600)


BREAKS = [
    (_missing, "cannot be read: No such file"),
    (_garbled, "not 40 characters of Z85"),
    (_no_key, "no public key"),
    (_bare_word, "no public key"),
    (_directory, "is no key file"),
    (_huge, "is no key file"),
]


@pytest.mark.parametrize(("spoil", "why"), BREAKS)
def test_a_file_that_is_no_key(
    own: KeyFiles, other: KeyFiles, spoil: Callable[[Path], None], why: str
) -> None:
    """The sentence has the setting, the path, and how to make keys."""
    spoil(own.secret)
    with pytest.raises(CurveError, match=rf"curve_key_file .*own\.key_secret.*{why}.*create_certificates"):
        load_server_keys(producer_files(own, other.public))
    spoil(other.public)
    files = producer_files(make_keys(own.public.parent, "new"), other.public)
    if spoil is not _directory:
        with pytest.raises(CurveError, match=rf"curve_allowed_clients .*other\.key.*{why}"):
            load_server_keys(files)
    with pytest.raises(CurveError, match=rf"curve_server_key_file .*other\.key.*{why}"):
        load_client_keys(replace(files, server_key_file=str(other.public)))


def test_a_directory_without_keys(own: KeyFiles, tmp_path: Path) -> None:
    """It would allow no client."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(CurveError, match=r"has no \.key file"):
        load_server_keys(producer_files(own, tmp_path / "empty"))


def test_too_many_clients(own: KeyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of files is bounded."""
    monkeypatch.setattr(curve, "CLIENTS_MAX", 1)
    for name in "ab":
        make_keys(tmp_path / "many", name)
    with pytest.raises(CurveError, match=r"more than 1 \.key"):
        load_server_keys(producer_files(own, tmp_path / "many"))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o602, 0o601])
def test_a_secret_that_others_can_reach(
    own: KeyFiles, other: KeyFiles, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, with the command that mends it."""
    own.secret.chmod(mode)
    found = own.secret.stat()
    if found.st_uid == 0:  # the rule for files of other users
        os.chown(own.secret, 1234, -1)
    with pytest.raises(CurveError, match=rf"mode {mode:04o}.*chmod 600") as raised:
        load_client_keys(consumer_files(own, other))
    assert own.secret_text() not in str(raised.value)


@pytest.mark.parametrize(
    ("mode", "fine"), [(0o400, True), (0o440, True), (0o640, True), (0o444, False), (0o660, False)]
)
def test_a_secret_of_roots(own: KeyFiles, other: KeyFiles, mode: int, fine: bool) -> None:
    """Kubernetes mounts secrets as root's, readable by the pod's group."""
    if os.geteuid() != 0:
        pytest.skip("only root has files of root's")
    own.secret.chmod(mode)
    if fine:
        assert load_client_keys(consumer_files(own, other)) is not None
    else:
        with pytest.raises(CurveError, match="chmod 600"):
            load_client_keys(consumer_files(own, other))


def test_a_public_file_instead_of_the_secret_one(own: KeyFiles, other: KeyFiles) -> None:
    """The sentence names the right file."""
    own.public.chmod(0o600)
    with pytest.raises(CurveError, match=r"no secret key.*\.key_secret"):
        load_client_keys(consumer_files(KeyFiles(own.public, own.public), other))


def test_keys_that_are_no_pair(own: KeyFiles, other: KeyFiles) -> None:
    """A file that was put together by hand is refused."""
    text = own.secret.read_text().replace(own.secret_text(), other.secret_text())
    own.secret.write_text(text)
    with pytest.raises(CurveError, match="no pair") as raised:
        load_client_keys(consumer_files(own, other))
    assert other.secret_text() not in str(raised.value)


def test_a_libzmq_without_curve(own: KeyFiles, other: KeyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configured keys are never ignored."""
    monkeypatch.setattr(zmq, "has", lambda _what: False)
    with pytest.raises(CurveError, match="this libzmq has no CURVE"):
        load_server_keys(producer_files(own, other.public))
    with pytest.raises(CurveError, match="pyzmq wheel"):
        load_client_keys(consumer_files(own, other))
