"""The merge of policy sources: who owns a name, what a refused manifest keeps, what waits."""

from __future__ import annotations

import pytest
from penstock.agent.policy.manifest import Manifest, check_manifest
from penstock.agent.policy.sources import source_sets
from penstock.agent.policy.sources.follower import SECOND_LOOK_SECONDS, SecondLook
from penstock.agent.policy.sources.interface import SourceItem, SourceSet
from penstock.agent.policy.sources.source_sets import (
    CheckedSet,
    SourceKey,
    check_set,
    merge_sets,
    read_items,
)
from penstock.agent.policy.sources.source_spec import parse_sources
from penstock.agent.policy.store import OwnedManifest, StoredPolicy

from tests.support.policy.policies import NOW, action, document

ONE, TWO, FILES = (
    SourceKey("nats://a:1/p", "nats"),
    SourceKey("nats://b:1/p", "nats"),
    SourceKey("file:/p", "file"),
)


def _owned(name: str, owner: str) -> OwnedManifest:
    return OwnedManifest(check_manifest(document(name, kvLoadFailure=action("auto"))), owner)


def _stored(name: str, owner: str) -> StoredPolicy:
    return StoredPolicy(_owned(name, owner).manifest, 1, owner, owner, 0)


def _set(key: SourceKey, *names: str, refused: tuple[str, ...] = ()) -> CheckedSet:
    return CheckedSet({name: _owned(name, key.name) for name in names}, dict.fromkeys(refused, "no"))


def _owners(policies: tuple[OwnedManifest, ...]) -> dict[str, str]:
    return {each.manifest.name: each.owner for each in policies}


def test_the_first_source_of_a_name_holds() -> None:
    """The other one is refused at its source, with a sentence."""
    merged = merge_sets([ONE, TWO], {ONE.name: _set(ONE, "a", "b"), TWO.name: _set(TWO, "b", "c")}, ())
    assert _owners(merged.policies) == {"a": ONE.name, "b": ONE.name, "c": TWO.name}
    assert merged.accepted == {ONE.name: 2, TWO.name: 1}
    assert merged.refused[ONE.name] == {}
    assert merged.refused[TWO.name]["b"].startswith("nats://a:1/p has a policy 'b' and comes first")


def test_a_source_that_is_away_keeps_what_the_store_has_of_it() -> None:
    """Another source's set removes only its own names."""
    present = [_stored("a", ONE.name), _stored("b", TWO.name), _stored("mine", "imperative")]
    merged = merge_sets([ONE, TWO], {TWO.name: _set(TWO)}, present)
    assert _owners(merged.policies) == {"a": ONE.name}


def test_a_refused_manifest_keeps_the_last_good_one() -> None:
    """Of its name and its source only."""
    present = [_stored("a", ONE.name), _stored("b", TWO.name)]
    merged = merge_sets([ONE], {ONE.name: _set(ONE, refused=("a", "b"))}, present)
    assert _owners(merged.policies) == {"a": ONE.name}
    assert set(merged.refused[ONE.name]) == {"a", "b"}


def test_files_own_what_any_file_brought() -> None:
    """The owner names the file, not the path of the source; a file that moved to another source moves at once."""
    other = SourceKey("file:/q", "file")
    present = [_stored("a", "file:a.yaml"), _stored("b", "file:b.yaml")]
    merged = merge_sets([FILES, other], {other.name: CheckedSet({"b": _owned("b", "file:q.yaml")})}, present)
    assert _owners(merged.policies) == {"a": "file:a.yaml", "b": "file:q.yaml"}
    assert not any(merged.refused.values())


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        (SourceItem(refusal="it is not YAML"), "it is not YAML"),
        (SourceItem({"kind": "Pod"}), "apiVersion is missing"),
        (SourceItem(document("b")), "metadata.name is 'b', but its place is 'a'"),
        (SourceItem("text"), "write one object"),
    ],
)
def test_what_a_source_brings_is_checked(item: SourceItem, sentence: str) -> None:
    """Each manifest by itself; a good one beside it is in force."""
    good = SourceItem({**document("good"), "status": {"generation": 3}})
    read = read_items(SourceSet({"a": item, "good": good}), {})
    checked = check_set(read, "nats://a:1/p", (), NOW)
    assert set(checked.policies) == {"good"}
    assert sentence in checked.refused["a"]


def test_a_manifest_is_validated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again while it is as it was; again at another revision, or with another content."""
    validated: list[object] = []

    def counted(document: object) -> Manifest:
        validated.append(document)
        return check_manifest(document)

    monkeypatch.setattr(source_sets, "check_manifest", counted)
    items = {"a": SourceItem(document("a", deferral={"maxStartWait": "1s"}), "1"), "b": SourceItem({}, "2")}
    before = read_items(SourceSet(items), {})
    for change in ({}, {"a": SourceItem(document("a", deferral={"maxStartWait": "1s"}), "1")}):
        assert read_items(SourceSet(items | change), before) == before
    assert len(validated) == 2
    after = read_items(
        SourceSet(items | {"a": SourceItem(document("a", deferral={"maxStartWait": "2s"}), "1")}), before
    )
    assert len(validated) == 3
    assert after["a"].manifest != before["a"].manifest


def test_a_manifest_that_waits_keeps_the_last_good_one() -> None:
    """It is not refused, and it is not withdrawn."""
    read = read_items(SourceSet({"a": SourceItem(waits=True), "b": SourceItem(waits=True)}), {})
    checked = check_set(read, ONE.name, (), NOW)
    assert checked.names == checked.waiting == {"a", "b"}
    merged = merge_sets([ONE], {ONE.name: checked}, [_stored("a", ONE.name), _stored("c", ONE.name)])
    assert _owners(merged.policies) == {"a": ONE.name}
    assert merged.refused[ONE.name] == {}


def test_an_empty_set_needs_a_second_look() -> None:
    """At least ten seconds later; a broken connection begins anew."""
    look = SecondLook()
    assert look.wait(100.0) == SECOND_LOOK_SECONDS
    assert look.wait(104.0) == 6.0
    look.reset()
    assert look.wait(109.0) == SECOND_LOOK_SECONDS
    assert look.wait(119.0) == 0
    assert look.wait(120.0) == SECOND_LOOK_SECONDS


def test_sources_are_parsed() -> None:
    """Commas are between sources and between the servers of one; a password is in no name."""
    found = parse_sources("file:/etc/p,nats://me:secret@a:4222,b:4222/policies,kubernetes:ns,tls://c:4222/p")
    assert [each.name for each in found] == [
        "file:/etc/p",
        "nats://a:4222,b:4222/policies",
        "kubernetes:ns",
        "tls://c:4222/p",
    ]
    assert (found[1].user, found[1].password) == ("me", "secret")
    assert found[1].servers == ("nats://a:4222", "nats://b:4222")
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    "text", ["nats://a/policies", "file:", "kubernetes:A", "etcd://a:1/b", "nats://a:1/"]
)
def test_a_wrong_source_is_refused(text: str) -> None:
    """With what was expected."""
    with pytest.raises(ValueError, match="expected file:PATH"):
        parse_sources(text)


def test_one_source_comes_once() -> None:
    """Twice is a mistake."""
    with pytest.raises(ValueError, match="comes 2 times"):
        parse_sources("file:/p,file:/p")
