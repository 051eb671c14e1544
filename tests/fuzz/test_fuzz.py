"""A bounded run of the fuzzer; ``make fuzz`` runs it for as long as one likes."""

from __future__ import annotations

import importlib.util
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from penstock.agent.batch.columns import BatchColumns
from penstock.agent.ingest.message_limits import check_batch, check_hello, parse_message

from tests.fuzz import bundle_target, relay_target
from tests.fuzz.make_corpus import BUNDLE_CORPUS, CORPUS, RELAY_CORPUS, bundle_corpus, corpus, relay_corpus
from tests.fuzz.policy_target import take
from tests.fuzz.target import Target

SECONDS = 12
CHANGES = 10
NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
_ROOT = Path(__file__).parents[2]
POLICY_CORPUS = _ROOT / "tests" / "fuzz" / "policy_corpus"


def test_the_corpus_is_what_engines_send():
    """The files are those of the script, of every kind of entry, and the agent takes each of them."""
    files = {path.name: path.read_bytes() for path in CORPUS.iterdir()}
    assert files == corpus()
    for body in files.values():
        batch = parse_message(body)
        check_batch(BatchColumns(batch, body), body)
        check_hello(batch.hello) if batch.HasField("hello") else None


def test_messages_that_are_changed_at_random():
    """Some messages of the corpus with some bytes changed, cut or doubled: refused, or dealt with."""
    pick, target = random.Random(1), Target()
    taken: Counter[bool] = Counter()
    try:
        for body in corpus().values():
            for _ in range(CHANGES):
                taken[target.take(changed(body, pick))] += 1
    finally:
        target.close()
    assert min(taken[True], taken[False]) > 0


def test_policy_values_that_are_changed_at_random():
    """Some values of the corpus with some bytes changed, cut or doubled: in force, or refused with a sentence."""
    pick = random.Random(1)
    taken: Counter[bool] = Counter()
    for path in sorted(POLICY_CORPUS.iterdir()):
        body = path.read_bytes()
        assert take(body, NOW), path.name
        for _ in range(20 * CHANGES):
            taken[take(changed(body, pick), NOW)] += 1
    assert min(taken[True], taken[False]) > 0


@pytest.mark.parametrize(
    ("directory", "written", "target", "changes"),
    [
        (RELAY_CORPUS, relay_corpus, relay_target, 20 * CHANGES),
        (BUNDLE_CORPUS, bundle_corpus, bundle_target, CHANGES),
    ],
    ids=["agents' answers", "bundles"],
)
def test_files_that_are_changed_at_random(directory, written, target, changes):
    """The corpus is that of the script, and is taken; with some bytes changed it is taken, or refused with a sentence."""
    pick = random.Random(1)
    taken: Counter[bool] = Counter()
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == written()
    for name, body in written().items():
        assert target.take(body), name
        for _ in range(changes):
            taken[target.take(body[:1] + changed(body[1:], pick))] += 1
    assert min(taken[True], taken[False]) > 0


def changed(body, pick):
    """Return *body* with a stretch of it cut out, doubled, or with one byte replaced."""
    first = pick.randrange(len(body))
    end = min(len(body), first + pick.choice((1, 1, 2, 8)))
    put = pick.choice((b"", body[first:end] * 2, bytes([pick.randrange(256)])))
    return body[:first] + put + body[end:]


@pytest.mark.long
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
