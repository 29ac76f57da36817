"""PR, PCL, POLO and EFC: what they remember of a class, and what moves it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ipal.backend.finite import not_finite, read_terms
from ipal.config import EncoderConfig
from ipal.data.graph import Graph
from ipal.data.streams import TaskStream
from ipal.data.task import Task
from ipal.errors import DataError, NonFiniteError
from ipal.estimator import files
from ipal.estimator.model import Model, begin_learning
from ipal.methods.base import TaskContext
from ipal.methods.classifier import balanced_cross_entropy
from ipal.methods.efc import EFC, drifted_means
from ipal.methods.ipal import IPAL
from ipal.methods.ncm import NCM
from ipal.methods.pcl import PCL
from ipal.methods.polo import POLO, corrected_prototypes, density_prototype, pseudo_features
from ipal.methods.pr import PR
from ipal.methods.shared.prototypes import PrototypeContext, PrototypeMemory
from ipal.nn import losses
from tests.learning import CPU, begun, config, first_step, learn, learned

FINE = torch.ones(2, 2)


def embedded(model: Model, task: Task) -> Tensor:
    return model.compute.embeddings(model.network, task)


def prototypes(model: Model) -> PrototypeMemory:
    return getattr(model.state.memory, "prototypes", model.state.memory)


def with_memory(model: Model, memory: object) -> Model:
    return replace(model, state=replace(model.state, memory=memory))


def test_shares_of_a_mini_batch_by_hand():
    # Classes 2 and 4 are learned, 0 is old. Of class 2 the nodes 0 and 2 weigh 1 and 3, of class 4 the node 1 weighs 5.
    labels, current, old = torch.tensor([2, 4, 2]), torch.tensor([2, 4]), torch.tensor([0])
    context = PrototypeContext.of(TaskContext(None, labels, current, old, None, None), np.array([1.0, 5.0, 3.0]))
    assert context.weights.tolist() == [[0.25, 0, 0.75], [0, 1, 0]]
    whole, absent = context.prototypes(torch.eye(3), slice(None))
    assert (whole.tolist(), absent) == (context.weights.tolist(), None)
    shares, absent = context.prototypes(torch.eye(2), torch.tensor([2, 1]))
    assert shares.tolist() == [[1, 0], [0, 1]]
    assert absent.tolist() == [False, False, False]
    shares, absent = context.prototypes(torch.eye(2), torch.tensor([2, 0]))
    assert shares.tolist() == [[0.75, 0.25], [0, 0]]
    assert absent.tolist() == [False, True, False]


def not_finite_in(mean: Tensor, variance: Tensor) -> list[str]:
    return not_finite(PrototypeMemory(mean, variance, torch.tensor([3, 3])).finite_parts())


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_gaussian_that_is_no_number_is_found(wrong: float):
    bad = torch.tensor([[1.0, 1.0], [1.0, wrong]])
    assert not_finite_in(FINE, FINE) == []
    assert not_finite_in(bad, FINE) == ["squared_lengths"]
    assert not_finite_in(FINE, bad) == ["variance"]


def test_a_mean_too_long_to_be_squared_is_found():
    # The square of 1.5e19 is a number, twice the square is none: float32 ends at 3.4e38. 1e19 is long only together.
    assert not_finite_in(torch.full((2, 2), 1e19), FINE) == []
    for length in (1.5e19, 1e25):
        assert not_finite_in(torch.full((2, 2), length), FINE) == ["squared_lengths"]


@pytest.mark.parametrize("method", [PR, EFC], ids=lambda m: m.name)
def test_what_is_replayed_bears_the_label_of_its_class(method, tiny_stream: TaskStream):
    model = learned(method, tiny_stream, 2, samples=3, **({"ridge": 1e-12} if method is EFC else {}))
    # Classes that do not vary: every sample is the mean of its class.
    memory = prototypes(model)
    still = PrototypeMemory(memory.mean, torch.zeros_like(memory.variance), memory.count)
    if method is EFC:
        still = replace(model.state.memory, prototypes=still, covariance=torch.zeros(4, 8, 8))
    terms, training = first_step(with_memory(model, still), tiny_stream.task(2))
    means, old = training.network.classifier(memory.mean), torch.arange(4)
    expected = F.cross_entropy(means, old)
    if method is EFC:  # with the current nodes, every class counting the same
        nodes = training.context.compute.outputs(training.network, training.context.task)
        expected = balanced_cross_entropy(torch.cat([nodes, means]), torch.cat([training.context.labels, old]))
    assert terms["replay"].item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("method", [PR, PCL, EFC, IPAL], ids=lambda m: m.name)
def test_a_class_is_remembered_by_the_moments_of_its_training_nodes(method, tiny_stream: TaskStream):
    settings = {"node_weights": "uniform"} if method is IPAL else {}
    model, task = learned(method, tiny_stream, 2, **settings), tiny_stream.task(1)
    f, memory = embedded(model, task), prototypes(model)
    for label in (2, 3):
        own = f[torch.from_numpy(task.labels == label)]
        torch.testing.assert_close(memory.mean[label], own.mean(dim=0))
        torch.testing.assert_close(memory.variance[label], own.var(dim=0, correction=0), rtol=1e-3, atol=1e-6)
        assert memory.count[label] == len(own)


def test_polo_remembers_density_prototypes_and_moves_old_ones(tiny_stream: TaskStream):
    model, task = learned(POLO, tiny_stream, 1, rho=0.5), tiny_stream.task(0)
    f, old = embedded(model, task), prototypes(model)
    for label in (0, 1):
        mean, radius = density_prototype(f[torch.from_numpy(task.labels == label)])
        torch.testing.assert_close(old.mean[label], mean)
        torch.testing.assert_close(old.variance[label], radius.square().expand(8))
    task = tiny_stream.task(1)
    later = learn(model, task)
    expected = corrected_prototypes(old.mean, embedded(later, task), embedded(model, task), 0.5)
    torch.testing.assert_close(prototypes(later).mean[:2], expected)
    assert (expected - old.mean).abs().max() > 1e-3
    assert torch.equal(prototypes(later).variance[:2], old.variance)
    assert torch.equal(prototypes(learned(POLO, tiny_stream, 2, rho=0.0)).mean[:2], old.mean)


def test_polos_terms_are_its_equations_by_their_weights(tiny_stream: TaskStream):
    model = learned(POLO, tiny_stream, 1, replay_strength=3.0, kappa=5.0)
    training = begun(model, tiny_stream.task(1))
    (batch,) = training.batches(0)
    (first,) = read_terms([training.step(batch)])  # after it there is something to distil
    assert set(first) == {"cross_entropy", "replay", "distillation"}
    assert first["distillation"] == pytest.approx(0, abs=1e-5)
    training.state.generator.manual_seed(4)
    terms = training.loss(batch)
    noise = torch.randn(2, 8, generator=torch.Generator().manual_seed(4))
    f, memory = training.context.embeddings(training.network), prototypes(model)
    pseudo = pseudo_features(memory.mean, memory.variance.mean(dim=1).sqrt(), f, noise)
    replay = F.cross_entropy(training.network.classifier(pseudo), torch.tensor([0, 1]))
    assert terms["replay"].item() == pytest.approx(3 * replay.item(), rel=1e-4)
    distance = torch.linalg.vector_norm(f - training.context.before, dim=1).mean()
    assert distance > 0
    assert terms["distillation"].item() == pytest.approx(5 * distance.item(), rel=1e-4)


def test_efc_remembers_full_covariances_and_a_feature_matrix(tiny_stream: TaskStream):
    model, task = learned(EFC, tiny_stream, 2), tiny_stream.task(1)
    f, covariance = embedded(model, task), model.state.memory.covariance
    assert covariance.shape == (4, 8, 8)
    for label in (2, 3):
        expected = np.cov(f[torch.from_numpy(task.labels == label)].numpy().T, bias=True)
        np.testing.assert_allclose(covariance[label].numpy(), expected, rtol=1e-3, atol=1e-5)
    E = model.state.memory.feature_matrix
    torch.testing.assert_close(E, E.T, rtol=1e-4, atol=1e-6)
    eigenvalues = torch.linalg.eigvalsh(E)
    assert eigenvalues[-1] > 0
    assert eigenvalues[0] > -1e-5 * eigenvalues[-1]
    # Four outputs that sum to one are seen in three directions.
    assert eigenvalues[-4] < 1e-4 * eigenvalues[-1]


def test_efc_means_follow_the_drift_in_the_metric_of_the_task_before(tiny_stream: TaskStream):
    model, task = learned(EFC, tiny_stream, 1), tiny_stream.task(1)
    later = learn(model, task)
    old, E = prototypes(model), model.state.memory.feature_matrix
    expected = drifted_means(old.mean, embedded(later, task), embedded(model, task), E, model.method.sigma)
    torch.testing.assert_close(prototypes(later).mean[:2], expected)
    assert not torch.equal(expected, old.mean)
    assert not torch.equal(later.state.memory.feature_matrix, E)


def test_efc_consolidates_in_its_feature_matrix_and_the_identity_together(tiny_stream: TaskStream):
    training = begun(learned(EFC, tiny_stream, 1, strength=3.0, damping=0.5), tiny_stream.task(1))
    with torch.no_grad():
        training.network.encoder.weights[0].mul_(1.5)
    (batch,) = training.batches(0)
    apart = training.context.embeddings(training.network) - training.context.before
    along = (apart @ training.state.memory.feature_matrix * apart).sum(dim=1).mean().item()
    everywhere = apart.square().sum(dim=1).mean().item()
    assert along > 0
    term = training.loss(batch)["consolidation"].item()
    assert term == pytest.approx(3.0 * along + 0.5 * everywhere, rel=1e-4)


def test_efc_pools_a_class_that_comes_again_as_its_memory_does(tiny_stream: TaskStream):
    memory = learn(config(EFC), *(tiny_stream.task(index) for index in (0, 1, 0))).state.memory
    assert len(memory.covariance) == len(memory.mean) == 4
    diagonal = memory.covariance.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(diagonal, memory.prototypes.variance, rtol=1e-3, atol=1e-5)
    for covariance in memory.covariance:
        torch.testing.assert_close(covariance, covariance.T)
        assert torch.linalg.eigvalsh(covariance)[0] > -1e-4 * covariance.trace()


def test_efc_draws_from_the_gaussians_it_remembers(tiny_stream: TaskStream):
    training = begun(learned(EFC, tiny_stream, 1, ridge=0.01), tiny_stream.task(1))
    memory, context = training.state.memory, training.context
    drawn = memory.draw(context.old, context.roots, 10_000, training.state.generator)
    for row, sample in enumerate(drawn.split(10_000)):
        wanted = memory.covariance[row] + 0.01 * torch.eye(8)
        scale = wanted.diagonal().max().item()
        torch.testing.assert_close(sample.mean(dim=0), memory.prototypes.mean[row], rtol=0, atol=0.03 * scale**0.5)
        torch.testing.assert_close(sample.T.cov(), wanted, rtol=0, atol=0.05 * scale)


@pytest.mark.parametrize("method", [POLO, EFC], ids=lambda m: m.name)
def test_the_network_before_a_task_is_let_go_when_it_is_learned(method, tiny_stream: TaskStream):
    def of_teacher(model: Model) -> set[str]:
        names = files.checkpoint(model).tensors
        return {".".join(name.split(".")[:2]) for name in names if name.startswith("teacher.")}

    model = learned(method, tiny_stream, 2, epochs=2)
    assert model.state.teacher is None
    assert of_teacher(model) == set()
    learning = begin_learning(model.config, model, tiny_stream.task(2), CPU)
    state = next(learning.epochs()).state
    assert of_teacher(replace(learning.model, state=state)) == {"teacher.encoder", "teacher.head"}


def test_efc_learns_embeddings_of_a_single_number(tiny_stream: TaskStream):
    memory = learned(EFC, tiny_stream, 2, encoder=EncoderConfig(hidden=8, width=1)).state.memory
    assert memory.covariance.shape == (4, 1, 1)
    torch.testing.assert_close(memory.covariance[:, :, 0], memory.prototypes.variance)


@pytest.mark.parametrize("method", [PR, PCL, POLO, EFC], ids=lambda m: m.name)
def test_embeddings_too_large_to_be_squared_are_not_remembered(method, tiny_stream: TaskStream):
    task = tiny_stream.task(0)
    huge = Task(Graph(task.graph.x * np.float32(1e25), task.graph.edges), task.nodes, task.labels)
    with pytest.raises(NonFiniteError, match=r"memory\.(prototypes\.)?squared_lengths"):
        learn(config(method, epochs=0), huge)


def test_a_covariance_without_a_root_is_answered_with_a_sentence(tiny_stream: TaskStream):
    model = learned(EFC, tiny_stream, 1)
    memory = model.state.memory
    for value, words in ((-1.0, "efc.ridge=0.1"), (np.inf, "too large to be squared")):
        wrong = replace(memory, covariance=torch.full_like(memory.covariance, value))
        with pytest.raises((DataError, NonFiniteError), match=words):
            begun(with_memory(model, wrong), tiny_stream.task(1))


def test_ipal_compensates_old_classes_and_pools_one_that_comes_again(tiny_stream: TaskStream):
    model, task = learned(IPAL, tiny_stream, 2, node_weights="uniform", beta=0.5), tiny_stream.task(0)
    later = learn(model, task)
    old, new, before, f = prototypes(model), prototypes(later), embedded(model, task), embedded(later, task)
    w = losses.proximity_softmax(losses.cosine(before, old.mean[2:]))
    torch.testing.assert_close(new.mean[2:], losses.compensate(old.mean[2:], f, before, w, 0.5))
    for label in (0, 1):  # as many nodes as the first time
        pooled = (old.mean[label] + f[torch.from_numpy(task.labels == label)].mean(dim=0)) / 2
        torch.testing.assert_close(new.mean[label], pooled)


@pytest.mark.parametrize("method", [PCL, NCM], ids=lambda m: m.name)
def test_probabilities_are_the_softmax_of_cosines_by_temperature(method, tiny_stream: TaskStream):
    model, graph = learned(method, tiny_stream, 1, tau=0.5), tiny_stream.test_splits(0)[0].graph
    cosines = losses.cosine(model.embed(graph), prototypes(model).mean)
    # A difference of cosines of d is odds of e^(2 d).
    odds = torch.exp(2 * (cosines[:, 0] - cosines[:, 1]))
    p = model.probabilities(model.forward(graph).scores, graph)
    torch.testing.assert_close(p[:, 0] / p[:, 1], odds, rtol=1e-4, atol=0)
    torch.testing.assert_close(p.sum(dim=1), torch.ones(len(p)))
