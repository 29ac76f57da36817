"""`ipal.results`: stored runs as a table of pandas."""

import json
import subprocess
import sys
from pathlib import Path

import ipal
from tests.cli.support import GRAPH, interrupted_run
from tests.support import Command


def test_every_run_is_a_row_with_its_scores_cost_and_settings(command: Command, finished: Path, tmp_path: Path) -> None:
    interrupted = interrupted_run(tmp_path / "runs", GRAPH + ",seed=1")
    frame = ipal.results(tmp_path / "runs").set_index("run")
    result = json.loads((finished / "result.json").read_text())
    row = frame.loc[finished.name]
    assert (row["dataset"], row["method"], row["seed"]) == (result["dataset"], "ipal", 0)
    assert (row["stream"], row["test_graph"], row["status"]) == ("class", "isolated", "finished")
    assert row["AP"] == result["average_performance"]
    assert row["AF"] == result["average_forgetting"]
    assert row["LA"] == result["metrics"]["learning_accuracy"]
    assert row["seconds"] == result["timing"]["total_seconds"]
    assert row["peak_memory_bytes"] == result["peak_memory_bytes"]
    assert row["retained_bytes"] == result["retained"]["bytes"]
    assert row["ipal.tau"] == 0.07
    assert row["train.epochs"] > 0
    assert row["date"].tzinfo is not None
    other = frame.loc[interrupted.name]
    assert other["status"] == "resumable"
    assert frame["AP"].isna().tolist() == [name != finished.name for name in frame.index]
    assert frame.groupby("method")["AP"].mean()["ipal"] == result["average_performance"]


def test_without_pandas_it_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import importlib.util as u, ipal; find = u.find_spec\n"
        "import ipal.system.optional as o; o.find_spec = lambda name: None if name == 'pandas' else find(name)\n"
        "try:\n    ipal.results('.')\nexcept ipal.ConfigError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.stdout.strip() == "This needs pandas, which is not installed: pip install 'ipal[pandas]'."


def test_results_need_no_torch(finished: Path) -> None:
    program = "import sys; sys.modules['torch'] = None; import ipal; print(len(ipal.results(sys.argv[1])))"
    command = [sys.executable, "-c", program, str(finished.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "1", done.stderr
