"""`ipal serve` on loopback: how fast it answers, and whether it stands what it must.

latency   requests of 100 nodes of Coauthor CS, as .npz, sparse JSON and dense JSON; by IPAL and by the closed form
hostile   sound and hostile requests of all kinds (hostile/) at once: is every answer right or a declared refusal,
          is the server alive in the end, and is its memory flat

The server is a process of its own with one worker, asked for a token; clients are threads of this one.
"""

import argparse
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hostile
import numpy as np
import torch
from hostile import Sample, Target
from timing import begin, cs, describe, options

from ipal.config import ProtocolConfig, TrainConfig
from ipal.data.datasets import Dataset
from ipal.data.graph import Graph
from ipal.data.streams import TaskStream
from ipal.deploy.predict import neighbourhood, predict
from ipal.deploy.serving.bodies import JSON, NPZ, json_body, npz_body
from ipal.learners import IPAL, Analytic, Learner

NODES = 100
BODIES = 40
"""Different requests of each kind."""
MB = 2**20
TOKEN = "only-for-this-benchmark"
TRIES = 20
"""Of a request that is told to come back later."""
EARLY, LATE = "median of the second fifth", "median of the last fifth"
FLAT = 1.15
"""More than this times as much memory in the end as early on is no longer flat."""
ENOUGH = 200
"""Fewer requests say nothing about memory."""
WARM = 0.2
"""Share of the hostile requests after which the server's memory is its usual one."""


# ---------------------------------------------------------------------- models and servers


def learned(learner: Learner, dataset: Dataset) -> Learner:
    """A model of a whole stream, learned with all cores; how it answers is another matter."""
    torch.set_num_threads(os.cpu_count() or 1)
    assert dataset.split is not None
    stream = TaskStream(dataset.graph, dataset.y, dataset.split, ProtocolConfig(), seed=0)
    for index in range(len(stream)):
        for _ in learner.learn(stream.task(index)):
            pass
    return learner


def models(size: str, parts: list[str]) -> dict[str, Learner]:
    if size == "tiny":
        return {"IPAL": IPAL(train=TrainConfig(epochs=1))}
    both: dict[str, Learner] = {"IPAL": IPAL(train=TrainConfig(epochs=10)), "closed form": Analytic()}
    return both if "latency" in parts else {"IPAL": both["IPAL"]}


