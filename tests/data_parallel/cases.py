"""Models that make data parallelism difficult, and the training runs that the tests compare.

Apart from the tests, since ranks import it in every launch: pytest would cost them a second.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from course_lib.data_parallel import DistributedDataParallel
from course_lib.reference import GPT, GPTConfig

ROWS, WIDTH = 12, 6  # rows of all ranks together: 1, 2, 3 and 4 divide them
SMALL_GPT = GPTConfig(num_layers=2, hidden_size=16, num_heads=2, vocab_size=32, sequence_length=8)
SMALL_BUCKETS_MB = 2e-4  # a handful of parameters each


class Regression(nn.Module):
    """A model with `forward(x, y)` -> loss, the mean over the rows. Subclasses say how the prediction is made."""

    def __init__(self, dtype):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.more()
        self.to(dtype)

    def more(self):
        """Further parameters."""

    def hidden(self, x):
        return self.first(x).tanh()

    def forward(self, x, y):
        return (self.last(self.hidden(x)).squeeze(-1) - y).square().mean()


class Tied(Regression):
    """Two layers, one matrix, besides the two biases, of which one is frozen; the first layer is used twice."""

    def more(self):
        self.second = nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)

    def hidden(self, x):
        return self.second(self.first(self.first(x).tanh()).tanh()).tanh()


class Difficult(Tied):
    """`some` is used where there are rows with x[0] > 0: by some ranks in some steps, by none in others.

    `unused` is used by nobody, and AdamW with weight decay must leave it alone.
    """

    def more(self):
        self.some, self.unused = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        super().more()

    def hidden(self, x):
        chosen = (x[:, 0] > 0).unsqueeze(1)
        return super().hidden(x) + (chosen * self.some(x) if chosen.any() else 0)


class MixedDtypes(Regression):
    """Every other layer in another precision."""

    def more(self):
        self.middle = nn.Linear(WIDTH, WIDTH)

    def to(self, dtype):
        super().to(dtype)
        self.middle.to(torch.float64 if dtype == torch.float32 else torch.float32)
        return self

    def hidden(self, x):
        wide = self.middle(super().hidden(x).to(self.middle.weight.dtype)).tanh()
        return wide.to(x.dtype)


class Gpt(nn.Module):
    """The reference model: embedding and head are one matrix."""

    def __init__(self, dtype):
        super().__init__()
        self.gpt = GPT(SMALL_GPT).to(dtype)

    def forward(self, tokens, targets):
        return self.gpt(tokens, targets)[1]


MODELS = {kind.__name__: kind for kind in (Tied, Difficult, MixedDtypes, Gpt)}


def make(kind, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return MODELS[kind](dtype)


def batch(kind, step, dtype=torch.float64):
    """The rows of all ranks in one step. x[:, 0] is positive in the first third; every third step in none."""
    generator = torch.Generator().manual_seed(100 + step)
    if kind == "Gpt":
        tokens = torch.randint(SMALL_GPT.vocab_size, (ROWS, SMALL_GPT.sequence_length + 1), generator=generator,
                               device="cpu").to(torch.get_default_device())
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    x = normal((ROWS, WIDTH), generator, torch.float64)
    x[:, 0] = x[:, 0].abs().neg()
    if step % 3:
        x[: ROWS // 3, 0] *= -1
    return x.to(dtype), x.square().sum(1).to(dtype)


def normal(shape, generator, dtype=torch.float32):
    """The same numbers on every device: drawn on the CPU."""
    return torch.randn(shape, generator=generator, dtype=dtype, device="cpu").to(torch.get_default_device())


def mine(tensors):
    """This rank's rows."""
    return [tensor.chunk(dist.get_world_size())[dist.get_rank()] for tensor in tensors]


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model, shards, steps):
    """`steps` steps on what `shards(step)` gives; returns `model`."""
    optimizer = adamw(model)
    for step in range(steps):
        optimizer.zero_grad()
        model(*shards(step)).backward()
        optimizer.step()
    return model


def compare(kind, dtype, hook=None):
    """Of five AdamW steps: the largest difference of a parameter to one process on the whole batch, and to torch's DDP;
    and whether that agrees to the bit."""
    alone = train(make(kind, dtype), lambda step: batch(kind, step, dtype), steps=5)
    model = make(kind, dtype, seed=dist.get_rank())  # rank 0's values must win
    torchs = TorchDistributedDataParallel(make(kind, dtype), find_unused_parameters=kind == "Difficult")
    ours, theirs = (train(one, lambda step: mine(batch(kind, step, dtype)), steps=5).module for one in (
        DistributedDataParallel(model, bucket_cap_mb=SMALL_BUCKETS_MB, hook=hook), torchs))
    return (difference(ours, alone), difference(ours, theirs),
            all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters())))


def difference(a, b):
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return max((p.detach() - q.detach()).abs().max().item() for p, q in pairs)
