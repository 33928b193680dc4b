"""Chapter 5: three steps of a GPT in parts equal those of one process."""

import torch
import torch.nn.functional as F

from course_lib import tensor_parallel
from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import device
from tests.pretend.trials.register import trial


def gpt(dropout: float = 0.0) -> GPT:
    with torch.device("cpu"):
        torch.manual_seed(0)
        return GPT(GPTConfig(2, 16, 4, 16, 8, dropout)).double()


def rows(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(16, (2, 9), generator=generator, device="cpu")
    return tokens[:, :-1], tokens[:, 1:]


def train(model: GPT, clip: object, where: torch.device) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        optimizer.zero_grad()
        model(*(tensor.to(where) for tensor in rows(step)))[1].backward()
        clip(model)
        optimizer.step()


@trial("tensor_parallel", "TP", "TP+SP", "TP+SP again")
def tensor_parallel_steps(way: str) -> None:
    cut = tensor_parallel.parallelize(gpt().to(device()), None, "SP" in way, gather_again="again" in way)
    train(cut, lambda model: tensor_parallel.clip_grad_norm_(model, 0.1), device())
    state = tensor_parallel.full_state_dict(cut)
    with torch.device("cpu"):
        alone = gpt()
        train(alone, lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1), torch.device("cpu"))
    assert max((state[name] - value).abs().max().item() for name, value in alone.state_dict().items()) < 1e-12
    tensor_parallel.load_full_state_dict(cut, state)


@trial("tensor_parallel dropout", False, True)
def dropout(sequence_parallel: bool) -> None:
    cut = tensor_parallel.parallelize(gpt(dropout=0.5).to(device()), None, sequence_parallel)
    losses = []
    for _ in range(2):
        torch.manual_seed(1)
        losses.append(cut(*(tensor.to(device()) for tensor in rows(0)))[1])
        losses[-1].backward()
    assert losses[0].item() == losses[1].item()


@trial("tensor_parallel cross-entropy")
def cross_entropy() -> None:
    logits = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0), device="cpu")
    mine = tensor_parallel.Cut(2, (16,)).take(logits, tensor_parallel.VocabParallelEmbedding(16, 2).member)
    targets = rows(0)[0]
    loss = tensor_parallel.vocab_parallel_cross_entropy(mine.to(device()), targets.to(device()), label_smoothing=0.1)
    with torch.device("cpu"):
        expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=0.1)
    assert abs(loss.item() - expected.item()) < 1e-5
