"""A graph in two files, one of nodes and one of edges; or in a folder that holds them."""

from pathlib import Path

from ipal.data.datasets.readers import RawGraph
from ipal.data.datasets.tables.assemble import Roles, assembled
from ipal.data.datasets.tables.files import pair_in, read_table
from ipal.errors import DataError


def read_tables(nodes: Path, edges: Path | None = None, roles: Roles | None = None) -> RawGraph:
    """Of a table of nodes and a table of edges; `nodes` alone is the folder of both."""
    if edges is None:
        pair = pair_in(nodes)
        if pair is None:
            raise FileNotFoundError(nodes)
        nodes, edges = pair
    roles = roles or Roles({})
    try:
        of_nodes = read_table(nodes, roles.of_nodes(nodes.name))
        return assembled(of_nodes, read_table(edges, roles.of_edges(edges.name)), roles)
    except FileNotFoundError as error:
        raise DataError(f"The table {error.filename} does not exist.") from error
