"""A model of the closed form's time and memory at any size, from measured constants: the tables of docs/scale.md.

    python benchmarks/scale_model.py
    python benchmarks/scale_model.py communicate --processes 2 4

Functions from sizes and constants to seconds and bytes. The constants are those of one run on an H200 (50 million
nodes, docs/performance.md); other runs check them. `communicate` counts the bytes that processes really exchange over
loopback, against the model.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from ipal.backend.distributed import Team
from ipal.backend.propagated import BLOCK

GB = 1e9


@dataclass(frozen=True)
class Size:
    """Of a graph and of what is learned from it."""

    nodes: int
    edges: int
    """Directed ones."""
    features: int
    classes: int
    taught: float
    """Share of the nodes."""
    looks: int
    """How often all nodes are predicted."""
    steps: int = 2
    width: int = 2048
    """Columns."""


@dataclass(frozen=True)
class Constants:
    """Of one device, each for the part of the run that it names."""

    step: float
    """Seconds for a feature of an edge, of one step."""
    expansion: float
    """Seconds for a random feature of a node that is learned."""
    product: float
    """Seconds for an entry of a node's products."""
    look: float
    """Seconds for a random feature of a node that is predicted."""
    memory: float
    """Bytes of the device."""
    link: float
    """Bytes a second from one device to the others."""


HUGE = Size(50_000_000, 1_016_163_725, 64, 40, 0.6, looks=4)
HUGE_SECONDS = {"propagation": 6.26, "expansion": 5.65, "sums": 4.62, "evaluation": 12.71}
HUGE_BYTES = 82.9 * GB
"""Measured: benchmarks/large_graphs.py --graph huge --device cuda."""


def constants(size: Size, seconds: dict[str, float], memory: float, link: float) -> Constants:
    """From a run that was measured by parts."""
    taught = size.taught * size.nodes
    return Constants(
        seconds["propagation"] / (size.steps * size.edges * size.features),
        seconds["expansion"] / (taught * size.width),
        seconds["sums"] / (taught * size.width**2),
        seconds["evaluation"] / (size.looks * size.nodes * size.width),
        memory,
        link,
    )


