"""The scikit-learn style face of a method: `partial_fit`, `predict`, `score`, `save`."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ipal.backend.runtime import Runtime
from ipal.data.labels import Labels
from ipal.engine.trainer import finished
from ipal.errors import ConfigError, DataError, NotFittedError, Qualified
from ipal.estimator import files
from ipal.estimator.convert.pyg import labels_to_score, task_of
from ipal.estimator.display import documented, progress
from ipal.estimator.history import fingerprint, now
from ipal.estimator.model import Model, begin_learning
from ipal.estimator.open_world import unknown
from ipal.estimator.settings import LearnerConfig, learner_config
from ipal.methods.base import Method

if TYPE_CHECKING:  # for their names alone: importing them takes seconds
    from torch_geometric.data import Data


class Learner:
    """A continual learner on graphs: `partial_fit` one task after the other, `predict` over all classes so far.

    Every method has a class of its own, as `ipal.IPAL`; `ipal.learner_class` makes one for a method of yours. A graph
    is a `torch_geometric.data.Data`, or what `ipal.graph_from` gives.

    Parameters
    ----------
    *unnamed
        Refused: settings go by name.
    **settings
        The parameters of the method.
    """

    _method: ClassVar[type[Method]]

    def __init_subclass__(cls, *, method: type[Method] | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if method is not None:
            cls._method = method
            cls.__doc__, cls.__signature__ = documented(method)  # type: ignore[attr-defined]

    def __init__(self, *unnamed: Any, **settings: Any) -> None:
        if not hasattr(type(self), "_method"):
            raise ConfigError("Learner is no method: take one as ipal.IPAL, or ipal.learner_class(YourMethod).")
        if unnamed:
            name = type(self).__name__
            raise ConfigError(f"The settings of {name} go by name, as {name}(seed=1).")
        self._config: LearnerConfig = learner_config(self._method, settings)
        self._model: Model | None = None

    # ------------------------------------------------------------------ learning

    def partial_fit(self, data: "Data", y: None = None) -> Self:
        """Learn the classes of one more graph.

        A task is learned in whole or not at all: interrupted, the learner is what it was before. Until it is learned,
        other threads predict with the model before.

        Parameters
        ----------
        data : Data or GraphData
            A graph with features `x`, edges `edge_index` and labels `y`. `train_mask` says which labels count; without
            it, all do.
        y : None
            Refused: the labels are in the graph.

        Returns
        -------
        self
        """
        return self._become(self._learned(self._model, data, y))

    def fit(self, data: "Data", y: None = None) -> Self:
        """Learn one graph from the beginning: what was learned before is lost, unlike with `partial_fit`.

        Parameters
        ----------
        data : Data or GraphData
            As for `partial_fit`.
        y : None
            Refused: the labels are in the graph.

        Returns
        -------
        self
        """
        return self._become(self._learned(None, data, y))

    def _learned(self, model: Model | None, data: Any, y: Any) -> Model:
        if y is not None:
            raise ConfigError(
                "A graph has its labels in it: pass ipal.graph_from({'x': X, 'edge_index': edges, 'y': y})."
            )
        time, number = now(), 1 + (len(model.lessons) if model else 0)
        runtime = Runtime.of(self._config.device) if model is None else model.runtime
        # Restored where learning is interrupted inside torch.no_grad().
        with torch.set_grad_enabled(torch.is_grad_enabled()), progress(self._config, f"task {number}") as show:
            learning = begin_learning(self._config, model, task_of(data), runtime, time=time)
            if model is not None and fingerprint(learning.task) in {lesson.fingerprint for lesson in model.lessons}:
                warnings.warn(
                    "These training nodes of this graph were learned before, and count twice from now on: mark only "
                    "new labels in train_mask.",
                    Qualified,
                    stacklevel=3,
                )
            return learning.finish(finished(learning.epochs(), show))

    # ------------------------------------------------------------------ prediction

    def predict(self, data: "Data", *, reject: float | None = None) -> Labels:
        """The likeliest of all classes learned so far, for every node.

        Parameters
        ----------
        data : Data or GraphData
            A graph with `x` and `edge_index`.
        reject : float, optional
            Share of known nodes that may be lost. None is predicted for nodes that seem to be of no known class.

        Returns
        -------
        ndarray of shape (n_nodes,)
            Labels as they were learned.
        """
        model = self.model_
        graph = model.checked(data)
        labels = model.predict_graph(graph).labels
        if reject is not None:
            labels = labels.astype(object)
            labels[unknown.rejected(model, graph, reject)] = None
        return labels

    def predict_proba(self, data: "Data") -> NDArray[np.float32]:
        """Probability of every class for every node, calibrated where the model could be.

        Parameters
        ----------
        data : Data or GraphData
            A graph with `x` and `edge_index`.

        Returns
        -------
        ndarray of shape (n_nodes, n_classes)
            Columns are in the order of `classes_`.
        """
        return self.model_.predict_proba(data)

    def decision_function(self, data: "Data") -> NDArray[np.float32]:
        """Score of every class for every node: `predict` gives the class of the highest.

        Parameters
        ----------
        data : Data or GraphData
            A graph with `x` and `edge_index`.

        Returns
        -------
        ndarray of shape (n_nodes, n_classes)
            Columns are in the order of `classes_`.
        """
        return self.model_.predict_graph(data).scores.cpu().numpy()

    def score(self, data: "Data", mask: Any = None) -> float:
        """Share of labelled nodes whose class is predicted rightly.

        Nodes without a label (-1, NaN, None or an empty string) do not count.

        Parameters
        ----------
        data : Data or GraphData
            A graph with `x`, `edge_index` and `y`.
        mask : array of bool of shape (n_nodes,), optional
            Which of the nodes with a label count. Default: `data.test_mask`, or all where there is none.

        Returns
        -------
        float
            Accuracy. A class that was never learned counts as missed.

        Raises
        ------
        DataError
            If no node counts, or labels are of another kind than those learned.
        """
        model = self.model_
        graph = model.checked(data)
        truth = labels_to_score(data, graph.num_nodes, model.labels, mask)
        predicted = model.predict_graph(graph).labels
        if predicted.dtype.kind != truth.labels.dtype.kind:
            raise DataError("The labels of this graph and of the model must be of one kind: numbers or strings.")
        return float(np.mean(predicted[truth.nodes] == truth.labels))

    def embed(self, data: "Data") -> NDArray[np.float32]:
        """Embedding of every node.

        Parameters
        ----------
        data : Data or GraphData
            A graph with `x` and `edge_index`.

        Returns
        -------
        ndarray of shape (n_nodes, width)
        """
        with torch.no_grad():
            model = self.model_
            return model.embed(model.checked(data)).cpu().numpy()

    # ------------------------------------------------------------------ what was learned

    @property
    def model_(self) -> Model:
        """What was learned, as an immutable value."""
        if self._model is None:
            raise NotFittedError("This model has learned nothing yet: call partial_fit first.")
        return self._model

    @property
    def classes_(self) -> Labels:
        """Labels of all classes learned so far, in the order in which they came; new ones are added at the end."""
        return self.model_.classes_

    @property
    def n_features_in_(self) -> int:
        """How many features a node has."""
        return self.model_.num_features

    @property
    def history_(self) -> list[dict[str, Any]]:
        """What was learned and changed, and when: one entry an event."""
        return [event.model_dump() for event in self.model_.history]

    def memory_report(self) -> dict[str, Any]:
        """Everything that a saved model holds, with sizes in bytes.

        Returns
        -------
        dict
            `items` (kind, what, bytes), `bytes` in all, `stores_exemplars`, `nodes_behind_class`, and what is kept
            `only_while_learning`.
        """
        return self.model_.memory_report()

    # ------------------------------------------------------------------ files

    def save(self, path: str | Path, *, moments: bool = False) -> None:
        """Write the model to one file, whole or not at all.

        Parameters
        ----------
        path : str or Path
            The file.
        moments : bool, default=False
            Also write the optimiser's moments: needed to continue exactly as if never saved. They tell much about the
            last task's nodes.
        """
        files.save(self.model_, path, moments=moments)

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu") -> Self:
        """A learner of this method from a file written by `save`; `ipal.load` finds the method by itself.

        Parameters
        ----------
        path : str or Path
            The file.
        device : str, default="cpu"
            Where to compute.

        Returns
        -------
        Learner
        """
        return cls._of(files.load(path, device=device, method=cls._method))

    @classmethod
    def _of(cls, model: Model) -> Self:
        """A learner that has learned a model."""
        return cls(**model.config.given)._become(model)

    def _become(self, model: Model | None) -> Self:
        """Replace what was learned, all at once."""
        self._model = model
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """For Python's own pickle: the settings, and the model as its file would hold it."""
        kind, method = type(self), self._method
        is_named = (kind.__module__, kind.__qualname__) != (method.__module__, method.__qualname__)
        return _remade, (kind if is_named else method, dict(self._config.given), self._model)

    # ------------------------------------------------------------------ as scikit-learn asks for it

    _estimator_type: ClassVar[str] = "classifier"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings by name.

        Parameters
        ----------
        deep : bool, default=True
            Not used; settings hold no further estimators.

        Returns
        -------
        dict
        """
        return dict(self._config.given)

    def set_params(self, **settings: Any) -> Self:
        """Change settings of a learner that has learned nothing, checked as those of a new one.

        Parameters
        ----------
        **settings
            As for the constructor.

        Returns
        -------
        self

        Raises
        ------
        ConfigError
            If the learner has learned, or a setting is wrong.
        """
        if self._model is not None and settings:
            raise ConfigError(
                "What this model has learned rests on its settings: change those of one that has learned nothing, "
                "which clone(model) of sklearn.base makes."
            )
        self._config = learner_config(self._method, {**self._config.given, **settings})
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return self._model is not None

    def __sklearn_clone__(self) -> Self:
        return type(self)(**self._config.given)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags  # it takes a second to import

        inputs = InputTags(two_d_array=False)
        return Tags("classifier", TargetTags(required=True), classifier_tags=ClassifierTags(), input_tags=inputs)

    def __repr__(self) -> str:
        by_hand = ", ".join(f"{name}={value!r}" for name, value in self._config.by_hand.items())
        return f"{self._method.__name__}({by_hand})"


def learner_class(method: type[Method]) -> type[Learner]:
    """The class of learners of a method: for methods of your own.

    Parameters
    ----------
    method : type
        A frozen dataclass that extends `ipal.Trained` or `ipal.OnePass`.

    Returns
    -------
    type
        A subclass of `Learner` with the method's settings as parameters.
    """
    for known in Learner.__subclasses__():  # made once for every method
        if getattr(known, "_method", None) is method:
            return known
    made = type(method.__name__, (Learner,), {"__module__": method.__module__}, method=method)
    return cast(type[Learner], made)


def _remade(kind: type[Learner] | type[Method], settings: dict[str, Any], model: Model | None) -> Learner:
    """A pickled learner; one whose class `learner_class` made is found by its method."""
    return (kind if issubclass(kind, Learner) else learner_class(kind))(**settings)._become(model)
