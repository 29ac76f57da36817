"""Sums of the closed form against numbers worked by hand: what they are, what can be taken away, what is refused."""

import dataclasses
import math
from collections.abc import Sequence

import pytest
import torch
from ipal.learners.analytic.class_sums import PerClassSums, PooledSums, Sums
from torch import Tensor

from ipal.backend.distributed import ONE_PROCESS, Team
from ipal.errors import DataError
from ipal.learners.analytic import class_sums, lower_half
from ipal.learners.analytic.lower_half import add_gram, mirrored
from ipal.learners.analytic.rows import Rows, exact_parts, grid, rounded

CPU = torch.device("cpu")
NAMES = ["ant", "bee"]
BOTH = pytest.mark.parametrize("kind", [PooledSums, PerClassSums])


def doubles(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def rows(inputs: Tensor, *labels: int) -> Rows:
    return Rows(inputs, torch.tensor(labels), lambda x: x.double())


# Class 0 is (1, 0) and (0, 1), class 1 is (1, 1) alone.
ANTS, BEE = doubles([1, 0], [0, 1]), doubles([1, 1])
THREE = rows(torch.cat([ANTS, BEE]), 0, 0, 1)


def learned(kind: type[Sums]) -> Sums:
    return kind.empty(2, CPU).grown(2).exchanged(None, THREE, NAMES)


def assert_same(a: Sums, b: Sums) -> None:
    for name, tensor in a.tensors().items():
        torch.testing.assert_close(tensor, b.tensors()[name], rtol=1e-12, atol=1e-12)


@BOTH
def test_balanced_by_hand(kind) -> None:
    # Class 0: (1 0; 0 1) / 2, its mean (1/2, 1/2). Class 1: (1 1; 1 1), its mean (1, 1).
    gram, cross = learned(kind).balanced()
    torch.testing.assert_close(mirrored(gram), doubles([1.5, 1], [1, 1.5]))
    torch.testing.assert_close(cross, doubles([0.5, 1], [0.5, 1]))
    assert learned(kind).count.tolist() == [2, 1]
    torch.testing.assert_close(learned(kind).total, doubles([1, 1], [1, 1]))


def test_what_is_kept_by_hand() -> None:
    torch.testing.assert_close(mirrored(learned(PooledSums).gram), doubles([1.5, 1], [1, 1.5]))
    # Lower halves row by row: (1; 0 1) and (1; 1 1).
    torch.testing.assert_close(learned(PerClassSums).gram, (doubles(1, 0, 1), doubles(1, 1, 1)))
    torch.testing.assert_close(learned(PerClassSums).class_gram(0), doubles([1, 0], [0, 1]))


def test_bytes_for_by_hand() -> None:
    assert PooledSums.bytes_for(10, 7) == 8 * 100
    assert PerClassSums.bytes_for(10, 7) == 8 * 7 * 55
    for kind, expected in ((PooledSums, 4), (PerClassSums, 2 * 3)):
        assert sum(part.numel() for part in learned(kind).parts([0, 1])[1:]) == expected == kind.bytes_for(2, 2) / 8


def test_add_gram_by_hand_and_in_blocks(monkeypatch) -> None:
    gram = torch.zeros(2, 2, dtype=torch.float64)
    add_gram(gram, doubles([1, 2], [3, 4]))
    torch.testing.assert_close(mirrored(gram), doubles([10, 14], [14, 20]))
    add_gram(gram, doubles([1, 2]), -1.0)
    torch.testing.assert_close(mirrored(gram), doubles([9, 12], [12, 16]))
    monkeypatch.setattr(lower_half, "BLOCK", 3)  # 8 columns: two whole blocks, and a rest
    x = torch.arange(40, dtype=torch.float64).reshape(5, 8)
    blocks = torch.zeros(8, 8, dtype=torch.float64)
    add_gram(blocks, x)
    torch.testing.assert_close(mirrored(blocks), x.T @ x)


def test_pieces_are_the_chosen_rows_and_their_labels() -> None:
    ((found, labels),) = THREE.pieces(torch.tensor([2, 0]))
    torch.testing.assert_close(found, doubles([1, 1], [1, 0]))
    assert labels.tolist() == [1, 0]


class Member(Team):
    """One of two processes, with what the other has for the sums."""

    def __init__(self, rank: int, others: Sequence[Tensor] = ()) -> None:
        super().__init__(rank, size=2)
        self.others, self.own = others, list[Tensor]()

    def all_reduce(self, *tables: Tensor) -> None:
        self.own = [table.clone() for table in tables]
        for table, other in zip(tables, self.others, strict=False):
            table.add_(other)


@BOTH
def test_two_processes_take_in_their_shares_by_hand(kind) -> None:
    start = kind.empty(2, CPU).grown(2).exchanged(None, rows(doubles([0, 2]), 1), NAMES)
    whole = start._changed(1.0, THREE, torch.tensor([2, 2]), torch.tensor([2, 2]), ONE_PROCESS)
    second = Member(1)
    start._changed(1.0, THREE, torch.tensor([2, 2]), torch.tensor([2, 2]), second)
    torch.testing.assert_close(second.own[0], doubles([0, 0], [1, 1]))  # three rows: two for the first, and one
    first = Member(0, second.own)
    together = start._changed(1.0, THREE, torch.tensor([2, 2]), torch.tensor([2, 2]), first)
    torch.testing.assert_close(first.own[0], doubles([1, 1], [0, 0]))
    torch.testing.assert_close(together.total, doubles([1, 1], [1, 3]))
    assert_same(together, whole)
    torch.testing.assert_close(start.total, doubles([0, 0], [0, 2]))
    # Taken away again, each its share with the other sign.
    second = Member(1)
    together._changed(-1.0, THREE, torch.tensor([0, 1]), torch.tensor([2, 2]), second)
    first = Member(0, second.own)
    left = together._changed(-1.0, THREE, torch.tensor([0, 1]), torch.tensor([2, 2]), first)
    torch.testing.assert_close(left.total, doubles([0, 0], [0, 2]))
    torch.testing.assert_close(left.gram, start.gram)


@BOTH
def test_adding_changes_no_sums_that_were_there(kind) -> None:
    before = learned(kind)
    kept = {name: tensor.clone() for name, tensor in before.tensors().items()}
    before.grown(2).exchanged(rows(BEE, 1), None, NAMES)
    before.of_classes(torch.tensor([1]))
    if kind is PerClassSums:
        before.merged(before, torch.tensor([0, 1]), 2, NAMES)
    before.merged(before, torch.tensor([2, 3]), 4, [*NAMES, "cat", "dog"])
    assert all(torch.equal(kept[name], tensor) for name, tensor in before.tensors().items())


@BOTH
def test_a_class_that_is_taken_away_leaves_nothing(kind) -> None:
    left = learned(kind).exchanged(rows(ANTS, 0, 0), None, NAMES)
    assert left.count.tolist() == [0, 1]
    only = kind.empty(2, CPU).grown(1).exchanged(None, rows(BEE, 0), ["bee"])
    assert_same(left.of_classes(torch.tensor([1])), only)


@BOTH
def test_rows_may_be_exchanged_for_others_of_their_class(kind) -> None:
    corrected = learned(kind).exchanged(rows(ANTS[:1], 0), rows(doubles([0.6, 0.8]), 0), NAMES)
    inputs = torch.cat([doubles([0.6, 0.8]), ANTS[1:], BEE])
    assert_same(corrected, kind.empty(2, CPU).grown(2).exchanged(None, rows(inputs, 0, 0, 1), NAMES))


@BOTH
def test_nothing_exchanged_for_nothing_changes_nothing(kind) -> None:
    none = rows(torch.zeros(0, 2))
    none = Rows(none.inputs, none.labels.long(), none.expand)
    for old, new in ((none, none), (None, none), (none, None), (None, None)):
        assert_same(learned(kind).exchanged(old, new, NAMES), learned(kind))


def test_part_of_a_class_by_itself_is_taken_from_per_class_sums_only() -> None:
    left = learned(PerClassSums).exchanged(rows(ANTS[:1], 0), None, NAMES)
    torch.testing.assert_close(left.gram[0], doubles(0, 0, 1))
    with pytest.raises(DataError, match=r"class ant exactly \(2 were learned, 1 of them.*all its nodes.*per-class"):
        learned(PooledSums).exchanged(rows(ANTS[:1], 0), None, NAMES)
    # With the class whole, and what is to stay of it, pooled sums can be weighted anew.
    left = learned(PooledSums).exchanged(rows(ANTS, 0, 0), rows(ANTS[1:], 0), NAMES)
    assert_same(left, PooledSums.empty(2, CPU).grown(2).exchanged(None, rows(torch.cat([ANTS[1:], BEE]), 0, 1), NAMES))


@BOTH
def test_more_rows_than_were_learned_are_refused(kind) -> None:
    with pytest.raises(DataError, match=r"Class bee was learned from 1 node\(s\), but 2 are"):
        learned(kind).exchanged(rows(ANTS, 1, 1), None, NAMES)


@BOTH
@pytest.mark.parametrize("foreign", [doubles([0.6, 0.8], [0.8, 0.6]), -ANTS, 1.01 * ANTS])
def test_rows_other_than_those_learned_are_refused(kind, foreign) -> None:
    with pytest.raises(DataError, match="class ant is no sum over nodes"):
        learned(kind).exchanged(rows(foreign, 0, 0), None, NAMES)
    # Also where as many others take their place: they must not hide it.
    with pytest.raises(DataError, match="class ant is no sum over nodes"):
        learned(kind).exchanged(rows(foreign, 0, 0), rows(foreign, 0, 0), NAMES)


def test_foreign_rows_of_the_same_sum_are_refused_by_their_products() -> None:
    # (2, -1) and (-1, 2) add up to what both ants do, but would leave 1.5 - 5/2 on the diagonal.
    with pytest.raises(DataError, match="class ant is no sum over nodes"):
        learned(PooledSums).exchanged(rows(doubles([2, -1], [-1, 2]), 0, 0), None, NAMES)


def test_a_single_foreign_row_is_refused_where_rows_are_fewer_than_columns() -> None:
    wide = torch.eye(8, dtype=torch.float64)[:4]
    kept = PerClassSums.empty(8, CPU).grown(1).exchanged(None, rows(wide, 0, 0, 0, 0), NAMES)
    kept.exchanged(rows(wide[2:3], 0), None, NAMES)
    foreign = torch.eye(8, dtype=torch.float64)[5:6]
    with pytest.raises(DataError, match="no sum over nodes"):
        kept.exchanged(rows(foreign, 0), None, NAMES)
    # A mixture of learned rows is inside their span, but not one of them.
    with pytest.raises(DataError, match="no sum over nodes"):
        kept.exchanged(rows(wide[:2].sum(dim=0, keepdim=True), 0), None, NAMES)


@BOTH
def test_rows_that_cancel_each_other_can_be_forgotten(kind) -> None:
    opposite = doubles([0.6, 0.8, 0], [-0.6, -0.8, 0], [0, 0, 1])  # of sum zero, but for the last
    kept = kind.empty(3, CPU).grown(2).exchanged(None, rows(opposite, 0, 0, 1), NAMES)
    left = kept.exchanged(rows(opposite[[1, 0]] * (1 + 1e-13), 0, 0), None, NAMES)
    assert left.count.tolist() == [0, 1]


def test_merged_by_hand() -> None:
    one = PerClassSums.empty(2, CPU).grown(2).exchanged(None, rows(ANTS, 0, 1), NAMES)
    other = PerClassSums.empty(2, CPU).grown(1).exchanged(None, rows(BEE, 0), NAMES)
    both = one.merged(other, torch.tensor([1]), 2, NAMES)
    assert both.count.tolist() == [1, 2]
    torch.testing.assert_close(both.gram, (doubles(1, 0, 0), doubles(1, 1, 2)))
    ant = PooledSums.empty(2, CPU).grown(1).exchanged(None, rows(ANTS, 0, 0), NAMES)
    bee = PooledSums.empty(2, CPU).grown(1).exchanged(None, rows(BEE, 0), NAMES)
    assert_same(ant.merged(bee, torch.tensor([1]), 2, NAMES), learned(PooledSums))
    with pytest.raises(DataError, match=r"Both models have learned class ant.*per-class"):
        ant.merged(bee, torch.tensor([0]), 1, NAMES)


def test_a_class_without_its_nodes_is_forgotten_by_per_class_sums_only() -> None:
    assert_same(
        learned(PerClassSums).without(0, NAMES).of_classes(torch.tensor([1])),
        PerClassSums.empty(2, CPU).grown(1).exchanged(None, rows(BEE, 0), NAMES),
    )
    with pytest.raises(DataError, match=r"class ant.*per-class"):
        learned(PooledSums).without(0, NAMES)


@BOTH
def test_sums_go_through_tensors_and_back(kind) -> None:
    assert_same(kind.of_tensors(learned(kind).tensors(), CPU), learned(kind))


def test_pooled_sums_are_saved_as_their_lower_half() -> None:
    kept = learned(PooledSums)
    saved = kept.tensors()
    assert torch.equal(saved["gram"], doubles(1.5, 1, 1.5).flatten())
    again = PooledSums.of_tensors(saved, CPU)
    assert torch.equal(again.gram.tril(), kept.gram.tril())
    for name, tensor in again.tensors().items():
        assert torch.equal(tensor, saved[name])


def test_pooled_sums_of_earlier_files_are_whole_matrices() -> None:
    kept = learned(PooledSums)
    again = PooledSums.of_tensors(kept.tensors() | {"gram": kept.gram}, CPU)
    assert torch.equal(again.tensors()["gram"], kept.tensors()["gram"])


def test_rows_are_rounded_to_a_grid_of_a_power_of_two() -> None:
    # Width 4: entries are about 1/2, of which six bits are kept: steps of 2^-7.
    assert grid(4) == 2.0**-7
    assert grid(1024) == 2.0**-11
    found = rounded(doubles([0.3, -0.3, 1, 0]))
    torch.testing.assert_close(found * 128, doubles([38, -38, 128, 0]), rtol=0, atol=0)


def test_sums_by_class_are_saved_as_whole_numbers_where_that_is_exact() -> None:
    kept = PerClassSums.empty(2, CPU).grown(2).exchanged(None, rows(doubles([0.6, 0.8], [1, 1]), 0, 1), NAMES)
    saved = kept.tensors()
    # Steps of 2^-7: 77 and 102.
    assert saved["gram"].dtype == torch.int32
    assert saved["gram"].tolist() == [[77 * 77, 77 * 102, 102 * 102], [128 * 128] * 3]
    torch.testing.assert_close(PerClassSums.of_tensors(saved, CPU).gram, kept.gram, rtol=0, atol=0)
    for factor in (2.0**20, -(2.0**20), 1 / 3):  # too large, on either side; of an earlier version, which did not round
        gram = (kept.gram[0], kept.gram[1] * factor)
        other = dataclasses.replace(kept, gram=gram)
        assert other.tensors()["gram"].dtype == torch.float64
        torch.testing.assert_close(PerClassSums.of_tensors(other.tensors(), CPU).gram, gram, rtol=0, atol=0)


def test_pooled_from_sums_by_class_by_hand() -> None:
    torch.testing.assert_close(mirrored(learned(PerClassSums).pooled().gram), doubles([1.5, 1], [1, 1.5]))


def on_grid(rows: int, width: int, most: int, seed: int = 0) -> torch.Tensor:
    """Whole numbers of up to `most` steps of the grid."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, (rows, width), generator=generator).double() * grid(width)


@pytest.mark.parametrize(("rows", "most"), [(1, 4096), (700, 100), (700, 600), (700, 4096), (70, 2**20), (0, 1)])
def test_products_in_single_precision_are_those_in_double_to_the_bit(rows: int, most: int) -> None:
    x = on_grid(rows, 9, most)
    parts = list(exact_parts(x))
    assert torch.equal(torch.cat([part.double() for part in parts]), x)
    assert all(part.dtype == torch.float32 for part in parts) == (most <= 2048 or rows < 2)
    gram = torch.zeros(9, 9, dtype=torch.float64)
    for part in parts:
        add_gram(gram, part)
    # Whole numbers below 2^53 are exact in double precision, so this is the sum itself.
    assert torch.equal(mirrored(gram), x.T @ x)


def test_exact_parts_by_hand() -> None:
    # 2^24 = 4096 * 4096: two rows of 2896 steps are just within it, of 2897 just beyond.
    for steps, dtype in ((2890, torch.float32), (2900, torch.float64)):
        (part,) = exact_parts(torch.full((2, 4), float(steps), dtype=torch.float64) * grid(4))
        assert part.dtype == dtype
    # Beyond it sums are wrong in single precision: 4097^2 is odd, and more than 2^24.
    odd = torch.tensor([[4097.0]])
    assert float(odd.T @ odd) != 4097.0**2


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_rows_that_are_no_numbers_stay_so(wrong: float) -> None:
    x = on_grid(130, 3, 5)
    x[100, 1] = wrong
    assert not torch.isfinite(torch.cat([part.double() for part in exact_parts(x)])).all()


def test_classes_of_many_and_of_few_rows_pool_alike(monkeypatch) -> None:
    x, labels = on_grid(90, 5, 60), torch.tensor([0] * 80 + [1] * 10)
    sums = []
    for many in (1, 50, 1000):
        monkeypatch.setattr(class_sums, "MANY", many)
        sums.append(PooledSums.empty(5, CPU).grown(2).exchanged(None, Rows(x, labels, lambda rows: rows), NAMES))
    for other in sums[1:]:
        torch.testing.assert_close(other.gram.tril(), sums[0].gram.tril(), rtol=1e-14, atol=0)
        assert torch.equal(other.total, sums[0].total)
