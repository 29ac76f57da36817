"""PR, PCL, POLO and EFC: what they remember of a class, and what moves it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ipal.config import EncoderConfig
from ipal.data.graph import Graph
from ipal.data.streams import Task, TaskStream
from ipal.errors import DataError, NonFiniteError
from ipal.learners import EFC, IPAL, NCM, PCL, POLO, PR
from ipal.learners.efc import drifted_means
from ipal.learners.gaussian_memory import Episode
from ipal.learners.polo import corrected_prototypes, density_prototype, pseudo_features
from ipal.learners.trained import Lesson, balanced_cross_entropy
from ipal.nn import losses
from ipal.nn.prototypes import PrototypeMemory
from tests.learning import first_step, learn, learned, make


def test_shares_of_a_mini_batch_by_hand():
    # Classes 2 and 4 are learned, 0 is old. Of class 2 the nodes 0 and 2 weigh 1 and 3, of class 4 the node 1 weighs 5.
    labels, current, old = torch.tensor([2, 4, 2]), torch.tensor([2, 4]), torch.tensor([0])
    episode = Episode.of(Lesson(labels, current, old, None), np.array([1.0, 5.0, 3.0]))
    assert episode.weights.tolist() == [[0.25, 0, 0.75], [0, 1, 0]]
    whole, absent = episode.shares(slice(None))
    assert (whole.tolist(), absent) == (episode.weights.tolist(), None)
    shares, absent = episode.shares(torch.tensor([2, 1]))
    assert shares.tolist() == [[1, 0], [0, 1]]
    assert absent.tolist() == [False, False, False]
    shares, absent = episode.shares(torch.tensor([2, 0]))
    assert shares.tolist() == [[0.75, 0.25], [0, 0]]
    assert absent.tolist() == [False, True, False]


def test_pr_draws_samples_of_old_classes_only(tiny_stream: TaskStream, monkeypatch):
    asked = []
    sample = PrototypeMemory.sample

    def watched(memory: PrototypeMemory, classes: torch.Tensor, *rest: object) -> torch.Tensor:
        asked.append(classes.tolist())
        return sample(memory, classes, *rest)

    monkeypatch.setattr(PrototypeMemory, "sample", watched)
    learner = make(PR, epochs=2, calibration=0)
    # The first task comes again at the end: its classes are then learned from nodes.
    for index in (0, 1, 2, 0):
        learn(learner, tiny_stream.task(index))
    assert asked == [[0, 1]] * 2 + [[0, 1, 2, 3]] * 2 + [[2, 3, 4, 5]] * 2


@pytest.mark.parametrize("method", [PR, EFC], ids=lambda m: m.name)
def test_what_is_replayed_bears_the_label_of_its_class(method, tiny_stream: TaskStream):
    learner = learned(method, tiny_stream, 2, samples=3, **({"ridge": 1e-12} if method is EFC else {}))
    # Classes that do not vary: every sample is the mean of its class.
    memory = learner.memory_
    learner.memory_ = PrototypeMemory(memory.mean, torch.zeros_like(memory.variance), memory.count)
    learner.covariance_ = torch.zeros(4, 8, 8)
    terms, prepared = first_step(learner, tiny_stream.task(2))
    means, old = learner.head_(memory.mean), torch.arange(4)
    expected = F.cross_entropy(means, old)
    if method is EFC:  # with the current nodes, every class counting the same
        nodes = learner.training_outputs(tiny_stream.task(2))
        expected = balanced_cross_entropy(torch.cat([nodes, means]), torch.cat([prepared.labels, old]))
    assert terms["replay"].item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("method", [PR, PCL, EFC], ids=lambda m: m.name)
def test_a_class_is_remembered_by_the_moments_of_its_training_nodes(method, tiny_stream: TaskStream):
    learner = learned(method, tiny_stream, 2)
    task = tiny_stream.task(1)
    f = learner.training_embeddings(task)
    for label in (2, 3):
        own = f[torch.from_numpy(task.labels == label)]
        torch.testing.assert_close(learner.memory_.mean[label], own.mean(dim=0))
        torch.testing.assert_close(learner.memory_.variance[label], own.var(dim=0, correction=0), rtol=1e-3, atol=1e-6)
        assert learner.memory_.count[label] == len(own)


@pytest.mark.parametrize("method", [PR, PCL], ids=lambda m: m.name)
def test_old_prototypes_never_move(method, tiny_stream: TaskStream):
    learner = learned(method, tiny_stream, 1)
    before = learner.memory_
    learn(learner, tiny_stream.task(1))
    assert torch.equal(learner.memory_.mean[:2], before.mean)
    assert torch.equal(learner.memory_.variance[:2], before.variance)


def test_polo_remembers_density_prototypes_and_moves_old_ones(tiny_stream: TaskStream):
    learner = learned(POLO, tiny_stream, 1, rho=0.5)
    task = tiny_stream.task(0)
    f = learner.training_embeddings(task)
    for label in (0, 1):
        mean, radius = density_prototype(f[torch.from_numpy(task.labels == label)])
        torch.testing.assert_close(learner.memory_.mean[label], mean)
        torch.testing.assert_close(learner.memory_.variance[label], radius.square().expand(8))
    old, task = learner.memory_, tiny_stream.task(1)
    before = learner.training_embeddings(task)
    learn(learner, task)
    expected = corrected_prototypes(old.mean, learner.training_embeddings(task), before, 0.5)
    torch.testing.assert_close(learner.memory_.mean[:2], expected)
    assert (expected - old.mean).abs().max() > 1e-3
    assert torch.equal(learner.memory_.variance[:2], old.variance)
    assert torch.equal(learned(POLO, tiny_stream, 2, rho=0.0).memory_.mean[:2], old.mean)


def test_polo_distils_nothing_at_the_first_step(tiny_stream: TaskStream):
    learner = learned(POLO, tiny_stream, 1)
    terms, prepared = first_step(learner, tiny_stream.task(1))
    assert set(terms) == {"cross_entropy", "replay", "distillation"}
    assert terms["distillation"].item() == pytest.approx(0, abs=1e-5)
    assert terms["replay"] > 0
    assert prepared.old.tolist() == [0, 1]


def test_polos_terms_are_its_equations_by_their_weights(tiny_stream: TaskStream):
    learner, task = learned(POLO, tiny_stream, 1, replay_strength=3.0, kappa=5.0), tiny_stream.task(1)
    steps = learner.learn(task)
    next(steps)  # so that there is something to distil
    prepared, (batch,) = learner.prepare(task), learner.batches(task, 0)
    learner.generator_.manual_seed(4)
    terms = learner.loss(batch, prepared)
    noise = torch.randn(2, 8, generator=torch.Generator().manual_seed(4))
    f, memory = learner.training_embeddings(task), learner.memory_
    pseudo = pseudo_features(memory.mean, memory.variance.mean(dim=1).sqrt(), f, noise)
    replay = F.cross_entropy(learner.head_(pseudo), torch.tensor([0, 1]))
    assert terms["replay"].item() == pytest.approx(3 * replay.item(), rel=1e-4)
    distance = torch.linalg.vector_norm(f - prepared.before.embeddings, dim=1).mean()
    assert terms["distillation"].item() == pytest.approx(5 * distance.item(), rel=1e-4)


def test_efc_remembers_full_covariances_and_a_feature_matrix(tiny_stream: TaskStream):
    learner = learned(EFC, tiny_stream, 2)
    task = tiny_stream.task(1)
    f = learner.training_embeddings(task)
    assert learner.covariance_.shape == (4, 8, 8)
    for label in (2, 3):
        expected = np.cov(f[torch.from_numpy(task.labels == label)].numpy().T, bias=True)
        np.testing.assert_allclose(learner.covariance_[label].numpy(), expected, rtol=1e-3, atol=1e-5)
    E = learner.feature_matrix_
    torch.testing.assert_close(E, E.T, rtol=1e-4, atol=1e-6)
    eigenvalues = torch.linalg.eigvalsh(E)
    assert eigenvalues[-1] > 0
    assert eigenvalues[0] > -1e-5 * eigenvalues[-1]
    # Four outputs that sum to one are seen in three directions.
    assert eigenvalues[-4] < 1e-4 * eigenvalues[-1]


def test_efc_means_follow_the_drift_in_the_metric_of_the_task_before(tiny_stream: TaskStream):
    learner = learned(EFC, tiny_stream, 1)
    old, E, task = learner.memory_, learner.feature_matrix_, tiny_stream.task(1)
    before = learner.training_embeddings(task)
    learn(learner, task)
    expected = drifted_means(old.mean, learner.training_embeddings(task), before, E, learner.sigma)
    torch.testing.assert_close(learner.memory_.mean[:2], expected)
    assert not torch.equal(expected, old.mean)
    assert not torch.equal(learner.feature_matrix_, E)


def test_efc_consolidates_in_its_feature_matrix_and_the_identity_together(tiny_stream: TaskStream):
    learner = learned(EFC, tiny_stream, 1, strength=3.0, damping=0.5)
    task = tiny_stream.task(1)
    learner.start(task)
    prepared = learner.prepare(task)
    with torch.no_grad():
        learner.encoder_.weights[0].mul_(1.5)
    (batch,) = learner.batches(task, 0)
    apart = learner.training_embeddings(task) - prepared.before.embeddings
    along = (apart @ learner.feature_matrix_ * apart).sum(dim=1).mean().item()
    everywhere = apart.square().sum(dim=1).mean().item()
    assert along > 0
    term = learner.loss(batch, prepared)["consolidation"].item()
    assert term == pytest.approx(3.0 * along + 0.5 * everywhere, rel=1e-4)


def test_efc_pools_a_class_that_comes_again_as_its_memory_does(tiny_stream: TaskStream):
    learner = learn(make(EFC), *(tiny_stream.task(index) for index in (0, 1, 0)))
    assert len(learner.covariance_) == len(learner.memory_) == 4
    diagonal = learner.covariance_.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(diagonal, learner.memory_.variance, rtol=1e-3, atol=1e-5)
    for covariance in learner.covariance_:
        torch.testing.assert_close(covariance, covariance.T)
        assert torch.linalg.eigvalsh(covariance)[0] > -1e-4 * covariance.trace()


def test_efc_draws_from_the_gaussians_it_remembers(tiny_stream: TaskStream):
    learner = learned(EFC, tiny_stream, 1, samples=10_000, ridge=0.01)
    learner.start(tiny_stream.task(1))
    drawn = learner._draw(learner.prepare(tiny_stream.task(1))).split(10_000)
    for row, sample in zip((0, 1), drawn, strict=True):
        wanted = learner.covariance_[row] + 0.01 * torch.eye(8)
        scale = wanted.diagonal().max().item()
        torch.testing.assert_close(sample.mean(dim=0), learner.memory_.mean[row], rtol=0, atol=0.03 * scale**0.5)
        torch.testing.assert_close(sample.T.cov(), wanted, rtol=0, atol=0.05 * scale)


@pytest.mark.parametrize("method", [POLO, EFC], ids=lambda m: m.name)
def test_the_network_before_a_task_is_let_go_when_it_is_learned(method, tiny_stream: TaskStream):
    learner = learned(method, tiny_stream, 2, epochs=2)
    assert learner.previous_ is None
    assert not [name for name in learner.tensors() if name.startswith("previous")]
    steps = learner.learn(tiny_stream.task(2))
    next(steps)
    assert [name for name in learner.tensors() if name.startswith("previous.head")]
    assert not any(parameter.requires_grad for parameter in learner.previous_.parameters())


def test_efc_learns_embeddings_of_a_single_number(tiny_stream: TaskStream):
    learner = learned(EFC, tiny_stream, 2, encoder=EncoderConfig(hidden=8, width=1))
    assert learner.covariance_.shape == (4, 1, 1)
    torch.testing.assert_close(learner.covariance_[:, :, 0], learner.memory_.variance)


@pytest.mark.parametrize("method", [PR, PCL, POLO, EFC], ids=lambda m: m.name)
def test_embeddings_too_large_to_be_squared_are_not_remembered(method, tiny_stream: TaskStream):
    task = tiny_stream.task(0)
    huge = Task(Graph(task.graph.x * np.float32(1e25), task.graph.edges), task.nodes, task.labels)
    with pytest.raises(NonFiniteError, match=r"prototypes\.squared_lengths"):
        learn(make(method, epochs=0), huge)


def test_a_covariance_without_a_root_is_answered_with_a_sentence(tiny_stream: TaskStream):
    learner = learned(EFC, tiny_stream, 1)
    task = tiny_stream.task(1)
    for value, words in ((-1.0, "efc.ridge=0.1"), (np.inf, "too large to be squared")):
        learner.covariance_ = torch.full_like(learner.covariance_, value)
        learner.start(task)
        with pytest.raises((DataError, NonFiniteError), match=words):
            learner.prepare(task)


@pytest.mark.parametrize("method", [PCL, IPAL, PR], ids=lambda m: m.name)
def test_a_class_that_comes_again_is_a_current_one_and_no_old_one(method, tiny_stream: TaskStream):
    learner = learned(method, tiny_stream, 2)
    _, prepared = first_step(learner, tiny_stream.task(0))
    assert prepared.current.tolist() == [0, 1]
    assert prepared.old.tolist() == [2, 3]


def test_pcl_sets_a_class_that_comes_again_against_the_others_and_not_against_itself(tiny_stream: TaskStream):
    learner, task = learned(PCL, tiny_stream, 2), tiny_stream.task(0)
    terms, _ = first_step(learner, task)
    f, labels = learner.training_embeddings(task), torch.from_numpy(task.labels)
    # Eq. 2: classes 0 and 1 by their nodes, 2 and 3 by what is remembered. What is remembered of 0 and 1 would be a
    # negative of their own nodes.
    mu = torch.stack([f[labels == 0].mean(dim=0), f[labels == 1].mean(dim=0), *learner.memory_.mean[2:]])
    expected = F.cross_entropy(losses.cosine(f, mu) / 0.07, labels)
    assert terms["contrast"].item() == pytest.approx(expected.item(), rel=1e-4)


def test_ipal_compensates_old_classes_and_pools_one_that_comes_again(tiny_stream: TaskStream):
    learner, task = learned(IPAL, tiny_stream, 2, node_weights="uniform", beta=0.5), tiny_stream.task(0)
    old, before = learner.memory_, learner.training_embeddings(task)
    learn(learner, task)
    f, labels = learner.training_embeddings(task), torch.from_numpy(task.labels)
    w = losses.proximity_softmax(losses.cosine(before, old.mean[2:]))
    moved = losses.compensate(old.mean[2:], f, before, w, 0.5)
    torch.testing.assert_close(learner.memory_.mean[2:], moved)
    for label in (0, 1):  # as many nodes as the first time
        pooled = (old.mean[label] + f[labels == label].mean(dim=0)) / 2
        torch.testing.assert_close(learner.memory_.mean[label], pooled)


@pytest.mark.parametrize("method", [PCL, NCM], ids=lambda m: m.name)
def test_probabilities_are_the_softmax_of_cosines_by_temperature(method, tiny_stream: TaskStream):
    learner, graph = learned(method, tiny_stream, 1, tau=0.5), tiny_stream.test_splits(0)[0].graph
    scores = learner.scores(graph)
    cosines = losses.cosine(learner.represent(graph), learner.memory_.mean if method is PCL else learner.sums_.mean)
    # A difference of cosines of d is odds of e^(2 d).
    odds = torch.exp(2 * (cosines[:, 0] - cosines[:, 1]))
    p = learner.probabilities(scores, graph)
    torch.testing.assert_close(p[:, 0] / p[:, 1], odds, rtol=1e-4, atol=0)
    torch.testing.assert_close(p.sum(dim=1), torch.ones(len(p)))
