"""The real graphs, where they are here."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from ipal.config import run_config
from ipal.data.datasets import catalog, load
from ipal.runs import runner

REAL = {
    "cs": (18_333, 163_788, 6_805, 15),
    "physics": (34_493, 495_924, 8_415, 5),
    "computers": (13_752, 491_722, 767, 10),
    "photo": (7_650, 238_162, 745, 8),
    "dblp": (17_716, 105_734, 1_639, 4),
    "cora-ml": (2_995, 16_316, 2_879, 7),
    "cora": (2_708, 10_556, 1_433, 7),
    "citeseer": (3_327, 9_104, 3_703, 6),
    "pubmed": (19_717, 88_648, 500, 3),
    "flickr": (7_575, 479_476, 12_047, 9),
    "blogcatalog": (5_196, 343_486, 8_189, 6),
    "wiki": (2_405, 23_192, 4_973, 17),
    "actor": (7_600, 53_318, 932, 5),
    "chameleon": (890, 17_708, 2_325, 5),
    "corafull-proxy": (19_793, 126_842, 256, 70),
    "arxiv-structure": (169_343, 2_315_598, 384, 40),
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


def test_nodes_of_citeseer_that_the_source_leaves_unlabelled_are_in_no_task(real_data: Path) -> None:
    if not (real_data / catalog.CATALOG["citeseer"].path).exists():
        pytest.skip("citeseer is not here")
    dataset = load("citeseer", real_data)
    assert np.bincount(dataset.y[dataset.y >= 0]).tolist() == [249, 590, 668, 701, 596, 508]
    assert "no label in the source; 15 of 3327 nodes have no label" in dataset.remark
    stream = runner.resolve(run_config({"dataset": "citeseer", "method": "ncm"}), real_data).stream
    arrived = np.concatenate([stream.task(index).origin for index in range(len(stream))])
    assert sorted(arrived) == np.flatnonzero(dataset.y >= 0).tolist()


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