def seconds(size: Size, speed: Constants, devices: int = 1) -> dict[str, float]:
    """By part: columns of the propagation, rows of the sums and of predictions are divided among devices."""
    taught = size.taught * size.nodes
    blocks = -(-size.features // BLOCK)
    busiest = -(-blocks // devices) / blocks
    return {
        "propagation": speed.step * size.steps * size.edges * size.features * busiest,
        "expansion": speed.expansion * taught * size.width / devices,
        "sums": speed.product * taught * size.width**2 / devices,
        "evaluation": speed.look * size.looks * size.nodes * size.width / devices,
        "exchange": exchanged(size, devices) / speed.link,
    }


def exchanged(size: Size, devices: int) -> float:
    """Bytes that a device sends: rings add up all rows and the sums."""
    rows, sums = 4 * size.nodes * size.features, 8 * size.width**2
    return ring(rows + 8 * size.nodes + sums, devices)


def ring(size: float, devices: int) -> float:
    """Bytes that each sends where a table of this size is added up over all: its parts go around twice."""
    return 2 * size * (devices - 1) / devices


def gathered(size: float, devices: int) -> float:
    """Bytes that each sends where every one has a part of a table, and all want the whole."""
    return size * (devices - 1) / devices


def device_bytes(size: Size, *, on_host: bool = False) -> float:
    """On each device, however many there are: features and rows, edges, and a block of columns with its copies.

    `on_host`: features and rows stay in main memory, and columns of them are moved.
    """
    block = (5 * 8 + 4) * size.nodes * min(BLOCK, size.features)
    rows = 0 if on_host else 2 * 4 * size.nodes * size.features
    return rows + 4 * size.edges + block + 4 * 8 * size.nodes


def host_bytes(size: Size) -> float:
    """Features, rows and edges in main memory."""
    return 2 * 4 * size.nodes * size.features + 4 * size.edges + 8 * size.nodes


H200 = constants(HUGE, HUGE_SECONDS, 141 * GB, 450 * GB)
"""NVLink between the GPUs of a machine: 900 GB/s in both directions together, as its maker says; not measured."""
GRAPHS = {
    "papers100M": Size(111_059_956, 3_231_371_744, 128, 172, 0.011, looks=1),
    "MAG240M": Size(244_160_499, 3_456_728_464, 768, 153, 0.005, looks=1),
    "10 billion edges": Size(500_000_000, 10_000_000_000, 128, 100, 0.1, looks=1),
}
CHECKED = {
    "100 million nodes": (Size(100_000_000, 2_032_000_000, 64, 40, 0.6, looks=4), 24.81),
    "reddit-shaped": (Size(232_965, 114_500_000, 602, 41, 0.6, looks=5), 0.43),
    "arxiv-structure": (Size(169_343, 2_315_598, 384, 40, 0.6, looks=5), 0.14),
}
"""Seconds of the propagation that were measured on the same device (docs/performance.md)."""


def table() -> Iterator[str]:
    parts = ("propagation", "expansion", "sums", "evaluation", "exchange", "whole")
    columns = ("graph", "devices", *parts, "each device", "host", "fits")
    yield f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"
    for name, size in GRAPHS.items():
        for devices in (1, 8, 64):
            taken = seconds(size, H200, devices)
            on_host = device_bytes(size) > H200.memory
            held = device_bytes(size, on_host=on_host)
            cells = [f"{value:.1f} s" for value in (*taken.values(), sum(taken.values()))]
            fits = "no" if held > H200.memory else "with features on the host" if on_host else "yes"
            cells += [f"{held / GB:.0f} GB", f"{host_bytes(size) / GB:.0f} GB", fits]
            yield f"| {name} | {devices} | {' | '.join(cells)} |"


# ---------------------------------------------------------------------- bytes that are exchanged


def loopback_bytes() -> int:
    """Sent over loopback so far."""
    (line,) = [line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:")]
    return int(line.split(":")[1].split()[8])


def process(rank: int, size: int, file: str, rows: int, width: int) -> None:
    """One of several: a gather and a sum, as a layer does them in a step; rank 0 counts."""
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
    team = Team(rank, size, rank)
    share, table = team.share(rows), torch.ones(rows, width)
    team.gathered(share.of(table), share)
    for what, work, model in (
        ("gather", lambda: team.gathered(share.of(table), share), gathered),
        ("sum", lambda: team.all_reduce(table), ring),
    ):
        team.barrier()
        before = loopback_bytes()
        work()
        team.barrier()
        if rank == 0:
            sent, expected = loopback_bytes() - before, size * model(4 * rows * width, size)
            print(f"| {what} | {size} | {expected / 1e6:.1f} | {sent / 1e6:.1f} | {sent / expected:.2f} |", flush=True)
    dist.destroy_process_group()


def communicate(processes: list[int], rows: int, width: int) -> None:
    print(f"A table of {rows:,} x {width}, {4 * rows * width / 1e6:.1f} MB; all processes together")
    print("| what | processes | model, MB | sent, MB | sent / model |\n|---|---|---|---|---|", flush=True)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for number in processes:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(process, (number, f"{folder}/store", rows, width), nprocs=number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["table", "communicate"], default="table")
    parser.add_argument("--processes", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--rows", type=int, default=100_000)
    chosen = parser.parse_args()
    if chosen.what == "communicate":
        communicate(chosen.processes, chosen.rows, 128)
        return
    print(f"Device memory, 50 million nodes: model {device_bytes(HUGE) / GB:.1f}, measured {HUGE_BYTES / GB:.1f} GB\n")
    print("| propagation of | model | measured | model / measured |\n|---|---|---|---|")
    for name, (size, taken) in CHECKED.items():
        model = seconds(size, H200)["propagation"]
        print(f"| {name} | {model:.2f} s | {taken:.2f} s | {model / taken:.1f} |")
    print()
    for line in table():
        print(line)


if __name__ == "__main__":
    main()
