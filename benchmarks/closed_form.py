"""AP against seconds: one whole stream by the closed form, by IPAL and by Joint, each in a process of its own.

Learning, the closed form's ridge, and evaluation are timed; reading the graph and writing files are
not. IPAL and Joint have the settings of Table 1 (experiments/table1-DATASET.yaml).
"""

from timing import begin, ipal_run, options

TUNED = {
    "analytic": [],
    "ipal": ["train.epochs=10", "ipal.gamma=0.4", "encoder.kind=gcn", "encoder.hidden=128", "encoder.width=128"],
    "joint": ["train.epochs=200", "train.weight_decay=5e-4"],
}
SMALL = "synthetic:nodes=300,classes=6"
QUICK = {"analytic": ["analytic.width=64"]}
"""Of a small graph: many columns take as long there as on a large one."""


def settings(method: str, dataset: str) -> list[str]:
    """Of a run."""
    return QUICK.get(method, TUNED[method]) if dataset == SMALL else TUNED[method]


def main() -> None:
    parser = options("A whole stream by the closed form, IPAL and Joint.", repeats=1)
    parser.add_argument("--dataset", default="cs", help="which graph (default cs)")
    parser.add_argument("--methods", default=",".join(TUNED), help="which methods, with commas")
    chosen = parser.parse_args()
    begin(chosen.threads)
    dataset = chosen.dataset if chosen.size == "full" else SMALL
    print(
        f"{dataset}\n| method | AP | AF | seconds, fastest of {chosen.repeats} | peak memory | keeps | stores nodes |"
    )
    print("|---|---|---|---|---|---|---|")
    for method in chosen.methods.split(","):
        wanted = settings(method, dataset)
        rounds = [ipal_run(method, dataset, wanted, chosen.threads) for _ in range(chosen.repeats)]
        first, kept = rounds[0], rounds[0]["retained"]
        seconds = min(result["timing"]["total_seconds"] for result in rounds)
        scores = f"{first['average_performance']:.2f} | {first['average_forgetting']:.2f} | {seconds:.1f}"
        memory = f"{first['peak_memory_bytes'] / 1e9:.2f} GB | {kept['bytes'] / 1e6:.1f} MB"
        print(f"| {method} | {scores} | {memory} | {'yes' if kept['stores_exemplars'] else 'no'} |")


if __name__ == "__main__":
    main()
