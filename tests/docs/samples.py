"""Samples of output in documents: made by a real agent, and compared with what the documents show.

A block marked ``console`` holds commands after ``$`` and, below a command, its output. Each document has an agent of its
own for each story that it names (``console upgrade``; ``flap`` without a name), and types its blocks in their order;
blocks that show no output are not typed. ``console recorded`` needs no agent: its commands read recorded incidents. ``...`` alone on a line stands for lines that are left out.

``python -m tests.docs.samples --write [DOCUMENT ...]`` writes the real output into the documents. A new sample needs a
command and any one line below it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.agent.quiet import quiet_logs
from tests.support.samples.blocks import blocks, rendered, steps
from tests.support.samples.comparison import renewed, same
from tests.support.samples.recorded_stage import STORY as RECORDED
from tests.support.samples.recorded_stage import recorded_stage
from tests.support.samples.stage import ROOT, stage
from tests.support.samples.stories import DEFAULT

if TYPE_CHECKING:
    from tests.support.samples.blocks import Block
    from tests.support.samples.recorded_stage import RecordedStage
    from tests.support.samples.stage import Stage

_NOT_OURS = ("CHANGELOG.md", ".github/")


def documents() -> list[Path]:
    """Return the documents under version control."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "*.md"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [ROOT / name for name in listed if not name.startswith(_NOT_OURS) and (ROOT / name).exists()]


def shows_output(block: Block) -> bool:
    """Tell whether a block is a sample."""
    return block.language == "console" and any(step.shown for step in steps(block))


def outdated(text: str) -> tuple[str, list[str]]:
    """Type the samples of a document.

    Returns:
        the document with the real output where it shows another, and what differs, one text for each command.

    """
    lines, differences = text.split("\n"), []
    stages: dict[str, Stage | RecordedStage] = {}
    with ExitStack() as stack:
        stack.enter_context(quiet_logs())
        rewritten: list[tuple[Block, list[str]]] = []
        for block in blocks(text):
            if not shows_output(block):
                continue
            story = block.info[1] if len(block.info) > 1 else DEFAULT
            if story not in stages:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                if story == RECORDED:
                    stages[story] = stack.enter_context(recorded_stage())
                else:
                    stages[story] = stack.enter_context(stage(story, directory))
            found = steps(block)
            for step in found:
                printed = stages[story].run(step.command)
                if step.shown and not same(step.shown, printed):
                    shown, step.shown = step.shown, renewed(step.shown, printed)
                    differences.append(
                        "\n".join(["", f"$ {step.command}", "shown:", *shown, "printed:", *printed])
                    )
            rewritten.append((block, rendered(found)))
    for block, body in reversed(rewritten):
        after = block.start + len(block.lines)
        lines[block.start : after] = [f"{block.indent}{line}".rstrip() for line in body]
    return "\n".join(lines), differences


def main() -> int:
    """Say which samples are not what the commands print, or write what they print."""
    parser = argparse.ArgumentParser(description="Compare or write the samples of output in documents.")
    parser.add_argument("--write", action="store_true", help="write the real output into the documents")
    parser.add_argument("documents", nargs="*", type=Path, help="only these")
    options = parser.parse_args()
    wrong = 0
    for document in [path.resolve() for path in options.documents] or documents():
        text = document.read_text()
        new, differences = outdated(text)
        if not differences:
            continue
        wrong += 1
        name = document.relative_to(ROOT)
        if options.write:
            document.write_text(new)
            sys.stdout.write(f"{name}: {len(differences)} written\n")
        else:
            sys.stdout.write("\n".join((f"{name}:", *differences, "")))
    return 0 if options.write or not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
