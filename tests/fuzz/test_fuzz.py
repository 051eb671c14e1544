"""A bounded run of the fuzzer; ``make fuzz`` runs it for as long as one likes."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from penstock.agent.batch.columns import BatchColumns
from penstock.agent.ingest.message_limits import check_batch, check_hello, parse_message

from tests.fuzz.make_corpus import CORPUS, corpus

SECONDS = 12
_ROOT = Path(__file__).parents[2]


def test_the_corpus_is_what_engines_send():
    """The files are those of the script, of every kind of entry, and the agent takes each of them."""
    files = {path.name: path.read_bytes() for path in CORPUS.iterdir()}
    assert files == corpus()
    for body in files.values():
        batch = parse_message(body)
        check_batch(BatchColumns(batch, body), body)
        check_hello(batch.hello) if batch.HasField("hello") else None


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not installed: it has no wheel for this Python and platform; pip install -e '.[dev]'",
)
def test_a_bounded_run(tmp_path):
    """Nothing but a refusal comes out of changed messages, and it gets past the door."""
    grown = tmp_path / "corpus"
    shutil.copytree(CORPUS, grown)
    result = subprocess.run(
        [
            sys.executable, "-m", "tests.fuzz.ingest",
            f"-max_total_time={SECONDS}",
            "-seed=1",
            f"-artifact_prefix={tmp_path}/",
            str(grown),
        ],
        capture_output=True,
        text=True,
        cwd=_ROOT,
        timeout=300,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-4000:]
    runs = re.search(r"Done (\d+) runs", result.stderr)
    assert runs is not None
    assert int(runs[1]) > 200
    assert len(list(grown.iterdir())) > len(corpus())
