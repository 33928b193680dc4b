"""The same GPT cut by torch itself, to compare with: DTensors, and a plan of styles for parallelize_module.

torch cuts a fused q | k | v into plain slices, so its rows are first put into the order in which our Cut takes them.
"""

import dataclasses

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from course_lib.groups.membership import Group, member
from course_lib.reference import GPT
from course_lib.runtime import device
from course_lib.tensor_parallel.cut import Cut


def dtensor_gpt(model: GPT, group: Group | DeviceMesh = None, sequence_parallel: bool = False) -> GPT:
    """`model` cut in place by parallelize_module. Its loss, and backward, run inside torch's loss_parallel().

    group: or one axis of a DeviceMesh, where others, FSDP2 say, work on another axis of it.
    """
    mesh = group if isinstance(group, DeviceMesh) else DeviceMesh.from_group(member(group).group, device().type)
    me = member(mesh.get_group())
    tokens = Shard(1) if sequence_parallel else Replicate()  # of what lies between the matrices
    plan = {"embedding.token": RowwiseParallel(input_layouts=Replicate()),
            "head": ColwiseParallel(input_layouts=tokens, output_layouts=Shard(-1), use_local_output=False)}
    if sequence_parallel:
        plan |= {"embedding": PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1)),
                 "norm": SequenceParallel()}
    parallelize_module(model, mesh, plan)
    model.head.weight = model.embedding.token.weight  # parallelize_module has made a DTensor of each
    for block in model.blocks:
        D = block.attention.qkv.in_features
        cut = Cut(0, (D, D, D))
        with torch.no_grad():
            for rows in (block.attention.qkv.weight, block.attention.qkv.bias):
                rows.copy_(torch.cat([cut.take(rows, dataclasses.replace(me, r=r)) for r in range(me.n)]))
        parallelize_module(block, mesh, block_plan(sequence_parallel))
    return model


def block_plan(sequence_parallel: bool) -> dict[str, nn.Module]:
    """What becomes of the modules of a Block."""
    if not sequence_parallel:
        return {"attention.qkv": ColwiseParallel(), "attention.output": RowwiseParallel(),
                "mlp.input": ColwiseParallel(), "mlp.output": RowwiseParallel()}
    gather = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    return {"attention_norm": SequenceParallel(), "attention": gather, "mlp_norm": SequenceParallel(), "mlp": gather,
            "attention.qkv": ColwiseParallel(), "attention.output": RowwiseParallel(output_layouts=Shard(1)),
            "mlp.input": ColwiseParallel(), "mlp.output": RowwiseParallel(output_layouts=Shard(1))}