@contextmanager
def served(learner: Learner, dataset: Dataset, chosen: argparse.Namespace) -> Iterator[tuple[int, Target]]:
    """The process of a server, and what is known of it. Its end must be a graceful one, with nothing on its mind."""
    tiny = chosen.size == "tiny"
    most, patience = (MB // 2 if tiny else 16 * MB), chosen.patience or (0.3 if tiny else 5.0)
    with tempfile.TemporaryDirectory() as folder:
        model, token, log = (Path(folder) / name for name in ("model.safetensors", "token", "log"))
        learner.save(model)
        token.write_text(TOKEN)
        command = [sys.executable, "-m", "ipal", "serve", str(model), "--port", "0", "--threads", str(chosen.threads)]
        command += ["--token-file", str(token), "--max-bytes", str(most), "--timeout", str(patience), "--queue", "24"]
        with (
            log.open("w") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as server,
        ):
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line:
                sys.exit(log.read_text())
            port = int(line.rpartition(":")[2])
            try:
                asked = requests(learner, dataset, tiny)
                yield server.pid, Target("127.0.0.1", port, TOKEN, most, patience, learner.num_features_, asked)
            finally:
                server.send_signal(signal.SIGTERM)
                code = server.wait(60)
        said = log.read_text()
        if code or "Traceback" in said or "Stopped" not in said:
            sys.exit(f"The server ended with code {code} and said:\n{said}")


def resident(process: int) -> float:
    """Memory of a process, in MB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MB


def processor_seconds(process: int) -> float:
    """That a process has used, on whichever core: whatever else the machine does changes it little."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---------------------------------------------------------------------- requests


def around(graph: Graph, node: int, count: int) -> Graph:
    """The subgraph on a node and those nearest to it by hops, as many as wanted."""
    inside = [node]
    known = {node}
    for one in inside:
        near = graph.indices[graph.indptr[one] : graph.indptr[one + 1]].tolist()
        fresh = [other for other in near if other not in known][: count - len(inside)]
        known.update(fresh)
        inside += fresh
    return graph.induced(np.sort(inside))


def dense(graph: Graph) -> Graph:
    return Graph.of(np.asarray(graph.x.toarray()), graph.neighbours, symmetric=True)  # type: ignore[union-attr]


def sample(learner: Learner, kind: str, body: bytes, graph: Graph, nodes: Any = None) -> Sample:
    found = predict(learner, graph, nodes)
    return Sample(kind, body, found.labels, found.confidence.tolist())


def requests(learner: Learner, dataset: Dataset, tiny: bool) -> dict[str, list[Sample]]:
    """By kind, from different places of the graph."""
    random_ = np.random.default_rng(0)
    graph, hops = dataset.graph, learner.reach or 0
    found: dict[str, list[Sample]] = {}
    for number in range(4 if tiny else BODIES):
        part = around(graph, int(random_.integers(graph.num_nodes)), NODES)
        plain = dense(part)
        made = {
            f"{NODES} nodes, npz": sample(learner, NPZ, npz_body(part), part),
            f"{NODES} nodes, sparse JSON": sample(learner, JSON, json_body(part), part),
            f"{NODES} nodes, dense JSON": sample(learner, JSON, json_body(plain), plain),
        }
        if number % 4 == 0:  # these are large
            asked = neighbourhood(graph, random_.choice(graph.num_nodes, NODES, replace=False), hops)
            body = npz_body(asked.graph, asked.nodes)
            made[f"{NODES} nodes and all within {hops} hops, npz"] = sample(
                learner, NPZ, body, asked.graph, asked.nodes
            )
        for name, one in made.items():
            found.setdefault(name, []).append(one)
    return found


# ---------------------------------------------------------------------- latency


def milliseconds(target: Target, samples: list[Sample], count: int, first: int) -> list[float]:
    """Of so many requests, one after the other on one connection."""
    connection = http.client.HTTPConnection(target.host, target.port)
    times = []
    for number in range(count):
        one = samples[(first + number) % len(samples)]
        start = time.perf_counter()
        connection.request("POST", "/predict", one.body, target.headers(one.kind))
        answer = connection.getresponse()
        content = answer.read()
        times.append(1000 * (time.perf_counter() - start))
        if answer.status != 200 or json.loads(content)["predicted"] != one.predicted:
            sys.exit(f"A wrong answer: {answer.status} {content[:200]!r}")
    connection.close()
    return times


def latency(name: str, target: Target, process: int, repeats: int) -> None:
    """A row of the table for each kind of request, and for one client and four."""
    for kind, samples in target.samples.items():
        milliseconds(target, samples, min(10, repeats), 0)
        for clients in (1, 4):
            each = -(-repeats // clients)
            start, worked = time.perf_counter(), processor_seconds(process)
            with ThreadPoolExecutor(clients) as pool:
                parts = [pool.submit(milliseconds, target, samples, each, 7 * client) for client in range(clients)]
            times = [taken for part in parts for taken in part.result()]
            rate = len(times) / (time.perf_counter() - start)
            work = 1000 * (processor_seconds(process) - worked) / len(times)
            size = np.mean([len(one.body) for one in samples]) / 1000
            p50, p99 = np.percentile(times, [50, 99])
            speed = f"{p50:.1f} | {p99:.1f} | {work:.1f} | {rate:.0f}"
            print(f"| {name} | {kind} | {size:,.0f} kB | {clients} | {speed} |", flush=True)


# ---------------------------------------------------------------------- hostile


class Memory(threading.Thread):
    """Watches the memory of a process."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self._process, self.samples, self.over = process, list[float](), threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.1):
            self.samples.append(resident(self._process))


def under_fire(
    target: Target, process: int, chosen: argparse.Namespace
) -> tuple[dict[str, Counter[Any]], dict[str, float], dict[int, str]]:
    """How often each way was answered with each status, the memory of the server meanwhile, and what was wrong.

    A request is decided by the seed and its number alone.
    """
    names, count = list(hostile.WAYS), chosen.requests
    weights = [hostile.WAYS[name][2] for name in names]
    told: dict[str, Counter[Any]] = {name: Counter() for name in names}
    wrong: dict[int, str] = {}
    lock, watch = threading.Lock(), Memory(process)
    watch.start()
    done = 0
    memory = {"at the start": resident(process)}
    start = time.perf_counter()

    def one(place: int) -> None:
        nonlocal done
        rng = random.Random(f"{chosen.seed} {place}")
        name = rng.choices(names, weights)[0]
        way, allowed, _ = hostile.WAYS[name]
        for _ in range(TRIES):
            try:
                status = way(target, rng)
            except Exception as error:  # an answer that is not true, or none at all
                status = type(error).__name__
                wrong[place] = f"{name}: {status}: {error}"
            with lock:
                told[name][status] += 1
                done += 1
            if status not in allowed:
                wrong.setdefault(place, f"{name}: {status}")
            if status != hostile.OVERLOAD:
                break
            time.sleep(rng.random() / 2)
        with lock:
            if done >= WARM * count and len(memory) == 1:
                memory[f"after {done:,} requests"] = resident(process)

    with ThreadPoolExecutor(chosen.clients) as pool:
        list(pool.map(one, range(chosen.first, chosen.first + count)))
    memory["seconds"] = time.perf_counter() - start
    time.sleep(2 * target.patience)
    watch.over.set()
    watch.join()
    memory["at the end"] = resident(process)
    memory["largest"] = max(watch.samples, default=memory["at the end"])
    fifths = np.array_split(watch.samples or [memory["at the end"]] * 5, 5)
    memory[EARLY], memory[LATE] = float(np.median(fifths[1])), float(np.median(fifths[-1]))
    if hostile.ask(target, None, {}, "GET", "/health")[0] != 200:
        sys.exit("The server does not answer any more.")
    return told, memory, wrong


def report(
    told: dict[str, Counter[Any]], memory: dict[str, float], wrong: dict[int, str], chosen: argparse.Namespace
) -> None:
    seconds, all_told = memory.pop("seconds"), sum(told.values(), Counter())
    print(f"\n## Hostile: {all_told.total():,} requests from {chosen.clients} clients, in {seconds:.0f} s\n")
    print("| request | number | answers |\n|---|---|---|")
    for name, found in told.items():
        words = ", ".join(f"{n} x {'none' if s is None else s}" for s, n in sorted(found.items(), key=str))
        print(f"| {name} | {found.total()} | {words} |")
    fives = {status: number for status, number in all_told.items() if isinstance(status, int) and status >= 500}
    kinds = sorted(set(wrong.values()))[:20]
    print(f"\nanswers of 500 and more: {fives or 'none'}; answers that were not to be: {kinds or 'none'}")
    print("memory of the server in MB: " + ", ".join(f"{when} {size:.0f}" for when, size in memory.items()))
    grew = chosen.requests >= ENOUGH and memory[LATE] > FLAT * memory[EARLY]
    if chosen.json:
        facts = {"requests": all_told.total(), "wrong": wrong, "grew": grew, "memory": memory["largest"]}
        chosen.json.write_text(json.dumps(facts))
    if wrong or set(fives) - {hostile.OVERLOAD}:
        sys.exit("Not every answer was one that it should be.")
    if grew:
        sys.exit("The server's memory grew.")


def main() -> None:
    parser = options("ipal serve: latency, and hostile requests.", repeats=400, what="requests of each kind")
    parser.add_argument("parts", nargs="*", metavar="PART", help="latency, hostile (default both)")
    parser.add_argument(
        "--requests", type=int, help="hostile requests, besides those told to come back (default 10,000)"
    )
    parser.add_argument("--clients", type=int, help="hostile ones at once (default 32)")
    parser.add_argument("--patience", type=float, help="seconds that the server gives a body (default 5)")
    parser.add_argument("--seed", type=int, default=0, help="decides the hostile requests (default 0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first of them, to repeat one")
    parser.add_argument("--json", type=Path, help="file for what came out of them")
    parser.set_defaults(threads=1)
    chosen = parser.parse_args()
    tiny = chosen.size == "tiny"
    chosen.requests = chosen.requests or (300 if tiny else 10_000)
    chosen.clients = chosen.clients or (8 if tiny else 32)
    parts = chosen.parts or ["latency", "hostile"]
    begin(chosen.threads)
    dataset = cs(chosen.size)
    attacks = []
    if "latency" in parts:
        rounds = f"{chosen.repeats} requests of each kind, {chosen.threads} thread(s)"
        print(f"\n## Latency: {describe(dataset)}; {rounds}\n")
        columns = ("model", "request", "size", "clients", "p50, ms", "p99, ms", "processor, ms", "requests/s")
        print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for name, learner in models(chosen.size, parts).items():
        with served(learned(learner, dataset), dataset, chosen) as (process, target):
            if "latency" in parts:
                latency(name, target, process, chosen.repeats)
            if "hostile" in parts and name == "IPAL":
                attacks.append(under_fire(target, process, chosen))
    for told, memory, wrong in attacks:
        report(told, memory, wrong, chosen)


if __name__ == "__main__":
    main()
