"""The page's files as they are sent: which comments they lose, and who gets them compressed."""

from __future__ import annotations

import gzip

import pytest
from penstock.agent.page.files import read_files, takes_gzip, without_comments


@pytest.mark.parametrize(
    ("script", "sent"),
    [
        ('/** What it is. */\nimport {a} from "./a.js";\n', 'import {a} from "./a.js";\n'),
        ("/**\n * @typedef {import('./t.js').T} T\n */\nconst a = 1;\n", "const a = 1;\n"),
        ("  // why\n  a(); // stays\n", "  a(); // stays\n"),
        ("  /** @type {any} */ (chart)?.draw();\nb();\n", "  /** @type {any} */ (chart)?.draw();\nb();\n"),
        ("const x = /** @type {T} */ (y);\n", "const x = /** @type {T} */ (y);\n"),
        ("/** one */\na();\n/** two\n * more */\nb();\n", "a();\nb();\n"),
        ("", ""),
    ],
)
def test_comments_with_lines_of_their_own_are_not_sent(script: str, sent: str) -> None:
    """What shares a line with code stays."""
    assert without_comments(script) == sent


@pytest.mark.parametrize(
    ("header", "taken"),
    [
        ("gzip, deflate, br, zstd", True),
        ("GZIP", True),
        ("br;q=1.0, gzip;q=0.8", True),
        ("*", True),
        ("", False),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip; q=0.000, br", False),
        ("x-gzip-like", False),
    ],
)
def test_only_who_takes_gzip_gets_it(header: str, taken: bool) -> None:
    """By the header of the request."""
    assert takes_gzip(header) is taken


def test_each_file_is_the_same_in_both_encodings() -> None:
    """Libraries are sent with their comments, which are their licences."""
    files = read_files()
    for name, file in files.items():
        assert gzip.decompress(file.gzipped) == file.content, name
    assert b"Copyright" in files["vendor/uplot.module.js"].content
    assert b"@typedef" not in files["state.js"].content
