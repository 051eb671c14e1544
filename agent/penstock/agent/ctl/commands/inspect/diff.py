"""``agentctl diff policy`` and ``diff engine``."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, TypeVar

import click
from penstock.agent.ctl.commands.inspect.engine_document import comparable, described, read_engine
from penstock.agent.ctl.delivery import show_fields, show_shares, show_warnings
from penstock.agent.ctl.errors import ComparisonError, FailedError, UnreachableError, UsageError
from penstock.agent.ctl.manifest_files import read_paths
from penstock.agent.ctl.options import ENGINE, PATH, POLICY, author, with_client
from penstock.agent.ctl.output import say_document, say_table
from penstock.agent.ctl.printing import say, with_output
from penstock.agent.views import text
from penstock.agent.views.field_diff import Difference, difference_rows, differences, plain_rows
from penstock.agent.views.json_values import as_json_values
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.model import EngineKey

F = TypeVar("F", bound="Callable[..., Any]")

_MOST_AUDIT = 1000
# Exit codes, as of diff(1) and kubectl diff: 0 for no difference, 1 for some, more for an error.
_DIFFERS = 1


def with_codes(function: F) -> F:
    """Let the command's errors exit with more than 1, and accept the older ``--exit-code``, which is the default now."""

    @click.option("--exit-code", is_flag=True, hidden=True, expose_value=False)
    @functools.wraps(function)
    def command(*args: Any, **arguments: Any) -> Any:
        try:
            return function(*args, **arguments)
        except FailedError as error:
            raise ComparisonError(error.message) from error

    return command  # type: ignore[return-value]


@click.command()
@click.argument("name", type=POLICY)
@click.argument("file", type=PATH, required=False, metavar="[FILE]")
@click.option(
    "--generation",
    type=click.IntRange(min=1),
    metavar="N",
    help="Compare generation N with the current one.  [default: the previous one]",
)
@with_output()
@with_codes
@with_client
def policy(client: Client, name: str, file: str | None, generation: int | None, output: str) -> int:
    """Show what changed in policy NAME. With FILE: what 'apply' would change in it and in the engines.

    Exits with 0 if there is no difference, 1 if there is one, more for an error.
    """
    if file is not None and generation is not None:
        raise UsageError("--generation compares with an earlier revision; give FILE or --generation")
    if file is None:
        before, after, found = _with_generation(client, name, generation)
        change = None
    else:
        before, after, found, change = _with_file(client, name, file)
    if output != "table":
        document: dict[str, Any] = {
            "policy": name,
            "from": before,
            "to": after,
            "differences": plain_rows(found, "from", "to"),
        }
        if change is not None:
            document["engines"] = as_json_values(change)["engines"]
        say_document(document, output)
    else:
        _show(name, before, after, found, file)
        if change is not None:
            show_warnings(change)
            show_shares(change)
            if found:
                say("")
                show_fields(change)
    return _DIFFERS if found else 0


def _show(name: str, before: str, after: str, found: list[Difference], file: str | None) -> None:
    if found:
        title = after if file is not None else after.upper()
        say_table(("FIELD", before.upper(), title), difference_rows(found))
    else:
        say(f"policy {name}: {before} and {after} are the same")


def _with_generation(client: Client, name: str, generation: int | None) -> tuple[str, str, list[Difference]]:
    """Compare an earlier revision with the current one; a deleted policy has no current one."""
    entries = client.call("ListAudit", admin.ListAuditRequest(name=name, limit=_MOST_AUDIT)).entries
    contents = {
        entry.new_generation: entry.new_manifest_json
        for entry in reversed(entries)
        if entry.new_manifest_json
    }
    present = _present(client, name)
    if present is None and not contents:
        raise FailedError(f"policy {name!r} never existed; 'agentctl get policy' lists policies")
    at = present.generation if present is not None else 0
    earlier = generation or max((number for number in contents if number != at), default=0)
    if earlier and earlier not in contents:
        raise FailedError(
            f"policy {name!r} has no generation {earlier} in the audit log; "
            f"it has {', '.join(map(str, sorted(contents)))}"
        )
    before = f"generation {earlier}" if earlier else "nothing"
    after = f"generation {at}" if at else "nothing"
    old = _document(contents[earlier]) if earlier else {}
    new = _document(present.manifest_json) if present is not None else {}
    return before, after, _sorted(old, new)


