"""What real ranks hold is read back from their tensors, faults included."""

import pytest
import torch

from course_lib.collectives.holdings import Holdings, Share, label_chunks


def buffers(num_ranks):
    return [label_chunks(rank, num_ranks) for rank in range(num_ranks)]


def test_labelled_is_10_to_the_rank_on_the_diagonal():
    assert torch.equal(label_chunks(2, 3), torch.diag(torch.tensor([100, 100, 100])))
    assert label_chunks(0, 4, 2).shape == (2, 2) and label_chunks(17, 18).dtype == torch.int64


def test_a_cell_names_who_contributed_to_which_chunk():
    held = Holdings.of([sum(buffers(3)), None, label_chunks(2, 3)])
    assert held.cells[0][1] == (Share(0, 1), Share(1, 1), Share(2, 1))
    assert held.cells[1] == ((), (), ())
    assert held.cells[2][2] == (Share(2, 2),)


def test_a_share_counted_twice_and_chunks_mixed_up_are_seen():
    twice, mixed = label_chunks(0, 2) * 2 + label_chunks(1, 2), label_chunks(1, 2) + label_chunks(1, 2).flip(0)
    held = Holdings.of([twice, mixed])
    assert held.cells[0][0] == (Share(0, 0, 2), Share(1, 0))
    assert held.cells[1][0] == (Share(1, 0), Share(1, 1))
    assert repr(held) == ("rank 0: 2 chunks, each the sum of 2 ranks, some shares counted more than once; "
                          "rank 1: 2 chunks, different ones mixed up")


def test_a_rank_with_fewer_rows_has_each_in_the_place_of_its_chunk_and_a_full_one_in_its_order():
    held = Holdings.of([label_chunks(0, 3)[2:], label_chunks(1, 3).flip(0),
                        [label_chunks(2, 3)[1], label_chunks(2, 3)[0]]])
    assert held.cells[0] == ((), (), (Share(0, 2),))
    assert [cell[0].chunk for cell in held.cells[1]] == [2, 1, 0]
    assert held.cells[2] == ((Share(2, 0),), (Share(2, 1),), ())


@pytest.mark.parametrize("wrong, message", [
    (lambda: label_chunks(4, 4), "rank=4: expected 0 to 3"),
    (lambda: label_chunks(0, 19), "num_ranks=19: expected 1 to 18"),
    (lambda: label_chunks(0, 2, 0), "num_chunks=0"),
    (lambda: Holdings.of([torch.ones(2, 2), None]), "float32.* expected whole numbers"),
    (lambda: Holdings.of([torch.tensor(3), None]), "int64.* expected whole numbers"),
    (lambda: Holdings.of([-label_chunks(0, 2), None]), "holds -1 in a column of chunk 0"),
    (lambda: Holdings.of([label_chunks(2, 3), None]), r"expected a sum of 10\*\*rank over the 2 ranks 0 to 1"),
    (lambda: Holdings.of([label_chunks(0, 3)], num_slots=2), "rank 0 has 3 rows: expected at most num_slots=2"),
    (lambda: Holdings.of([]), "no buffers"),
])
def test_labels_and_buffers_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
