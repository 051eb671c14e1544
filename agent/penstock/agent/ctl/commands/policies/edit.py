"""``agentctl edit policy``: a policy in an editor, until it is valid or given up."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl.commands.policies.change import report_change, with_all, with_change
from penstock.agent.ctl.errors import FailedError, UnreachableError, UsageError
from penstock.agent.ctl.options import POLICY, author, fetch_policy, with_client
from penstock.agent.ctl.printing import say
from penstock.agent.ctl.yaml_text import dump_yaml
from penstock.agent.parsing.yaml_documents import DocumentError, read_documents
from penstock.agent.views.policies import selector_of
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.ctl.connection.client import Client

_REASON = "penstock.dev/reason"
_EDITORS = ("KUBE_EDITOR", "EDITOR", "VISUAL")
_HEAD = """\
# Edit the policy below. Lines that begin with # are ignored; an empty file cancels the edit.
# If the agent refuses the policy, this file opens again with the reason.
#
"""


@click.command()
@click.argument("name", type=POLICY)
@click.option("--reason", default="", help="Reason, for the audit log.")
@with_all
@with_change
@with_client
def policy(client: Client, name: str, reason: str, everywhere: bool, dry_run: bool, **how: Any) -> None:
    """Change policy NAME in the editor of $KUBE_EDITOR, $EDITOR or $VISUAL; by default vi.

    What the editor saves is applied if the agent takes it, and if the policy has not changed meanwhile.
    """
    present = fetch_policy(client, name)
    manifest = json.loads(present.manifest_json)
    # The old reason does not apply to this change.
    annotations = manifest["metadata"].get("annotations", {})
    annotations.pop(_REASON, None)
    if not annotations:
        manifest["metadata"].pop("annotations", None)

    def send(edited: dict[str, Any], *, dry: bool) -> admin.ApplyPolicyResponse:
        if reason:
            metadata = edited["metadata"]
            metadata["annotations"] = {**metadata.get("annotations", {}), _REASON: reason}
        request = admin.ApplyPolicyRequest(
            manifest_json=json.dumps(edited),
            author=author(),
            dry_run=dry,
            if_generation=present.generation,
            all=everywhere or selects_all(manifest),
        )
        response: admin.ApplyPolicyResponse = client.call("ApplyPolicy", request)
        return response

    # A policy that a file owns, or a caller who may only read, is refused before anything is typed.
    send(json.loads(present.manifest_json), dry=True)
    with _private_directory() as directory:
        edited = _edited(directory / f"{name}.yaml", manifest, lambda made: send(made, dry=True))
        if edited is None:
            return
        try:
            response = send(edited, dry=dry_run)
        except click.ClickException as error:
            raise type(error)(error.message + _kept(dump_yaml(edited))) from error
    report_change(client, response, selector_of(json.dumps(edited)), dry_run=dry_run, **how)


def selects_all(manifest: dict[str, Any]) -> bool:
    """Return whether a policy is for every engine already, so that it needs no new confirmation."""
    selector = manifest["spec"].get("selector") or {}
    return not any(selector.values())


@contextmanager
def _private_directory() -> Iterator[Path]:
    """Create a directory for this user alone, and remove it at the end.

    Raises:
        FailedError: no directory for temporary files can be written.

    """
    try:
        directory = tempfile.TemporaryDirectory(prefix="agentctl-edit-")
    except OSError as error:
        raise FailedError(
            f"no temporary file can be made: {error.strerror}; set TMPDIR to a directory"
        ) from None
    with directory as path:
        yield Path(path)


def _edited(path: Path, manifest: dict[str, Any], check: Any) -> dict[str, Any] | None:
    """Return what the editor saved and *check* accepts; None if nothing was changed.

    Raises:
        FailedError: the editor failed, or saved the same mistake twice; the text is kept in a file.

    """
    original = text = dump_yaml(manifest)
    complaint = ""
    while True:
        try:
            body = _in_editor(path, _HEAD + _comment(complaint) + text + "\n")
        except FailedError as error:
            # What was typed before the mistake was found.
            raise FailedError(error.message + (_kept(text) if complaint else "")) from error
        if not body.strip():
            say("Edit cancelled, saved file was empty.", err=True)
            return None
        if body.strip() == original.strip():
            say("Edit cancelled, no changes made.", err=True)
            return None
        if complaint and body.strip() == text.strip():
            raise FailedError(f"Edit cancelled, no valid changes were saved: {complaint}{_kept(body)}")
        text = body.rstrip("\n")
        try:
            made = _parsed(body, manifest["metadata"]["name"])
            check(made)
        except UnreachableError as error:
            raise UnreachableError(error.message + _kept(body)) from error
        except click.ClickException as error:
            complaint = error.message
            continue
        return made


def _in_editor(path: Path, text: str) -> str:
    """Let the editor change *text*; return what it saved, without comments."""
    # The directory belongs to this user alone.
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    editor = next(filter(None, map(os.environ.get, _EDITORS)), "vi")
    try:
        command = [*shlex.split(editor), str(path)]
        with _interrupts_for_the_editor():
            code = subprocess.run(command, check=False).returncode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FailedError(
            f"editor {editor!r} cannot be started: {reason}; set {' or '.join(_EDITORS)}"
        ) from None
    if code:
        raise FailedError(f"editor {editor!r} ended with {code}; nothing was changed")
    try:
        saved = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FailedError(f"what the editor saved cannot be read: {error}; nothing was changed") from None
    return "\n".join(line for line in saved.splitlines() if not line.startswith("#"))


@contextmanager
def _interrupts_for_the_editor() -> Iterator[None]:
    """Leave SIGINT and SIGQUIT of the terminal to the editor: in vi Ctrl-C ends a mode, no process.

    The handler is a function: an editor would inherit ``SIG_IGN``.
    """
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parsed(text: str, name: str) -> dict[str, Any]:
    try:
        documents = read_documents(text)
    except DocumentError as error:
        raise UsageError(f"line {error.line}: {error}") from None
    made = documents[0].value if len(documents) == 1 else None
    if not isinstance(made, dict) or not isinstance(made.get("metadata"), dict):
        raise UsageError("this is not one policy; leave one document with metadata and spec")
    if made["metadata"].get("name") != name:
        raise UsageError(f"metadata.name must stay {name!r}; 'agentctl apply' creates another policy")
    made.pop("status", None)
    return made


def _comment(complaint: str) -> str:
    lines = "".join(f"# {line}\n" for line in complaint.splitlines())
    return f"{lines}#\n" if lines else ""


def _kept(text: str) -> str:
    """Write *text* to a private file; return a sentence about it."""
    handle, path = tempfile.mkstemp(prefix="agentctl-edit-", suffix=".yaml")
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(f"{text}\n")
    return f"; a copy of your changes is in {path}"
