"""The exams of runs whose learners are stacked, which are taken together."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from ipal.data.streams import Exam
from ipal.evaluation.evaluate import Evaluation, evaluate, evaluate_all
from ipal.learners import Learner
from ipal.learners.mapped import looking
from ipal.learners.stacked import Waiting
from ipal.learners.trained import TrainedLearner


def company_of(learner: Learner, index: int) -> AbstractContextManager[Waiting[Evaluation] | None]:
    """Those who are tested after a task with this learner, which pauses inside until they have come; None if alone."""
    if isinstance(learner, TrainedLearner) and learner.stack_:
        return learner.stack_.waiting(learner, ("exams", index))
    return nullcontext()


def tested(
    learner: Learner, company: Waiting[Evaluation] | None, exams: Callable[[], list[Exam]], accuracy: str
) -> Evaluation:
    """The scores of a learner: with those of its company, or by itself."""
    if company is None:
        return evaluate(learner, exams(), accuracy)

    def evaluated(some: Sequence[Waiting[Evaluation]]) -> Sequence[Evaluation]:
        learners = [one.learner for one in some]
        return evaluate_all(learners, exams(), accuracy, looking(learners))

    return company.together(evaluated)
