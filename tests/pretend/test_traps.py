"""What a GPU as the default device would break: the CPU's generators, text, and processes that a rank forks."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, random_split

from course_lib import data_parallel, reference
from course_lib.runtime import device
from tests.pretend.needed import built, on  # noqa: F401  built is a fixture
from tests.pretend.trials import register

pytestmark = pytest.mark.ci
nccl = partial(on, "nccl", world_size=1)


class Squares:
    """A data set of plain numbers, whose batches DataLoader makes with torch.tensor."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index**2, str(torch.ones(1).device)


def squares_seen(**options):
    numbers, places = zip(*DataLoader(Squares(), batch_size=4, **options))
    return sorted(torch.cat(numbers).tolist()), {place for batch in places for place in batch}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_loader_shuffles_with_its_own_generator_and_its_workers_touch_no_gpu(num_workers):
    (seen, places), = nccl(lambda: squares_seen(shuffle=True, num_workers=num_workers))
    assert seen == [n**2 for n in range(8)]
    assert places == ({"cpu"} if num_workers else {"gpu:0"})


def test_shuffles_and_first_guesses_that_need_a_seed_are_those_of_the_cpu_and_so_is_a_model_made_with_one():
    def chosen():
        guesses = data_parallel.power_sgd_hook(rank=2).first_guess([torch.ones(3, 4)], 7)
        assert {guess.device for guess in guesses} == {device()}
        parts = random_split(range(10), [7, 3], generator=torch.Generator().manual_seed(0))
        layer = nn.Linear(3, 2)
        layer.weight = nn.Parameter(torch.randn(2, 3, generator=torch.Generator().manual_seed(0)))
        return (list(DistributedSampler(range(10), num_replicas=2, rank=0, seed=1)), [list(part) for part in parts],
                data_parallel.ShardedSampler(10, 0, 2).order(), [guess.tolist() for guess in guesses],
                layer.weight.tolist())

    assert nccl(chosen) == [chosen()]


# Text is cut on the CPU and handed over

def read(tokens=None):
    pieces = [*reference.batches(3, 0, 2, batch_size=4, sequence_length=8, tokens=tokens),
              *reference.held_out_rows(3, 8, tokens)]
    return [piece.tolist() for piece in pieces], {piece.device for piece in pieces} == {device()}


def test_batches_are_the_same_numbers_on_every_machine_and_lie_on_the_ranks_device(tmp_path):
    own = tmp_path / "text"
    own.write_text("a reader's own text, long enough. " * 20)

    def everywhere(mine):
        mine_again = reference.load_text(own, sequence_length=8)
        assert mine_again.device.type == "cpu"
        return read(), read(mine), read(mine_again), reference.unigram_entropy(mine), reference.unigram_entropy(
            reference.load_text())

    text = reference.load_text(own, sequence_length=8)
    (there, here) = nccl(everywhere, text)[0], everywhere(text)
    assert there[:3] == here[:3] and there[3:] == pytest.approx(here[3:])


def test_train_and_evaluate_take_a_model_and_a_text_from_wherever_they_lie():
    def run(gpt, tokens):
        log = reference.train(gpt, steps=2, batch_size=4, tokens=tokens, progress=False)
        return [*log.losses, reference.evaluate(gpt, tokens=tokens), reference.evaluate(gpt)]

    text, gpt = reference.load_text()[:20_000].clone(), register.gpt(vocab_size=256)
    assert nccl(run, gpt, text)[0] == pytest.approx(run(gpt, text), abs=1e-9)
