"""POST /explain: the same bodies and limits as a prediction, one node, and options in the address."""

from typing import Any

import pytest

from ipal.data.datasets import Dataset
from ipal.deploy.serving.bodies import JSON, json_body
from ipal.estimator.explain import explain
from ipal.estimator.model import Model
from tests.deploy.conftest import Client
from tests.deploy.support import BODIES, refused


def ask(client: Any, body: bytes, kind: str = JSON, query: str = "") -> Any:
    return client.post(f"/explain{query}", content=body, headers={"content-type": kind})


@pytest.mark.parametrize("kind", BODIES)
def test_a_node_is_explained_as_in_this_process(client: Client, known: Model, tiny: Dataset, kind: str) -> None:
    expected = explain(known, tiny.graph, 3)
    local = client()
    version = {"version": local.get("/memory").json()["version"]}
    assert ask(local, BODIES[kind](tiny.graph, [3]), kind).json() == version | expected.as_plain_data()
    other = next(label for label in known.labels if label not in (expected.predicted, expected.against))
    found = ask(local, BODIES[kind](tiny.graph, [3]), kind, f"?against={other}&top=2").json()
    assert found == version | explain(known, tiny.graph, 3, against=other).as_plain_data(2)


@pytest.mark.parametrize(
    ("nodes", "query", "words"),
    [
        (None, "", "of one node"),
        ([3], "?against=zebra", "Class zebra was never learned"),
        ([3], "?top=0", "'top' in the address: Input should be greater than"),
        ([3], "?agianst=1", "'agianst' in the address: Extra inputs are not permitted (there are against, top)"),
    ],
)
def test_what_cannot_be_explained_is_refused(
    nodes: list[int] | None, query: str, words: str, client: Client, tiny: Dataset
) -> None:
    refused(ask(client(), json_body(tiny.graph, nodes), query=query), 422, words)


@pytest.mark.parametrize("option", [{"reject": 0.05}, {"coverage": 0.9}, {"probabilities": True}])
def test_options_of_predictions_are_refused(client: Client, tiny: Dataset, option: dict[str, Any]) -> None:
    refused(ask(client(), json_body(tiny.graph, [3], **option)), 422, "of predictions")


def test_limits_and_tokens_are_those_of_predictions(client: Client, tiny: Dataset) -> None:
    refused(ask(client(), b"x" * 300_000), 413, "larger than")
    refused(ask(client(token="secret"), json_body(tiny.graph, [3])), 401, "Authorization")
    refused(client().get("/explain"), 405, "/explain")
