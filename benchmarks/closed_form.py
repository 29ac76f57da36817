"""AP against seconds: one whole stream by the closed form, by IPAL and by Joint, each in a process of its own.

Learning, the closed form's choice of its settings, and evaluation are timed; reading the graph and writing files are
not. IPAL and Joint have the settings of Table 1 (experiments/table1-DATASET.yaml).
"""

import json
import subprocess
import sys
import tempfile
from typing import Any

from timing import begin, options

TUNED = {
    "analytic": [],
    "ipal": ["train.epochs=10", "ipal.gamma=0.4", "encoder.kind=gcn", "encoder.hidden=128", "encoder.width=128"],
    "joint": ["train.epochs=200", "train.weight_decay=5e-4"],
}
TINY = "synthetic:nodes=300,classes=6"
QUICK = {"analytic": ["analytic.expansion=64"]}
"""Of a tiny graph: a wide expansion takes as long there as on a large one."""


def run(method: str, dataset: str, threads: int, runs: str) -> dict[str, Any]:
    """The result of one `ipal run`."""
    chosen = QUICK.get(method, TUNED[method]) if dataset == TINY else TUNED[method]
    settings = [word for setting in chosen for word in ("--set", setting)]
    command = [sys.executable, "-m", "ipal", "run", "--dataset", dataset, "--method", method, "--json"]
    command += ["--threads", str(threads), "--runs", runs, *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = options("A whole stream by the closed form, IPAL and Joint.", repeats=1)
    parser.add_argument("--dataset", default="cs", help="which graph (default cs)")
    parser.add_argument("--methods", default=",".join(TUNED), help="which methods, with commas")
    chosen = parser.parse_args()
    begin(chosen.threads)
    dataset = chosen.dataset if chosen.size == "full" else TINY
    print(
        f"{dataset}\n| method | AP | AF | seconds, fastest of {chosen.repeats} | peak memory | keeps | stores nodes |"
    )
    print("|---|---|---|---|---|---|---|")
    for method in chosen.methods.split(","):
        rounds = []
        for _ in range(chosen.repeats):
            with tempfile.TemporaryDirectory() as runs:
                rounds.append(run(method, dataset, chosen.threads, runs))
        first, kept = rounds[0], rounds[0]["retained"]
        seconds = min(result["timing"]["total_seconds"] for result in rounds)
        scores = f"{first['average_performance']:.2f} | {first['average_forgetting']:.2f} | {seconds:.1f}"
        memory = f"{first['peak_memory_bytes'] / 1e9:.2f} GB | {kept['bytes'] / 1e6:.1f} MB"
        print(f"| {method} | {scores} | {memory} | {'yes' if kept['stores_exemplars'] else 'no'} |")


if __name__ == "__main__":
    main()
