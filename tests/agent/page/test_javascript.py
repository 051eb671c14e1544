"""The page's scripts: their own tests run in Node, and TypeScript reads their types (``scripts/need-page-tools.sh``)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from penstock.agent.page.files import read_files

ROOT = Path(__file__).parents[3]
TESTS = sorted(Path(__file__).parent.glob("js/*.test.js"))
STATIC = ROOT / "agent" / "penstock" / "agent" / "page" / "static"
TOOLS = ROOT / ".cache" / "page-tools" / "node_modules"
NODE = shutil.which("node")


def run(*command: str | Path) -> str:
    """Run a program of Node; its output is the failure's."""
    assert NODE is not None
    # Node's own environment only: what a developer's shell sets (NODE_OPTIONS) is no part of a test.
    done = subprocess.run(
        [NODE, *command],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(NODE is None, reason="needs node on PATH (scripts/need-page-tools.sh)")
def test_pure_functions_do_what_their_tests_say() -> None:
    """Each file of tests passes in Node, and none of its tests is skipped."""
    assert TESTS
    said = run("--test", "--test-reporter=tap", *TESTS)
    counts = dict(re.findall(r"^# (\w+) (\d+)$", said, re.MULTILINE))
    assert int(counts["pass"]) >= 40, said
    assert counts["skipped"] == counts["todo"] == "0", said


@pytest.mark.skipif(
    NODE is None or not (TOOLS / "typescript").is_dir(),
    reason="needs node and TypeScript (scripts/need-page-tools.sh)",
)
def test_types_are_right() -> None:
    """TypeScript finds nothing in the scripts, strictly."""
    run(TOOLS / "typescript" / "bin" / "tsc", "-p", "tests/agent/page/tsconfig.json")


@pytest.mark.skipif(
    NODE is None or not (TOOLS / "typescript").is_dir(),
    reason="needs node and TypeScript (scripts/need-page-tools.sh)",
)
def test_scripts_without_comments_do_the_same(tmp_path: Path) -> None:
    """What is sent of each script is, to TypeScript, the script without its comments."""
    scripts = [path for path in STATIC.rglob("*.js") if path.parent.name != "vendor"]
    served = read_files()
    for path in scripts:
        name = str(path.relative_to(STATIC))
        (tmp_path / name.replace("/", "-")).write_bytes(served[name].content)
        (tmp_path / f"{name.replace('/', '-')}.whole").write_bytes(path.read_bytes())
    compare = tmp_path / "compare.cjs"
    compare.write_text(
        """
const fs = require("fs"), ts = require(process.argv[2]);
const options = {compilerOptions: {removeComments: true, allowJs: true, target: "esnext", module: "esnext"}};
const bare = (file) => ts.transpileModule(fs.readFileSync(file, "utf8"), options).outputText;
const files = process.argv.slice(3);
for (const file of files) {
  if (bare(file) !== bare(`${file}.whole`)) { console.error(file); process.exitCode = 1; }
}
console.log(files.length);
"""
    )
    sent = sorted(tmp_path.glob("*.js"))
    assert int(run(compare, TOOLS / "typescript", *sent)) == len(scripts) > 20
