from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from penstock.proto.v1 import common_pb2 as _common_pb2
from penstock.proto.v1 import events_pb2 as _events_pb2
from penstock.proto.v1 import ingest_pb2 as _ingest_pb2
from penstock.proto.v1 import policy_pb2 as _policy_pb2
from penstock.proto.v1 import snapshot_pb2 as _snapshot_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PageRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAGE_ROLE_UNSPECIFIED: _ClassVar[PageRole]
    PAGE_ROLE_READ: _ClassVar[PageRole]
    PAGE_ROLE_WRITE: _ClassVar[PageRole]

class PeerCondition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PEER_CONDITION_UNSPECIFIED: _ClassVar[PeerCondition]
    PEER_CONDITION_OK: _ClassVar[PeerCondition]
    PEER_CONDITION_QUARANTINED: _ClassVar[PeerCondition]
    PEER_CONDITION_SLOW: _ClassVar[PeerCondition]
    PEER_CONDITION_FAILING: _ClassVar[PeerCondition]
    PEER_CONDITION_HANGING: _ClassVar[PeerCondition]
    PEER_CONDITION_IDLE: _ClassVar[PeerCondition]
    PEER_CONDITION_UNREACHABLE: _ClassVar[PeerCondition]
    PEER_CONDITION_INCOMPATIBLE: _ClassVar[PeerCondition]
    PEER_CONDITION_LOST: _ClassVar[PeerCondition]
    PEER_CONDITION_WRONG_ENGINE: _ClassVar[PeerCondition]
    PEER_CONDITION_OTHER_WEIGHTS: _ClassVar[PeerCondition]
    PEER_CONDITION_SHARED_ID: _ClassVar[PeerCondition]

class PairCompatibility(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAIR_COMPATIBILITY_UNSPECIFIED: _ClassVar[PairCompatibility]
    PAIR_COMPATIBILITY_YES: _ClassVar[PairCompatibility]
    PAIR_COMPATIBILITY_UNKNOWN: _ClassVar[PairCompatibility]
    PAIR_COMPATIBILITY_NO: _ClassVar[PairCompatibility]

class PairWeights(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAIR_WEIGHTS_UNSPECIFIED: _ClassVar[PairWeights]
    PAIR_WEIGHTS_SAME: _ClassVar[PairWeights]
    PAIR_WEIGHTS_UNKNOWN: _ClassVar[PairWeights]
    PAIR_WEIGHTS_DIFFER: _ClassVar[PairWeights]

class DifferenceEffect(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIFFERENCE_EFFECT_UNSPECIFIED: _ClassVar[DifferenceEffect]
    DIFFERENCE_EFFECT_NONE: _ClassVar[DifferenceEffect]
    DIFFERENCE_EFFECT_FAILS: _ClassVar[DifferenceEffect]
    DIFFERENCE_EFFECT_WRONG: _ClassVar[DifferenceEffect]

class DiagnosisVerdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIAGNOSIS_VERDICT_UNSPECIFIED: _ClassVar[DiagnosisVerdict]
    DIAGNOSIS_VERDICT_NOTHING_WRONG: _ClassVar[DiagnosisVerdict]
    DIAGNOSIS_VERDICT_CANNOT_TELL: _ClassVar[DiagnosisVerdict]
    DIAGNOSIS_VERDICT_CAUSES: _ClassVar[DiagnosisVerdict]

class DiagnosisConfidence(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIAGNOSIS_CONFIDENCE_UNSPECIFIED: _ClassVar[DiagnosisConfidence]
    DIAGNOSIS_CONFIDENCE_POSSIBLE: _ClassVar[DiagnosisConfidence]
    DIAGNOSIS_CONFIDENCE_LIKELY: _ClassVar[DiagnosisConfidence]
    DIAGNOSIS_CONFIDENCE_CERTAIN: _ClassVar[DiagnosisConfidence]
PAGE_ROLE_UNSPECIFIED: PageRole
PAGE_ROLE_READ: PageRole
PAGE_ROLE_WRITE: PageRole
PEER_CONDITION_UNSPECIFIED: PeerCondition
PEER_CONDITION_OK: PeerCondition
PEER_CONDITION_QUARANTINED: PeerCondition
PEER_CONDITION_SLOW: PeerCondition
PEER_CONDITION_FAILING: PeerCondition
PEER_CONDITION_HANGING: PeerCondition
PEER_CONDITION_IDLE: PeerCondition
PEER_CONDITION_UNREACHABLE: PeerCondition
PEER_CONDITION_INCOMPATIBLE: PeerCondition
PEER_CONDITION_LOST: PeerCondition
PEER_CONDITION_WRONG_ENGINE: PeerCondition
PEER_CONDITION_OTHER_WEIGHTS: PeerCondition
PEER_CONDITION_SHARED_ID: PeerCondition
PAIR_COMPATIBILITY_UNSPECIFIED: PairCompatibility
PAIR_COMPATIBILITY_YES: PairCompatibility
PAIR_COMPATIBILITY_UNKNOWN: PairCompatibility
PAIR_COMPATIBILITY_NO: PairCompatibility
PAIR_WEIGHTS_UNSPECIFIED: PairWeights
PAIR_WEIGHTS_SAME: PairWeights
PAIR_WEIGHTS_UNKNOWN: PairWeights
PAIR_WEIGHTS_DIFFER: PairWeights
DIFFERENCE_EFFECT_UNSPECIFIED: DifferenceEffect
DIFFERENCE_EFFECT_NONE: DifferenceEffect
DIFFERENCE_EFFECT_FAILS: DifferenceEffect
DIFFERENCE_EFFECT_WRONG: DifferenceEffect
DIAGNOSIS_VERDICT_UNSPECIFIED: DiagnosisVerdict
DIAGNOSIS_VERDICT_NOTHING_WRONG: DiagnosisVerdict
DIAGNOSIS_VERDICT_CANNOT_TELL: DiagnosisVerdict
DIAGNOSIS_VERDICT_CAUSES: DiagnosisVerdict
DIAGNOSIS_CONFIDENCE_UNSPECIFIED: DiagnosisConfidence
DIAGNOSIS_CONFIDENCE_POSSIBLE: DiagnosisConfidence
DIAGNOSIS_CONFIDENCE_LIKELY: DiagnosisConfidence
DIAGNOSIS_CONFIDENCE_CERTAIN: DiagnosisConfidence

class IssuePageTokenRequest(_message.Message):
    __slots__ = ("author", "page_role")
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    PAGE_ROLE_FIELD_NUMBER: _ClassVar[int]
    author: str
    page_role: PageRole
    def __init__(self, author: _Optional[str] = ..., page_role: _Optional[_Union[PageRole, str]] = ...) -> None: ...

class IssuePageTokenResponse(_message.Message):
    __slots__ = ("address", "token", "page_role", "life")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PAGE_ROLE_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    address: str
    token: str
    page_role: PageRole
    life: _duration_pb2.Duration
    def __init__(self, address: _Optional[str] = ..., token: _Optional[str] = ..., page_role: _Optional[_Union[PageRole, str]] = ..., life: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("try_backend",)
    TRY_BACKEND_FIELD_NUMBER: _ClassVar[int]
    try_backend: bool
    def __init__(self, try_backend: bool = ...) -> None: ...

class AgentStatus(_message.Message):
    __slots__ = ("version", "start_time", "state_dir", "state_bytes", "metrics_address", "otlp_endpoint", "otlp_error", "log_first", "log_last", "export_cursor", "oldest_unexported", "degraded", "now", "listen_address", "engines_expected", "messages_refused", "last_refusal", "last_refused", "disk_free_bytes", "policy_file", "policy_file_error", "acknowledged_entries_lost", "policy_sources", "agents")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    STATE_DIR_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    OTLP_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    OTLP_ERROR_FIELD_NUMBER: _ClassVar[int]
    LOG_FIRST_FIELD_NUMBER: _ClassVar[int]
    LOG_LAST_FIELD_NUMBER: _ClassVar[int]
    EXPORT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    OLDEST_UNEXPORTED_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    LISTEN_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ENGINES_EXPECTED_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_REFUSED_FIELD_NUMBER: _ClassVar[int]
    LAST_REFUSAL_FIELD_NUMBER: _ClassVar[int]
    LAST_REFUSED_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    POLICY_FILE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FILE_ERROR_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_ENTRIES_LOST_FIELD_NUMBER: _ClassVar[int]
    POLICY_SOURCES_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    version: str
    start_time: _timestamp_pb2.Timestamp
    state_dir: str
    state_bytes: int
    metrics_address: str
    otlp_endpoint: str
    otlp_error: str
    log_first: int
    log_last: int
    export_cursor: int
    oldest_unexported: _timestamp_pb2.Timestamp
    degraded: str
    now: _timestamp_pb2.Timestamp
    listen_address: str
    engines_expected: int
    messages_refused: int
    last_refusal: str
    last_refused: _timestamp_pb2.Timestamp
    disk_free_bytes: int
    policy_file: str
    policy_file_error: str
    acknowledged_entries_lost: int
    policy_sources: _containers.RepeatedCompositeFieldContainer[PolicySourceStatus]
    agents: _containers.RepeatedCompositeFieldContainer[RelayedAgent]
    def __init__(self, version: _Optional[str] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., state_dir: _Optional[str] = ..., state_bytes: _Optional[int] = ..., metrics_address: _Optional[str] = ..., otlp_endpoint: _Optional[str] = ..., otlp_error: _Optional[str] = ..., log_first: _Optional[int] = ..., log_last: _Optional[int] = ..., export_cursor: _Optional[int] = ..., oldest_unexported: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., degraded: _Optional[str] = ..., now: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., listen_address: _Optional[str] = ..., engines_expected: _Optional[int] = ..., messages_refused: _Optional[int] = ..., last_refusal: _Optional[str] = ..., last_refused: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., disk_free_bytes: _Optional[int] = ..., policy_file: _Optional[str] = ..., policy_file_error: _Optional[str] = ..., acknowledged_entries_lost: _Optional[int] = ..., policy_sources: _Optional[_Iterable[_Union[PolicySourceStatus, _Mapping]]] = ..., agents: _Optional[_Iterable[_Union[RelayedAgent, _Mapping]]] = ...) -> None: ...

class RelayedAgent(_message.Message):
    __slots__ = ("name", "address", "state", "since", "error", "status", "clock_offset_nano", "round_trip")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_NANO_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    state: str
    since: _timestamp_pb2.Timestamp
    error: str
    status: AgentStatus
    clock_offset_nano: int
    round_trip: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[str] = ..., status: _Optional[_Union[AgentStatus, _Mapping]] = ..., clock_offset_nano: _Optional[int] = ..., round_trip: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RelayCoverage(_message.Message):
    __slots__ = ("asked", "answered", "missing")
    ASKED_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    asked: int
    answered: int
    missing: _containers.RepeatedCompositeFieldContainer[MissingAgent]
    def __init__(self, asked: _Optional[int] = ..., answered: _Optional[int] = ..., missing: _Optional[_Iterable[_Union[MissingAgent, _Mapping]]] = ...) -> None: ...

class MissingAgent(_message.Message):
    __slots__ = ("name", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class PolicySourceStatus(_message.Message):
    __slots__ = ("name", "kind", "state", "since", "revision", "error", "accepted", "refused", "refusals")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    state: str
    since: _timestamp_pb2.Timestamp
    revision: str
    error: str
    accepted: int
    refused: int
    refusals: _containers.RepeatedCompositeFieldContainer[PolicySourceRefusal]
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., state: _Optional[str] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., revision: _Optional[str] = ..., error: _Optional[str] = ..., accepted: _Optional[int] = ..., refused: _Optional[int] = ..., refusals: _Optional[_Iterable[_Union[PolicySourceRefusal, _Mapping]]] = ...) -> None: ...

class PolicySourceRefusal(_message.Message):
    __slots__ = ("name", "sentence")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    sentence: str
    def __init__(self, name: _Optional[str] = ..., sentence: _Optional[str] = ...) -> None: ...

class EngineSelector(_message.Message):
    __slots__ = ("labels", "models", "engines")
    LABELS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    labels: str
    models: _containers.RepeatedScalarFieldContainer[str]
    engines: _containers.RepeatedCompositeFieldContainer[_common_pb2.EngineKey]
    def __init__(self, labels: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., engines: _Optional[_Iterable[_Union[_common_pb2.EngineKey, _Mapping]]] = ...) -> None: ...

class ApplyPolicyRequest(_message.Message):
    __slots__ = ("manifest_json", "author", "dry_run", "if_generation", "all")
    MANIFEST_JSON_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    IF_GENERATION_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    manifest_json: str
    author: str
    dry_run: bool
    if_generation: int
    all: bool
    def __init__(self, manifest_json: _Optional[str] = ..., author: _Optional[str] = ..., dry_run: bool = ..., if_generation: _Optional[int] = ..., all: bool = ...) -> None: ...

class DeletePolicyRequest(_message.Message):
    __slots__ = ("name", "author", "reason", "if_generation", "dry_run")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IF_GENERATION_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    name: str
    author: str
    reason: str
    if_generation: int
    dry_run: bool
    def __init__(self, name: _Optional[str] = ..., author: _Optional[str] = ..., reason: _Optional[str] = ..., if_generation: _Optional[int] = ..., dry_run: bool = ...) -> None: ...

class RollbackPolicyRequest(_message.Message):
    __slots__ = ("name", "to_generation", "author", "reason", "dry_run")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TO_GENERATION_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    name: str
    to_generation: int
    author: str
    reason: str
    dry_run: bool
    def __init__(self, name: _Optional[str] = ..., to_generation: _Optional[int] = ..., author: _Optional[str] = ..., reason: _Optional[str] = ..., dry_run: bool = ...) -> None: ...

class ApplyPolicyResponse(_message.Message):
    __slots__ = ("name", "store_generation", "generation", "result", "engines", "warnings", "policies", "shares", "source")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STORE_GENERATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    store_generation: int
    generation: int
    result: str
    engines: _containers.RepeatedCompositeFieldContainer[EngineChange]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    policies: _containers.RepeatedCompositeFieldContainer[PolicyResult]
    shares: _containers.RepeatedScalarFieldContainer[str]
    source: SourceWrite
    def __init__(self, name: _Optional[str] = ..., store_generation: _Optional[int] = ..., generation: _Optional[int] = ..., result: _Optional[str] = ..., engines: _Optional[_Iterable[_Union[EngineChange, _Mapping]]] = ..., warnings: _Optional[_Iterable[str]] = ..., policies: _Optional[_Iterable[_Union[PolicyResult, _Mapping]]] = ..., shares: _Optional[_Iterable[str]] = ..., source: _Optional[_Union[SourceWrite, _Mapping]] = ...) -> None: ...

class PolicyResult(_message.Message):
    __slots__ = ("name", "generation", "result")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    result: str
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ..., result: _Optional[str] = ...) -> None: ...

class EngineChange(_message.Message):
    __slots__ = ("key", "old_hash", "new_hash", "fields")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OLD_HASH_FIELD_NUMBER: _ClassVar[int]
    NEW_HASH_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    old_hash: str
    new_hash: str
    fields: _containers.RepeatedCompositeFieldContainer[FieldChange]
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., old_hash: _Optional[str] = ..., new_hash: _Optional[str] = ..., fields: _Optional[_Iterable[_Union[FieldChange, _Mapping]]] = ...) -> None: ...

class FieldChange(_message.Message):
    __slots__ = ("field", "old_value", "new_value", "old_policy", "new_policy")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    OLD_VALUE_FIELD_NUMBER: _ClassVar[int]
    NEW_VALUE_FIELD_NUMBER: _ClassVar[int]
    OLD_POLICY_FIELD_NUMBER: _ClassVar[int]
    NEW_POLICY_FIELD_NUMBER: _ClassVar[int]
    field: str
    old_value: str
    new_value: str
    old_policy: str
    new_policy: str
    def __init__(self, field: _Optional[str] = ..., old_value: _Optional[str] = ..., new_value: _Optional[str] = ..., old_policy: _Optional[str] = ..., new_policy: _Optional[str] = ...) -> None: ...

class ListPoliciesRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListPoliciesResponse(_message.Message):
    __slots__ = ("policies",)
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    policies: _containers.RepeatedCompositeFieldContainer[Policy]
    def __init__(self, policies: _Optional[_Iterable[_Union[Policy, _Mapping]]] = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ("name", "generation", "manifest_json", "owner", "author", "changed", "engines_selected", "engines_in_force", "engines_paused", "engines_matched")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_JSON_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    ENGINES_SELECTED_FIELD_NUMBER: _ClassVar[int]
    ENGINES_IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    ENGINES_PAUSED_FIELD_NUMBER: _ClassVar[int]
    ENGINES_MATCHED_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    manifest_json: str
    owner: str
    author: str
    changed: _timestamp_pb2.Timestamp
    engines_selected: int
    engines_in_force: int
    engines_paused: int
    engines_matched: int
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ..., manifest_json: _Optional[str] = ..., owner: _Optional[str] = ..., author: _Optional[str] = ..., changed: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., engines_selected: _Optional[int] = ..., engines_in_force: _Optional[int] = ..., engines_paused: _Optional[int] = ..., engines_matched: _Optional[int] = ...) -> None: ...

class GetEffectivePolicyRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ...) -> None: ...

class EffectivePolicy(_message.Message):
    __slots__ = ("key", "hash", "spec_json", "observed_spec_json", "fields", "schedule", "policies")
    class Step(_message.Message):
        __slots__ = ("hash", "spec_json", "begins", "policies")
        HASH_FIELD_NUMBER: _ClassVar[int]
        SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
        BEGINS_FIELD_NUMBER: _ClassVar[int]
        POLICIES_FIELD_NUMBER: _ClassVar[int]
        hash: str
        spec_json: str
        begins: _timestamp_pb2.Timestamp
        policies: _containers.RepeatedCompositeFieldContainer[_common_pb2.PolicySource]
        def __init__(self, hash: _Optional[str] = ..., spec_json: _Optional[str] = ..., begins: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., policies: _Optional[_Iterable[_Union[_common_pb2.PolicySource, _Mapping]]] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    hash: str
    spec_json: str
    observed_spec_json: str
    fields: _containers.RepeatedCompositeFieldContainer[FieldChange]
    schedule: _containers.RepeatedCompositeFieldContainer[EffectivePolicy.Step]
    policies: _containers.RepeatedCompositeFieldContainer[_common_pb2.PolicySource]
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., hash: _Optional[str] = ..., spec_json: _Optional[str] = ..., observed_spec_json: _Optional[str] = ..., fields: _Optional[_Iterable[_Union[FieldChange, _Mapping]]] = ..., schedule: _Optional[_Iterable[_Union[EffectivePolicy.Step, _Mapping]]] = ..., policies: _Optional[_Iterable[_Union[_common_pb2.PolicySource, _Mapping]]] = ...) -> None: ...

class ListAuditRequest(_message.Message):
    __slots__ = ("name", "limit", "actions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    limit: int
    actions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., limit: _Optional[int] = ..., actions: _Optional[_Iterable[str]] = ...) -> None: ...

class ListAuditResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AuditEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[AuditEntry, _Mapping]]] = ...) -> None: ...

