"""A taxonomy that grows: each year new topics arrive, and the authors who taught the earlier ones are not kept.

Run it with `python examples/growing_taxonomy.py` on Coauthor CS, which is looked for under IPAL_DATA; add
`--graph digits` for a graph that ships with the package.
"""

import argparse
import sys

import numpy as np
from torch_geometric.data import Data

import ipal


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Accuracy of each model on all topics, when the last of them have arrived."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", default="cs", help="one of `ipal list datasets`, or an .npz file")
    try:
        dataset = ipal.load_dataset(parser.parse_args(arguments).graph)
    except ipal.IpalError as error:  # one sentence that says what to do
        sys.exit(str(error))
    topics = np.array([f"topic {number:02}" for number in dataset.y])  # labels may be strings
    taught = np.random.default_rng(0).random(len(topics)) < 0.6  # the others are asked about

    def part(chosen: list[str]) -> Data:
        nodes = np.flatnonzero(np.isin(topics, chosen))
        graph = dataset.graph.induced(nodes)
        return Data(x=graph.x, edge_index=graph.edges, y=topics[nodes], train_mask=taught[nodes])

    models = {"IPAL": ipal.IPAL(calibration=0), "no memory": ipal.Bare(calibration=0)}  # only labels are asked for
    print(f"{dataset.graph.num_nodes} nodes of {dataset.name}; accuracy on all topics so far, in the graph so far\n")
    print("year  new topics  known  " + "  ".join(f"{name:>9}" for name in models))
    known: list[str] = []
    for year, new in enumerate(years(sorted(set(topics))), start=1):
        known += new
        everyone = part(known)
        asked = ~everyone.train_mask
        scores = {}
        for name, model in models.items():
            model.partial_fit(part(new))  # this year's authors only: no author of an earlier year is looked at
            scores[name] = float((model.predict(everyone) == everyone.y)[asked].mean())
        print(f"{year:4}  {len(new):10}  {len(known):5}  " + "  ".join(f"{score:9.1%}" for score in scores.values()))
    print("\nWhat IPAL keeps of all those years:")
    for item in models["IPAL"].memory_report()["items"]:
        print(f"{item['bytes'] / 1000:10.1f} kB  {item['what']}")
    return scores


def years(topics: list[str]) -> list[list[str]]:
    """A third of the topics in the first year, then two a year."""
    first = len(topics) // 3
    return [topics[:first], *(topics[place : place + 2] for place in range(first, len(topics), 2))]


if __name__ == "__main__":
    main()
