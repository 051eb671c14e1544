"""Every output that a document shows is printed by the command above it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.ctl.main import cli

from tests.docs.samples import documents, outdated, shows_output
from tests.support.samples.blocks import blocks, rendered, steps
from tests.support.samples.comparison import renewed, same
from tests.support.samples.said import said
from tests.support.samples.stage import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.samples.blocks import Block

# The import of vLLM takes as long as a small engine's start.
_WITH_VLLM = "python -m penstock.instrumentation.check"
# Languages of what people write: code, configuration, commands without their output.
_WRITTEN = {
    "js",
    "yaml",
    "toml",
    "json",
    "python",
    "shell",
    "bash",
    "sh",
    "promql",
    "console",
    "ini",
    "diff",
    "make",
    "proto",
    "sql",
}
_PICTURE = re.compile("[│┌└├▼►◄]")
# The heads of our tables, metrics, spans, prompts, and what agentctl says of engines and of itself.
_OUTPUT = re.compile(
    r"^\s*(?:[A-Z][A-Z-]+ {2,}[A-Z][A-Z-]+\b"
    r"|penstock_\w+(?:\{[^}]*\})? \d"
    r"|# (?:HELP|TYPE) "
    r"|[├└]─ (?:penstock|kv|ec|eplb)\."
    r"|\$ "
    r"|engine \S+ (?:acknowledged|waiting|paused)"
    r"|(?:ok|note|wrong) +(?:agent|engine)\b"
    r"|agentctl: "
    r"|HTTP/1"
    r'|\{"(?:event|error|level)")'
)
_TYPED = re.compile(
    r"^(?:#|--|python|pip|umask|cp|cd|make|git|agentctl|penstock-agent|kubectl|docker|curl|export|\{|source|PENSTOCK_)"
)


_INLINE = re.compile(r"`([^`\n]+)`")
# An option, or a word that stands for another.
_PLACEHOLDER = re.compile(r" -|\b[A-Z]{3,}\b")
_COMMANDS = (
    "* on",
    "on (",
    "agentctl",
    "kubectl",
    "penstock-agent",
    "make",
    "python",
    "pip",
    "source",
    "promtool",
    "KEEP=1",
)


def _with_samples() -> list[Any]:
    """Return the documents with samples; those whose commands import vLLM are long tests of engines."""
    found = []
    for path in documents():
        samples = [block for block in blocks(path.read_text()) if shows_output(block)]
        if samples:
            heavy = any(_WITH_VLLM in line for block in samples for line in block.lines)
            name = str(path.relative_to(ROOT))
            found.append(
                pytest.param(path, id=name, marks=[pytest.mark.engine, pytest.mark.long] if heavy else [])
            )
    return found


def _place(path: Path, block: Block, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{block.start + line + 1}: {block.lines[line]}"


@pytest.mark.parametrize("path", _with_samples())
def test_documents_show_what_commands_print(path: Path) -> None:
    """`python -m tests.docs.samples --write` writes what they print."""
    _, differences = outdated(path.read_text())
    assert not differences, "\n".join(differences)


def test_no_output_is_outside_of_a_sample() -> None:
    """A block with a table, metrics, spans or answers of ours is marked ``console`` and has its command."""
    found = []
    for path in documents():
        for block in blocks(path.read_text()):
            begun = False
            for number, line in enumerate(block.lines):
                begun |= line.startswith("$ ")
                if _OUTPUT.match(line) and not (block.language == "console" and begun):
                    found.append(_place(path, block, number))
    assert found == []


def test_messages_are_those_of_the_programs() -> None:
    """A block without a language is a picture, commands, or messages that stand in the source."""
    found = []
    for path in documents():
        for block in blocks(path.read_text()):
            lines = [line for line in block.lines if line.strip()]
            written = (
                block.language in _WRITTEN or any(map(_PICTURE.search, lines)) or all(map(_written, lines))
            )
            if not written:
                found += [
                    f"{path.relative_to(ROOT)}:{block.start + 1}: {line}" for line in lines if not said(line)
                ]
    assert found == []


def test_quoted_messages_are_those_of_the_programs() -> None:
    """A sentence that README or a guide quotes within the text stands in the source."""
    commands = (*_COMMANDS, *(f"{name} " for name in cli.list_commands(None)))  # type: ignore[arg-type]
    found = []
    for path in documents():
        if path.parent.name == "guides" or path.name == "README.md":
            for number, line in enumerate(path.read_text().splitlines(), 1):
                quoted = [text for text in _INLINE.findall(line) if len(text.split()) > 2]
                messages = [
                    text for text in quoted if not (_PLACEHOLDER.search(text) or text.startswith(commands))
                ]
                found += [f"{path.relative_to(ROOT)}:{number}: {text}" for text in messages if not said(text)]
    assert found == []


def _written(line: str) -> bool:
    return bool(_TYPED.match(line) or line.startswith("  "))


def test_a_sentence_is_found_in_the_source() -> None:
    """With values in it, and cut; another is not."""
    assert said("342 of 350 batches of the log were kept")
    assert said("engine '0' is held by another process, which is connected: give each server …")
    assert not said("engine '0' belongs to another process: rename one of them")


_SHOWN = ["AGE   NAME", "3s    one", "...", "9m    last"]


def test_what_varies_is_not_compared() -> None:
    """Ages, widths of columns, ids; a line of dots is any number of lines."""
    assert same(_SHOWN, ["AGE    NAME", "12s    one", "2s    two", "1m     last"])
    assert same(_SHOWN, ["AGE  NAME", "3s  one", "9m  last"])
    assert not same(_SHOWN, ["AGE  NAME", "3s  another", "9m  last"])
    assert not same(_SHOWN, ["AGE  NAME", "3s  one", "9m  last", "and more"])


def test_lines_that_were_left_out_stay_out() -> None:
    """A rewritten sample shows the lines that it showed, as they are now."""
    printed = ["AGE  NAME  SIZE", "3s  one  5", "4s  two  6", "9m  last  7", "10m  after  8"]
    assert renewed(_SHOWN, printed) == ["AGE  NAME  SIZE", "3s  one  5", "...", "9m  last  7", "..."]
    assert renewed(["AGE"], printed) == printed


def test_a_long_sentence_is_wrapped_and_a_table_is_not() -> None:
    """Behind its own indentation; the breaks are not compared."""
    sentence, row = "  → " + "word " * 30 + "end", "AGE   " + "COLUMN   " * 20 + "X"
    lines = renewed(["?"], [sentence, row, "    indented"])
    assert max(map(len, lines[:2])) <= 100
    assert lines[1].startswith("      word")
    assert lines[2:] == [row, "    indented"]
    assert same(lines, [sentence, row, "    indented"])


def test_blocks_are_found_and_put_back() -> None:
    """Fenced and indented ones; a command over two lines is one."""
    text = "a\n\n```console upgrade\n$ one \\\n    two\nout\n$ three\n```\n\n    indented\n\n- item\n\n      not one\n"
    fenced, indented = blocks(text)
    assert (fenced.info, indented.lines) == (("console", "upgrade"), ("indented",))
    found = steps(fenced)
    assert [(step.command, step.shown) for step in found] == [("one two", ["out"]), ("three", [])]
    assert rendered(found) == list(fenced.lines)
