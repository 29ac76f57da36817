"""A plain installation, without any extra, does what needs none; what needs one names it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.support import Command, complaint

SETUP = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
EXTRAS = SETUP["optional-dependencies"]
USED = {name: wanted for name, wanted in EXTRAS.items() if name not in {"dev", "dist", "docs"}}
MODULES = {"prometheus-client": "prometheus_client", "torch-geometric": "torch_geometric", "mlflow-skinny": "mlflow"}
"""Of packages with another name."""


def name_of(requirement: str) -> str:
    return re.match(r"[\w-]+", requirement)[0]


BLOCKED = sorted({MODULES.get(name, name) for wanted in USED.values() for name in map(name_of, wanted)})
WITHOUT = f"""
import sys
for name in {BLOCKED!r}:
    sys.modules[name] = None
"""


def test_all_but_figures_and_the_server_can_be_imported_without_any_extra() -> None:
    program = WITHOUT + (
        "import importlib, pkgutil, ipal\n"
        "for found in pkgutil.walk_packages(ipal.__path__, 'ipal.', onerror=lambda name: None):\n"
        "    try:\n        found.name.endswith('__main__') or importlib.import_module(found.name)\n"
        "    except ImportError:\n        print(found.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    failing = set(done.stdout.split())
    assert "ipal.report.figures" in failing, "nothing was blocked"
    assert not [name for name in failing if not name.startswith(("ipal.report.", "ipal.deploy.serving."))]
    assert failing.isdisjoint(f"ipal.report.{name}" for name in ("build", "collect", "frame", "page.write", "tables"))


def test_a_run_its_model_and_its_predictions_need_no_extra(tmp_path: Path) -> None:
    commands = [
        ["run", "--dataset", "synthetic:nodes=240,classes=6,features=16", "--method", "ncm"],
        ["list", "runs"],
        ["predict", "latest", "--graph", "synthetic:nodes=240,classes=6,features=16", "-o", "classes.csv"],
    ]
    program = WITHOUT + (
        f"from ipal.cli import main\nfor words in {commands!r}:\n    sys.argv = ['ipal', *words]; main()\n"
        "import ipal, types, numpy as np\n"
        "data = types.SimpleNamespace(x=np.eye(6), edge_index=np.zeros((2, 0), int), y=list('aabbcc'))\n"
        "print(ipal.Analytic().partial_fit(data).score(data))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "classes.csv").exists()
    assert done.stdout.endswith("1.0\n")


@pytest.mark.parametrize(
    ("words", "module", "extra"),
    [
        (["run", "--dataset", "digits", "--html"], "jinja2", "html"),
    ],
)
def test_a_command_names_the_extra_it_needs(
    command: Command, monkeypatch: pytest.MonkeyPatch, words: list[str], module: str, extra: str
) -> None:
    for name in module.split(" and "):
        monkeypatch.setitem(sys.modules, name, None)
    complaint(command(*words), f"This needs {module}, which is not installed", f"pip install 'ipal[{extra}]'")


def test_a_plain_installation_is_light_and_every_extra_is_in_dev_and_on_the_page() -> None:
    plain = {name_of(wanted) for wanted in SETUP["dependencies"]}
    assert not plain & {"torch-geometric", "matplotlib", "pandas", "plotly"}
    (all_of_them,) = re.findall(r"ipal\[([\w,]+)\]", " ".join(EXTRAS["dev"]))
    assert set(all_of_them.split(",")) | {"ogb"} == set(USED) | {"docs"}
    install = (PROJECT / "docs" / "index.md").read_text().partition("## Install")[2].partition("\n## ")[0]
    assert not [name for name in USED if f"`{name}`" not in install]
    pinned = {re.split("==", line)[0].lower().replace("_", "-") for line in _constraints()}
    wanted = {name_of(one).lower() for extra in EXTRAS.values() for one in extra} | {name.lower() for name in plain}
    assert wanted - pinned <= {"ipal", "ogb", "playwright", "axe-playwright-python"} | {"mkdocstrings"}


def _constraints() -> list[str]:
    return (PROJECT / "constraints.txt").read_text().split()


def test_make_run_installs_less_than_make_test() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    assert re.search(r"^run: \$\(LIGHT\)$", makefile, re.MULTILINE)
    assert "$(INSTALL) -e '.[html]'" in makefile
    assert re.search(r"^\$\(INSTALLED\): \$\(LIGHT\)$", makefile, re.MULTILINE)
