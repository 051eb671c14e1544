"""The manifest model: ``penstock.dev/v1alpha1``, kind ``TransferPolicy``. Unknown fields are errors at every level."""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

from penstock.agent.errors import ManifestError
from penstock.agent.model import BREAK_GLASS_PRIORITY
from penstock.agent.policy.manifest.automatic import EjectionSection, Reflexes  # noqa: TC002  (pydantic reads them)
from penstock.agent.policy.manifest.engine_share import ALL, engine_identity, in_share
from penstock.agent.policy.manifest.error_texts import RULE, manifest_error
from penstock.agent.policy.manifest.field_types import Model
from penstock.agent.policy.manifest.sections import (
    Candidate,
    Deferral,
    EcLoadFailure,
    Integrity,
    KvLoadFailure,
    Leaves,
    PeerQuarantine,
    Selector,
    Share,
    Telemetry,
    flatten,
)
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from penstock.agent.parsing import Target

API_VERSION = "penstock.dev/v1alpha1"
KIND = "TransferPolicy"
REASON = "penstock.dev/reason"
BREAK_GLASS_LIMIT = timedelta(hours=4)
MAX_MANIFEST_BYTES = 64 * 1024
_SECTIONS = (
    "kvLoadFailure",
    "ecLoadFailure",
    "deferral",
    "peerQuarantine",
    "telemetry",
    "integrity",
    "reflexes",
)
# Not merged.
_CHANGED = frozenset({*_SECTIONS, "mode", "rollout"})
_NOT_LEAVES = frozenset({"selector", "rollout", "priority", "expiresAt", "mode"})


def _plain_without_mode(candidate: Candidate) -> dict[str, Any]:
    return candidate.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"mode"})


def _read_time(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError  # noqa: TRY004  (as above)
    time = datetime.fromisoformat(value)
    if time.tzinfo is None:
        raise ValueError
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError from None


def _write_time(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


_Time = Annotated[
    datetime,
    BeforeValidator(_read_time),
    PlainSerializer(_write_time, return_type=str),
    # Accepts more than RFC 3339, such as a time without seconds.
    WithJsonSchema({"type": "string", "minLength": 11}),
]


class Spec(Model):
    """Selector, priority and the fields to set."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"required": ["priority"], "properties": {"priority": {"minimum": BREAK_GLASS_PRIORITY}}},
            "then": {"required": ["expiresAt"], "properties": {"expiresAt": {"type": "string"}}},
            "anyOf": [{"required": [section]} for section in (*_SECTIONS, "ejection")],
        }
    )

    selector: Selector = Field(default=Selector(), description="{matchLabels, matchExpressions, models}")
    rollout: Share | None = Field(default=None, description="{percent: 5}")
    priority: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=100, description="a whole number from 0 to 1000"
    )
    expires_at: _Time | None = Field(
        default=None,
        description="a point in time with its zone such as 2026-11-20T12:00:00Z (agentctl --ttl writes one)",
    )
    mode: Literal["enforce", "observe"] = Field(default="enforce", description="one of enforce, observe")
    kv_load_failure: KvLoadFailure | None = Field(default=None, description="{action: recompute}")
    ec_load_failure: EcLoadFailure | None = Field(default=None, description="{action: recompute}")
    deferral: Deferral | None = Field(default=None, description="{maxTransferWait: 5s}")
    peer_quarantine: PeerQuarantine | None = Field(default=None, description="{failures: 5}")
    telemetry: Telemetry | None = Field(default=None, description="{traceSampleRatio: 1.0}")
    integrity: Integrity | None = Field(default=None, description="{sampleRatio: 0.01}")
    reflexes: Reflexes | None = Field(default=None, description="{startWait: {action: observe}}")
    ejection: EjectionSection | None = Field(default=None, description="{action: observe}")

    @model_validator(mode="after")
    def _break_glass_ends(self) -> Spec:
        if self.priority >= BREAK_GLASS_PRIORITY and self.expires_at is None:
            raise PydanticCustomError(
                RULE,
                "spec.priority is {priority}, which is break-glass; set spec.expiresAt (agentctl --ttl) "
                "of at most 4h, or a priority below 900",
                {"priority": self.priority},
            )
        return self


class Metadata(Model):
    """Name and annotations."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9](?:[-a-z0-9.]{0,61}[a-z0-9])?$")] = Field(
        description="1 to 63 lower-case letters, digits, '-' and '.', as in decode-default"
    )
    annotations: dict[
        Annotated[str, StringConstraints(min_length=1, max_length=253)],
        Annotated[str, StringConstraints(max_length=4096)],
    ] = Field(default={}, max_length=64, description="names and texts of at most 4096 characters")


