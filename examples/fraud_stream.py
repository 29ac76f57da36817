"""Fraud that changes: most accounts are honest, and each month brings a rarer kind of fraud that nobody knew.

Run it with `python examples/fraud_stream.py`.
"""

import numpy as np
from torch_geometric.data import Data

import ipal

GRAPH = "synthetic:nodes=8000,classes=5,unevenness=3,features=16,degree=6,homophily=0.7,seed=1"
KINDS = np.array(["honest", "fraud A", "fraud B", "fraud C", "fraud D"])
SURE = 0.9  # an account whose likeliest kind is less likely than this is set aside for a person


def main() -> dict[str, dict[str, float]]:
    """For each model: its accuracy after the last month, and its recall of each kind."""
    dataset = ipal.load_dataset(GRAPH)
    rank = np.argsort(np.argsort(-np.bincount(dataset.y)))[dataset.y]  # 0 for the commonest kind, 4 for the rarest
    random = np.random.default_rng(0)
    # Honest accounts open in every month, those of a fraud in the month in which it is invented.
    month = np.where(rank == 0, random.integers(1, len(KINDS), len(rank)), rank)
    labelled = random.random(len(rank)) < 0.5

    def accounts(which: np.ndarray) -> Data:
        nodes = np.flatnonzero(which)
        graph = dataset.graph.induced(nodes)
        return Data(x=graph.x, edge_index=graph.edges, y=KINDS[rank[nodes]], train_mask=labelled[nodes])

    models = {
        "EWC": ipal.EWC(train=ipal.TrainConfig(epochs=100)),
        # Every class counts the same in it, however rare, and an account as much as its neighbours: fraud hides there.
        "closed form": ipal.Analytic(width=256, steps=1, restart=0.5),
    }
    print(f"Set aside by the closed form (no kind is {SURE:.0%} likely), before the new fraud is learned:")
    for now in range(1, len(KINDS)):
        new = accounts(month == now)
        if now > 1:
            unsure = models["closed form"].predict_proba(new).max(axis=1) < SURE
            novel = new.y == KINDS[now]
            told = f"{unsure[novel].mean():3.0%} of {KINDS[now]}, {unsure[~novel].mean():.0%} of the rest"
            print(f"  month {now}: {told}")
        for model in models.values():
            model.partial_fit(new)  # this month's accounts only

    everyone = accounts(month > 0)
    asked, found = ~everyone.train_mask, {}
    for name, model in models.items():
        right = model.predict(everyone) == everyone.y
        recall = {str(kind): float(right[asked & (everyone.y == kind)].mean()) for kind in KINDS}
        found[name] = {"accuracy": float(right[asked].mean())} | {f"recall of {kind}": recall[kind] for kind in recall}
    print(f"\nAfter the last month  {'EWC':>11}  closed form")
    for what in found["EWC"]:
        print(f"{what:20}  {found['EWC'][what]:11.1%}  {found['closed form'][what]:11.1%}")
    return found


if __name__ == "__main__":
    main()
