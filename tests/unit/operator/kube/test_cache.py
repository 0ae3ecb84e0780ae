"""The cache of watched objects: whatever order they are learned of in, the newest is known and
each piece of news is reported once."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar_operator.engine.work_queue import Key
from magnetar_operator.kube.cache import (
    STALE_LISTS_MAX,
    ObjectCache,
    Shown,
    claim_slot,
    label_slot,
    owner_of,
    shown,
)
from magnetar_operator.metrics import OperatorMetrics


def topic_namespace(name: str, version: int, **metadata: Any) -> Shown:
    return shown(
        {
            "apiVersion": "magnetar.io/v1alpha1",
            "kind": "TopicNamespace",
            "metadata": {
                "name": name,
                "namespace": "shop",
                "uid": f"uid-{name}",
                "resourceVersion": str(version),
                "generation": 1,
                "managedFields": [{"manager": "kubectl"}],
                **metadata,
            },
            "spec": {"clusterRef": {"name": "main"}, "tenant": "acme", "namespace": "orders"},
        }
    )


def pod(name: str, version: int, labels: dict[str, str]) -> Shown:
    metadata = {
        "name": name,
        "namespace": "shop",
        "uid": name,
        "resourceVersion": str(version),
        "labels": labels,
    }
    return shown({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})


class Recorded:
    """A cache, and the news that it reported."""

    def __init__(self) -> None:
        self.news: list[tuple[str, int, bool]] = []
        self.cache = ObjectCache(
            lambda item, gone: self.news.append((item.name[1], item.version, gone))
        )

    def list(self, version: int, *items: Shown) -> bool:
        listing = self.cache.listing("TopicNamespace", "")
        if not self.cache.page(listing, version, [item.manifest for item in items]):
            return False
        self.cache.finish(listing)
        return True


def test_an_older_version_never_replaces_a_newer_one_and_a_repeated_one_is_no_news() -> None:
    recorded = Recorded()
    assert recorded.cache.put(topic_namespace("a", 5, generation=2))
    assert not recorded.cache.put(topic_namespace("a", 4))
    assert not recorded.cache.put(topic_namespace("a", 5, generation=2))
    found = recorded.cache.get("TopicNamespace", "shop", "a")
    assert found is not None
    assert found.manifest["metadata"]["generation"] == 2
    assert "managedFields" not in found.manifest["metadata"]
    assert recorded.news == [("a", 5, False)]


def test_a_new_status_is_known_but_no_news_while_every_change_of_a_child_is() -> None:
    recorded = Recorded()
    recorded.cache.put(topic_namespace("a", 1))
    assert recorded.cache.put(topic_namespace("a", 2))
    recorded.cache.put(topic_namespace("a", 3, annotations={"magnetar.io/paused": "true"}))
    recorded.cache.put(
        topic_namespace(
            "a",
            4,
            annotations={"magnetar.io/paused": "true"},
            deletionTimestamp="2026-01-01T00:00:00Z",
        )
    )
    assert [version for _, version, _ in recorded.news] == [1, 3, 4]
    recorded.cache.put(pod("p", 5, {"magnetar.io/cluster": "main"}))
    recorded.cache.put(pod("p", 6, {"magnetar.io/cluster": "main"}))
    assert [version for _, version, _ in recorded.news] == [1, 3, 4, 5, 6]


def test_someone_elses_change_within_the_answer_to_our_own_write_is_news() -> None:
    """The watch shows that change later, at a version that is already surpassed."""
    recorded = Recorded()
    recorded.cache.put(topic_namespace("a", 1))
    recorded.cache.put(topic_namespace("a", 9, generation=2))
    assert not recorded.cache.put(topic_namespace("a", 8, generation=2))
    assert recorded.news == [("a", 1, False), ("a", 9, False)]


def test_what_was_deleted_does_not_come_back_from_an_older_list_or_event() -> None:
    recorded = Recorded()
    recorded.cache.put(topic_namespace("a", 5))
    recorded.cache.remove(topic_namespace("a", 7))
    assert recorded.list(6, topic_namespace("a", 5))
    assert not recorded.cache.put(topic_namespace("a", 7))
    assert recorded.cache.get("TopicNamespace", "shop", "a") is None
    assert recorded.cache.put(topic_namespace("a", 8, uid="another"))
    assert not recorded.cache.remove(topic_namespace("a", 7)), "a late event of the predecessor"
    assert recorded.cache.count("TopicNamespace") == 1


def test_a_list_finds_what_the_watch_missed_and_spares_what_is_younger() -> None:
    recorded = Recorded()
    recorded.cache.put(topic_namespace("lost", 1))
    recorded.cache.put(topic_namespace("young", 20))
    assert recorded.list(10, topic_namespace("missed", 5))
    assert recorded.news[2:] == [("missed", 5, False), ("lost", 1, True)]
    assert {item.name[1] for item in recorded.cache.all("TopicNamespace")} == {"missed", "young"}


def test_an_older_list_is_refused_until_it_insists() -> None:
    """One stale answer is a lagging API server; the same again and again is a store that was put
    back from a backup."""
    recorded = Recorded()
    assert recorded.list(10, topic_namespace("a", 9))
    for _ in range(STALE_LISTS_MAX - 1):
        assert not recorded.list(4, topic_namespace("b", 3))
        assert recorded.cache.get("TopicNamespace", "shop", "a") is not None
    assert recorded.list(4, topic_namespace("b", 3))
    assert [item.name[1] for item in recorded.cache.all("TopicNamespace")] == ["b"]


def test_what_a_restored_api_server_does_not_have_is_reported_gone_once() -> None:
    """Its versions are lower than those that are known, so none of them can be compared."""
    recorded = Recorded()
    assert recorded.list(10, topic_namespace("a", 9), topic_namespace("b", 8))
    while not recorded.list(4, topic_namespace("b", 3)):
        pass
    assert recorded.news[2:] == [("b", 3, False), ("a", 9, True)]
    assert recorded.list(5, topic_namespace("b", 3))
    assert len(recorded.news) == 4


def test_indexes_follow_their_objects() -> None:
    recorded = Recorded()
    claim = claim_slot(("shop", "main"), "acme", "orders")
    recorded.cache.put(topic_namespace("a", 1))
    recorded.cache.put(topic_namespace("b", 2))
    assert [item.name[1] for item in recorded.cache.find("TopicNamespace", claim)] == ["a", "b"]
    recorded.cache.remove(topic_namespace("a", 3))
    assert [item.name[1] for item in recorded.cache.find("TopicNamespace", claim)] == ["b"]
    mine = label_slot("shop", "magnetar.io/cluster", "main")
    recorded.cache.put(pod("p", 4, {"magnetar.io/cluster": "main"}))
    assert len(recorded.cache.find("Pod", mine)) == 1
    recorded.cache.put(pod("p", 5, {"magnetar.io/cluster": "other"}))
    assert not recorded.cache.find("Pod", mine)
    recorded.cache.clear("Pod")
    assert recorded.cache.count("Pod") == 0


def test_news_of_a_child_concerns_its_owner() -> None:
    assert owner_of(topic_namespace("a", 1)) == Key("TopicNamespace", "shop", "a")
    assert owner_of(pod("p", 1, {"magnetar.io/cluster": "main"})) == Key(
        "BrokerCluster", "shop", "main"
    )
    driver = pod("d", 1, {"magnetar.io/cluster": "main", "magnetar.io/job": "prices"})
    assert owner_of(driver) == Key("DataJob", "shop", "prices")
    assert owner_of(pod("x", 1, {})) is None


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_in_whatever_order_a_history_is_received_its_end_is_known(data: st.DataObject) -> None:
    """Events shuffled, doubled and lost, lists of any moment in between: after one list of the
    end the cache is the end."""
    history: list[dict[str, int]] = [{}]
    for version in range(1, data.draw(st.integers(2, 12)) + 1):
        state = dict(history[-1])
        name = data.draw(st.sampled_from("abc"))
        if name in state and data.draw(st.booleans()):
            del state[name]
        else:
            state[name] = version
        history.append(state)
    recorded = Recorded()
    last = len(history) - 1
    for moment in data.draw(st.lists(st.integers(1, last), max_size=30)):
        before, after = history[moment - 1], history[moment]
        if data.draw(st.booleans()):
            recorded.list(
                moment, *(topic_namespace(name, version) for name, version in after.items())
            )
            continue
        changed = next(name for name in "abc" if before.get(name) != after.get(name))
        if changed in after:
            recorded.cache.put(topic_namespace(changed, moment))
        else:
            recorded.cache.remove(topic_namespace(changed, moment))
    while not recorded.list(
        last, *(topic_namespace(name, version) for name, version in history[last].items())
    ):
        pass
    assert {item.name[1]: item.version for item in recorded.cache.all("TopicNamespace")} == history[
        last
    ]


def test_resources_are_counted_by_how_they_stand_and_not_after_they_are_gone() -> None:
    """What the metric says is what the cache knows when asked: a status of its own moves an
    object, a deletion takes it away."""

    def with_ready(name: str, version: int, status: str, reason: str) -> Shown:
        manifest = topic_namespace(name, version).manifest
        conditions = [
            {"type": "Degraded", "status": "True", "reason": "Other"},
            {"type": "Ready", "status": status, "reason": reason},
        ]
        return shown({**manifest, "status": {"conditions": conditions}})

    cache, metrics = Recorded().cache, OperatorMetrics()
    metrics.count_resources(cache.standings)
    cache.put(topic_namespace("new", 1))
    cache.put(with_ready("one", 2, "False", "Conflict"))
    cache.put(with_ready("two", 3, "True", "AsDesired"))
    cache.put(pod("a", 4, {}))
    assert cache.standings() == {
        ("TopicNamespace", "", ""): 1,
        ("TopicNamespace", "False", "Conflict"): 1,
        ("TopicNamespace", "True", "AsDesired"): 1,
    }
    conflict = (
        b'magnetar_operator_resources{kind="TopicNamespace",ready="False",reason="Conflict"} 1.0'
    )
    assert conflict in metrics.render()
    cache.put(with_ready("one", 5, "True", "AsDesired"))
    cache.remove(with_ready("two", 6, "True", "AsDesired"))
    assert conflict not in metrics.render()
    assert cache.standings()["TopicNamespace", "True", "AsDesired"] == 1


def test_of_what_is_known_a_list_compares_versions_only() -> None:
    """A resync of ten thousand objects takes none of them apart; what is gone is still seen, and
    what is younger taken in."""
    recorded = Recorded()
    for name in ("a", "b", "c"):
        recorded.cache.put(topic_namespace(name, 5))
    before = recorded.cache.get("TopicNamespace", "shop", "a")
    recorded.news.clear()
    names_only = {"metadata": {"namespace": "shop", "name": "a", "resourceVersion": "5"}}
    listing = recorded.cache.listing("TopicNamespace", "")
    assert recorded.cache.page(
        listing, 9, [names_only, topic_namespace("b", 7, generation=2).manifest]
    )
    recorded.cache.finish(listing)
    assert recorded.cache.get("TopicNamespace", "shop", "a") is before
    assert recorded.news == [("b", 7, False), ("c", 5, True)]
    assert listing.missed == 2
