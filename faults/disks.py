"""Full disks and folders that may not be written: one sentence, nothing half-written; with space, the same bits.

Every case mounts a small file system of its own in memory, which only root may do.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from faults.children import PATIENCE, command, fork, must_be_refused, must_succeed, perform
from faults.core import Case, Failed, Part, Plan
from faults.runs import must_be_equal
from faults.workspace import (
    GRAPH,
    TRAIN,
    Contents,
    Long,
    contents,
    copied,
    furnish,
    must_be_done,
    must_be_whole,
    possible,
    varying,
)

PAGE = 4096
PLENTY = "512m"
RUN = ["run", "--dataset", GRAPH, *TRAIN, "--checkpoint-every", "1"]
BENCH = ["bench", "study.yaml", "--jobs", "1"]
STUDY = f"""
kind: study
seeds: 1
all: {{dataset: "{GRAPH}", train.epochs: 2, encoder.hidden: 8, encoder.width: 8}}
entries: {{ipal: , slda: }}
"""
READ_ONLY = 0.25
"""Share of cases with a disk that may not be written, in place of a full one."""


@dataclass
class Prepared:
    workspace: Path
    reference: Path
    """The folder of a finished run."""
    bench: Path
    """Runs of a finished bench."""
    outcomes: dict[int, tuple[Long, Contents, Contents, set[str]]] = field(default_factory=dict)
    """Of each long command that is tried: files before, files after, and which of them vary."""


def why_not() -> str | None:
    if os.geteuid() != 0:
        return "only root may mount a small disk"
    probe = Path("/tmp") / f"ipal-faults-mount-{os.getpid()}"
    probe.mkdir()
    try:
        with _disk(probe, "size=64k"):
            return None
    except subprocess.CalledProcessError as error:
        return f"mounting is not allowed here ({error.stderr.decode().strip()[:80]})"
    finally:
        probe.rmdir()


def prepare(plan: Plan) -> Prepared:
    workspace = plan.folder / "workspace"
    alone = plan.folder / "alone"
    alone.mkdir()
    must_succeed(command(RUN, alone, seconds=PATIENCE), "run")
    bench = plan.folder / "bench"
    bench.mkdir()
    (bench / "study.yaml").write_text(STUDY)
    wanted = {number % _kinds() for number in plan.numbers}
    if 2 in wanted:
        must_succeed(command(BENCH, bench, seconds=PATIENCE), "bench")
    prepared = Prepared(workspace, next((alone / "runs").iterdir()), bench / "runs")
    longs = {which: one for which, one in enumerate(possible()) if 4 + which in wanted}
    if not longs:
        return prepared
    furnish(workspace)
    before = contents(workspace)
    for which, one in longs.items():
        places = [copied(workspace, plan.folder / f"{one.name.replace(' ', '')}-{turn}" / "work") for turn in range(2)]
        for place in places:
            must_succeed(command(one.arguments, place, seconds=PATIENCE), one.name)
        after, again = map(contents, places)
        prepared.outcomes[which] = (one, before, after, varying(after, again))
    return prepared


def _kinds() -> int:
    return 4 + len(possible())


def attempt(prepared: Prepared, case: Case) -> None:
    kind = case.number % _kinds()
    disk = case.folder / "disk"
    disk.mkdir()
    if kind == 0:
        _attempt_run(prepared, case, disk)
    elif kind == 1:
        _attempt_resume(prepared, case, disk)
    elif kind == 2:
        _attempt_bench(prepared, case, disk)
    elif kind == 3:
        _attempt_output(case)
    else:
        _attempt_long(prepared, case, disk, kind - 4)


def _attempt_run(prepared: Prepared, case: Case, disk: Path) -> None:
    with _disk(disk, _size(case, 0, _used(prepared.reference))):
        if case.random.random() < READ_ONLY:
            _remount(disk, "ro")
        _run_to_the_end(prepared, disk, RUN)


def _attempt_resume(prepared: Prepared, case: Case, disk: Path) -> None:
    with _disk(disk, f"size={PLENTY}"):
        child = fork(perform(RUN), disk)
        while child.lives(0.005) and not list(disk.glob("runs/*/checkpoint.safetensors")):
            pass
        child.kill()
        child.end(PATIENCE)
        here = _used(disk)
        if case.random.random() < READ_ONLY:
            _remount(disk, "ro")
        else:
            _remount(disk, _size(case, here, _used(prepared.reference) // 2))
        _run_to_the_end(prepared, disk, ["resume", "latest", "--checkpoint-every", "1"])


def _run_to_the_end(prepared: Prepared, disk: Path, arguments: list[str]) -> None:
    ended = command(arguments, disk, seconds=PATIENCE)
    if ended.code:
        must_be_refused(ended, " ".join(arguments[:1]), underway=True)
        for folder in disk.glob("runs/*"):
            _must_have_no_parts(folder)
        _remount(disk, f"rw,size={PLENTY},nr_inodes=0")
        must_succeed(command(RUN, disk, seconds=PATIENCE), "with space")
    must_be_equal(disk / "runs" / prepared.reference.name, prepared.reference)


def _attempt_bench(prepared: Prepared, case: Case, disk: Path) -> None:
    needed = sum(_used(run) for run in prepared.bench.iterdir())
    with _disk(disk, _size(case, PAGE, needed)):
        (disk / "study.yaml").write_text(STUDY)
        ended = command(BENCH, disk, seconds=PATIENCE)
        # One exits with 1 where runs did not come to their end, and says why.
        if ended.code not in {0, 1, 2} or "Traceback" in ended.err:
            raise Failed(f"bench: {ended.in_short()}")
        _remount(disk, f"size={PLENTY},nr_inodes=0")
        must_succeed(command(BENCH, disk, seconds=PATIENCE), "bench, with space")
        for run in prepared.bench.glob("*/config.yaml"):
            must_be_equal(disk / "runs" / run.parent.name, run.parent)


def _attempt_output(case: Case) -> None:
    """What is printed has nowhere to go."""
    arguments = case.random.choice([["list", "methods"], ["data", GRAPH], ["list", "datasets", "--json"], ["--help"]])
    ended = fork(perform(arguments), case.folder, out=Path("/dev/full")).end(PATIENCE)
    must_be_refused(ended, f"{' '.join(arguments)} > /dev/full")


def _attempt_long(prepared: Prepared, case: Case, disk: Path, which: int) -> None:
    one, before, after, free = prepared.outcomes[which]
    with _disk(disk, f"size={PLENTY}"):
        work = copied(prepared.workspace, disk)
        may_not = case.random.random() < READ_ONLY
        fresh = sum(len(value) for name, value in after.items() if name not in before and isinstance(value, bytes))
        _remount(disk, "ro" if may_not else _size(case, _used(disk), fresh or _used(work) // 3))
        ended = command(one.arguments, work, seconds=PATIENCE)
        try:
            if ended.code:
                must_be_refused(ended, "refused", underway=True)
                must_be_whole(work, before, after, free)
                _must_have_no_parts(work)
                _remount(disk, f"rw,size={PLENTY},nr_inodes=0")
                must_succeed(command(one.arguments, work, seconds=PATIENCE), "with space")
            must_be_done(work, after, free)
        except Failed as failure:
            raise Failed(f"{one.name}{', read-only' * may_not}: {failure}") from failure


def _must_have_no_parts(folder: Path) -> None:
    """Temporary files, whose names begin with a dot. Locks and marks of requests, which are empty, stay."""
    for name in contents(folder, hidden=True):
        last = name.rpartition("/")[2]
        stays = last.startswith(".asked-") or last.endswith(".lock")
        if not stays and any(part.startswith(".") for part in name.split("/")):
            raise Failed(f"left behind: {name}")


# ---------------------------------------------------------------------- small disks


def _size(case: Case, here: int, more: int) -> str:
    """Options of a disk on which there is room for some of what is to come; now and then for few files instead."""
    if case.random.random() < 0.1:
        return f"size={PLENTY},nr_inodes={case.random.randint(2, 60)}" if not here else f"size={here + PAGE}"
    pages = -(-(here + case.random.randint(0, int(1.1 * more))) // PAGE)
    return f"size={max(1, pages) * PAGE}"


def _used(folder: Path) -> int:
    """Bytes in whole pages."""
    return sum(-(-path.stat().st_size // PAGE) * PAGE for path in folder.rglob("*") if path.is_file())


@contextmanager
def _disk(place: Path, options: str) -> Iterator[None]:
    _call("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place))
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True)


def _remount(place: Path, options: str) -> None:
    _call("mount", "-o", f"remount,{options}", str(place))


def _call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


PART = Part("disks", count=300, slice=1, seconds=400, prepare=prepare, attempt=attempt, why_not=why_not)
