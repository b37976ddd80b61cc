"""A release that does not know a feature which is on refuses by name (SPEC META-5)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from deltamq.mq.errors import Unavailable
from deltamq.mq.meta.features import KNOWN_FEATURES, FeatureOn, FeaturesState, decide_upgrade, upgrade_of
from deltamq.mq.meta.fold import Meta, event_from_json, event_to_json
from deltamq.mq.meta.snapshot import MetaSnapshot

ON = FeatureOn(name="signed-names", says="names are signed")

#: The features of this release, all of which another release knows that lacks `signed-names`.
BEFORE = tuple(KNOWN_FEATURES)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(KNOWN_FEATURES, "signed-names", "names are signed")
    yield


def test_meta_05_a_feature_that_is_on_stops_a_release_that_does_not_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN_FEATURES, "signed-names", "names are signed")
    meta = Meta().apply_all([event_from_json(ON.kind, event_to_json(ON))])
    assert meta.features.on == {"signed-names": "names are signed"}
    snapshot = MetaSnapshot(meta=meta, previous=0, told={}).to_json()
    assert MetaSnapshot.from_json(snapshot).meta == meta
    # what is new may have any form: the release before cannot even read it
    newer = json.loads(snapshot) | {"topics": "signed"}
    monkeypatch.delitem(KNOWN_FEATURES, "signed-names")
    for what in (
        lambda: Meta().apply_all([ON]),
        lambda: MetaSnapshot.from_json(snapshot),
        lambda: MetaSnapshot.from_json(json.dumps(newer).encode()),
    ):
        with pytest.raises(Unavailable, match=r"uses the feature 'signed-names' \(names are signed\)") as refused:
            what()
        assert refused.value.code == "feature_unknown"


@pytest.mark.usefixtures("known")
def test_meta_05_a_feature_is_switched_on_when_every_process_knows_it() -> None:
    state = FeaturesState()
    mixed = {"http://a": (*BEFORE, "signed-names"), "http://b": BEFORE}
    assert upgrade_of(state, mixed).waiting == {"signed-names": ["http://b"]}
    assert [event.name for event in decide_upgrade(state, mixed)] == [*BEFORE]
    every = {"http://a": (*BEFORE, "signed-names", "more"), "http://b": (*BEFORE, "signed-names")}
    assert decide_upgrade(state, every) == (*decide_upgrade(state, mixed), ON)
    after = state.apply_all(decide_upgrade(state, every))
    assert decide_upgrade(after, every) == () and not upgrade_of(after, mixed).waiting
