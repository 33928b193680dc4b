"""Chapter 9: two steps of a GPT under layouts of several axes equal those of one process."""

import torch

from course_lib.expert_parallel import SINGLE, moe_gpt
from course_lib.hybrid_parallel import (
    HybridOptimizer,
    ParallelLayout,
    clip_grad_norm_,
    gather_whole,
    parallelize,
    pieces,
)
from course_lib.reference import GPT, GPTConfig, batches
from tests.pretend.trials.register import trial

CONFIG = GPTConfig(2, 16, 4, sequence_length=16)


def gpt(experts: bool = False) -> GPT:
    with torch.device("cpu"):
        torch.manual_seed(0)
        model = GPT(CONFIG).double()
        return moe_gpt(model, 4, balance=0.0, group=SINGLE, tokens_group=SINGLE) if experts else model


def rows(step: int, place: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return batches(step, place, n, batch_size=4, sequence_length=16)


@trial("hybrid_parallel", "dp2,tp2", "cp2,tp2", "pp2,tp2", "dp2,cp2,zero2", "dp2,pp2,zero1", "dp2,tp2,zero3",
       "dp2,tp2,ep4", "dp2,tp2,ep2,etp2", "dp2,tp2,ep2,zero3")
def hybrid_steps(text: str) -> None:
    layout = ParallelLayout.from_string(text)
    schedule, experts = {"num_microbatches": 2} if layout.pp > 1 else {}, layout.ep > 1
    model = parallelize(gpt(experts), layout, sequence_parallel=layout.etp == 1, **schedule)
    optimizer = HybridOptimizer(model, torch.optim.AdamW, lr=1e-3)
    with torch.device("cpu"):
        alone = gpt(experts)
        plain = torch.optim.AdamW(alone.parameters(), lr=1e-3)
    for step in range(2):
        model.forward_backward(*rows(step, model.dp.r, model.dp.n))
        clip_grad_norm_(model, 0.5)
        optimizer.step()
        optimizer.zero_grad()
        with torch.device("cpu"):
            alone(*rows(step, 0, 1))[1].backward()
            torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
            plain.step()
            plain.zero_grad()
    state = gather_whole(pieces(model))
    assert max((state[name] - value).abs().max().item() for name, value in alone.named_parameters()) < 1e-10
