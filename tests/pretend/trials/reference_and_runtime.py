"""The small GPT and its training loop; the instruments."""

import torch
import torch.distributed as dist

from course_lib import reference
from course_lib.runtime import record_communication, record_memory, record_timeline, span
from tests.pretend.trials.register import trial


@trial("reference train")
def reference_train() -> None:
    gpt = reference.GPT(reference.GPTConfig(num_layers=1, hidden_size=16, num_heads=2, sequence_length=16))
    log = reference.train(gpt, steps=2, batch_size=4, rank=dist.get_rank(), world_size=dist.get_world_size(),
                          progress=False)
    assert len(log.losses) == 2


@trial("runtime recordings")
def recordings() -> None:
    with record_communication() as communication, record_timeline(), span("step"):
        values = torch.ones(256)
        dist.all_reduce(values)
    assert communication.message_bytes("all_reduce") == 1024
    with record_memory() as memory:
        kept = torch.ones(2**18)
    assert memory.peak >= 2**20 and kept.sum().item() == 2**18