def _with_file(
    client: Client, name: str, file: str
) -> tuple[str, str, list[Difference], admin.ApplyPolicyResponse | None]:
    manifest = next((item for item in read_paths([file]) if item.name == name), None)
    if manifest is None:
        raise UsageError(f"{file} has no policy {name!r}")
    request = admin.ApplyPolicyRequest(manifest_json=manifest.text, author=author(), dry_run=True, all=True)
    change: admin.ApplyPolicyResponse | None = None
    try:
        change = client.call("ApplyPolicy", request)
    except UnreachableError:
        raise
    except FailedError as error:
        # The manifest is valid but cannot be applied: a file owns the name, or the certificate is read-only.
        say(
            text.style(f"warning: changes in engines are unknown: {error.message}", "yellow"),
            err=True,
        )
    present = _present(client, name)
    before = f"generation {present.generation}" if present is not None else "nothing"
    old = _document(present.manifest_json) if present is not None else {}
    return before, manifest.where, _sorted(old, _document(manifest.text)), change


def _present(client: Client, name: str) -> admin.Policy | None:
    response = client.call("ListPolicies", admin.ListPoliciesRequest())
    return next((item for item in response.policies if item.name == name), None)


def _sorted(old: dict[str, Any], new: dict[str, Any]) -> list[Difference]:
    """Compare two revisions; fields of ``spec`` come first."""
    return sorted(differences(old, new), key=lambda item: (not item.field.startswith("spec."), item.field))


def _document(manifest_json: str) -> dict[str, Any]:
    """Return the comparable part of a manifest; of an order in the audit log nothing."""
    manifest = json.loads(manifest_json)
    return {
        "spec": manifest.get("spec", {}),
        "annotations": manifest.get("metadata", {}).get("annotations", {}),
    }


@click.command()
@click.argument("first", type=ENGINE, metavar="ENGINE")
@click.argument("second", type=ENGINE, required=False, metavar="[OTHER]")
@click.option(
    "--file",
    "-f",
    "file",
    type=PATH,
    metavar="FILE",
    help="The other engine, in another pod: output of 'agentctl describe engine -o json' there.",
)
@with_output()
@with_codes
@with_client
def engine(
    client: Client,
    first: EngineKey,
    second: EngineKey | None,
    file: str | None,
    output: str,
) -> int:
    """Compare two engines: labels, versions, compatibility, hooks, policy in force.

    Exits with 0 if there is no difference, 1 if there is one, more for an error.
    """
    if (second is None) == (file is None):
        raise UsageError(
            "the second engine is missing: name it, or give --file with the output of another pod's agentctl"
        )
    left = described(client, first)
    right = described(client, second) if second is not None else read_engine(str(file))
    names = str(first), str(second) if second is not None else str(file)
    found = differences(comparable(left), comparable(right))
    if output != "table":
        document = {"engines": list(names), "differences": plain_rows(found, "first", "second")}
        say_document(document, output)
    elif found:
        say_table(("FIELD", names[0], names[1]), difference_rows(found))
        _explain(found)
    else:
        say(f"engines {names[0]} and {names[1]} do not differ")
    return _DIFFERS if found else 0


def _explain(found: list[Difference]) -> None:
    if not any(item.field == "compatibility.hash" for item in found):
        return
    factors = [
        item.field.removeprefix("compatibility.factors.")
        for item in found
        if item.field.startswith("compatibility.factors.")
    ]
    because = f": {', '.join(factors)}" if factors else ""
    said = f"handshakes between them fail as incompatible{because}"
    say(text.style(said, "red"))
