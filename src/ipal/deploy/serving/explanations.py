"""Explanations over HTTP: the body of a prediction with one node, and what to compare with in the address."""

from collections.abc import Mapping
from dataclasses import dataclass

from ipal.deploy.serving.answers import Found
from ipal.deploy.serving.questions import Question
from ipal.errors import DataError, did_you_mean
from ipal.estimator.explain import explained
from ipal.estimator.model import Model

MOST = 1000


@dataclass(frozen=True)
class Explainer:
    """Explains the node of a question."""

    against: str | None = None
    """The class to compare with; the next best where None."""
    top: int = 10

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Explainer":
        """From the address of a request, after the question mark."""
        for name in query:
            if name not in ("against", "top"):
                raise DataError(f"'{name[:40]}' is not known here.{did_you_mean(name[:40], ['against', 'top'])}")
        top = query.get("top", "10")
        if not (top.isascii() and top.isdigit() and len(top) < 9 and 1 <= int(top) <= MOST):
            raise DataError(f"top must be a whole number of 1 to {MOST}.")
        return cls(query.get("against"), int(top))

    def __call__(self, model: Model, question: Question) -> Found:
        if question.nodes is None or len(question.nodes) != 1:
            raise DataError("An explanation is of one node: name it, as nodes: [3].")
        if any(option is not None for option in (question.reject, question.coverage, question.probabilities)):
            raise DataError("reject, coverage and probabilities are of predictions: leave them out.")
        by_name = {str(label): label for label in model.labels}
        against = None if self.against is None else by_name.get(self.against, self.against[:40])
        found = explained(model, question.graph, int(question.nodes[0]), against)
        return found.as_plain_data(self.top, features=model.schema.columns or None), 0, 0