class AuditEntry(_message.Message):
    __slots__ = ("id", "time", "author", "action", "name", "reason", "old_generation", "new_generation", "old_hash", "new_hash", "old_manifest_json", "new_manifest_json")
    ID_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OLD_GENERATION_FIELD_NUMBER: _ClassVar[int]
    NEW_GENERATION_FIELD_NUMBER: _ClassVar[int]
    OLD_HASH_FIELD_NUMBER: _ClassVar[int]
    NEW_HASH_FIELD_NUMBER: _ClassVar[int]
    OLD_MANIFEST_JSON_FIELD_NUMBER: _ClassVar[int]
    NEW_MANIFEST_JSON_FIELD_NUMBER: _ClassVar[int]
    id: int
    time: _timestamp_pb2.Timestamp
    author: str
    action: str
    name: str
    reason: str
    old_generation: int
    new_generation: int
    old_hash: str
    new_hash: str
    old_manifest_json: str
    new_manifest_json: str
    def __init__(self, id: _Optional[int] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., author: _Optional[str] = ..., action: _Optional[str] = ..., name: _Optional[str] = ..., reason: _Optional[str] = ..., old_generation: _Optional[int] = ..., new_generation: _Optional[int] = ..., old_hash: _Optional[str] = ..., new_hash: _Optional[str] = ..., old_manifest_json: _Optional[str] = ..., new_manifest_json: _Optional[str] = ...) -> None: ...

class WatchRolloutRequest(_message.Message):
    __slots__ = ("store_generation", "timeout", "selector", "source")
    STORE_GENERATION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    store_generation: int
    timeout: _duration_pb2.Duration
    selector: EngineSelector
    source: SourceWrite
    def __init__(self, store_generation: _Optional[int] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., selector: _Optional[_Union[EngineSelector, _Mapping]] = ..., source: _Optional[_Union[SourceWrite, _Mapping]] = ...) -> None: ...

class SourceWrite(_message.Message):
    __slots__ = ("kind", "place", "name", "content", "revision")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    kind: str
    place: str
    name: str
    content: str
    revision: int
    def __init__(self, kind: _Optional[str] = ..., place: _Optional[str] = ..., name: _Optional[str] = ..., content: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class Rollout(_message.Message):
    __slots__ = ("store_generation", "engines", "done")
    STORE_GENERATION_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    store_generation: int
    engines: _containers.RepeatedCompositeFieldContainer[EngineRollout]
    done: bool
    def __init__(self, store_generation: _Optional[int] = ..., engines: _Optional[_Iterable[_Union[EngineRollout, _Mapping]]] = ..., done: bool = ...) -> None: ...

class EngineRollout(_message.Message):
    __slots__ = ("key", "state", "hash", "error", "field", "took", "wanted_hash", "pause", "policies", "wanted_policies")
    KEY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    TOOK_FIELD_NUMBER: _ClassVar[int]
    WANTED_HASH_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    WANTED_POLICIES_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    state: str
    hash: str
    error: str
    field: str
    took: _duration_pb2.Duration
    wanted_hash: str
    pause: Pause
    policies: _containers.RepeatedCompositeFieldContainer[_common_pb2.PolicySource]
    wanted_policies: _containers.RepeatedCompositeFieldContainer[_common_pb2.PolicySource]
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., state: _Optional[str] = ..., hash: _Optional[str] = ..., error: _Optional[str] = ..., field: _Optional[str] = ..., took: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., wanted_hash: _Optional[str] = ..., pause: _Optional[_Union[Pause, _Mapping]] = ..., policies: _Optional[_Iterable[_Union[_common_pb2.PolicySource, _Mapping]]] = ..., wanted_policies: _Optional[_Iterable[_Union[_common_pb2.PolicySource, _Mapping]]] = ...) -> None: ...

class ExportPoliciesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExportPoliciesResponse(_message.Message):
    __slots__ = ("manifests_json",)
    MANIFESTS_JSON_FIELD_NUMBER: _ClassVar[int]
    manifests_json: str
    def __init__(self, manifests_json: _Optional[str] = ...) -> None: ...

class ImportPoliciesRequest(_message.Message):
    __slots__ = ("manifests_json", "author", "dry_run", "reason", "all")
    MANIFESTS_JSON_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    manifests_json: str
    author: str
    dry_run: bool
    reason: str
    all: bool
    def __init__(self, manifests_json: _Optional[str] = ..., author: _Optional[str] = ..., dry_run: bool = ..., reason: _Optional[str] = ..., all: bool = ...) -> None: ...

class ListEnginesRequest(_message.Message):
    __slots__ = ("selector", "state", "without_counters")
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_COUNTERS_FIELD_NUMBER: _ClassVar[int]
    selector: EngineSelector
    state: str
    without_counters: bool
    def __init__(self, selector: _Optional[_Union[EngineSelector, _Mapping]] = ..., state: _Optional[str] = ..., without_counters: bool = ...) -> None: ...

class ListEnginesResponse(_message.Message):
    __slots__ = ("engines",)
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    engines: _containers.RepeatedCompositeFieldContainer[Engine]
    def __init__(self, engines: _Optional[_Iterable[_Union[Engine, _Mapping]]] = ...) -> None: ...

class Engine(_message.Message):
    __slots__ = ("key", "connected", "last_seen", "role", "role_guessed", "labels", "facts", "policy", "wanted_hash", "in_sync", "paused", "sources", "deferred", "in_flight", "leases", "eplb", "counters", "wanted_kv_action", "wanted_ec_action", "said_goodbye", "retires", "pause", "policies", "wanted_policies", "last_loads", "compared", "stalls", "ended_stalls", "queue", "asleep_since", "ejection")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ROLE_GUESSED_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    WANTED_HASH_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    DEFERRED_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    EPLB_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    WANTED_KV_ACTION_FIELD_NUMBER: _ClassVar[int]
    WANTED_EC_ACTION_FIELD_NUMBER: _ClassVar[int]
    SAID_GOODBYE_FIELD_NUMBER: _ClassVar[int]
    RETIRES_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    WANTED_POLICIES_FIELD_NUMBER: _ClassVar[int]
    LAST_LOADS_FIELD_NUMBER: _ClassVar[int]
    COMPARED_FIELD_NUMBER: _ClassVar[int]
    STALLS_FIELD_NUMBER: _ClassVar[int]
    ENDED_STALLS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ASLEEP_SINCE_FIELD_NUMBER: _ClassVar[int]
    EJECTION_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    connected: bool
    last_seen: _timestamp_pb2.Timestamp
    role: _common_pb2.Role
    role_guessed: bool
    labels: _containers.ScalarMap[str, str]
    facts: _snapshot_pb2.EngineFacts
    policy: _snapshot_pb2.PolicyStatus
    wanted_hash: str
    in_sync: bool
    paused: bool
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    deferred: _containers.RepeatedCompositeFieldContainer[_snapshot_pb2.Deferred]
    in_flight: _containers.RepeatedCompositeFieldContainer[_snapshot_pb2.InFlight]
    leases: _snapshot_pb2.Leases
    eplb: _snapshot_pb2.EplbFacts
    counters: EngineCounters
    wanted_kv_action: str
    wanted_ec_action: str
    said_goodbye: bool
    retires: _timestamp_pb2.Timestamp
    pause: Pause
    policies: _containers.RepeatedCompositeFieldContainer[_common_pb2.PolicySource]
    wanted_policies: _containers.RepeatedCompositeFieldContainer[_common_pb2.PolicySource]
    last_loads: _containers.RepeatedCompositeFieldContainer[LastLoads]
    compared: ComparedEngine
    stalls: _containers.RepeatedCompositeFieldContainer[Stall]
    ended_stalls: _containers.RepeatedCompositeFieldContainer[Stall]
    queue: _snapshot_pb2.SchedulerQueue
    asleep_since: _timestamp_pb2.Timestamp
    ejection: Ejection
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., connected: bool = ..., last_seen: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., role: _Optional[_Union[_common_pb2.Role, str]] = ..., role_guessed: bool = ..., labels: _Optional[_Mapping[str, str]] = ..., facts: _Optional[_Union[_snapshot_pb2.EngineFacts, _Mapping]] = ..., policy: _Optional[_Union[_snapshot_pb2.PolicyStatus, _Mapping]] = ..., wanted_hash: _Optional[str] = ..., in_sync: bool = ..., paused: bool = ..., sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., deferred: _Optional[_Iterable[_Union[_snapshot_pb2.Deferred, _Mapping]]] = ..., in_flight: _Optional[_Iterable[_Union[_snapshot_pb2.InFlight, _Mapping]]] = ..., leases: _Optional[_Union[_snapshot_pb2.Leases, _Mapping]] = ..., eplb: _Optional[_Union[_snapshot_pb2.EplbFacts, _Mapping]] = ..., counters: _Optional[_Union[EngineCounters, _Mapping]] = ..., wanted_kv_action: _Optional[str] = ..., wanted_ec_action: _Optional[str] = ..., said_goodbye: bool = ..., retires: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., pause: _Optional[_Union[Pause, _Mapping]] = ..., policies: _Optional[_Iterable[_Union[_common_pb2.PolicySource, _Mapping]]] = ..., wanted_policies: _Optional[_Iterable[_Union[_common_pb2.PolicySource, _Mapping]]] = ..., last_loads: _Optional[_Iterable[_Union[LastLoads, _Mapping]]] = ..., compared: _Optional[_Union[ComparedEngine, _Mapping]] = ..., stalls: _Optional[_Iterable[_Union[Stall, _Mapping]]] = ..., ended_stalls: _Optional[_Iterable[_Union[Stall, _Mapping]]] = ..., queue: _Optional[_Union[_snapshot_pb2.SchedulerQueue, _Mapping]] = ..., asleep_since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., ejection: _Optional[_Union[Ejection, _Mapping]] = ...) -> None: ...

