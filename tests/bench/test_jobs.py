"""Which runs are made together, and what that must not change."""

import itertools
from contextlib import closing
from dataclasses import replace

import pytest

from ipal.bench import jobs as module
from ipal.bench.jobs import MOST_TOGETHER, JobGroup, local, pack, perform, room
from ipal.bench.suite import execute
from ipal.data import datasets
from ipal.runs import runner
from ipal.runs.run_folder import RunFolder
from tests.bench.deadly import Deadly, Trap
from tests.bench.support import Silent, plan, write
from tests.support import Watcher as Watching


def on(job, device, **more):
    return replace(job, config=job.config.model_copy(update={"device": device, **more}))


@pytest.fixture
def jobs(tmp_path):
    return list(plan(write(tmp_path, "ipal:"), seeds=tuple(range(3))).jobs.values())


def names(packed):
    return [[job.name for job in group.jobs] for group in packed]


def test_a_run_on_the_cpu_is_a_group_of_its_own(jobs):
    assert names(pack(jobs)) == [[job.name] for job in jobs]


def test_runs_on_a_gpu_are_together_if_they_share_graph_edges_device_and_threads(jobs):
    protocol = jobs[0].config.protocol.model_copy(update={"edges": "directed"})
    gpu = [on(job, "cuda") for job in jobs]
    others = [
        on(jobs[0], "cuda", dataset="other"),
        on(jobs[0], "cuda", protocol=protocol),
        on(jobs[0], "cuda:1"),
        on(jobs[0], "cuda", threads=2),
    ]
    packed = pack([gpu[0], jobs[0], *others, gpu[1], jobs[1], gpu[2]])
    alone = [jobs[0], *others, jobs[1]]
    assert names(packed) == [[job.name for job in gpu], *([job.name] for job in alone)]
    assert [group.on_gpu for group in packed] == [True, False, True, True, True, True, False]


def test_a_group_has_an_end(jobs):
    many = [on(jobs[0], "cuda", seed=seed) for seed in range(MOST_TOGETHER + 3)]
    assert [len(group.jobs) for group in pack(many)] == [MOST_TOGETHER, 3]
    assert [len(group.jobs) for group in pack(many[:7], 2)] == [2, 2, 2, 1]
    assert list(itertools.chain(*names(pack(many, 4)))) == [job.name for job in many]


def test_runs_on_gpus_have_their_machine_filled_by_one_group_each(jobs, monkeypatch):
    monkeypatch.setattr("ipal.bench.jobs.cores", lambda: 8)
    assert room([on(jobs[0], "cuda", seed=seed) for seed in range(9)]) == 1
    assert room([on(jobs[0], "cuda:0"), on(jobs[0], "cuda:1")]) == 2
    assert room(jobs) == 8
    assert room([*jobs, on(jobs[0], "cuda", threads=3)]) == 2


# ---------------------------------------------------------------------- in real processes


@pytest.mark.usefixtures("loaded_workers")
def test_runs_made_together_are_reported_one_by_one_and_fail_one_by_one(tmp_path, monkeypatch):
    path = write(
        tmp_path, "slow: {method: ipal, train.epochs: 60}\nbad: {method: ipal, ipal.gamma: 1}\nquick: {method: ipal}"
    )
    monkeypatch.setattr(module, "pack", lambda jobs: [JobGroup(tuple(jobs))])
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    suite = plan(path, seeds=(0,))
    slow, bad, quick = suite.jobs.values()
    bad.folder.path.mkdir(parents=True)
    bad.folder.checkpoint.write_bytes(b"torn")
    ended = {}

    class Watcher(Silent):
        def ended(self, job, reason):
            ended[job.name] = reason, slow.folder.is_finished

    execute(suite, 1, Watcher(), local())
    assert ended.keys() == {bad.name, quick.name, slow.name}
    assert [ended[job.name][0] for job in (quick, slow)] == [None, None]
    assert "checkpoint.safetensors" in ended[bad.name][0]
    assert bad.folder.path.joinpath("log.txt").read_text().count("failed") == 1
    assert not ended[quick.name][1]  # it was reported while the slow one was under way
    alone = RunFolder(tmp_path / "alone")
    result = runner.run(runner.resolve(quick.config), alone, Watching())
    assert quick.folder.result()["accuracy_matrix"] == result["accuracy_matrix"]
    histories = [(folder.path / "history.csv").read_text() for folder in (quick.folder, alone)]
    assert histories[0] == histories[1]


@pytest.mark.usefixtures("loaded_workers")
def test_a_process_that_dies_is_replaced_once_for_each_run_and_takes_nothing_with_it(tmp_path, monkeypatch):
    torn, once, beside, twice = jobs = list(plan(write(tmp_path, "ipal:"), seeds=(0, 1, 2, 3)).jobs.values())
    graves = [tmp_path / "once", tmp_path / "twice"]
    for grave in graves:
        grave.mkdir()
    once = Trap.of(once, graves=graves[0], deaths=1)
    twice = Deadly.of(twice, graves=graves[1], deaths=2)
    torn.folder.path.mkdir(parents=True)
    torn.folder.checkpoint.write_bytes(b"torn")
    groups = [JobGroup((torn, once, beside)), JobGroup((twice,))]
    monkeypatch.setattr(module, "pack", lambda jobs: groups)
    with closing(local()([], 2, lambda job: None)) as outcomes:
        reasons = {job.name: reason for job, reason in outcomes}
    assert [len(list(grave.iterdir())) for grave in graves] == [1, 2]
    assert reasons.pop(twice.name) == "the process died twice (signal 9: perhaps out of memory)"
    assert "checkpoint.safetensors" in reasons.pop(torn.name)
    assert reasons == {once.name: None, beside.name: None}
    assert [RunFolder(tmp_path / "runs" / job.name).is_finished for job in jobs] == [False, True, True, False]


def test_a_process_reads_a_graph_once_for_all_groups(jobs, monkeypatch):
    read, load = [], datasets.load
    monkeypatch.setattr(datasets, "load", lambda *args, **options: read.append(args) or load(*args, **options))
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "1")
    kept = {}
    assert [reason for group in pack(jobs) for reason in perform(group, kept).values()] == [None] * 3
    assert len(read) == 1
    assert perform(pack(jobs)[0], {}) == {jobs[0].name: None}
    assert len(read) == 2, "nothing is kept elsewhere"
