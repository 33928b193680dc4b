"""Every rank that holds the same numbers writes its share of them; the checkpoint is the same as from one writer."""

import pytest
import torch
import torch.distributed as dist

from course_lib import checkpoint
from course_lib.checkpoint import dealing, saving
from course_lib.checkpoint.dealing import PARTS, shares
from course_lib.checkpoint.random_state import PREFIX
from course_lib.hybrid_parallel import HybridTrainer, ParallelLayout, save_run
from course_lib.reference import GPTConfig
from course_lib.runtime import launch

CONFIG = GPTConfig(num_layers=2, hidden_size=32, num_heads=4, sequence_length=16)


def save_both(layouts, folder):
    """For each layout the same state, written by all ranks and by those alone that count it: bytes that each wrote."""
    found = {}
    for layout in layouts:
        trainer = HybridTrainer(CONFIG, ParallelLayout.from_string(layout), batch_size=8)
        trainer.step()
        written = []
        real = dealing.deal_out

        def weighed(state, ranks, real=real, written=written):
            mine = real(state, ranks)
            written.append(sum(piece.tensor.nbytes for name, some in mine.items() for piece in some
                               if not name.startswith(PREFIX)))
            return mine

        for how, deal_out in (("all", weighed), ("counted", lambda state, ranks: state)):
            saving.deal_out, trainer.run = deal_out, None
            save_run(trainer, folder / f"{layout} {how}", background=False)
        everyones = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, written[0])
        found[layout] = everyones
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dealt")
    return folder, launch(save_both, ("dp4", "dp2,tp2", "dp2,pp2,zero1", "cp2,dp2,zero3"), folder, world_size=4)[0]


def test_ranks_with_the_same_numbers_write_equally_many_bytes_and_together_each_number_once(saved):
    folder, written = saved
    numbers = sum(tensor.nbytes for name, tensor in checkpoint.read_state_dict(folder / "dp4 all", True).items()
                  if not name.startswith("head.weight"))
    for layout, bytes_ in written.items():
        assert sum(bytes_) == numbers, layout
        for alike in (bytes_[:2], bytes_[2:]) if "pp2" in layout else (bytes_,):  # ranks 0 and 1 are the first stage
            mean = sum(alike) / len(alike)
            assert 0.9 * mean < min(alike) <= max(alike) < 1.1 * mean, (layout, bytes_)


def test_the_checkpoint_is_bit_by_bit_what_one_writer_would_have_written(saved):
    folder, written = saved
    for layout in written:
        all_of_us, alone = (checkpoint.read_state_dict(folder / f"{layout} {how}", True) for how in ("all", "counted"))
        assert all_of_us.keys() == alone.keys()
        assert all(torch.equal(all_of_us[name], alone[name]) for name in alone), layout
    assert len(list(checkpoint.latest(folder / "dp2,tp2 all").glob("__*_0.distcp"))) == 4


def test_a_rank_has_at_most_a_tenth_or_one_row_more_than_its_share():
    boxes = {("a", (0, 0), (100_000, 3)): 1_200_000, ("b", (0,), (7,)): 28, ("c", (), ()): 4,
             ("d", (0,), (90_000,)): 360_000}
    for n in (1, 2, 3, 7):
        dealt = shares(boxes, dict.fromkeys(boxes, tuple(range(n))))
        load = [sum(boxes[box] * (last - first) / (box[2] or (1,))[dim] for box, dim, first, last in dealt[r])
                for r in range(n)]
        assert max(load) <= (1 + 1 / PARTS) * sum(boxes.values()) / n + 12
        assert sum(load) == pytest.approx(sum(boxes.values()))
        assert dealt == shares(dict(reversed(boxes.items())), dict.fromkeys(boxes, tuple(range(n))))


def test_what_few_hold_is_dealt_out_first_and_what_is_small_is_not_cut():
    mine, ours, small = ("mine", (0,), (100_000,)), ("ours", (0,), (300_000,)), ("a", (0,), (1000,))
    dealt = shares({mine: 400_000, ours: 1_200_000}, {mine: (0,), ours: (0, 1)})
    load = [sum(4 * (last - first) for _, _, first, last in dealt[r]) for r in (0, 1)]
    assert abs(load[0] - load[1]) <= 120_000 and sum(load) == 1_600_000
    assert [len(parts) for parts in shares({small: 4000}, {small: (0, 1, 2)}).values()] == [1]
