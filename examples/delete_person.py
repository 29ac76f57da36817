"""A person asks to be deleted: two meanings of that, each checked against a model that never had the person.

Run it with `python examples/delete_person.py`.
"""

from dataclasses import replace

import numpy as np
from torch_geometric.data import Data

import ipal
from ipal.analysis.audit import Evidence, View, audit

PERSON = np.array([3, 250, 611, 1200])  # the nodes of one person: posts, devices, visits


def main() -> dict[str, dict[str, float]]:
    """For each model: how far it is from one that never had the person, and how many of their rows it holds."""
    dataset = ipal.load_dataset("synthetic:nodes=1500,classes=4,features=32,seed=5")
    label = np.array([f"kind {number}" for number in dataset.y])
    label[PERSON[0]] = "a rare kind"  # nobody else is of it: the model's sum of this kind is the person's own row
    gone = np.isin(np.arange(len(label)), PERSON)
    stays = np.flatnonzero(~gone)
    graph, rest = dataset.graph, dataset.graph.induced(stays)
    everything = Data(x=graph.x, edge_index=graph.edges, y=label, forget_mask=gone)
    unlabelled = Data(x=graph.x, edge_index=graph.edges, y=label, train_mask=~gone)
    without = Data(x=rest.x, edge_index=rest.edges, y=label[stays])

    def taught(data: Data) -> ipal.Learner:
        return ipal.Analytic(width=256, steps=2, ridge=0.01).partial_fit(data)

    def difference(model: ipal.Learner, other: ipal.Learner) -> float:
        """Of the scores of all classes that the other knows, relative."""
        places = [list(model.classes_).index(one) for one in other.classes_]
        ours, theirs = model.decision_function(without)[:, places], other.decision_function(without)
        return float(np.abs(ours - theirs).max() / np.abs(theirs).max())

    # What to look for: the person's features, and what the model made of them in the graph as it was.
    own = replace(dataset, graph=graph.induced(PERSON), y=dataset.y[PERSON])
    evidence = Evidence(own, (View(graph, PERSON, own.y, np.ones(len(PERSON), dtype=bool)),))
    models = {
        "before": taught(everything),
        "forget_rows": ipal.forget_rows(taught(everything), everything),  # no longer teaches, still a neighbour
        "forget_nodes": ipal.forget_nodes(taught(everything), everything),  # never there: neighbours are redone, too
    }
    found = {}
    print("              difference of the scores from a model that")
    print("              never learned from them   never saw them   rows of theirs found")
    for name, model in models.items():
        apart = [difference(model, taught(data)) for data in (unlabelled, without)]
        rows = sum(result["found"] for result in audit(model, evidence)["data"]["stored_rows"].values())
        found[name] = {"never taught by": apart[0], "never saw": apart[1], "rows": rows}
        print(f"{name:12}  {apart[0]:23.0e}   {apart[1]:14.0e}   {rows:20}")
    return found


if __name__ == "__main__":
    main()
