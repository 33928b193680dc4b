"""Every axis on 64 ranks, gradients and loss beside one process's: `python -m tests.hybrid_parallel.sixty_four`.

Not in the suite, since 64 ranks share two cores for about twenty seconds.
"""

import torch

from course_lib.expert_parallel import SINGLE, moe_gpt
from course_lib.hybrid_parallel import (
    HybridModel,
    HybridOptimizer,
    ParallelLayout,
    gather_whole,
    gradient_pieces,
    parallelize,
)
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import launch

LAYOUTS = ("dp4,pp4,tp4,ep4", "dp4,pp4,tp4,ep8,etp2", "dp2,pp4,cp2,tp4,ep4", "dp2,pp4,cp2,tp4,ep4,zero2")
CONFIG = GPTConfig(num_layers=4, hidden_size=16, num_heads=4, sequence_length=16)


def loss_and_gradient(layout: str, start: GPT) -> tuple[float, dict[str, torch.Tensor]]:
    model: HybridModel = parallelize(start, ParallelLayout.from_string(layout), num_microbatches=4)
    if model.layout.zero_stage:
        HybridOptimizer(model)
    loss = model.forward_backward(*batches(0, model.dp.r, model.dp.n, batch_size=16, sequence_length=16))
    return loss.item(), gather_whole(gradient_pieces(model))


def main() -> None:
    torch.manual_seed(0)
    start = moe_gpt(GPT(CONFIG), 8, balance=0.0, group=SINGLE, tokens_group=SINGLE)
    one_loss, one = launch(loss_and_gradient, "dp1", start, world_size=1)[0]
    for layout in LAYOUTS:
        loss, gradient = launch(loss_and_gradient, layout, start, world_size=64, timeout=300)[0]
        off = max(((gradient[name] - one[name]).abs().max() / one[name].abs().max()).item() for name in one)
        print(f"{layout}: loss off by {abs(loss / one_loss - 1):.1e}, gradients by {off:.1e}", flush=True)
        assert off < 1e-5


if __name__ == "__main__":
    main()
