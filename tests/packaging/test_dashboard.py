"""packaging/grafana: the dashboard asks for metrics that there are, and is one that Grafana can import."""

import json
import re
from itertools import combinations
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.cluster_nodes import cluster_of
from tests.support.daemon import ROOT
from tests.support.http import ask
from tests.support.queue_client import QueueClient
from tests.support.waiting import until

DASHBOARD: Final[dict[str, Any]] = json.loads((ROOT / "packaging" / "grafana" / "kestreld.json").read_text())
PANELS: Final[list[dict[str, Any]]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES: Final[dict[str, dict[str, Any]]] = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
# What Prometheus adds to every series by itself.
OF_PROMETHEUS: Final = {"instance", "job"}


def queries() -> list[str]:
    targets = [target["expr"] for panel in PANELS for target in panel["targets"]]
    return targets + [each["query"]["query"] for each in VARIABLES.values() if each["type"] == "query"]


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The names on a /metrics page of a node in a cluster, and the labels of each."""
    folder = tmp_path_factory.mktemp("kestreld")
    with cluster_of(folder, 2, "listen.cache=127.0.0.1:0", admin="127.0.0.1:0") as (node, other):
        until(lambda: node.figures(other)["lag_usec"] != "-1", "a PONG")
        with QueueClient(node.port) as client:
            client.put("work", b"x")
        node("ADDJOB", "mail", "x", 0)
        page = ask(node, "/metrics").body.decode()
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return {sample.name: set(sample.labels) for sample in samples}


def test_every_metric_it_asks_for_is_on_the_page(series: dict[str, set[str]]) -> None:
    asked = {name for query in queries() for name in re.findall(r"\bkestrel_\w+", query)}
    assert len(asked) > 30
    assert asked - set(series) == set()


def test_every_label_it_asks_for_is_one_of_the_metric(series: dict[str, set[str]]) -> None:
    for query in queries():
        for name, labels in re.findall(r"\b(kestrel_\w+){([^}]*)}", query):
            assert set(re.findall(r"(\w+)=", labels)) <= series[name] | OF_PROMETHEUS, query
        for labels in re.findall(r" by \(([^)]*)\)", query):
            known = set().union(*(series[name] for name in re.findall(r"\bkestrel_\w+", query)))
            assert set(labels.split(", ")) <= known | OF_PROMETHEUS, query


def test_it_shows_every_metric_of_queues(series: dict[str, set[str]]) -> None:
    shown = " ".join(queries())
    # The age of the item fetched last is there for those who know it from Kestrel; what waits is seen by the oldest.
    metrics = {name for name in series if name.startswith("kestrel_queue_")}
    metrics -= {"kestrel_queue_mem_bytes", "kestrel_queue_age_seconds"}
    assert [name for name in sorted(metrics) if f"{name}{{" not in shown] == []


@pytest.mark.parametrize("kind", ["kestrel_cache_", "kestrel_jobs_"])
def test_it_shows_every_metric_of_the_cache_and_of_jobs(series: dict[str, set[str]], kind: str) -> None:
    shown = " ".join(queries())
    metrics = [name for name in series if name.startswith(kind)]
    assert metrics
    assert [name for name in metrics if f"{name}{{" not in shown] == []


def test_counters_are_shown_as_rates() -> None:
    for query in queries():
        for name in re.findall(r"\bkestrel_\w+_(?:total|bucket|sum|count)\b", query):
            assert re.search(rf"rate\({name}{{[^}}]*}}\[\$__rate_interval\]\)", query), query


def test_it_can_be_imported() -> None:
    assert (DASHBOARD["title"], DASHBOARD["uid"]) == ("kestreld", "kestreld")
    assert "id" not in DASHBOARD  # Grafana gives it one
    assert next(iter(VARIABLES)) == "datasource"
    assert (VARIABLES["datasource"]["type"], VARIABLES["datasource"]["query"]) == ("datasource", "prometheus")
    for asking in [*PANELS, *(target for panel in PANELS for target in panel["targets"])]:
        assert asking["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    used = {name for query in queries() for name in re.findall(r"\$(\w+)", query)} - {"__rate_interval"}
    assert used == set(VARIABLES) - {"datasource"}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(panel["title"] and panel["targets"] for panel in PANELS)


def test_no_panel_covers_another() -> None:
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)