class Manifest(Model):
    """A policy as written and stored."""

    api_version: Literal["penstock.dev/v1alpha1"] = Field(description=API_VERSION)
    kind: Literal["TransferPolicy"] = Field(description=KIND)
    metadata: Metadata = Field(description="{name: decode-default}")
    spec: Spec = Field(description="{kvLoadFailure: {action: recompute}}")

    @model_validator(mode="after")
    def _sets_something(self) -> Manifest:
        if not self.leaves:
            raise PydanticCustomError(
                RULE, "spec sets no field; set at least one, such as kvLoadFailure.action"
            )
        candidate = None if self.spec.rollout is None else self.spec.rollout.candidate
        if candidate is not None and not flatten(_plain_without_mode(candidate)):
            raise PydanticCustomError(
                RULE,
                "spec.rollout.candidate sets no field; set at least one, such as kvLoadFailure.action",
            )
        return self

    @property
    def name(self) -> str:
        """The policy's name."""
        return self.metadata.name

    @property
    def reason(self) -> str:
        """The annotation ``penstock.dev/reason``; empty if absent."""
        return self.metadata.annotations.get(REASON, "")

    def document(self) -> dict[str, Any]:
        """Return the manifest as JSON values: camelCase, without unset fields."""
        document = self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
        # Always present: they make the document a manifest.
        return {"apiVersion": self.api_version, "kind": self.kind} | document

    @cached_property
    def canonical(self) -> str:
        """The canonical JSON text; equal for equal content."""
        return json.dumps(self.document(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical text, in hexadecimal digits."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    @cached_property
    def leaves(self) -> Leaves:
        """The fields that the policy sets, by path below ``spec``: ``{"kvLoadFailure.action": "fail"}``."""
        spec = self.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        return flatten({name: value for name, value in spec.items() if name not in _NOT_LEAVES})

    @property
    def percent(self) -> int:
        """The share of the engines that its selector matches and that it selects; 100 without ``spec.rollout``."""
        return ALL if self.spec.rollout is None else self.spec.rollout.percent

    @cached_property
    def candidate(self) -> Manifest | None:
        """What the policy is in the share of its roll-out, if that is a change of it; None without one."""
        share = self.spec.rollout
        if share is None or share.candidate is None:
            return None
        changed = share.candidate.model_dump(
            mode="json", by_alias=True, exclude_none=True, exclude_unset=True
        )
        return self._with_spec(_CHANGED, changed)

    @cached_property
    def _without_candidate(self) -> Manifest:
        return self._with_spec({"rollout"}, {})

    @property
    def versions(self) -> tuple[Manifest, ...]:
        """What engines may have of it: the policy, and its candidate if it has one; neither of them with a share then."""
        return (self,) if self.candidate is None else (self._without_candidate, self.candidate)

    def _with_spec(self, removed: Collection[str], added: dict[str, Any]) -> Manifest:
        document = self.document()
        kept = {name: value for name, value in document["spec"].items() if name not in removed}
        return Manifest.model_validate(document | {"spec": kept | added})

    def in_rollout(self, target: Target) -> bool:
        """Return whether its selector matches *target*, and its roll-out has come to the engine."""
        return self.spec.selector.selection.matches(target) and in_share(
            engine_identity(target), self.name, self.percent
        )

    def version_for(self, target: Target) -> Manifest | None:
        """Return what *target* has of it, one of its versions; None if it does not select the engine."""
        if self.in_rollout(target):
            return self.versions[-1]
        if self.candidate is not None and self.spec.selector.selection.matches(target):
            return self.versions[0]
        return None

    def selects(self, target: Target) -> bool:
        """Return whether the engine has a version of it."""
        return self.version_for(target) is not None

    @property
    def fails_everywhere(self) -> bool:
        """Whether it makes loads fail in every engine, present and future."""
        if self.candidate is not None:
            return any(version.fails_everywhere for version in self.versions)
        return (
            self.spec.mode == "enforce"
            and self.percent == ALL
            and self.spec.selector.selection.everything
            and "fail" in (self.leaves.get("kvLoadFailure.action"), self.leaves.get("ecLoadFailure.action"))
        )

    def expired(self, now: datetime) -> bool:
        """Return whether it has expired at *now*."""
        return self.spec.expires_at is not None and self.spec.expires_at <= now

    def check_times(self, now: datetime) -> None:
        """Check the expiry against *now*; required when a manifest is applied, not when it is read.

        Raises:
            ManifestError: it has expired, or its break-glass lasts too long.

        """
        expires_at = self.spec.expires_at
        if expires_at is None:
            return
        if self.expired(now):
            raise ManifestError(
                f"spec.expiresAt is {_write_time(expires_at)}, which is past; "
                "give a later time (agentctl --ttl 30m writes one)",
                "spec.expiresAt",
                ("spec", "expiresAt"),
            )
        if self.spec.priority >= BREAK_GLASS_PRIORITY and expires_at - now > BREAK_GLASS_LIMIT:
            raise ManifestError(
                f"spec.expiresAt is {_write_time(expires_at)}, but a policy of priority "
                f"{self.spec.priority} may last at most 4h; give an earlier time or a priority below 900",
                "spec.expiresAt",
                ("spec", "expiresAt"),
            )


def parse_manifest(text: str) -> Manifest:
    """Parse a manifest from JSON.

    Raises:
        ManifestError: it is not JSON, or a field is invalid; names the first one.

    """
    if len(text.encode()) > MAX_MANIFEST_BYTES:
        raise ManifestError(f"the manifest has more than {MAX_MANIFEST_BYTES} bytes; make it shorter")
    return check_manifest(read_json(text, "the manifest"))


def check_manifest(document: Any) -> Manifest:
    """Validate JSON values as a manifest.

    Raises:
        ManifestError: a field is invalid; names the first one.

    """
    if not isinstance(document, dict):
        shown = " ".join(json.dumps(document).split())
        raise ManifestError(f"the manifest is {shown:.40}; write one object")
    try:
        manifest = Manifest.model_validate(document)
    except ValidationError as error:
        raise manifest_error(error, Manifest) from None
    # The stored text must pass parse_manifest again.
    if len(manifest.canonical.encode()) > MAX_MANIFEST_BYTES:
        raise ManifestError(f"the manifest has more than {MAX_MANIFEST_BYTES} bytes; make it shorter")
    return manifest


@contextmanager
def prefix_errors(name: str) -> Iterator[None]:
    """Prefix a ManifestError with the policy's *name*, which may be invalid."""
    try:
        yield
    except ManifestError as error:
        raise ManifestError(f"policy {name!r:.80}: {error}", error.field, error.location) from None


def read_json(text: str, what: str) -> Any:
    """Parse JSON without duplicate keys; *what* names it in the error.

    Raises:
        ManifestError: it is not JSON, or a key comes twice.

    """
    try:
        return json.loads(text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{what} is not JSON ({error}); send one object") from None


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"{name!r:.80} comes twice")
        fields[name] = value
    return fields
