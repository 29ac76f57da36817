"""Two models that take each other's place again and again, while clients ask (see serving.py)."""

import http.client
import itertools
import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path

import numpy as np
from hostile import Target
from hostile.asking import Sample

MB = 2**20
CLIENTS = 4
FLAT = 1.15
"""More than this times as much memory in the end as early on is no longer flat."""


def family(process: int) -> list[int]:
    """A process and those that it has started."""
    found = [process]
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        found += map(int, task.read_text().split())
    return found


def resident(process: int) -> float:
    """Memory of a process and those that it has started, in MB."""
    pages = [int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in family(process)]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") / MB


def processor_seconds(process: int) -> float:
    """That they have used, on whichever core: whatever else the machine does changes it little."""
    fields = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in family(process)]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


class Asking(threading.Thread):
    """A client on one connection, until it is told to stop. Every answer must be that of the model it names."""

    def __init__(self, target: Target, samples: dict[str, list[Sample]], over: threading.Event, first: int) -> None:
        super().__init__(daemon=True)
        self._target, self._samples, self._over, self._first = target, samples, over, first
        self.milliseconds: list[float] = []
        self.wrong: list[str] = []

    def run(self) -> None:
        connection = http.client.HTTPConnection(self._target.host, self._target.port, timeout=60)
        for number in itertools.count(self._first):
            if self._over.is_set():
                break
            asked = {version: samples[number % len(samples)] for version, samples in self._samples.items()}
            one = next(iter(asked.values()))
            start = time.perf_counter()
            try:
                connection.request("POST", "/predict", one.body, self._target.headers(one.kind))
                answer = connection.getresponse()
                content = json.loads(answer.read())
                version = answer.headers["x-model-version"]
                if answer.status != 200 or content["version"] != version:
                    self.wrong.append(f"{answer.status} {content}"[:200])
                elif content["predicted"] != asked[version].predicted:
                    self.wrong.append(f"not what {version} predicts")
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append(repr(error))
                connection.close()
            self.milliseconds.append(1000 * (time.perf_counter() - start))
        connection.close()


def under_reloads(
    target: Target, process: int, model: Path, versions: dict[str, tuple[Path, list[Sample]]], count: int
) -> str:
    """Replace the file of a served model so many times; a row of the table."""
    over = threading.Event()
    samples = {version: some for version, (_, some) in versions.items()}
    clients = [Asking(target, samples, over, 7 * number) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    taken, memory, failed = [], [], 0
    for number in range(count):
        version, (file, _) = list(versions.items())[(number + 1) % len(versions)]
        shutil.copyfile(file, model.with_suffix(".new"))
        os.replace(model.with_suffix(".new"), model)
        start = time.perf_counter()
        connection = http.client.HTTPConnection(target.host, target.port, timeout=120)
        connection.request("POST", "/reload", b"", target.headers())
        answer = connection.getresponse()
        failed += json.loads(answer.read()).get("version") != version
        connection.close()
        taken.append(1000 * (time.perf_counter() - start))
        memory.append(resident(process))
    over.set()
    for client in clients:
        client.join(120)
    asked, wrong = [t for one in clients for t in one.milliseconds], [w for one in clients for w in one.wrong]
    fifths = [float(np.median(some)) for some in np.array_split(memory, 5)] if count >= 5 else memory[:1] * 5
    (p50, p99), half = np.percentile(asked, [50, 99]), np.median(taken)
    if wrong or failed or any(client.is_alive() for client in clients):
        sys.exit(f"{failed} reloads failed, {len(wrong)} of {len(asked)} requests were lost: {wrong[:5]}")
    if count >= 100 and fifths[-1] > FLAT * fifths[1]:
        sys.exit(f"The memory of the server grew: {fifths} MB, by fifths of all reloads.")
    sizes = f"{fifths[0]:.0f} | {fifths[2]:.0f} | {fifths[-1]:.0f} | {max(memory):.0f}"
    return f"{count:,} | {half:.0f} | {len(asked):,} | {len(wrong)} | {p50:.1f} | {p99:.1f} | {sizes}"
