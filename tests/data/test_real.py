"""The real graphs, where they are here."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from ipal.data.datasets import catalog, load

REAL = {
    "cs": (18_333, 163_788, 6_805, 15),
    "physics": (34_493, 495_924, 8_415, 5),
    "computers": (13_752, 491_722, 767, 10),
    "photo": (7_650, 238_162, 745, 8),
    "dblp": (17_716, 105_734, 1_639, 4),
    "cora-ml": (2_995, 16_316, 2_879, 7),
    "corafull-proxy": (19_793, 126_842, 256, 70),
}


@pytest.mark.parametrize("name", REAL)
def test_a_real_graph_has_the_published_size(name: str, real_data: Path) -> None:
    if not (real_data / catalog.CATALOG[name].path).exists():
        pytest.skip(f"{name} is not here")
    dataset = load(name, real_data)
    graph = dataset.graph
    assert (graph.num_nodes, graph.edges.shape[1], graph.num_features, dataset.num_classes) == REAL[name]
    if dataset.split is not None:
        assert sum(dataset.split) == dataset.num_classes


def test_a_proxy_says_what_it_is_and_that_its_features_look_beyond_the_task(real_data: Path) -> None:
    dataset = load("corafull-proxy", real_data)
    assert dataset.beyond_task
    assert "not CoraFull-CL results" in dataset.remark


def test_cs_is_what_pytorch_geometric_reads(real_data: Path) -> None:
    from torch_geometric.io import read_npz

    theirs = read_npz(str(real_data / catalog.CATALOG["cs"].path))
    ours = load("cs", real_data)
    rows, columns = (part.numpy() for part in theirs.x.nonzero(as_tuple=True))
    values = theirs.x[rows, columns].numpy()
    assert isinstance(ours.graph.x, sp.csr_array)
    assert abs(ours.graph.x - sp.csr_array((values, (rows, columns)), shape=theirs.x.shape)).max() == 0
    n = ours.graph.num_nodes
    keys = [edges[0] * n + edges[1] for edges in (ours.graph.edges, theirs.edge_index.numpy())]
    assert np.array_equal(np.sort(keys[0]), np.sort(keys[1]))
    assert np.array_equal(ours.y, theirs.y.numpy())
