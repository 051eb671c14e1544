"""Which weights an engine has loaded: the same files are the same, others are not, whatever their names and sizes."""

from __future__ import annotations

import math
import os
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.vllm.scheduler import weights
from penstock.instrumentation.vllm.scheduler.weights import (
    SAMPLE_BYTES,
    SAMPLES,
    WeightsFacts,
    WeightsUnknownError,
    config_digest,
    files_digest,
    weight_files,
    weights_facts,
)

if TYPE_CHECKING:
    from pathlib import Path

_COMMIT = "0123456789abcdef0123456789abcdef01234567"


def config(model: Path, load_format: str = "auto", **hf: Any) -> Any:
    """Return what is read of a VllmConfig."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model=str(model), revision=None, hf_config=SimpleNamespace(to_dict=lambda: {"layers": 2, **hf})
        ),
        load_config=SimpleNamespace(load_format=load_format),
    )


def shard(directory: Path, content: bytes, name: str = "model.safetensors") -> Path:
    """Write a file of weights."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_bytes(content)
    return directory


def test_equal_files_elsewhere_are_equal(tmp_path: Path) -> None:
    """The digest does not depend on where the files are, nor on what a configuration says of that."""
    content = os.urandom(1 << 18)
    one = weights_facts(config(shard(tmp_path / "a", content), _name_or_path="a"))
    other = weights_facts(config(shard(tmp_path / "b", content), _name_or_path="b"))
    assert one == other
    assert (one["files"], one["bytes"]) == (1, 1 << 18)
    assert len(one["digest"]) == 16


def test_fine_tuned_weights_differ(tmp_path: Path) -> None:
    """Same name, same size, same header, other numbers."""
    header = bytes(SAMPLE_BYTES)
    facts = [
        weights_facts(config(shard(tmp_path / name, header + os.urandom(1 << 18)))) for name in ("a", "b")
    ]
    assert facts[0]["digest"] != facts[1]["digest"]
    assert facts[0]["config_digest"] == facts[1]["config_digest"]


def test_a_file_is_not_read_whole(tmp_path: Path) -> None:
    """Of a file of a terabyte some kilobytes are read."""
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert files_digest([path], math.inf)
    assert SAMPLES * SAMPLE_BYTES < 1 << 17


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda path: path, "no files of weights"),
        (lambda path: path / "gone", "in no directory that this process knows"),
    ],
)
def test_no_digest_has_a_reason(tmp_path: Path, prepare: Any, reason: str) -> None:
    """The configuration's digest is there nevertheless."""
    facts = weights_facts(config(prepare(tmp_path)))
    assert reason in facts["unknown"]
    assert facts["config_digest"]
    assert not facts.get("digest")


def test_random_weights_and_those_that_take_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither has a digest: half of one would differ between engines."""
    place = shard(tmp_path, b"weights")
    assert "random" in weights_facts(config(place, load_format="dummy"))["unknown"]
    monkeypatch.setattr(weights, "SECONDS_MAX", -1.0)
    assert "took longer" in weights_facts(config(place))["unknown"]


def test_the_commit_of_a_snapshot(tmp_path: Path) -> None:
    """A hub's cache names the directory by it."""
    facts = weights_facts(config(shard(tmp_path / _COMMIT, b"weights")))
    assert facts["revision"] == _COMMIT


def test_what_vllm_would_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Safetensors before others, sorted; one file alone; not a thousand."""
    for name in ("b.safetensors", "a.safetensors", "c.bin", "config.json"):
        shard(tmp_path, b"x", name)
    assert [path.name for path in weight_files(tmp_path)] == ["a.safetensors", "b.safetensors"]
    assert weight_files(tmp_path / "c.bin") == [tmp_path / "c.bin"]
    monkeypatch.setattr(weights, "FILES_MAX", 1)
    with pytest.raises(WeightsUnknownError, match="2 files"):
        weight_files(tmp_path)


def test_configurations_with_odd_values() -> None:
    """What JSON does not know is text."""
    assert config_digest({"dtype": object}) == config_digest({"dtype": object, "transformers_version": "5"})
    assert config_digest({"a": 1}) != config_digest({"a": 2})
    assert config_digest({"a": object()}) == config_digest({"a": object()})


def test_found_on_a_thread_of_its_own(tmp_path: Path) -> None:
    """Starting it twice reads once, and nobody waits."""
    facts = WeightsFacts(config(shard(tmp_path, b"weights")))
    facts.start()
    facts.start()
    for thread in threading.enumerate():
        if thread.name == "penstock-weights":
            thread.join(30)
    assert facts.fields["files"] == 1
