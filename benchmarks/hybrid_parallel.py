"""A training step of a GPT on 4 ranks with two axes: ours against torch's own parts, composed for the same layout.

On 8 ranks with three axes ours against nano3d.py, the same on one page.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor.parallel import loss_parallel
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import Both, Goal, benchmark
from benchmarks.ranks import side_by_side
from course_lib import nano3d
from course_lib.hybrid_parallel import HybridOptimizer, HybridTrainer, ParallelLayout, parallelize
from course_lib.hybrid_parallel.trainer import COUNTED_STEP
from course_lib.pipeline_parallel import partition
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.reference.gpt import next_token_loss
from course_lib.runtime import device
from course_lib.tensor_parallel.dtensor import dtensor_gpt

ROWS, MICROBATCHES = 16, 4
CONFIG = GPTConfig(num_layers=4, hidden_size=256, num_heads=4, vocab_size=256, sequence_length=64)
Step = Callable[[int], object]


def gpt(tied: bool = True) -> GPT:
    torch.manual_seed(0)
    model = GPT(CONFIG)
    if not tied:  # torch's pipeline would not sum tied gradients
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    return model


def rows(number: int, place: int) -> tuple[Tensor, Tensor]:
    return batches(number, place, 2, batch_size=ROWS)


def ours(text: str, num_microbatches: int = 1, tied: bool = True) -> Step:
    model = parallelize(gpt(tied), ParallelLayout.from_string(text), num_microbatches=num_microbatches)
    optimizer = HybridOptimizer(model, torch.optim.AdamW, lr=1e-3)

    def step(number: int) -> None:
        model.forward_backward(*rows(number, model.dp.r))
        optimizer.step()
        optimizer.zero_grad()

    return step


def fsdp2_and_dtensor() -> Step:
    """Blocks sharded over dp, and the rest as one; matrices cut over tp."""
    mesh = init_device_mesh(device().type, (2, 2), mesh_dim_names=("dp", "tp"))
    model = dtensor_gpt(gpt(), mesh["tp"])
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return dtensor_step(model, torch.optim.AdamW(model.parameters(), lr=1e-3), mesh.get_local_rank("dp"))


def ddp_and_dtensor() -> Step:
    """DistributedDataParallel over dp of matrices cut over tp, which it gets as local tensors: it knows no DTensors."""
    mesh = init_device_mesh(device().type, (2, 2), mesh_dim_names=("dp", "tp"))
    cut = dtensor_gpt(gpt(), mesh["tp"])
    cut.head.weight = nn.Parameter(cut.head.weight.detach().clone())  # the transform would leave one of two tied names
    _pre_dp_module_transform(cut)
    model = DistributedDataParallel(cut, process_group=mesh.get_group("dp"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return dtensor_step(model, optimizer, mesh.get_local_rank("dp"))


def replicate_and_dtensor() -> Step:
    """The DDP of FSDP2's making, which knows DTensors: each block's gradients averaged as one, and the rest's."""
    mesh = init_device_mesh(device().type, (2, 2), mesh_dim_names=("dp", "tp"))
    model = dtensor_gpt(gpt(), mesh["tp"])
    for block in model.blocks:
        replicate(block, mesh=mesh["dp"])
    replicate(model, mesh=mesh["dp"])
    return dtensor_step(model, torch.optim.AdamW(model.parameters(), lr=1e-3), mesh.get_local_rank("dp"))


def dtensor_step(model: nn.Module, optimizer: torch.optim.Optimizer, place: int) -> Step:
    def step(number: int) -> None:
        with loss_parallel():
            model(*rows(number, place))[1].backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def pipelining_and_ddp() -> Step:
    """1F1B on two stages, each of which DistributedDataParallel averages."""
    mesh = init_device_mesh(device().type, (2, 2), mesh_dim_names=("pp", "dp"))
    place = mesh.get_local_rank("pp")
    module = DistributedDataParallel(partition(gpt(tied=False), 2)[place], process_group=mesh.get_group("dp"))
    stage = PipelineStage(module, place, 2, device(), group=mesh.get_group("pp"))
    pipeline = schedules.Schedule1F1B(stage, MICROBATCHES, next_token_loss)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)

    def step(number: int) -> None:
        inputs, targets = rows(number, mesh.get_local_rank("dp"))
        if place == 0:
            pipeline.step(inputs)
        else:
            pipeline.step(target=targets, losses=[], return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()

    return step


def trainer_of_three_axes() -> Step:
    """HybridTrainer after the step in which it counts, with what nano3d does: gradients clipped, loss and norm for all.
    """
    trainer = HybridTrainer(CONFIG, ParallelLayout.from_string("dp2,pp2,tp2"), batch_size=ROWS,
                            num_microbatches=MICROBATCHES)
    for _ in range(COUNTED_STEP + 1):
        trainer.step()
    return lambda number: trainer.step()


def three_axes_on_one_page() -> Step:
    stage, adamw = nano3d.make(CONFIG, 2, 2, 2, learning_rate=1e-3)
    return lambda number: nano3d.train_step(stage, adamw, *rows(number, stage.mesh.dp.place), MICROBATCHES)


def trainer_that_counts(counts: bool) -> Step:
    """The small GPT that the command trains by default, under dp2 tp2; each step is the one that counts, or none is."""
    trainer = HybridTrainer(GPTConfig(), ParallelLayout.from_string("dp2,tp2"), batch_size=ROWS)

    def step(number: int) -> None:
        trainer.num_steps = COUNTED_STEP if counts else COUNTED_STEP + 1
        trainer.step()

    return step


@benchmark(runs=3, goal=Goal(0.55))
def hybrid_dp2_tp2() -> Both:
    """dp2 tp2, gradients averaged, against FSDP2 over DTensors, which shards parameters besides."""
    return side_by_side(partial(ours, "dp2,tp2"), fsdp2_and_dtensor)


@benchmark(runs=3)
def hybrid_dp2_tp2_ddp() -> Both:
    """dp2 tp2 of a GPT whose head is a matrix of its own, against DistributedDataParallel over DTensors."""
    return side_by_side(partial(ours, "dp2,tp2", tied=False), ddp_and_dtensor)


@benchmark(runs=3)
def hybrid_dp2_tp2_replicate() -> Both:
    """dp2 tp2 against torch's composable replicate over DTensors, which averages gradients and shards nothing."""
    return side_by_side(partial(ours, "dp2,tp2"), replicate_and_dtensor)


@benchmark(runs=3)
def hybrid_dp2_tp2_zero3() -> Both:
    """The same with ZeRO-3: the same layout of parameters as FSDP2 over DTensors."""
    return side_by_side(partial(ours, "dp2,tp2,zero3"), fsdp2_and_dtensor)


@benchmark(runs=3)
def hybrid_pp2_dp2() -> Both:
    """1F1B with 4 micro-batches on pp2 dp2, against torch.distributed.pipelining and DistributedDataParallel."""
    return side_by_side(partial(ours, "dp2,pp2", MICROBATCHES, tied=False), pipelining_and_ddp)


@benchmark(runs=3)
def hybrid_dp2_pp2_tp2() -> Both:
    """HybridTrainer's step on 8 ranks, dp2 pp2 tp2 with 4 micro-batches, against nano3d's: one file, torch alone."""
    return side_by_side(trainer_of_three_axes, three_axes_on_one_page, world_size=8)


@benchmark(runs=3)
def hybrid_counted_step() -> Both:
    """A step in which bytes and memory are counted, against one without, of a GPT so small that operators are short."""
    return side_by_side(partial(trainer_that_counts, True), partial(trainer_that_counts, False))
