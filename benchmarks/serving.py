"""`ipal serve` on loopback: how fast it answers, and whether it stands what it must.

latency   requests of 100 nodes of Coauthor CS, as .npz, sparse JSON and dense JSON; by IPAL and by the closed form
reload    the model is replaced again and again while four clients ask: is every answer that of the model it names, is
          none lost, and is memory flat
hostile   sound and hostile requests of all kinds (hostile/) at once: is every answer right or a declared refusal,
          is the server alive in the end, and is its memory flat

The server is a process of its own, with one worker or two, asked for a token; clients are threads of this one.
"""

import argparse
import hashlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import hostile
import numpy as np
import torch
import work
from encoder_step import Stock, stock_inputs
from hostile import Sample, Target
from reloads import FLAT, MB, processor_seconds, resident, under_reloads
from timing import WIDTH, Line, begin, cs, describe, interleaved, learn, options

from ipal.closed_form.method import Analytic
from ipal.config import ProtocolConfig
from ipal.data.datasets import Dataset
from ipal.data.graph import Graph
from ipal.data.streams import TaskStream
from ipal.deploy.predict import neighbourhood, predict
from ipal.deploy.serving.bodies import JSON, NPZ, json_body, npz_body
from ipal.estimator import files
from ipal.estimator.model import Model
from ipal.estimator.settings import LearnerConfig, learner_config
from ipal.methods.ipal import IPAL

NODES = 100
NPZ_KIND = f"{NODES} nodes, npz"
BODIES = 40
"""Different requests of each kind."""
TOKEN = "only-for-this-benchmark"
TRIES = 20
"""Of a request that is told to come back later."""
EARLY, LATE = "median of the second fifth", "median of the last fifth"
BESIDE = "/health, ms"
CROWD = 1000
"""Idle connections at once."""
ENOUGH = 200
"""Fewer requests say nothing about memory."""
WARM = 0.2
"""Share of the hostile requests after which the server's memory is its usual one."""


# ---------------------------------------------------------------------- models and servers


def learned(config: LearnerConfig, dataset: Dataset, folder: Path) -> tuple[Path, Path]:
    """A model of a whole stream, and one of all but its last task; those that the folder holds are taken as they are.

    Learned with all cores; how they answer is another matter.
    """
    whole, before = folder / f"{config.method.name}.safetensors", folder / f"{config.method.name}-before.safetensors"
    if not (whole.exists() and before.exists()):
        torch.set_num_threads(os.cpu_count() or 1)
        assert dataset.split is not None
        stream = TaskStream(dataset.graph, dataset.y, dataset.split, ProtocolConfig(), seed=0)
        model: Model | None = None
        for index in range(len(stream)):
            model = learn(config, model, stream.task(index))
            files.save(model, before if index < len(stream) - 1 else whole)
    return whole, before


def models(size: str, parts: list[str]) -> dict[str, LearnerConfig]:
    """What is learned with, by name."""
    if size == "small":
        return {"IPAL": learner_config(IPAL, {"encoder": {"kind": "gcn"}, "train": {"epochs": 1}})}
    both = {"IPAL": learner_config(IPAL, {}), "closed form": learner_config(Analytic, {})}
    return {"IPAL": both["IPAL"]} if parts == ["hostile"] else both


@contextmanager
def served(
    file: Path, asked: dict[str, list[Sample]], workers: int, patience: float, chosen: argparse.Namespace
) -> Iterator[tuple[int, Target, Path]]:
    """A server, and what is known of it. Its end must be a graceful one, with nothing on its mind."""
    most = MB // 2 if chosen.size == "small" else 16 * MB
    with tempfile.TemporaryDirectory() as folder:
        model, token, log = (Path(folder) / name for name in ("model.safetensors", "token", "log"))
        shutil.copyfile(file, model)
        token.write_text(TOKEN)
        command = [sys.executable, "-m", "ipal", "serve", str(model), "--port", "0", "--workers", str(workers)]
        command += ["--threads", str(workers * chosen.threads), "--token-file", str(token), "--max-bytes", str(most)]
        command += ["--timeout", str(patience), "--queue", "24"]
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
                features = files.load(file).num_features
                yield server.pid, Target("127.0.0.1", port, TOKEN, most, patience, features, asked), model
            finally:
                server.send_signal(signal.SIGTERM)
                code = server.wait(60)
        said = log.read_text()
        if code or "Traceback" in said or "Stopped" not in said:
            sys.exit(f"The server ended with code {code} and said:\n{said}")


# ---------------------------------------------------------------------- requests


