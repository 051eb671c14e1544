"""The page's files as they are sent: libraries are npm's, small, and nothing becomes markup or leaves the origin."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from penstock.agent.badness import badness
from penstock.agent.page.files import read_files
from penstock.proto.names import labels
from penstock.proto.v1 import admin_pb2 as admin

STATIC = Path(__file__).parents[3] / "agent" / "penstock" / "agent" / "page" / "static"
VENDOR = STATIC / "vendor"
MOST_BYTES = 60 * 1024
LINES = 300

SCRIPTS = sorted(STATIC.rglob("*.js"))
OWN_SCRIPTS = [path for path in SCRIPTS if VENDOR not in path.parents]
# Statements only: TypeScript alone follows the imports in comments.
_IMPORT = re.compile(r"(?:^|[;}\s])(?:import|export)[^;\"'(]*?[\"'](\.[^\"']+)[\"']")
OWN_FILES = [*OWN_SCRIPTS, *STATIC.glob("*.html"), *STATIC.glob("*.css")]


def vendored() -> dict[str, Any]:
    """Return what is written about the libraries."""
    written: dict[str, Any] = json.loads((VENDOR / "VENDOR.json").read_text())
    return written


def test_libraries_are_what_was_written_of_them() -> None:
    """Each file has its SHA-256; each library its licence; there is no other script."""
    files = vendored()["files"]
    for name, about in files.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == about["sha256"], name
        assert f"{about['package']}.LICENSE" in files
    assert {path.name for path in VENDOR.glob("*.js")} == {name for name in files if name.endswith(".js")}
    assert all(re.fullmatch(r"\w+@\d+\.\d+\.\d+", package) for package in vendored()["packages"])


def test_types_are_checked_against_the_same_libraries() -> None:
    """The versions whose types TypeScript reads are those of the page."""
    tools = (STATIC.parents[4] / "scripts" / "need-page-tools.sh").read_text()
    assert all(package in tools for package in vendored()["packages"])


def loaded() -> set[Path]:
    """Return what a browser loads of the page: the document, what it names, and the scripts that those import."""
    document = STATIC / "index.html"
    found = {document, *(STATIC / name for name in re.findall(r"\"/static/([^\"]+)\"", document.read_text()))}
    rest = list(found)
    while rest:
        path = rest.pop()
        for name in _IMPORT.findall(path.read_text()) if path.suffix == ".js" else ():
            target = (path.parent / name).resolve()
            if target not in found:
                found.add(target)
                rest.append(target)
    return found


def test_the_page_is_small() -> None:
    """All that a browser loads, libraries too, is 60 KiB at most, as it is sent but compressed together."""
    files = sorted(loaded(), key=lambda path: (path.suffix, path))
    # Types are comments of the scripts, which no browser asks for.
    assert {path.name for path in SCRIPTS} - {path.name for path in files} == {"messages.js", "types.js"}
    served = read_files()
    sent = [served[str(path.relative_to(STATIC))].content for path in files]
    assert len(gzip.compress(b"".join(sent), 9)) <= MOST_BYTES


def test_each_condition_of_a_peer_has_its_type_and_its_look() -> None:
    """What is wrong has a colour, and what is not has none."""
    types, style = (STATIC / "messages.js").read_text(), (STATIC / "parts.css").read_text()
    for number, word in labels(admin.PeerCondition).items():
        if number:
            assert f'"{word}"' in types
            assert bool(re.search(rf"^td\.condition\.{word}\b", style, re.MULTILINE)) == bool(
                badness(number)
            ), word


def test_text_never_becomes_markup_nor_code() -> None:
    """No script has a way to make markup or code of what an engine said."""
    forbidden = re.compile(
        r"dangerouslySetInnerHTML|innerHTML|outerHTML|insertAdjacentHTML|document\.write\b|\beval\b|new Function"
    )
    found = {path.name: forbidden.findall(path.read_text()) for path in OWN_FILES}
    assert not {name: words for name, words in found.items() if words}


def test_the_guide_has_the_keys_of_the_help() -> None:
    """The guide's table of keys is the page's own."""
    keys = re.findall(r'\["([^"]+)", "([^"]+)"\]', (STATIC / "views" / "help.js").read_text())
    guide = (STATIC.parents[4] / "docs" / "guides" / "page.md").read_text()
    assert len(keys) >= 6
    assert all(f"| `{key}` | {what} |" in guide for key, what in keys)


def test_nothing_is_asked_of_another_origin() -> None:
    """No file names an address elsewhere; SVG's namespace is a name."""
    for path in OWN_FILES:
        assert not re.findall(r"(?:https?:|[\"'(])//[\w.]+", path.read_text()), path.name


def test_the_document_has_nothing_inline() -> None:
    """The document obeys ``default-src 'self'``: scripts and styles are files."""
    document = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", document)
    for address in re.findall(r"(?:src|href)=\"/static/([^\"]+)\"", document):
        assert (STATIC / address).is_file(), address


def test_no_view_writes_a_style_attribute_or_handler_as_text() -> None:
    """The same of what scripts draw: classes only."""
    for path in OWN_SCRIPTS:
        assert not re.search(r"\bstyle=|setAttribute", path.read_text()), path.name


def test_each_script_is_one_concept() -> None:
    """Every script begins with what it is for, and is short."""
    for path in OWN_SCRIPTS:
        text = path.read_text()
        assert text.startswith("/**"), path.name
        assert len(text.splitlines()) < LINES, path.name


def test_scripts_import_each_other_by_file() -> None:
    """A browser finds each imported module, without a build step."""
    for path in SCRIPTS:
        for target in re.findall(
            r"(?:^|[;}\s])(?:import|export)[^;\"']*?[\"'](\.[^\"']+)[\"']", path.read_text()
        ):
            assert (path.parent / target).resolve().is_file(), f"{path.name}: {target}"
