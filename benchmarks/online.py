"""What a batch costs along an online stream: time and size of the model, early and late, and how they grow.

The exponent is the slope of log cost against log position, fitted to every batch: 0 is flat, 1 grows with the stream.
Learning a batch is timed (its graph is cut out, it is taken in); tests along the way are not.
"""

from collections.abc import Sequence

import numpy as np
from timing import begin, ipal_run, options

SMALL = "synthetic:nodes=300,classes=6"


def exponent(position: Sequence[float], cost: Sequence[float]) -> float:
    """Slope of log cost against log position."""
    slope: float = np.polyfit(np.log(position), np.log(cost), 1)[0]
    return slope


def main() -> None:
    parser = options("Cost of a batch along an online stream.", repeats=1)
    parser.add_argument("--dataset", default="cs", help="which graph (default cs)")
    parser.add_argument("--batch", type=int, default=50, help="training nodes of a batch")
    parser.add_argument("--methods", default="ipal,ncm,analytic", help="which methods, with commas")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the runs")
    chosen = parser.parse_args()
    begin(chosen.threads)
    dataset, batch = (chosen.dataset, chosen.batch) if chosen.size == "full" else (SMALL, 10)
    stream = f"protocol.stream={{name: online, batch: {batch}}}"
    print(f"{dataset}, batches of {batch}\n| method | batches | ms, first fifth | ms, last fifth | exponent | ", end="")
    print("model, first test | model, end | exponent | AAUC | AP |\n|---|---|---|---|---|---|---|---|---|---|")
    for method in chosen.methods.split(","):
        result = ipal_run(method, dataset, [stream, *chosen.set], chosen.threads)
        seconds = np.array(result["timing"]["seconds_per_batch"])
        fifth, points = max(1, len(seconds) // 5), result["along"]
        first, last = np.median(seconds[:fifth]) * 1000, np.median(seconds[-fifth:]) * 1000
        times = f"{len(seconds)} | {first:.2f} | {last:.2f} | {exponent(np.arange(len(seconds)) + 1, seconds):.3f}"
        sizes = f"{points['bytes'][0] / 1e6:.3f} MB | {points['bytes'][-1] / 1e6:.3f} MB"
        scores = f"{result['metrics']['area_under_accuracy']:.2f} | {result['average_performance']:.2f}"
        print(f"| {method} | {times} | {sizes} | {exponent(points['batch'], points['bytes']):.3f} | {scores} |")


if __name__ == "__main__":
    main()
