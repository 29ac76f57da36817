"""Four months of a model: it learns, rejects, discovers, renames, forgets a person, and a server follows it."""

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from urllib.request import Request, urlopen

import numpy as np

import ipal


def main(folder: str) -> dict[str, object]:
    """What each month brought."""
    graph = ipal.graph_from(ipal.load_dataset("digits"))
    truth = np.array([f"digit {digit}" for digit in graph.y])
    taught, known = np.random.default_rng(0).random(len(truth)) < 0.6, graph.y < 6  # numbers are of those not taught
    first = replace(graph, y=truth, train_mask=taught & known)
    # Month 1: six classes are known. A server answers with what was learned.
    model, file = ipal.Analytic().partial_fit(first), f"{folder}/model.safetensors"
    model.save(file)
    token, command = "a-token-for-an-example", [sys.executable, "-m", "ipal", "serve", file, "--port=0"]
    environment, quiet = os.environ | {"IPAL_TOKEN": token}, subprocess.DEVNULL
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=quiet, text=True) as server:
        (address,) = re.findall(r"http\S+", server.stdout.readline() if server.stdout else "")
        # Month 2: nodes of classes that have no name yet are rejected. They lie in groups.
        rejected = np.array([label is None for label in model.predict(graph, reject=0.05)])
        shares = {"known lost": rejected[known & ~taught].mean(), "unknown found": rejected[~known].mean()}
        groups = [group for group in ipal.discover(model, graph) if group.size > 50]
        found: dict[str, object] = {**shares, "groups": [group.size for group in groups]}
        # Month 3: the groups are learned as they are. Somebody looks at the middle of each, and names it.
        label = np.full(len(truth), "nothing yet", dtype=object)
        for number, group in enumerate(groups):
            label[group.nodes] = f"group {number}"
        model.partial_fit(second := replace(graph, y=label.astype(str), train_mask=taught & (label != "nothing yet")))
        for number, group in enumerate(groups):
            label[group.nodes] = name = f"{truth[group.nodes[0]]} ({number})"
            ipal.rename_class(model, f"group {number}", name)
        names = np.array([name.split(" (")[0] for name in model.predict(graph)])
        found["accuracy"] = (names == truth)[~taught].mean()
        # Month 4: a person behind three nodes leaves, and the server takes the new model. Both graphs are needed.
        person = np.isin(np.arange(len(truth)), np.flatnonzero(first.train_mask)[:3])
        both = [first, replace(second, y=label.astype(str))]
        ipal.forget_rows(model, [replace(one, forget_mask=person & np.asarray(one.train_mask)) for one in both])
        model.save(file)
        asked = Request(f"{address}/reload", b"", {"Authorization": f"Bearer {token}"})
        found |= {"version": json.load(urlopen(asked))["version"], "history": [one["what"] for one in model.history_]}
        server.terminate()
    print(*(f"{key}: {one:.1%}" if isinstance(one, float) else f"{key}: {one}" for key, one in found.items()), sep="\n")
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(place)
