"""Files for routers: their formats, and that a reader sees a whole one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.ctl.routers.endpoints import MAX_FILE_BYTES, EndpointState
from penstock.agent.ctl.routers.files import RouterFile, as_json, as_list, as_production_stack, read_text

if TYPE_CHECKING:
    from pathlib import Path

A, B, C = (f"http://10.0.3.{number}:8000" for number in (4, 5, 6))
BAD = EndpointState("failing", "2026-11-30T12:00:00.000Z", "2 failures in the last minute")
BASE: dict[str, Any] = {
    "service_discovery": "static",
    "routing_logic": "roundrobin",
    "static_backends": f"{A},{B}/,{C}",
    "static_models": "m,m,n",
    "static_model_types": "chat,chat,completion",
    "static_aliases": "x:m",
}


def test_a_list() -> None:
    """One a line."""
    render = as_list([A, B])
    assert render({}) == f"{A}\n{B}\n"
    assert render({A: BAD}) == f"{B}\n"


def test_json() -> None:
    """Those that are out with the reason."""
    assert json.loads(as_json([A, B])({A: BAD})) == {
        "in": [B],
        "out": [{"url": A, "state": "failing", "since": BAD.since, "why": BAD.why}],
    }


def test_the_production_stack() -> None:
    """The lists stay in step, and all else stays."""
    render = as_production_stack([A, B], json.dumps(BASE))
    assert json.loads(render({})) == BASE
    assert json.loads(render({B: BAD})) == BASE | {
        "static_backends": f"{A},{C}",
        "static_models": "m,n",
        "static_model_types": "chat,completion",
    }


def test_the_production_stack_with_spaces() -> None:
    """Around a comma they mean nothing."""
    base = BASE | {"static_backends": f"{A}, {B} ,{C}", "static_models": "m, m, n"}
    assert json.loads(as_production_stack([A, B], json.dumps(base))({A: BAD})) == base | {
        "static_backends": f"{B},{C}",
        "static_models": "m,n",
        "static_model_types": "chat,completion",
    }


@pytest.mark.parametrize(
    ("base", "sentence"),
    [
        ("static_backends: x", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "has no static_backends"),
        ("{}", "has no static_backends"),
        (json.dumps(BASE | {"static_backends": [A]}), "has no static_backends"),
        (json.dumps(BASE | {"static_models": "m,m"}), "3 static_backends and 2 static_models"),
        (json.dumps(BASE | {"static_backends": f"{A},{C},{C}"}), f"has no {B}"),
    ],
)
def test_bases_that_are_none(base: str, sentence: str) -> None:
    """With a sentence."""
    with pytest.raises(ValueError, match=sentence):
        as_production_stack([A, B], base)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """It keeps its mode, is written only when others are in, and at the end all are in."""
    path = tmp_path / "endpoints"
    path.write_text("old\n")
    path.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(path)
    before = path.stat().st_ino
    file = RouterFile(str(link), as_list([A, B]))
    assert file.apply({}, 0.0) == []
    assert (path.read_text(), path.stat().st_mode & 0o777, link.is_symlink()) == (f"{A}\n{B}\n", 0o640, True)
    assert path.stat().st_ino != before
    written = path.stat().st_ino
    file.apply({}, 1.0)
    assert path.stat().st_ino == written
    file.apply({A: BAD}, 2.0)
    assert path.read_text() == f"{B}\n"
    assert file.restore() == []
    assert path.read_text() == f"{A}\n{B}\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["endpoints", "link"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """A sentence, once; and it is written when it can be."""
    path = tmp_path / "missing" / "endpoints"
    file = RouterFile(str(path), as_list([A]))
    (told,) = file.apply({}, 0.0)
    assert told.startswith(f"{path} cannot be written: No such file")
    assert file.apply({}, 1.0) == []
    path.parent.mkdir()
    assert file.apply({}, 2.0) == []
    assert path.read_text() == f"{A}\n"
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    """It says what it would do."""
    path = tmp_path / "endpoints"
    file = RouterFile(str(path), as_list([A]), dry_run=True)
    assert file.apply({}, 0.0) == [f"would write {path}"]
    assert file.apply({}, 1.0) == file.restore() == []
    assert not path.exists()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, too large, or no text."""
    path = tmp_path / "file"
    for content, sentence in (
        (None, "cannot be read"),
        (b"x" * (MAX_FILE_BYTES + 1), "more than"),
        (b"\xff", "no text"),
    ):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ValueError, match=sentence):
            read_text(str(path))
