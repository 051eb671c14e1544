"""A manifest as the editor has it: the fields of its form with their values, and its YAML.

The server owns both: the browser sends the YAML that it was given, and what was changed in the form by path. So there is one
manifest at any time, and one reading of it. Pure but for the last.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import yaml
from penstock.agent.page.details.arguments import name_of
from penstock.agent.page.details.detail import Draft, EditField
from penstock.agent.page.wire import MAX_MESSAGE_BYTES, AdminCalls, AnswerError, encode, plain
from penstock.agent.parsing.yaml_documents import MAX_POLICY_VALUES, DocumentError, read_documents
from penstock.agent.policy.manifest import FormField, form_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MAX_MANIFEST = 256 * 1024
_MAX_SHOWN = 200
_REASON = "penstock.dev/reason"
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_DECIMAL = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?")


def manifest_text(manifest: Any) -> str:
    """Return a manifest as people write it."""
    return yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True)


def edit_fields(manifest: Mapping[str, Any]) -> tuple[EditField, ...]:
    """Return the fields of a form with their values: sections with one that is set come first, those without a name last."""
    spec = manifest.get("spec")
    made = [EditField(**asdict(each), value=_value(spec, each)) for each in form_fields()]
    sections = list(dict.fromkeys(each.section for each in made))
    used = {_top(each) for each in made if each.value and each.kind != "yaml"}
    return tuple(
        sorted(
            made, key=lambda each: (not each.section, _top(each) not in used, sections.index(each.section))
        )
    )


def _top(field: EditField) -> str:
    return field.section.partition(".")[0]


def changed(manifest: dict[str, Any], changes: Mapping[str, str | None]) -> dict[str, Any]:
    """Return a manifest with other values by path below ``spec``; an empty one, or None, removes the field.

    Raises:
        AnswerError: a path is no field of the form, or leads through a value.

    """
    copy: dict[str, Any] = json.loads(json.dumps(manifest))
    known = {each.path: each for each in form_fields() if each.kind != "yaml"}
    for path, written in changes.items():
        if path not in known:
            raise AnswerError(400, f"{path[:_MAX_SHOWN]!r} is no field of the form; write it in the YAML")
        if written:
            *parents, last = ("spec", *path.split("."))
            _place(copy, parents)[last] = _typed(known[path].kind, written)
        else:
            _remove(copy, ("spec", *path.split(".")))
    return copy


def manifest_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a body, YAML or JSON, with the changes of its form.

    Raises:
        AnswerError: it is none, or of another policy.

    """
    written, changes = body.get("manifest"), body.get("changes") or {}
    if not isinstance(written, str) or not written.strip() or len(written) > _MAX_MANIFEST:
        raise AnswerError(400, f"manifest is a text of 1 to {_MAX_MANIFEST} characters")
    if not isinstance(changes, dict) or not all(
        each is None or (isinstance(each, str) and len(each) <= _MAX_SHOWN) for each in changes.values()
    ):
        raise AnswerError(400, f"changes are texts of at most {_MAX_SHOWN} characters by path, or null")
    try:
        found = [
            item.value for document in read_documents(written, MAX_POLICY_VALUES) for item in document.items()
        ]
    except DocumentError as error:
        raise AnswerError(400, f"line {error.line}: {error}") from None
    if len(found) != 1 or not isinstance(found[0], dict):
        raise AnswerError(400, f"the text has {len(found)} manifests; write one")
    manifest = {key: value for key, value in found[0].items() if key != "status"}
    metadata, name = manifest.get("metadata"), name_of(body, "name", needed=False)
    if name and isinstance(metadata, dict) and metadata.get("name") != name:
        raise AnswerError(400, f"the manifest is of policy {metadata.get('name')!r}, not of {name!r}")
    return changed(manifest, changes) if changes else manifest


def with_reason(manifest: dict[str, Any], reason: str) -> dict[str, Any]:
    """Return a manifest with the reason that people give for the change; it is changed in place."""
    metadata = manifest.get("metadata")
    if reason and isinstance(metadata, dict):
        annotations = metadata.get("annotations")
        metadata["annotations"] = {**(annotations if isinstance(annotations, dict) else {}), _REASON: reason}
    return manifest


async def write_draft(_calls: AdminCalls, body: Mapping[str, Any], _author: str) -> bytes:
    """Return what the other tab of the editor shows of a draft, whether it is right or not; nothing is written.

    It is not the dry run: that refuses a draft that is not right yet, which a switch between the tabs must not lose.
    """

    def made() -> bytes:
        manifest = manifest_of(body)
        # As it was typed, with its comments, unless the form changed it.
        written = manifest_text(manifest) if body.get("changes") else body["manifest"]
        return encode(Draft(written, edit_fields(manifest)))

    answer = await asyncio.to_thread(made)
    if len(answer) > MAX_MESSAGE_BYTES:
        raise AnswerError(413, "the manifest is too long for the form; edit it as YAML")
    return answer


def _value(spec: Any, field: FormField) -> str:
    """Return a value as its input has it; of what has no input a line of YAML for people."""
    value = spec
    for name in field.path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if field.kind == "yaml":
        flow = yaml.safe_dump(
            value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6
        )
        return plain(flow.strip(), _MAX_SHOWN) if value else ""
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _typed(kind: str, written: str) -> Any:
    """Return what was typed as a value of its kind; as text where it is none, which the manifest's check then names."""
    if kind == "count" and _WHOLE.fullmatch(written):
        return int(written)
    if kind in {"share", "factor"} and _DECIMAL.fullmatch(written):
        return float(written) if "." in written else int(written)
    return written


def _place(document: dict[str, Any], path: Iterable[str]) -> dict[str, Any]:
    """Return the object at a path, made where there is none."""
    place, said = document, ""
    for name in path:
        said = f"{said}.{name}" if said else name
        if place.get(name) is None:
            place[name] = {}
        place = place[name]
        if not isinstance(place, dict):
            raise AnswerError(400, f"{said} is no object; correct it in the YAML")
    return place


def _remove(document: dict[str, Any], path: tuple[str, ...]) -> None:
    """Remove a value, and sections that become empty."""
    places: list[tuple[dict[str, Any], str]] = []
    place: Any = document
    for name in path:
        if not isinstance(place, dict) or name not in place:
            return
        places.append((place, name))
        place = place[name]
    holder, name = places.pop()
    del holder[name]
    # The manifest keeps its spec.
    while len(places) > 1 and not holder:
        holder, name = places.pop()
        del holder[name]
