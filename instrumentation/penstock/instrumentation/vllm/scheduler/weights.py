"""Which weights an engine has loaded, told without reading them: commit, names and sizes of the files, samples of their content.

Two fine-tuned versions of a model have files of the same names, sizes and headers, so a few kilobytes at fixed places of each file
are read as well. Reading takes place once, on a thread of its own that nothing waits for: a file system may hang.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import guard

if TYPE_CHECKING:
    from collections.abc import Sequence

FILES_MAX: Final = 1_024
"""Files of weights; a model with more has no digest."""

SAMPLES: Final = 16
"""Places of each file that are read, evenly spaced; the first is its beginning."""

SAMPLE_BYTES: Final = 4_096
SECONDS_MAX: Final = 120.0
"""After so many seconds of reading there is no digest."""

# What vLLM loads if it is there, in this order.
_SUFFIXES: Final = (".safetensors", ".bin", ".pt", ".gguf")
# A hub's index of shards, or a model of one file: one of them names the directory of the cached snapshot.
_KNOWN_FILES: Final = ("config.json", "model.safetensors.index.json", "model.safetensors", "params.json")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
# Differ between configurations that mean the same.
_NO_MEANING: Final = ("_name_or_path", "transformers_version", "_commit_hash")


class WeightsUnknownError(Exception):
    """The weights have no digest; the text says why."""


class WeightsFacts:
    """The fields of the wire's ``WeightsFacts``; empty until the thread has found them."""

    def __init__(self, config: Any) -> None:
        """Identify the weights of the VllmConfig *config*."""
        self.fields: dict[str, Any] = {}
        self._config = config
        self._started = False

    def start(self) -> None:
        """Begin to read, the first time that it is called; returns at once. Call it from one thread."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._find, name="penstock-weights", daemon=True).start()

    def _find(self) -> None:
        with guard("weights"):
            self.fields = weights_facts(self._config)


def weights_facts(config: Any) -> dict[str, Any]:
    """Return the fields; ``unknown`` says why there is no digest."""
    model = config.model_config
    facts: dict[str, Any] = {}
    with guard("weights"):
        facts["config_digest"] = config_digest(model.hf_config.to_dict())
    try:
        directory = _directory(config)
        facts["revision"] = _commit(model, directory)
        files = weight_files(directory)
        facts |= {
            "files": len(files),
            "bytes": sum(path.stat().st_size for path in files),
            "digest": files_digest(files, time.monotonic() + SECONDS_MAX),
        }
    except WeightsUnknownError as error:
        facts["unknown"] = str(error)
    except OSError as error:
        facts["unknown"] = f"the files of weights cannot be read: {error.strerror}"
    if not facts.get("revision"):
        facts["revision"] = _commit(model, None)
    return facts


def config_digest(config: dict[str, Any]) -> str:
    """Return the digest of a model's configuration without what has no meaning for its results."""
    meaning = {name: value for name, value in config.items() if name not in _NO_MEANING}
    text = json.dumps(meaning, sort_keys=True, default=_text)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _text(value: Any) -> str:
    """Return what stands for a value that JSON has not: its text, or its type where the text holds an address."""
    text = str(value)
    return type(value).__qualname__ if " at 0x" in text else text


def weight_files(place: Path) -> list[Path]:
    """Return the files of weights in a directory, sorted by name; or *place* itself if it is a file.

    Raises:
        WeightsUnknownError: there are none, or too many.

    """
    if place.is_file():
        return [place]
    entries = sorted(place.iterdir()) if place.is_dir() else []
    for suffix in _SUFFIXES:
        files = [path for path in entries if path.suffix == suffix]
        if len(files) > FILES_MAX:
            raise WeightsUnknownError(f"{len(files)} files of weights, at most {FILES_MAX} are read")
        if files:
            return files
    raise WeightsUnknownError("no files of weights on this machine")


def files_digest(files: Sequence[Path], deadline: float) -> str:
    """Return the digest of names, sizes and samples of *files*; *deadline* on the monotonic clock.

    Raises:
        OSError: a file cannot be read.
        WeightsUnknownError: the deadline has passed.

    """
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode("utf-8", "surrogateescape"))
        with path.open("rb") as file:
            for number in range(SAMPLES):
                if time.monotonic() > deadline:
                    raise WeightsUnknownError(f"reading them took longer than {SECONDS_MAX:.0f} s")
                file.seek(size * number // SAMPLES)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def _directory(config: Any) -> Path:
    """Return where the weights are: a directory or a file as given, or a hub's cached snapshot.

    Raises:
        WeightsUnknownError: they are nowhere.

    """
    model = config.model_config
    if str(getattr(config.load_config, "load_format", "")) == "dummy":
        raise WeightsUnknownError("random weights (--load-format dummy)")
    weights = getattr(model, "model_weights", "") or model.model
    given = Path(weights)
    if given.exists():
        return given
    from vllm.transformers_utils.repo_utils import try_get_local_file

    for name in _KNOWN_FILES:
        found = try_get_local_file(weights, name, revision=model.revision)
        if isinstance(found, Path):
            return found.parent
    raise WeightsUnknownError("the weights are in no directory that this process knows")


def _commit(model: Any, directory: Path | None) -> str:
    """Return the commit of the repository that the weights are from; empty if it is not known."""
    candidates = (
        directory.name if directory is not None else "",
        getattr(model.revision, "commit_hash", None),
        getattr(model.hf_config, "_commit_hash", None),
        model.revision,
    )
    return next((str(each) for each in candidates if each and _COMMIT.fullmatch(str(each))), "")