class Stall(_message.Message):
    __slots__ = ("kind", "peer", "count", "since", "sentence", "until")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    kind: str
    peer: str
    count: int
    since: _timestamp_pb2.Timestamp
    sentence: str
    until: _timestamp_pb2.Timestamp
    def __init__(self, kind: _Optional[str] = ..., peer: _Optional[str] = ..., count: _Optional[int] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., sentence: _Optional[str] = ..., until: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ComparedEngine(_message.Message):
    __slots__ = ("identity", "model", "requests", "failed", "deferred_seconds", "recomputed_tokens", "refuses")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    DEFERRED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REFUSES_FIELD_NUMBER: _ClassVar[int]
    identity: str
    model: str
    requests: int
    failed: int
    deferred_seconds: float
    recomputed_tokens: int
    refuses: bool
    def __init__(self, identity: _Optional[str] = ..., model: _Optional[str] = ..., requests: _Optional[int] = ..., failed: _Optional[int] = ..., deferred_seconds: _Optional[float] = ..., recomputed_tokens: _Optional[int] = ..., refuses: bool = ...) -> None: ...

class LastLoads(_message.Message):
    __slots__ = ("channel", "succeeded_time_unix_nano", "recomputed_time_unix_nano", "failed_time_unix_nano", "decided_by", "rehearsal")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    FAILED_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    REHEARSAL_FIELD_NUMBER: _ClassVar[int]
    channel: _common_pb2.Channel
    succeeded_time_unix_nano: int
    recomputed_time_unix_nano: int
    failed_time_unix_nano: int
    decided_by: _common_pb2.DecidedBy
    rehearsal: bool
    def __init__(self, channel: _Optional[_Union[_common_pb2.Channel, str]] = ..., succeeded_time_unix_nano: _Optional[int] = ..., recomputed_time_unix_nano: _Optional[int] = ..., failed_time_unix_nano: _Optional[int] = ..., decided_by: _Optional[_Union[_common_pb2.DecidedBy, str]] = ..., rehearsal: bool = ...) -> None: ...

class EngineCounters(_message.Message):
    __slots__ = ("transfers_ok", "transfers_failed", "bytes", "failures", "recomputed_tokens", "requests_failed")
    TRANSFERS_OK_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FAILED_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FAILED_FIELD_NUMBER: _ClassVar[int]
    transfers_ok: int
    transfers_failed: int
    bytes: int
    failures: int
    recomputed_tokens: int
    requests_failed: int
    def __init__(self, transfers_ok: _Optional[int] = ..., transfers_failed: _Optional[int] = ..., bytes: _Optional[int] = ..., failures: _Optional[int] = ..., recomputed_tokens: _Optional[int] = ..., requests_failed: _Optional[int] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("hello", "epoch", "watermark", "connected", "last_seen", "hooks", "emitter", "drops", "guard_errors", "clock_offset_nano", "stored_entries", "lost_entries", "unaccounted_entries", "upstream_counts")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_FIELD_NUMBER: _ClassVar[int]
    HOOKS_FIELD_NUMBER: _ClassVar[int]
    EMITTER_FIELD_NUMBER: _ClassVar[int]
    DROPS_FIELD_NUMBER: _ClassVar[int]
    GUARD_ERRORS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_NANO_FIELD_NUMBER: _ClassVar[int]
    STORED_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LOST_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    UNACCOUNTED_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_COUNTS_FIELD_NUMBER: _ClassVar[int]
    hello: _ingest_pb2.Hello
    epoch: int
    watermark: int
    connected: bool
    last_seen: _timestamp_pb2.Timestamp
    hooks: _containers.RepeatedCompositeFieldContainer[_snapshot_pb2.Hook]
    emitter: _snapshot_pb2.Emitter
    drops: _containers.RepeatedCompositeFieldContainer[_ingest_pb2.Drop]
    guard_errors: _containers.RepeatedCompositeFieldContainer[_ingest_pb2.GuardError]
    clock_offset_nano: int
    stored_entries: int
    lost_entries: int
    unaccounted_entries: int
    upstream_counts: _containers.RepeatedCompositeFieldContainer[_snapshot_pb2.UpstreamCount]
    def __init__(self, hello: _Optional[_Union[_ingest_pb2.Hello, _Mapping]] = ..., epoch: _Optional[int] = ..., watermark: _Optional[int] = ..., connected: bool = ..., last_seen: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., hooks: _Optional[_Iterable[_Union[_snapshot_pb2.Hook, _Mapping]]] = ..., emitter: _Optional[_Union[_snapshot_pb2.Emitter, _Mapping]] = ..., drops: _Optional[_Iterable[_Union[_ingest_pb2.Drop, _Mapping]]] = ..., guard_errors: _Optional[_Iterable[_Union[_ingest_pb2.GuardError, _Mapping]]] = ..., clock_offset_nano: _Optional[int] = ..., stored_entries: _Optional[int] = ..., lost_entries: _Optional[int] = ..., unaccounted_entries: _Optional[int] = ..., upstream_counts: _Optional[_Iterable[_Union[_snapshot_pb2.UpstreamCount, _Mapping]]] = ...) -> None: ...

class ListPeersRequest(_message.Message):
    __slots__ = ("selector", "state", "peers", "limit", "most_peers", "most_engines")
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    MOST_PEERS_FIELD_NUMBER: _ClassVar[int]
    MOST_ENGINES_FIELD_NUMBER: _ClassVar[int]
    selector: EngineSelector
    state: str
    peers: _containers.RepeatedScalarFieldContainer[str]
    limit: int
    most_peers: int
    most_engines: int
    def __init__(self, selector: _Optional[_Union[EngineSelector, _Mapping]] = ..., state: _Optional[str] = ..., peers: _Optional[_Iterable[str]] = ..., limit: _Optional[int] = ..., most_peers: _Optional[int] = ..., most_engines: _Optional[int] = ...) -> None: ...

class ListPeersResponse(_message.Message):
    __slots__ = ("peers", "left_out", "total", "total_peers")
    PEERS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    TOTAL_PEERS_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[PeerSummary]
    left_out: int
    total: int
    total_peers: int
    def __init__(self, peers: _Optional[_Iterable[_Union[PeerSummary, _Mapping]]] = ..., left_out: _Optional[int] = ..., total: _Optional[int] = ..., total_peers: _Optional[int] = ...) -> None: ...

class PeerSummary(_message.Message):
    __slots__ = ("key", "peer", "status", "transfers_ok", "transfers_failed", "mean_duration_seconds", "in_flight", "oldest_in_flight", "failures", "last_failure", "deferred", "oldest_deferred", "retired", "transfers", "waits", "failures_last_minute", "condition", "condition_reason", "condition_since", "engine", "transfers_at_least", "mean_duration_at_least_seconds", "cause", "traffic", "failures_last_15_minutes")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_OK_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FAILED_FIELD_NUMBER: _ClassVar[int]
    MEAN_DURATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    LAST_FAILURE_FIELD_NUMBER: _ClassVar[int]
    DEFERRED_FIELD_NUMBER: _ClassVar[int]
    OLDEST_DEFERRED_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_LAST_MINUTE_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    CONDITION_REASON_FIELD_NUMBER: _ClassVar[int]
    CONDITION_SINCE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    MEAN_DURATION_AT_LEAST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    FAILURES_LAST_15_MINUTES_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    peer: _common_pb2.Peer
    status: _snapshot_pb2.PeerStatus
    transfers_ok: int
    transfers_failed: int
    mean_duration_seconds: float
    in_flight: int
    oldest_in_flight: _timestamp_pb2.Timestamp
    failures: _containers.RepeatedCompositeFieldContainer[FailureCount]
    last_failure: _timestamp_pb2.Timestamp
    deferred: int
    oldest_deferred: _timestamp_pb2.Timestamp
    retired: bool
    transfers: PeerWindows
    waits: PeerWindows
    failures_last_minute: int
    condition: PeerCondition
    condition_reason: str
    condition_since: _timestamp_pb2.Timestamp
    engine: _common_pb2.EngineKey
    transfers_at_least: PeerWindows
    mean_duration_at_least_seconds: float
    cause: str
    traffic: _containers.RepeatedCompositeFieldContainer[PeerTraffic]
    failures_last_15_minutes: int
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., status: _Optional[_Union[_snapshot_pb2.PeerStatus, _Mapping]] = ..., transfers_ok: _Optional[int] = ..., transfers_failed: _Optional[int] = ..., mean_duration_seconds: _Optional[float] = ..., in_flight: _Optional[int] = ..., oldest_in_flight: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., failures: _Optional[_Iterable[_Union[FailureCount, _Mapping]]] = ..., last_failure: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., deferred: _Optional[int] = ..., oldest_deferred: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., retired: bool = ..., transfers: _Optional[_Union[PeerWindows, _Mapping]] = ..., waits: _Optional[_Union[PeerWindows, _Mapping]] = ..., failures_last_minute: _Optional[int] = ..., condition: _Optional[_Union[PeerCondition, str]] = ..., condition_reason: _Optional[str] = ..., condition_since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., engine: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., transfers_at_least: _Optional[_Union[PeerWindows, _Mapping]] = ..., mean_duration_at_least_seconds: _Optional[float] = ..., cause: _Optional[str] = ..., traffic: _Optional[_Iterable[_Union[PeerTraffic, _Mapping]]] = ..., failures_last_15_minutes: _Optional[int] = ...) -> None: ...

class PeerTraffic(_message.Message):
    __slots__ = ("channel", "direction", "last_15_minutes")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    LAST_15_MINUTES_FIELD_NUMBER: _ClassVar[int]
    channel: _common_pb2.Channel
    direction: _common_pb2.Direction
    last_15_minutes: TrafficWindow
    def __init__(self, channel: _Optional[_Union[_common_pb2.Channel, str]] = ..., direction: _Optional[_Union[_common_pb2.Direction, str]] = ..., last_15_minutes: _Optional[_Union[TrafficWindow, _Mapping]] = ...) -> None: ...

class TrafficWindow(_message.Message):
    __slots__ = ("transfers_ok", "transfers_failed", "bytes")
    TRANSFERS_OK_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FAILED_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    transfers_ok: int
    transfers_failed: int
    bytes: int
    def __init__(self, transfers_ok: _Optional[int] = ..., transfers_failed: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class PeerWindows(_message.Message):
    __slots__ = ("last_minute", "last_15_minutes", "hour_before")
    LAST_MINUTE_FIELD_NUMBER: _ClassVar[int]
    LAST_15_MINUTES_FIELD_NUMBER: _ClassVar[int]
    HOUR_BEFORE_FIELD_NUMBER: _ClassVar[int]
    last_minute: DurationWindow
    last_15_minutes: DurationWindow
    hour_before: DurationWindow
    def __init__(self, last_minute: _Optional[_Union[DurationWindow, _Mapping]] = ..., last_15_minutes: _Optional[_Union[DurationWindow, _Mapping]] = ..., hour_before: _Optional[_Union[DurationWindow, _Mapping]] = ...) -> None: ...

class DurationWindow(_message.Message):
    __slots__ = ("count", "p50_seconds", "p99_seconds")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    P50_SECONDS_FIELD_NUMBER: _ClassVar[int]
    P99_SECONDS_FIELD_NUMBER: _ClassVar[int]
    count: int
    p50_seconds: float
    p99_seconds: float
    def __init__(self, count: _Optional[int] = ..., p50_seconds: _Optional[float] = ..., p99_seconds: _Optional[float] = ...) -> None: ...

class GetSignalsRequest(_message.Message):
    __slots__ = ("selector", "since")
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    selector: EngineSelector
    since: _duration_pb2.Duration
    def __init__(self, selector: _Optional[_Union[EngineSelector, _Mapping]] = ..., since: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Signals(_message.Message):
    __slots__ = ("slot_nano", "slots", "engines", "engines_left_out")
    SLOT_NANO_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    ENGINES_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    slot_nano: int
    slots: _containers.RepeatedCompositeFieldContainer[SignalSlot]
    engines: int
    engines_left_out: int
    def __init__(self, slot_nano: _Optional[int] = ..., slots: _Optional[_Iterable[_Union[SignalSlot, _Mapping]]] = ..., engines: _Optional[int] = ..., engines_left_out: _Optional[int] = ...) -> None: ...

class SignalSlot(_message.Message):
    __slots__ = ("start_unix_nano", "engines", "requests", "failed", "recomputed", "first_tokens", "gates", "times", "loads_in", "bytes_in", "loads_out", "bytes_out", "queues", "running", "waiting", "held_blocks", "total_blocks")
    class TimesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    START_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    LOADS_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    LOADS_OUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    HELD_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    start_unix_nano: int
    engines: int
    requests: int
    failed: int
    recomputed: int
    first_tokens: int
    gates: _events_pb2.Gates
    times: _containers.ScalarMap[int, int]
    loads_in: int
    bytes_in: int
    loads_out: int
    bytes_out: int
    queues: int
    running: int
    waiting: int
    held_blocks: int
    total_blocks: int
    def __init__(self, start_unix_nano: _Optional[int] = ..., engines: _Optional[int] = ..., requests: _Optional[int] = ..., failed: _Optional[int] = ..., recomputed: _Optional[int] = ..., first_tokens: _Optional[int] = ..., gates: _Optional[_Union[_events_pb2.Gates, _Mapping]] = ..., times: _Optional[_Mapping[int, int]] = ..., loads_in: _Optional[int] = ..., bytes_in: _Optional[int] = ..., loads_out: _Optional[int] = ..., bytes_out: _Optional[int] = ..., queues: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., held_blocks: _Optional[int] = ..., total_blocks: _Optional[int] = ...) -> None: ...

class ListPairsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPairsResponse(_message.Message):
    __slots__ = ("pairs", "engines", "left_out")
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    pairs: _containers.RepeatedCompositeFieldContainer[Pair]
    engines: _containers.RepeatedCompositeFieldContainer[PairEngine]
    left_out: int
    def __init__(self, pairs: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., engines: _Optional[_Iterable[_Union[PairEngine, _Mapping]]] = ..., left_out: _Optional[int] = ...) -> None: ...

class PairEngine(_message.Message):
    __slots__ = ("key", "role", "facts", "labels", "transfers", "peers")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    role: _common_pb2.Role
    facts: _snapshot_pb2.EngineFacts
    labels: _containers.ScalarMap[str, str]
    transfers: _containers.RepeatedCompositeFieldContainer[_snapshot_pb2.TransferFacts]
    peers: _containers.RepeatedCompositeFieldContainer[PairPeer]
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., role: _Optional[_Union[_common_pb2.Role, str]] = ..., facts: _Optional[_Union[_snapshot_pb2.EngineFacts, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ..., transfers: _Optional[_Iterable[_Union[_snapshot_pb2.TransferFacts, _Mapping]]] = ..., peers: _Optional[_Iterable[_Union[PairPeer, _Mapping]]] = ...) -> None: ...

class PairPeer(_message.Message):
    __slots__ = ("status", "speeds")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SPEEDS_FIELD_NUMBER: _ClassVar[int]
    status: _snapshot_pb2.PeerStatus
    speeds: _containers.RepeatedCompositeFieldContainer[PairSpeed]
    def __init__(self, status: _Optional[_Union[_snapshot_pb2.PeerStatus, _Mapping]] = ..., speeds: _Optional[_Iterable[_Union[PairSpeed, _Mapping]]] = ...) -> None: ...

class Pair(_message.Message):
    __slots__ = ("key", "peer", "peer_key", "compatible", "differences", "weights", "geometry", "peer_geometry", "revision", "peer_revision", "speed", "transport", "connected", "reason", "other_addresses", "same_id")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PEER_KEY_FIELD_NUMBER: _ClassVar[int]
    COMPATIBLE_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    GEOMETRY_FIELD_NUMBER: _ClassVar[int]
    PEER_GEOMETRY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PEER_REVISION_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OTHER_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    SAME_ID_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    peer: _common_pb2.Peer
    peer_key: _common_pb2.EngineKey
    compatible: PairCompatibility
    differences: _containers.RepeatedCompositeFieldContainer[FactDifference]
    weights: PairWeights
    geometry: str
    peer_geometry: str
    revision: str
    peer_revision: str
    speed: PairSpeed
    transport: str
    connected: bool
    reason: str
    other_addresses: _containers.RepeatedCompositeFieldContainer[_snapshot_pb2.OtherAddress]
    same_id: _containers.RepeatedCompositeFieldContainer[_common_pb2.EngineKey]
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., peer_key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., compatible: _Optional[_Union[PairCompatibility, str]] = ..., differences: _Optional[_Iterable[_Union[FactDifference, _Mapping]]] = ..., weights: _Optional[_Union[PairWeights, str]] = ..., geometry: _Optional[str] = ..., peer_geometry: _Optional[str] = ..., revision: _Optional[str] = ..., peer_revision: _Optional[str] = ..., speed: _Optional[_Union[PairSpeed, _Mapping]] = ..., transport: _Optional[str] = ..., connected: bool = ..., reason: _Optional[str] = ..., other_addresses: _Optional[_Iterable[_Union[_snapshot_pb2.OtherAddress, _Mapping]]] = ..., same_id: _Optional[_Iterable[_Union[_common_pb2.EngineKey, _Mapping]]] = ...) -> None: ...

class FactDifference(_message.Message):
    __slots__ = ("fact", "value", "peer_value", "effect")
    FACT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PEER_VALUE_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    fact: str
    value: str
    peer_value: str
    effect: DifferenceEffect
    def __init__(self, fact: _Optional[str] = ..., value: _Optional[str] = ..., peer_value: _Optional[str] = ..., effect: _Optional[_Union[DifferenceEffect, str]] = ...) -> None: ...

class PairSpeed(_message.Message):
    __slots__ = ("channel", "rank", "bytes_per_second", "count", "usual_bytes_per_second", "usual_count", "usual_ratio", "siblings_ratio", "size_class", "bytes_per_second_at_most")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    USUAL_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    USUAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    USUAL_RATIO_FIELD_NUMBER: _ClassVar[int]
    SIBLINGS_RATIO_FIELD_NUMBER: _ClassVar[int]
    SIZE_CLASS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_AT_MOST_FIELD_NUMBER: _ClassVar[int]
    channel: _common_pb2.Channel
    rank: int
    bytes_per_second: float
    count: int
    usual_bytes_per_second: float
    usual_count: int
    usual_ratio: float
    siblings_ratio: float
    size_class: str
    bytes_per_second_at_most: float
    def __init__(self, channel: _Optional[_Union[_common_pb2.Channel, str]] = ..., rank: _Optional[int] = ..., bytes_per_second: _Optional[float] = ..., count: _Optional[int] = ..., usual_bytes_per_second: _Optional[float] = ..., usual_count: _Optional[int] = ..., usual_ratio: _Optional[float] = ..., siblings_ratio: _Optional[float] = ..., size_class: _Optional[str] = ..., bytes_per_second_at_most: _Optional[float] = ...) -> None: ...

class FailureCount(_message.Message):
    __slots__ = ("mode", "error_type", "count")
    MODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_TYPE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    mode: _common_pb2.FailureMode
    error_type: _common_pb2.ErrorType
    count: int
    def __init__(self, mode: _Optional[_Union[_common_pb2.FailureMode, str]] = ..., error_type: _Optional[_Union[_common_pb2.ErrorType, str]] = ..., count: _Optional[int] = ...) -> None: ...

class ListRequestsRequest(_message.Message):
    __slots__ = ("selector", "deferred", "outcome", "peer", "since", "sort", "limit", "slow", "queued")
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    DEFERRED_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    SORT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SLOW_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    selector: EngineSelector
    deferred: bool
    outcome: _common_pb2.Outcome
    peer: str
    since: _duration_pb2.Duration
    sort: str
    limit: int
    slow: bool
    queued: bool
    def __init__(self, selector: _Optional[_Union[EngineSelector, _Mapping]] = ..., deferred: bool = ..., outcome: _Optional[_Union[_common_pb2.Outcome, str]] = ..., peer: _Optional[str] = ..., since: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., sort: _Optional[str] = ..., limit: _Optional[int] = ..., slow: bool = ..., queued: bool = ...) -> None: ...

class ListRequestsResponse(_message.Message):
    __slots__ = ("requests", "truncated", "unnamed_deferred", "unreadable_batches", "waiting", "running", "unnamed_queued", "unknown_queues")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    UNNAMED_DEFERRED_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_BATCHES_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    UNNAMED_QUEUED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_QUEUES_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[RequestSummary]
    truncated: bool
    unnamed_deferred: int
    unreadable_batches: int
    waiting: _containers.RepeatedCompositeFieldContainer[_snapshot_pb2.WaitingRequests]
    running: int
    unnamed_queued: int
    unknown_queues: _containers.RepeatedCompositeFieldContainer[_common_pb2.EngineKey]
    def __init__(self, requests: _Optional[_Iterable[_Union[RequestSummary, _Mapping]]] = ..., truncated: bool = ..., unnamed_deferred: _Optional[int] = ..., unreadable_batches: _Optional[int] = ..., waiting: _Optional[_Iterable[_Union[_snapshot_pb2.WaitingRequests, _Mapping]]] = ..., running: _Optional[int] = ..., unnamed_queued: _Optional[int] = ..., unknown_queues: _Optional[_Iterable[_Union[_common_pb2.EngineKey, _Mapping]]] = ...) -> None: ...

class RequestSummary(_message.Message):
    __slots__ = ("key", "request_id", "trace_id", "outcome", "mode", "peer", "tokens_recomputed", "deferred", "since", "closed", "finish_reason", "duration", "wait", "time_to_first_token", "gates", "queued")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    TOKENS_RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    DEFERRED_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    request_id: str
    trace_id: str
    outcome: _common_pb2.Outcome
    mode: _common_pb2.FailureMode
    peer: _common_pb2.Peer
    tokens_recomputed: int
    deferred: _common_pb2.DeferralReason
    since: _timestamp_pb2.Timestamp
    closed: _timestamp_pb2.Timestamp
    finish_reason: str
    duration: _duration_pb2.Duration
    wait: _duration_pb2.Duration
    time_to_first_token: _duration_pb2.Duration
    gates: _containers.RepeatedCompositeFieldContainer[GateTime]
    queued: _snapshot_pb2.QueuedRequest
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., request_id: _Optional[str] = ..., trace_id: _Optional[str] = ..., outcome: _Optional[_Union[_common_pb2.Outcome, str]] = ..., mode: _Optional[_Union[_common_pb2.FailureMode, str]] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., tokens_recomputed: _Optional[int] = ..., deferred: _Optional[_Union[_common_pb2.DeferralReason, str]] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., closed: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., finish_reason: _Optional[str] = ..., duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., time_to_first_token: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., gates: _Optional[_Iterable[_Union[GateTime, _Mapping]]] = ..., queued: _Optional[_Union[_snapshot_pb2.QueuedRequest, _Mapping]] = ...) -> None: ...

class GateTime(_message.Message):
    __slots__ = ("gate", "duration")
    GATE_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    gate: str
    duration: _duration_pb2.Duration
    def __init__(self, gate: _Optional[str] = ..., duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ListEventsRequest(_message.Message):
    __slots__ = ("selector", "kinds", "channel", "mode", "peer", "request_id", "since", "limit", "after_batch", "after_agents")
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_BATCH_FIELD_NUMBER: _ClassVar[int]
    AFTER_AGENTS_FIELD_NUMBER: _ClassVar[int]
    selector: EngineSelector
    kinds: _containers.RepeatedScalarFieldContainer[str]
    channel: _common_pb2.Channel
    mode: _common_pb2.FailureMode
    peer: str
    request_id: str
    since: _duration_pb2.Duration
    limit: int
    after_batch: int
    after_agents: _containers.RepeatedCompositeFieldContainer[AgentPosition]
    def __init__(self, selector: _Optional[_Union[EngineSelector, _Mapping]] = ..., kinds: _Optional[_Iterable[str]] = ..., channel: _Optional[_Union[_common_pb2.Channel, str]] = ..., mode: _Optional[_Union[_common_pb2.FailureMode, str]] = ..., peer: _Optional[str] = ..., request_id: _Optional[str] = ..., since: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., limit: _Optional[int] = ..., after_batch: _Optional[int] = ..., after_agents: _Optional[_Iterable[_Union[AgentPosition, _Mapping]]] = ...) -> None: ...

class AgentPosition(_message.Message):
    __slots__ = ("agent", "batch")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    agent: str
    batch: int
    def __init__(self, agent: _Optional[str] = ..., batch: _Optional[int] = ...) -> None: ...

class ListEventsResponse(_message.Message):
    __slots__ = ("events", "truncated", "unreadable_batches")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_BATCHES_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[LoggedEvent]
    truncated: bool
    unreadable_batches: int
    def __init__(self, events: _Optional[_Iterable[_Union[LoggedEvent, _Mapping]]] = ..., truncated: bool = ..., unreadable_batches: _Optional[int] = ...) -> None: ...

class LoggedEvent(_message.Message):
    __slots__ = ("batch", "index", "key", "process", "event", "policies", "previous_policies", "agent")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_POLICIES_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    batch: int
    index: int
    key: _common_pb2.EngineKey
    process: str
    event: _events_pb2.Event
    policies: _containers.RepeatedCompositeFieldContainer[_common_pb2.PolicySource]
    previous_policies: _containers.RepeatedCompositeFieldContainer[_common_pb2.PolicySource]
    agent: str
    def __init__(self, batch: _Optional[int] = ..., index: _Optional[int] = ..., key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., process: _Optional[str] = ..., event: _Optional[_Union[_events_pb2.Event, _Mapping]] = ..., policies: _Optional[_Iterable[_Union[_common_pb2.PolicySource, _Mapping]]] = ..., previous_policies: _Optional[_Iterable[_Union[_common_pb2.PolicySource, _Mapping]]] = ..., agent: _Optional[str] = ...) -> None: ...

class GetTraceRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class Trace(_message.Message):
    __slots__ = ("trace_id", "spans", "unreadable_batches")
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_BATCHES_FIELD_NUMBER: _ClassVar[int]
    trace_id: str
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    unreadable_batches: int
    def __init__(self, trace_id: _Optional[str] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., unreadable_batches: _Optional[int] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("span_id", "parent_span_id", "name", "kind", "start_time_unix_nano", "end_time_unix_nano", "status", "status_message", "attributes", "links", "key", "service", "request_id")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class Link(_message.Message):
        __slots__ = ("trace_id", "span_id", "attributes")
        class AttributesEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: str
            def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
        TRACE_ID_FIELD_NUMBER: _ClassVar[int]
        SPAN_ID_FIELD_NUMBER: _ClassVar[int]
        ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
        trace_id: str
        span_id: str
        attributes: _containers.ScalarMap[str, str]
        def __init__(self, trace_id: _Optional[str] = ..., span_id: _Optional[str] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    END_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATUS_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    span_id: str
    parent_span_id: str
    name: str
    kind: str
    start_time_unix_nano: int
    end_time_unix_nano: int
    status: str
    status_message: str
    attributes: _containers.ScalarMap[str, str]
    links: _containers.RepeatedCompositeFieldContainer[Span.Link]
    key: _common_pb2.EngineKey
    service: str
    request_id: str
    def __init__(self, span_id: _Optional[str] = ..., parent_span_id: _Optional[str] = ..., name: _Optional[str] = ..., kind: _Optional[str] = ..., start_time_unix_nano: _Optional[int] = ..., end_time_unix_nano: _Optional[int] = ..., status: _Optional[str] = ..., status_message: _Optional[str] = ..., attributes: _Optional[_Mapping[str, str]] = ..., links: _Optional[_Iterable[_Union[Span.Link, _Mapping]]] = ..., key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., service: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("request_id", "trace_id", "sentences", "unreadable_batches", "wait_parts")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    SENTENCES_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_BATCHES_FIELD_NUMBER: _ClassVar[int]
    WAIT_PARTS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    trace_id: str
    sentences: _containers.RepeatedScalarFieldContainer[str]
    unreadable_batches: int
    wait_parts: _containers.RepeatedCompositeFieldContainer[WaitPart]
    def __init__(self, request_id: _Optional[str] = ..., trace_id: _Optional[str] = ..., sentences: _Optional[_Iterable[str]] = ..., unreadable_batches: _Optional[int] = ..., wait_parts: _Optional[_Iterable[_Union[WaitPart, _Mapping]]] = ...) -> None: ...

class WaitPart(_message.Message):
    __slots__ = ("request_id", "part", "duration", "share")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    part: str
    duration: _duration_pb2.Duration
    share: float
    def __init__(self, request_id: _Optional[str] = ..., part: _Optional[str] = ..., duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., share: _Optional[float] = ...) -> None: ...

class SetPausedRequest(_message.Message):
    __slots__ = ("selector", "paused", "author", "reason", "timeout", "ttl")
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    selector: EngineSelector
    paused: bool
    author: str
    reason: str
    timeout: _duration_pb2.Duration
    ttl: _duration_pb2.Duration
    def __init__(self, selector: _Optional[_Union[EngineSelector, _Mapping]] = ..., paused: bool = ..., author: _Optional[str] = ..., reason: _Optional[str] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Pause(_message.Message):
    __slots__ = ("author", "reason", "since", "until")
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    author: str
    reason: str
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    def __init__(self, author: _Optional[str] = ..., reason: _Optional[str] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SetQuarantineRequest(_message.Message):
    __slots__ = ("selector", "peer", "state", "ttl", "author", "reason")
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    selector: EngineSelector
    peer: str
    state: _events_pb2.QuarantineState
    ttl: _duration_pb2.Duration
    author: str
    reason: str
    def __init__(self, selector: _Optional[_Union[EngineSelector, _Mapping]] = ..., peer: _Optional[str] = ..., state: _Optional[_Union[_events_pb2.QuarantineState, str]] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., author: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Quarantine(_message.Message):
    __slots__ = ("key", "peer", "state", "reason", "until", "author")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    peer: _common_pb2.Peer
    state: _events_pb2.QuarantineState
    reason: str
    until: _timestamp_pb2.Timestamp
    author: str
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., state: _Optional[_Union[_events_pb2.QuarantineState, str]] = ..., reason: _Optional[str] = ..., until: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., author: _Optional[str] = ...) -> None: ...

class ListQuarantinesRequest(_message.Message):
    __slots__ = ("selector",)
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    selector: EngineSelector
    def __init__(self, selector: _Optional[_Union[EngineSelector, _Mapping]] = ...) -> None: ...

class ListQuarantinesResponse(_message.Message):
    __slots__ = ("quarantines",)
    QUARANTINES_FIELD_NUMBER: _ClassVar[int]
    quarantines: _containers.RepeatedCompositeFieldContainer[Quarantine]
    def __init__(self, quarantines: _Optional[_Iterable[_Union[Quarantine, _Mapping]]] = ...) -> None: ...

class SetEjectionRequest(_message.Message):
    __slots__ = ("selector", "ttl", "author", "reason")
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    selector: EngineSelector
    ttl: _duration_pb2.Duration
    author: str
    reason: str
    def __init__(self, selector: _Optional[_Union[EngineSelector, _Mapping]] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., author: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class SetEjectionResponse(_message.Message):
    __slots__ = ("engines",)
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    engines: _containers.RepeatedCompositeFieldContainer[_common_pb2.EngineKey]
    def __init__(self, engines: _Optional[_Iterable[_Union[_common_pb2.EngineKey, _Mapping]]] = ...) -> None: ...

class Ejection(_message.Message):
    __slots__ = ("since", "until", "author", "reason", "in_force")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    author: str
    reason: str
    in_force: bool
    def __init__(self, since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., author: _Optional[str] = ..., reason: _Optional[str] = ..., in_force: bool = ...) -> None: ...

class ListEjectionsRequest(_message.Message):
    __slots__ = ("selector",)
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    selector: EngineSelector
    def __init__(self, selector: _Optional[_Union[EngineSelector, _Mapping]] = ...) -> None: ...

class ListEjectionsResponse(_message.Message):
    __slots__ = ("ejections", "undecided")
    EJECTIONS_FIELD_NUMBER: _ClassVar[int]
    UNDECIDED_FIELD_NUMBER: _ClassVar[int]
    ejections: _containers.RepeatedCompositeFieldContainer[ServerEjection]
    undecided: str
    def __init__(self, ejections: _Optional[_Iterable[_Union[ServerEjection, _Mapping]]] = ..., undecided: _Optional[str] = ...) -> None: ...

class ServerEjection(_message.Message):
    __slots__ = ("key", "order", "address", "verdict", "why", "since", "policy")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    order: Ejection
    address: str
    verdict: str
    why: str
    since: _timestamp_pb2.Timestamp
    policy: str
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., order: _Optional[_Union[Ejection, _Mapping]] = ..., address: _Optional[str] = ..., verdict: _Optional[str] = ..., why: _Optional[str] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., policy: _Optional[str] = ...) -> None: ...

class StartDrillRequest(_message.Message):
    __slots__ = ("selector", "channel", "mode", "rate", "peer", "delay", "ttl", "author", "reason")
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    selector: EngineSelector
    channel: _common_pb2.Channel
    mode: _common_pb2.FailureMode
    rate: float
    peer: str
    delay: _duration_pb2.Duration
    ttl: _duration_pb2.Duration
    author: str
    reason: str
    def __init__(self, selector: _Optional[_Union[EngineSelector, _Mapping]] = ..., channel: _Optional[_Union[_common_pb2.Channel, str]] = ..., mode: _Optional[_Union[_common_pb2.FailureMode, str]] = ..., rate: _Optional[float] = ..., peer: _Optional[str] = ..., delay: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., author: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class StopDrillRequest(_message.Message):
    __slots__ = ("id", "author")
    ID_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    id: str
    author: str
    def __init__(self, id: _Optional[str] = ..., author: _Optional[str] = ...) -> None: ...

class ListDrillsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDrillsResponse(_message.Message):
    __slots__ = ("drills",)
    DRILLS_FIELD_NUMBER: _ClassVar[int]
    drills: _containers.RepeatedCompositeFieldContainer[Drill]
    def __init__(self, drills: _Optional[_Iterable[_Union[Drill, _Mapping]]] = ...) -> None: ...

class Drill(_message.Message):
    __slots__ = ("id", "spec", "started", "expires", "engines")
    ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    id: str
    spec: StartDrillRequest
    started: _timestamp_pb2.Timestamp
    expires: _timestamp_pb2.Timestamp
    engines: _containers.RepeatedCompositeFieldContainer[EngineRollout]
    def __init__(self, id: _Optional[str] = ..., spec: _Optional[_Union[StartDrillRequest, _Mapping]] = ..., started: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., expires: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., engines: _Optional[_Iterable[_Union[EngineRollout, _Mapping]]] = ...) -> None: ...

class BackupRequest(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class BackupResponse(_message.Message):
    __slots__ = ("path", "bytes")
    PATH_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    path: str
    bytes: int
    def __init__(self, path: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("engine", "peer", "selector", "author", "reason")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    engine: _common_pb2.EngineKey
    peer: str
    selector: EngineSelector
    author: str
    reason: str
    def __init__(self, engine: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., peer: _Optional[str] = ..., selector: _Optional[_Union[EngineSelector, _Mapping]] = ..., author: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ForgetResponse(_message.Message):
    __slots__ = ("engines",)
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    engines: _containers.RepeatedCompositeFieldContainer[_common_pb2.EngineKey]
    def __init__(self, engines: _Optional[_Iterable[_Union[_common_pb2.EngineKey, _Mapping]]] = ...) -> None: ...

class SetPolicyRolloutRequest(_message.Message):
    __slots__ = ("name", "action", "steps", "hold", "abort_if", "author", "reason", "proceed_undecided", "manifest_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    ABORT_IF_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROCEED_UNDECIDED_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    action: str
    steps: _containers.RepeatedScalarFieldContainer[int]
    hold: _duration_pb2.Duration
    abort_if: _containers.RepeatedScalarFieldContainer[str]
    author: str
    reason: str
    proceed_undecided: bool
    manifest_json: str
    def __init__(self, name: _Optional[str] = ..., action: _Optional[str] = ..., steps: _Optional[_Iterable[int]] = ..., hold: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., abort_if: _Optional[_Iterable[str]] = ..., author: _Optional[str] = ..., reason: _Optional[str] = ..., proceed_undecided: bool = ..., manifest_json: _Optional[str] = ...) -> None: ...

class ListPolicyRolloutsRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListPolicyRolloutsResponse(_message.Message):
    __slots__ = ("rollouts",)
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    rollouts: _containers.RepeatedCompositeFieldContainer[PolicyRollout]
    def __init__(self, rollouts: _Optional[_Iterable[_Union[PolicyRollout, _Mapping]]] = ...) -> None: ...

class PolicyRollout(_message.Message):
    __slots__ = ("name", "generation", "state", "percent", "steps", "hold", "abort_if", "proceed_undecided", "step_began", "step_ends", "author", "message", "comparisons", "engines_selected", "engines_matched", "started", "changes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    ABORT_IF_FIELD_NUMBER: _ClassVar[int]
    PROCEED_UNDECIDED_FIELD_NUMBER: _ClassVar[int]
    STEP_BEGAN_FIELD_NUMBER: _ClassVar[int]
    STEP_ENDS_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    COMPARISONS_FIELD_NUMBER: _ClassVar[int]
    ENGINES_SELECTED_FIELD_NUMBER: _ClassVar[int]
    ENGINES_MATCHED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    state: str
    percent: int
    steps: _containers.RepeatedScalarFieldContainer[int]
    hold: _duration_pb2.Duration
    abort_if: _containers.RepeatedScalarFieldContainer[str]
    proceed_undecided: bool
    step_began: _timestamp_pb2.Timestamp
    step_ends: _timestamp_pb2.Timestamp
    author: str
    message: str
    comparisons: _containers.RepeatedCompositeFieldContainer[RolloutComparison]
    engines_selected: int
    engines_matched: int
    started: _timestamp_pb2.Timestamp
    changes: bool
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ..., state: _Optional[str] = ..., percent: _Optional[int] = ..., steps: _Optional[_Iterable[int]] = ..., hold: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., abort_if: _Optional[_Iterable[str]] = ..., proceed_undecided: bool = ..., step_began: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., step_ends: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., author: _Optional[str] = ..., message: _Optional[str] = ..., comparisons: _Optional[_Iterable[_Union[RolloutComparison, _Mapping]]] = ..., engines_selected: _Optional[int] = ..., engines_matched: _Optional[int] = ..., started: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., changes: bool = ...) -> None: ...

class RolloutComparison(_message.Message):
    __slots__ = ("condition", "verdict", "evidence")
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    condition: str
    verdict: str
    evidence: str
    def __init__(self, condition: _Optional[str] = ..., verdict: _Optional[str] = ..., evidence: _Optional[str] = ...) -> None: ...

class GetBundleRequest(_message.Message):
    __slots__ = ("since", "max_bytes", "agent")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    since: _duration_pb2.Duration
    max_bytes: int
    agent: str
    def __init__(self, since: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_bytes: _Optional[int] = ..., agent: _Optional[str] = ...) -> None: ...

class BundlePart(_message.Message):
    __slots__ = ("file", "journal", "batches", "end")
    FILE_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    file: BundleFile
    journal: JournalWindow
    batches: StoredBatches
    end: BundleEnd
    def __init__(self, file: _Optional[_Union[BundleFile, _Mapping]] = ..., journal: _Optional[_Union[JournalWindow, _Mapping]] = ..., batches: _Optional[_Union[StoredBatches, _Mapping]] = ..., end: _Optional[_Union[BundleEnd, _Mapping]] = ...) -> None: ...

class BundleFile(_message.Message):
    __slots__ = ("name", "content")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    content: bytes
    def __init__(self, name: _Optional[str] = ..., content: _Optional[bytes] = ...) -> None: ...

class JournalWindow(_message.Message):
    __slots__ = ("created_unix_nano", "agent_epoch", "lost_batches", "last_batch", "counted_batch", "counters", "sources", "deferrals", "bytes")
    CREATED_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    AGENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOST_BATCHES_FIELD_NUMBER: _ClassVar[int]
    LAST_BATCH_FIELD_NUMBER: _ClassVar[int]
    COUNTED_BATCH_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    DEFERRALS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    created_unix_nano: int
    agent_epoch: int
    lost_batches: int
    last_batch: int
    counted_batch: int
    counters: bytes
    sources: _containers.RepeatedCompositeFieldContainer[StoredSource]
    deferrals: _containers.RepeatedCompositeFieldContainer[StoredDeferral]
    bytes: int
    def __init__(self, created_unix_nano: _Optional[int] = ..., agent_epoch: _Optional[int] = ..., lost_batches: _Optional[int] = ..., last_batch: _Optional[int] = ..., counted_batch: _Optional[int] = ..., counters: _Optional[bytes] = ..., sources: _Optional[_Iterable[_Union[StoredSource, _Mapping]]] = ..., deferrals: _Optional[_Iterable[_Union[StoredDeferral, _Mapping]]] = ..., bytes: _Optional[int] = ...) -> None: ...

class StoredSource(_message.Message):
    __slots__ = ("epoch", "hello", "watermark", "opened_unix_nano", "last_seen_unix_nano", "closed_unix_nano", "last_batch")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    OPENED_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    CLOSED_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    LAST_BATCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    hello: _ingest_pb2.Hello
    watermark: int
    opened_unix_nano: int
    last_seen_unix_nano: int
    closed_unix_nano: int
    last_batch: int
    def __init__(self, epoch: _Optional[int] = ..., hello: _Optional[_Union[_ingest_pb2.Hello, _Mapping]] = ..., watermark: _Optional[int] = ..., opened_unix_nano: _Optional[int] = ..., last_seen_unix_nano: _Optional[int] = ..., closed_unix_nano: _Optional[int] = ..., last_batch: _Optional[int] = ...) -> None: ...

class StoredDeferral(_message.Message):
    __slots__ = ("epoch", "request_id", "reason", "start", "batch")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    request_id: str
    reason: int
    start: bytes
    batch: int
    def __init__(self, epoch: _Optional[int] = ..., request_id: _Optional[str] = ..., reason: _Optional[int] = ..., start: _Optional[bytes] = ..., batch: _Optional[int] = ...) -> None: ...

class StoredBatches(_message.Message):
    __slots__ = ("batches",)
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[StoredBatch]
    def __init__(self, batches: _Optional[_Iterable[_Union[StoredBatch, _Mapping]]] = ...) -> None: ...

class StoredBatch(_message.Message):
    __slots__ = ("id", "epoch", "seq", "received_unix_nano", "body", "packed")
    ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    id: int
    epoch: int
    seq: int
    received_unix_nano: int
    body: bytes
    packed: int
    def __init__(self, id: _Optional[int] = ..., epoch: _Optional[int] = ..., seq: _Optional[int] = ..., received_unix_nano: _Optional[int] = ..., body: _Optional[bytes] = ..., packed: _Optional[int] = ...) -> None: ...

class BundleEnd(_message.Message):
    __slots__ = ("left_out_batches", "left_out_bytes")
    LEFT_OUT_BATCHES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    left_out_batches: int
    left_out_bytes: int
    def __init__(self, left_out_batches: _Optional[int] = ..., left_out_bytes: _Optional[int] = ...) -> None: ...

class ListHoldersRequest(_message.Message):
    __slots__ = ("selector",)
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    selector: EngineSelector
    def __init__(self, selector: _Optional[_Union[EngineSelector, _Mapping]] = ...) -> None: ...

class ListHoldersResponse(_message.Message):
    __slots__ = ("holders", "unknown")
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    holders: _containers.RepeatedCompositeFieldContainer[HolderSummary]
    unknown: _containers.RepeatedCompositeFieldContainer[_common_pb2.EngineKey]
    def __init__(self, holders: _Optional[_Iterable[_Union[HolderSummary, _Mapping]]] = ..., unknown: _Optional[_Iterable[_Union[_common_pb2.EngineKey, _Mapping]]] = ...) -> None: ...

class HolderSummary(_message.Message):
    __slots__ = ("key", "holder", "peer", "requests", "blocks", "share", "oldest")
    KEY_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    holder: _snapshot_pb2.BlockHolder
    peer: _common_pb2.Peer
    requests: int
    blocks: int
    share: float
    oldest: _timestamp_pb2.Timestamp
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., holder: _Optional[_Union[_snapshot_pb2.BlockHolder, str]] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., requests: _Optional[int] = ..., blocks: _Optional[int] = ..., share: _Optional[float] = ..., oldest: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListSuspectsRequest(_message.Message):
    __slots__ = ("selector", "since", "limit", "late_request_ids")
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    LATE_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    selector: EngineSelector
    since: _duration_pb2.Duration
    limit: int
    late_request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, selector: _Optional[_Union[EngineSelector, _Mapping]] = ..., since: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., limit: _Optional[int] = ..., late_request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ListSuspectsResponse(_message.Message):
    __slots__ = ("suspects", "truncated", "unreadable_batches", "cleared_late_request_ids")
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_BATCHES_FIELD_NUMBER: _ClassVar[int]
    CLEARED_LATE_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    suspects: _containers.RepeatedCompositeFieldContainer[Suspect]
    truncated: bool
    unreadable_batches: int
    cleared_late_request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, suspects: _Optional[_Iterable[_Union[Suspect, _Mapping]]] = ..., truncated: bool = ..., unreadable_batches: _Optional[int] = ..., cleared_late_request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Suspect(_message.Message):
    __slots__ = ("key", "request_id", "trace_id", "reasons", "peer", "peer_key", "peer_request_id", "finish_reason", "output_tokens", "ended", "seen", "evidence", "rehearsal", "missing", "cleared")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PEER_KEY_FIELD_NUMBER: _ClassVar[int]
    PEER_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    REHEARSAL_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    request_id: str
    trace_id: str
    reasons: _containers.RepeatedScalarFieldContainer[_events_pb2.SuspectReason]
    peer: _common_pb2.Peer
    peer_key: _common_pb2.EngineKey
    peer_request_id: str
    finish_reason: str
    output_tokens: int
    ended: _timestamp_pb2.Timestamp
    seen: _timestamp_pb2.Timestamp
    evidence: _containers.RepeatedScalarFieldContainer[str]
    rehearsal: bool
    missing: str
    cleared: bool
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., request_id: _Optional[str] = ..., trace_id: _Optional[str] = ..., reasons: _Optional[_Iterable[_Union[_events_pb2.SuspectReason, str]]] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., peer_key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., peer_request_id: _Optional[str] = ..., finish_reason: _Optional[str] = ..., output_tokens: _Optional[int] = ..., ended: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., seen: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., evidence: _Optional[_Iterable[str]] = ..., rehearsal: bool = ..., missing: _Optional[str] = ..., cleared: bool = ...) -> None: ...

class DiagnoseRequest(_message.Message):
    __slots__ = ("selector", "since", "baseline", "at")
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    BASELINE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    selector: EngineSelector
    since: _duration_pb2.Duration
    baseline: _duration_pb2.Duration
    at: _timestamp_pb2.Timestamp
    def __init__(self, selector: _Optional[_Union[EngineSelector, _Mapping]] = ..., since: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., baseline: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Diagnosis(_message.Message):
    __slots__ = ("verdict", "sentence", "causes", "looked_at", "missing", "since", "baseline", "engines", "at", "harmless_late_reads")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    CAUSES_FIELD_NUMBER: _ClassVar[int]
    LOOKED_AT_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    BASELINE_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    HARMLESS_LATE_READS_FIELD_NUMBER: _ClassVar[int]
    verdict: DiagnosisVerdict
    sentence: str
    causes: _containers.RepeatedCompositeFieldContainer[DiagnosedCause]
    looked_at: _containers.RepeatedScalarFieldContainer[str]
    missing: _containers.RepeatedScalarFieldContainer[str]
    since: _duration_pb2.Duration
    baseline: _duration_pb2.Duration
    engines: int
    at: _timestamp_pb2.Timestamp
    harmless_late_reads: _containers.RepeatedCompositeFieldContainer[_common_pb2.EngineKey]
    def __init__(self, verdict: _Optional[_Union[DiagnosisVerdict, str]] = ..., sentence: _Optional[str] = ..., causes: _Optional[_Iterable[_Union[DiagnosedCause, _Mapping]]] = ..., looked_at: _Optional[_Iterable[str]] = ..., missing: _Optional[_Iterable[str]] = ..., since: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., baseline: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., engines: _Optional[int] = ..., at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., harmless_late_reads: _Optional[_Iterable[_Union[_common_pb2.EngineKey, _Mapping]]] = ...) -> None: ...

class DiagnosedCause(_message.Message):
    __slots__ = ("kind", "sentence", "engines", "peer", "requests", "seconds", "requests_failed", "harm", "confidence", "evidence", "alternatives", "commands", "agents", "until", "since", "effects", "peers")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FAILED_FIELD_NUMBER: _ClassVar[int]
    HARM_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    sentence: str
    engines: _containers.RepeatedCompositeFieldContainer[_common_pb2.EngineKey]
    peer: str
    requests: int
    seconds: float
    requests_failed: int
    harm: float
    confidence: DiagnosisConfidence
    evidence: _containers.RepeatedCompositeFieldContainer[DiagnosisEvidence]
    alternatives: _containers.RepeatedScalarFieldContainer[str]
    commands: _containers.RepeatedScalarFieldContainer[str]
    agents: int
    until: _timestamp_pb2.Timestamp
    since: _timestamp_pb2.Timestamp
    effects: _containers.RepeatedCompositeFieldContainer[DiagnosedCause]
    peers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kind: _Optional[str] = ..., sentence: _Optional[str] = ..., engines: _Optional[_Iterable[_Union[_common_pb2.EngineKey, _Mapping]]] = ..., peer: _Optional[str] = ..., requests: _Optional[int] = ..., seconds: _Optional[float] = ..., requests_failed: _Optional[int] = ..., harm: _Optional[float] = ..., confidence: _Optional[_Union[DiagnosisConfidence, str]] = ..., evidence: _Optional[_Iterable[_Union[DiagnosisEvidence, _Mapping]]] = ..., alternatives: _Optional[_Iterable[str]] = ..., commands: _Optional[_Iterable[str]] = ..., agents: _Optional[int] = ..., until: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., effects: _Optional[_Iterable[_Union[DiagnosedCause, _Mapping]]] = ..., peers: _Optional[_Iterable[str]] = ...) -> None: ...

class DiagnosisEvidence(_message.Message):
    __slots__ = ("fact", "before")
    FACT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    fact: str
    before: str
    def __init__(self, fact: _Optional[str] = ..., before: _Optional[str] = ...) -> None: ...

class WhatIfRequest(_message.Message):
    __slots__ = ("manifests_json", "only", "since", "selector", "reflexes")
    MANIFESTS_JSON_FIELD_NUMBER: _ClassVar[int]
    ONLY_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    REFLEXES_FIELD_NUMBER: _ClassVar[int]
    manifests_json: _containers.RepeatedScalarFieldContainer[str]
    only: bool
    since: _duration_pb2.Duration
    selector: EngineSelector
    reflexes: bool
    def __init__(self, manifests_json: _Optional[_Iterable[str]] = ..., only: bool = ..., since: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., selector: _Optional[_Union[EngineSelector, _Mapping]] = ..., reflexes: bool = ...) -> None: ...

class WhatIfResponse(_message.Message):
    __slots__ = ("engines", "entries", "truncated", "unreadable_batches")
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_BATCHES_FIELD_NUMBER: _ClassVar[int]
    engines: _containers.RepeatedCompositeFieldContainer[WhatIfEngine]
    entries: int
    truncated: bool
    unreadable_batches: int
    def __init__(self, engines: _Optional[_Iterable[_Union[WhatIfEngine, _Mapping]]] = ..., entries: _Optional[int] = ..., truncated: bool = ..., unreadable_batches: _Optional[int] = ...) -> None: ...

class WhatIfEngine(_message.Message):
    __slots__ = ("key", "policies", "was", "would", "peers", "notes", "reflexes")
    KEY_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    WAS_FIELD_NUMBER: _ClassVar[int]
    WOULD_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    REFLEXES_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    policies: _containers.RepeatedScalarFieldContainer[str]
    was: WhatIfCounts
    would: WhatIfCounts
    peers: _containers.RepeatedCompositeFieldContainer[WhatIfPeer]
    notes: _containers.RepeatedCompositeFieldContainer[WhatIfNote]
    reflexes: _containers.RepeatedCompositeFieldContainer[WhatIfReflex]
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., policies: _Optional[_Iterable[str]] = ..., was: _Optional[_Union[WhatIfCounts, _Mapping]] = ..., would: _Optional[_Union[WhatIfCounts, _Mapping]] = ..., peers: _Optional[_Iterable[_Union[WhatIfPeer, _Mapping]]] = ..., notes: _Optional[_Iterable[_Union[WhatIfNote, _Mapping]]] = ..., reflexes: _Optional[_Iterable[_Union[WhatIfReflex, _Mapping]]] = ...) -> None: ...

class WhatIfCounts(_message.Message):
    __slots__ = ("loads", "loaded", "recomputed", "failed", "unknown", "tokens_recomputed", "items_recomputed", "waits_cut", "not_tried", "waited", "by_reflex")
    LOADS_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    TOKENS_RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    ITEMS_RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    WAITS_CUT_FIELD_NUMBER: _ClassVar[int]
    NOT_TRIED_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    BY_REFLEX_FIELD_NUMBER: _ClassVar[int]
    loads: int
    loaded: int
    recomputed: int
    failed: int
    unknown: int
    tokens_recomputed: int
    items_recomputed: int
    waits_cut: int
    not_tried: int
    waited: _duration_pb2.Duration
    by_reflex: int
    def __init__(self, loads: _Optional[int] = ..., loaded: _Optional[int] = ..., recomputed: _Optional[int] = ..., failed: _Optional[int] = ..., unknown: _Optional[int] = ..., tokens_recomputed: _Optional[int] = ..., items_recomputed: _Optional[int] = ..., waits_cut: _Optional[int] = ..., not_tried: _Optional[int] = ..., waited: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., by_reflex: _Optional[int] = ...) -> None: ...

class WhatIfReflex(_message.Message):
    __slots__ = ("field", "acts", "asked", "times", "saved", "lost", "failed", "rescued", "tokens", "price_unknown", "peer_unknown", "limited")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    ACTS_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RESCUED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRICE_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    PEER_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    LIMITED_FIELD_NUMBER: _ClassVar[int]
    field: str
    acts: bool
    asked: int
    times: int
    saved: _duration_pb2.Duration
    lost: _duration_pb2.Duration
    failed: int
    rescued: int
    tokens: int
    price_unknown: int
    peer_unknown: int
    limited: int
    def __init__(self, field: _Optional[str] = ..., acts: bool = ..., asked: _Optional[int] = ..., times: _Optional[int] = ..., saved: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., lost: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., failed: _Optional[int] = ..., rescued: _Optional[int] = ..., tokens: _Optional[int] = ..., price_unknown: _Optional[int] = ..., peer_unknown: _Optional[int] = ..., limited: _Optional[int] = ...) -> None: ...

class WhatIfPeer(_message.Message):
    __slots__ = ("address", "was_times", "was", "would_times", "would")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WAS_TIMES_FIELD_NUMBER: _ClassVar[int]
    WAS_FIELD_NUMBER: _ClassVar[int]
    WOULD_TIMES_FIELD_NUMBER: _ClassVar[int]
    WOULD_FIELD_NUMBER: _ClassVar[int]
    address: str
    was_times: int
    was: _duration_pb2.Duration
    would_times: int
    would: _duration_pb2.Duration
    def __init__(self, address: _Optional[str] = ..., was_times: _Optional[int] = ..., was: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., would_times: _Optional[int] = ..., would: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WhatIfNote(_message.Message):
    __slots__ = ("loads", "text")
    LOADS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    loads: int
    text: str
    def __init__(self, loads: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class GetBillRequest(_message.Message):
    __slots__ = ("since", "selector")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    since: _duration_pb2.Duration
    selector: EngineSelector
    def __init__(self, since: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., selector: _Optional[_Union[EngineSelector, _Mapping]] = ...) -> None: ...

class Bill(_message.Message):
    __slots__ = ("lines", "total", "prices", "entries", "truncated", "unreadable_batches", "oldest", "log_begins")
    LINES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    PRICES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_BATCHES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    LOG_BEGINS_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedCompositeFieldContainer[BillLine]
    total: BillCosts
    prices: _containers.RepeatedCompositeFieldContainer[BillPrice]
    entries: int
    truncated: bool
    unreadable_batches: int
    oldest: _timestamp_pb2.Timestamp
    log_begins: _timestamp_pb2.Timestamp
    def __init__(self, lines: _Optional[_Iterable[_Union[BillLine, _Mapping]]] = ..., total: _Optional[_Union[BillCosts, _Mapping]] = ..., prices: _Optional[_Iterable[_Union[BillPrice, _Mapping]]] = ..., entries: _Optional[int] = ..., truncated: bool = ..., unreadable_batches: _Optional[int] = ..., oldest: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., log_begins: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class BillLine(_message.Message):
    __slots__ = ("key", "peer", "channel", "policies", "rehearsal", "costs", "summed")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    REHEARSAL_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    SUMMED_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    peer: str
    channel: _common_pb2.Channel
    policies: _containers.RepeatedScalarFieldContainer[str]
    rehearsal: bool
    costs: BillCosts
    summed: int
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., peer: _Optional[str] = ..., channel: _Optional[_Union[_common_pb2.Channel, str]] = ..., policies: _Optional[_Iterable[str]] = ..., rehearsal: bool = ..., costs: _Optional[_Union[BillCosts, _Mapping]] = ..., summed: _Optional[int] = ...) -> None: ...

class BillCosts(_message.Message):
    __slots__ = ("recomputed", "failed", "tokens_recomputed", "items_recomputed", "tokens_lost", "tokens_unloaded", "prefill", "tokens_unpriced", "recompute", "waits", "waited", "waits_in_vain", "waited_in_vain")
    RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    ITEMS_RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_LOST_FIELD_NUMBER: _ClassVar[int]
    TOKENS_UNLOADED_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_UNPRICED_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    WAITS_IN_VAIN_FIELD_NUMBER: _ClassVar[int]
    WAITED_IN_VAIN_FIELD_NUMBER: _ClassVar[int]
    recomputed: int
    failed: int
    tokens_recomputed: int
    items_recomputed: int
    tokens_lost: int
    tokens_unloaded: int
    prefill: _duration_pb2.Duration
    tokens_unpriced: int
    recompute: _duration_pb2.Duration
    waits: int
    waited: _duration_pb2.Duration
    waits_in_vain: int
    waited_in_vain: _duration_pb2.Duration
    def __init__(self, recomputed: _Optional[int] = ..., failed: _Optional[int] = ..., tokens_recomputed: _Optional[int] = ..., items_recomputed: _Optional[int] = ..., tokens_lost: _Optional[int] = ..., tokens_unloaded: _Optional[int] = ..., prefill: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., tokens_unpriced: _Optional[int] = ..., recompute: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., waits: _Optional[int] = ..., waited: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., waits_in_vain: _Optional[int] = ..., waited_in_vain: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class BillPrice(_message.Message):
    __slots__ = ("key", "requests", "tokens", "prefill")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    requests: int
    tokens: int
    prefill: _duration_pb2.Duration
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., requests: _Optional[int] = ..., tokens: _Optional[int] = ..., prefill: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GetStacksRequest(_message.Message):
    __slots__ = ("key", "author", "reason")
    KEY_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    author: str
    reason: str
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., author: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class EngineStacks(_message.Message):
    __slots__ = ("key", "processes")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    processes: _containers.RepeatedCompositeFieldContainer[_policy_pb2.StackDump]
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., processes: _Optional[_Iterable[_Union[_policy_pb2.StackDump, _Mapping]]] = ...) -> None: ...
