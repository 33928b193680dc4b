"""Every rank that holds the same numbers writes its share of them; the checkpoint is the same as from one writer."""

import math

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from course_lib import checkpoint
from course_lib.checkpoint import planners
from course_lib.checkpoint.piece import PREFIX
from course_lib.hybrid_parallel import HybridTrainer, ParallelLayout, save_run
from course_lib.reference import GPTConfig
from course_lib.runtime import launch

CONFIG = GPTConfig(num_layers=2, hidden_size=32, num_heads=4, sequence_length=16)
# The busiest rank against the mean, and the idlest: DCP counts what a rank alone holds only when it comes to it.
SHARES = {"dp4": (0.9, 1.1), "dp2,tp2": (0.9, 1.1), "dp2,pp2,zero1": (0.7, 1.35), "cp2,dp2,zero3": (0.9, 1.1)}


def save_both(layouts, folder):
    """For each layout the same state, by all ranks, and by the lowest of those that hold it."""
    shared = planners.SavePieces

    class Lowest(shared):
        def __init__(self, borrowed):
            super().__init__(borrowed)
            self.dedup_save_to_lowest_rank = True

    for layout in layouts:
        trainer = HybridTrainer(CONFIG, ParallelLayout.from_string(layout), batch_size=8)
        trainer.step()
        for who, planners.SavePieces in (("all", shared), ("lowest", Lowest)):
            trainer.run = None
            save_run(trainer, folder / f"{layout} {who}", background=False)


def bytes_written(path):
    """Bytes of the model's and the optimiser's numbers in each rank's file."""
    metadata = FileSystemReader(path).read_metadata()
    written = dict.fromkeys((f"__{rank}_0.distcp" for rank in range(4)), 0)
    for index, place in metadata.storage_data.items():
        tensor = metadata.state_dict_metadata[index.fqn]
        box, = (chunk for chunk in tensor.chunks if chunk.offsets == index.offset)
        if not index.fqn.startswith(PREFIX):
            written[place.relative_path] += math.prod(box.sizes) * tensor.properties.dtype.itemsize
    return list(written.values())


def numbers_in(path, file):
    """All that is in a checkpoint, by torch alone."""
    dcp_to_torch_save(checkpoint.latest(path), file)
    return {name: tensor for name, tensor in torch.load(file, weights_only=True).items()
            if not name.startswith(PREFIX)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shares")
    launch(save_both, tuple(SHARES), folder, world_size=4)
    return folder


def test_every_number_is_written_once_and_ranks_with_the_same_numbers_share_them(folder, tmp_path):
    numbers = sum(tensor.nbytes for tensor in numbers_in(folder / "dp4 all", tmp_path / "all").values())
    for layout, (least, most) in SHARES.items():
        written = bytes_written(checkpoint.latest(folder / f"{layout} all"))
        assert sum(written) == numbers, layout
        assert least * numbers / 4 < min(written) <= max(written) < most * numbers / 4, (layout, written)
    assert bytes_written(checkpoint.latest(folder / "dp4 lowest")) == [numbers, 0, 0, 0]


def test_the_checkpoint_is_bit_by_bit_what_one_writer_would_have_written(folder, tmp_path):
    for layout in SHARES:
        all_of_us, lowest = (numbers_in(folder / f"{layout} {who}", tmp_path / who) for who in ("all", "lowest"))
        assert all_of_us.keys() == lowest.keys()
        assert all(torch.equal(all_of_us[name], lowest[name]) for name in lowest), layout
    assert len(list(checkpoint.latest(folder / "dp2,tp2 all").glob("__*_0.distcp"))) == 4
