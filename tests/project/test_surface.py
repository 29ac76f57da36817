"""What a user sees of the package before reading a page: help, and what a type checker says."""

import doctest
import inspect
import pydoc
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from mypy import api

import ipal
from ipal.estimator.learner import Learner
from ipal.estimator.registry import METHODS
from tests.conftest import PROJECT
from tests.snippets import blocks

LEARNERS = [one for one in (getattr(ipal, name) for name in ipal.__all__) if inspect.isclass(one)]
LEARNERS = [one for one in LEARNERS if issubclass(one, Learner) and one is not Learner]


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda one: one.__name__)
def test_help_describes_every_parameter_and_shows_no_machinery(learner: type[Learner]) -> None:
    page = pydoc.plain(pydoc.render_doc(learner))
    assert not re.search(r"Annotated\[|FieldInfo|pydantic", page)
    described = inspect.getdoc(learner) or ""
    for name in inspect.signature(learner).parameters:
        assert re.search(rf"^{name} : \S.*\n    \S", described, re.MULTILINE), name


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("learner", LEARNERS, ids=lambda one: one.__name__)
def test_the_example_of_a_learner_runs(learner: type[Learner], monkeypatch: pytest.MonkeyPatch) -> None:
    few = ipal.load_dataset("synthetic:nodes=200,classes=4,features=16")
    monkeypatch.setattr(ipal, "load_dataset", lambda name: few)
    (example,) = doctest.DocTestFinder(recurse=False).find(learner, learner.__name__, globs={})
    assert doctest.DocTestRunner().run(example) == (0, len(example.examples))
    assert len(example.examples) == 4


@dataclass(frozen=True, kw_only=True)
class Distilled(ipal.Classifier):
    """Scores that stay near those of the previous network, in the words of the page on methods."""

    name = "distilled"
    title = "Distilled"

    def prepare(self, memory: None, context: ipal.TaskContext) -> ipal.TaskContext:
        return context.with_before()

    def loss(
        self, network: Any, memory: None, batch: Any, context: Any, rng: torch.Generator
    ) -> dict[str, torch.Tensor]:
        terms = super().loss(network, memory, batch, context, rng)
        scores = network.classifier(network.encoder(batch.graph))
        assert torch.allclose(scores, network(batch.graph))
        if context.teacher is not None:
            before = context.teacher.classifier(context.before_of(batch)).detach()
            terms["distillation"] = (scores[:, : before.shape[1]] - before).square().mean()
        return terms


def test_scores_of_the_teacher_are_had_as_the_page_on_methods_says() -> None:
    page = (PROJECT / "docs" / "extend.md").read_text()
    for words in ("network.classifier(embeddings)", "context.before_of(batch)", "context.teacher.classifier"):
        assert words in page
    ipal.check_method(Distilled)


def test_every_method_has_a_learner() -> None:
    assert len(LEARNERS) == len(METHODS)


MORE = """
tuned = ipal.IPAL(gamma=0.7, train=ipal.TrainConfig(epochs=2), encoder={"kind": "gcn"}).fit(graph)
labels, known = tuned.predict(graph, reject=0.05), ipal.score_unknown(tuned, graph)
sizes = [group.size for group in ipal.discover(tuned, graph)]
why = ipal.explain(tuned, graph, 3).by_hop
merged = ipal.merge_models(ipal.Analytic(width=64).fit(graph), ipal.Analytic(width=64).fit(graph))
"""


def test_a_type_checker_accepts_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYPYPATH", str(PROJECT / "src"))
    snippet = tmp_path / "snippet.py"
    python = [block.text for block in blocks(PROJECT / "README.md") if block.language == "python"]
    snippet.write_text("\n".join([*python, MORE]))
    options = ["--strict", "--config-file", str(PROJECT / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache")]
    said, errors, code = api.run([*options, str(snippet)])
    assert code == 0, said + errors
