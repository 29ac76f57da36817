"""Two hospitals that may not share a patient learn apart, exchange sums, and have the model of both.

Run it with `python examples/two_sites.py`.
"""

import tempfile
from pathlib import Path

import numpy as np
from torch_geometric.data import Data

import ipal
from ipal.audit import audit

GRAPH = "synthetic:nodes=6000,classes=6,features=32,seed=3"


def main() -> dict[str, float]:
    """How good each model is, how far the merged one is from one that learned in one place, what was exchanged."""
    dataset = ipal.load_dataset(GRAPH)
    diagnosis, random = dataset.y, np.random.default_rng(0)
    tested = random.random(len(diagnosis)) < 0.2
    # The first hospital has never seen diagnosis 5, the second never diagnosis 0; they share the other four.
    first = np.where(diagnosis == 0, True, np.where(diagnosis == 5, False, random.random(len(diagnosis)) < 0.5))

    def patients(which: np.ndarray) -> Data:
        nodes = np.flatnonzero(which)
        graph = dataset.graph.induced(nodes)  # without the edges that lead to anybody else
        return Data(x=graph.x, edge_index=graph.edges, y=diagnosis[nodes])

    def model() -> ipal.Analytic:
        # Agreed on beforehand: with equal settings and seed a patient becomes the same row of numbers everywhere.
        return ipal.Analytic(width=256, steps=2, ridge=0.01)

    here, there = patients(first & ~tested), patients(~first & ~tested)
    with tempfile.TemporaryDirectory() as folder:
        parcel = Path(folder) / "second.safetensors"  # all that travels
        model().partial_fit(there).save(parcel)
        size, received = parcel.stat().st_size, ipal.load(parcel)
    alone = model().partial_fit(here)
    merged = ipal.merge_models(alone, received)
    together = model().partial_fit(here).partial_fit(there)  # what no hospital could do: only to compare

    asked, found = patients(tested), {}
    models = {"first alone": alone, "second alone": received, "merged": merged, "in one place": together}
    for name, one in models.items():
        found[name] = float((one.predict(asked) == asked.y).mean())
        print(f"{name:12}  {len(one.classes_)} diagnoses  accuracy {found[name]:.1%}")
    ours, theirs = merged.decision_function(asked), together.decision_function(asked)
    found["difference"] = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    found["bytes"], found["flagged"] = size, len(audit(received)["flagged"])
    print(f"\nlargest difference between the scores of the last two, relative: {found['difference']:g}")
    print(f"exchanged: {size / 1e6:.1f} MB of sums over {len(there.y)} patients")
    print(f"diagnoses with so few patients that their sums would give them away: {found['flagged']}")
    return found


if __name__ == "__main__":
    main()