def around(graph: Graph, node: int, count: int) -> Graph:
    """The subgraph on a node and those nearest to it by hops, as many as wanted."""
    inside = [node]
    known = {node}
    for one in inside:
        near = graph.neighbours.indices[graph.neighbours.indptr[one] : graph.neighbours.indptr[one + 1]].tolist()
        fresh = [other for other in near if other not in known][: count - len(inside)]
        known.update(fresh)
        inside += fresh
    return graph.induced(np.sort(inside))


def dense(graph: Graph) -> Graph:
    return Graph(np.asarray(graph.x.toarray()), graph.neighbours, symmetric=True)  # type: ignore[union-attr]


def sample(model: Model, kind: str, body: bytes, graph: Graph, nodes: Any = None) -> Sample:
    found = predict(model, graph, nodes)
    return Sample(kind, body, found.labels, found.confidence.tolist())


def requests(model: Model, dataset: Dataset, small: bool) -> dict[str, list[Sample]]:
    """By kind, from different places of the graph."""
    random_ = np.random.default_rng(0)
    graph, hops = dataset.graph, model.reach
    found: dict[str, list[Sample]] = {}
    for number in range(4 if small else BODIES):
        part = around(graph, int(random_.integers(graph.num_nodes)), NODES)
        plain = dense(part)
        made = {
            NPZ_KIND: sample(model, NPZ, npz_body(part), part),
            f"{NODES} nodes, sparse JSON": sample(model, JSON, json_body(part), part),
            f"{NODES} nodes, dense JSON": sample(model, JSON, json_body(plain), plain),
        }
        if number % 4 == 0:  # these are large
            asked = neighbourhood(graph, random_.choice(graph.num_nodes, NODES, replace=False), hops)
            body = npz_body(asked.graph, asked.nodes)
            made[f"{NODES} nodes and all within {hops} hops, npz"] = sample(model, NPZ, body, asked.graph, asked.nodes)
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


def latency(name: str, target: Target, process: int, workers: int, repeats: int) -> None:
    """A row of the table for each kind of request: by one client where there is one worker, else by four."""
    clients = 1 if workers == 1 else 4
    for kind, samples in target.samples.items():
        milliseconds(target, samples, min(10, repeats), 0)
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
        print(f"| {name} | {kind} | {size:,.0f} kB | {workers} | {clients} | {speed} |", flush=True)


def heading(*columns: str) -> str:
    return f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"


def measure(size: str, repeats: int) -> Line:
    """The median of requests of 100 nodes by one client, against stock layers that have the graph in memory."""
    dataset, chosen = cs(size), argparse.Namespace(size=size, threads=1)
    with tempfile.TemporaryDirectory() as folder:
        file, _ = learned(models("small", [])["IPAL"], dataset, Path(folder))
        model = files.load(file)
        parts = [around(dataset.graph, node, NODES) for node in range(4 if size == "small" else BODIES)]
        asked = {NPZ_KIND: [sample(model, NPZ, npz_body(part), part) for part in parts]}
        with served(file, asked, 1, 30.0, chosen) as (_, target, _):
            milliseconds(target, asked[NPZ_KIND], min(10, repeats), 0)
            ours = median(milliseconds(target, asked[NPZ_KIND], repeats, 0)) / 1000
    assert model.network is not None, "it has one"
    stock = Stock(model.network.encoder)
    for layer in stock.layers:
        layer.cached = False  # another graph every time
    with torch.no_grad():
        theirs = [interleaved({"": partial(stock, *some)}, 3)[""] for some in map(stock_inputs, parts)]
    least = work.forward(work.Layers.of(parts[0]), WIDTH, WIDTH)
    beside = "GCNConv in memory, no HTTP"
    return Line(f"request of {NODES} nodes, p50", ours, median(chain(*theirs)) / 1000, beside, least)


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
    memory[BESIDE] = crowded(target)
    return told, memory, wrong


def crowded(target: Target) -> float:
    """Milliseconds until /health answers while so many connections are open that nobody asks anything on."""
    with ExitStack() as idle:
        for _ in range(CROWD):
            idle.enter_context(socket.create_connection((target.host, target.port), timeout=60))
        start = time.perf_counter()
        if hostile.ask(target, None, {}, "GET", "/health")[0] != 200:
            sys.exit(f"The server does not answer beside {CROWD:,} idle connections.")
        return 1000 * (time.perf_counter() - start)


