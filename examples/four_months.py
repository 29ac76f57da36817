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
    first = replace(graph, y=truth, train_mask=graph.y < 6)
    # Month 1: six classes are known. A server answers with what was learned.
    model, file = ipal.Analytic().partial_fit(first), f"{folder}/model.safetensors"
    model.save(file)
    token, command = "a-token-for-an-example", [sys.executable, "-m", "ipal", "serve", file, "--port=0"]
    environment, quiet = os.environ | {"IPAL_TOKEN": token}, subprocess.DEVNULL
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=quiet, text=True) as server:
        (address,) = re.findall(r"http\S+", server.stdout.readline() if server.stdout else "")
        # Month 2: nodes of classes that have no name yet are rejected. They lie in groups.
        rejected = np.array([label is None for label in model.predict(graph, reject=0.05)])
        known = np.asarray(first.train_mask)
        found: dict[str, object] = {"known lost": rejected[known].mean(), "unknown found": rejected[~known].mean()}
        groups = [group for group in ipal.discover(model, graph) if group.size > 50]
        found["groups"] = [group.size for group in groups]
        # Month 3: the groups are learned as they are. Somebody looks at the middle of each, and names it.
        label = np.full(len(truth), "nothing yet", dtype=object)
        for number, group in enumerate(groups):
            label[group.nodes] = f"group {number}"
        model.partial_fit(replace(graph, y=label.astype(str), train_mask=label != "nothing yet"))
        for number, group in enumerate(groups):
            ipal.rename_class(model, f"group {number}", f"{truth[group.nodes[0]]} ({number})")
        names = np.array([name.split(" (")[0] for name in model.predict(graph)])
        found["accuracy"] = (names == truth).mean()
        # Month 4: a person behind three nodes leaves, and the server takes the new model.
        ipal.forget_rows(model, replace(first, forget_mask=np.isin(np.arange(len(truth)), [0, 10, 20])))
        model.save(file)
        asked = Request(f"{address}/reload", b"", {"Authorization": f"Bearer {token}"})
        found["version"] = json.load(urlopen(asked))["version"]
        found["history"] = [event["what"] for event in model.history_]
        server.terminate()
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print("\n".join(f"{name}: {value}" for name, value in main(place).items()))