def report(
    told: dict[str, Counter[Any]], memory: dict[str, float], wrong: dict[int, str], chosen: argparse.Namespace
) -> None:
    seconds, beside, all_told = memory.pop("seconds"), memory.pop(BESIDE), sum(told.values(), Counter())
    print(f"\n## Hostile: {all_told.total():,} requests from {chosen.clients} clients, in {seconds:.0f} s\n")
    print("| request | number | answers |\n|---|---|---|")
    for name, found in told.items():
        words = ", ".join(f"{n} x {'none' if s is None else s}" for s, n in sorted(found.items(), key=str))
        print(f"| {name} | {found.total()} | {words} |")
    fives = {status: number for status, number in all_told.items() if isinstance(status, int) and status >= 500}
    kinds = sorted(set(wrong.values()))[:20]
    print(f"\nanswers of 500 and more: {fives or 'none'}; answers that were not to be: {kinds or 'none'}")
    print("memory of the server in MB: " + ", ".join(f"{when} {size:.0f}" for when, size in memory.items()))
    print(f"/health beside {CROWD:,} idle connections: {beside:.0f} ms")
    grew = chosen.requests >= ENOUGH and memory[LATE] > FLAT * memory[EARLY]
    if chosen.json:
        facts = {"requests": all_told.total(), "wrong": wrong, "grew": grew, "memory": memory["largest"]}
        chosen.json.write_text(json.dumps(facts))
    if wrong or set(fives) - {hostile.OVERLOAD}:
        sys.exit("Not every answer was one that it should be.")
    if grew:
        sys.exit("The server's memory grew.")
    if beside > 1000:
        sys.exit("Idle connections kept /health from answering.")


def main() -> None:
    parser = options("ipal serve: latency, and hostile requests.", repeats=400, what="requests of each kind")
    parser.add_argument("parts", nargs="*", metavar="PART", help="latency, reload, hostile (default all)")
    parser.add_argument(
        "--requests", type=int, help="hostile requests, besides those told to come back (default 10,000)"
    )
    parser.add_argument("--reloads", type=int, help="of the model while it is asked (default 1,000)")
    parser.add_argument("--models", type=Path, help="folder where models are kept, to be used again")
    parser.add_argument("--clients", type=int, help="hostile ones at once (default 32)")
    parser.add_argument("--patience", type=float, help="seconds for a body (default 30; hostile 5)")
    parser.add_argument("--seed", type=int, default=0, help="decides the hostile requests (default 0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first of them, to repeat one")
    parser.add_argument("--json", type=Path, help="file for what came out of them")
    parser.set_defaults(threads=1)
    chosen = parser.parse_args()
    small = chosen.size == "small"
    chosen.requests = chosen.requests or (300 if small else 10_000)
    chosen.clients = chosen.clients or (8 if small else 32)
    chosen.reloads = chosen.reloads or (4 if small else 1000)
    parts = chosen.parts or ["latency", "reload", "hostile"]
    begin(chosen.threads)
    dataset = cs(chosen.size)
    attacks, reloads = [], []
    if "latency" in parts:
        rounds = f"{chosen.repeats} requests of each kind, {chosen.threads} thread(s) a worker"
        print(f"\n## Latency: {describe(dataset)}; {rounds}\n")
        print(
            heading(
                "model", "request", "size", "workers", "clients", "p50, ms", "p99, ms", "processor, ms", "requests/s"
            )
        )
    for name, config in models(chosen.size, parts).items():
        with tempfile.TemporaryDirectory() as folder:
            both = learned(config, dataset, chosen.models or Path(folder))
            asked, before = (requests(files.load(file), dataset, small) for file in both)
            versions = {
                hashlib.sha256(file.read_bytes()).hexdigest()[:12]: (file, some[NPZ_KIND])
                for file, some in zip(both, (asked, before), strict=True)
            }
            for workers in (1, 2) if {"latency", "reload"} & set(parts) else ():
                with served(both[0], asked, workers, chosen.patience or 30.0, chosen) as (process, target, model):
                    if "latency" in parts:
                        latency(name, target, process, workers, chosen.repeats)
                    if "reload" in parts:
                        row = under_reloads(target, process, model, versions, chosen.reloads)
                        reloads.append(f"| {name} | {workers} | {row} |")
                        print(f"reloads: {reloads[-1]}", file=sys.stderr)  # the next may take long
            if "hostile" in parts and name == "IPAL":
                patience = chosen.patience or (1.0 if small else 5.0)
                with served(both[0], asked, 1, patience, chosen) as (process, target, model):
                    attacks.append(under_fire(target, process, chosen))
    if reloads:
        print("\n## Reloads, with four clients that ask all the time for 100 nodes as npz\n")
        columns = "reloads", "reload p50, ms", "requests", "lost", "request p50, ms", "request p99, ms"
        sizes = "MB first fifth", "MB middle fifth", "MB last fifth", "MB at most"
        print("\n".join([heading("model", "workers", *columns, *sizes), *reloads]))
    for told, memory, wrong in attacks:
        report(told, memory, wrong, chosen)


if __name__ == "__main__":
    main()
