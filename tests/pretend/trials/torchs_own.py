"""What the course compares itself with."""

from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from course_lib.runtime import device
from tests.pretend.trials.register import trial
from tests.pretend.trials.training import adamw, mine, model, off, train


@trial("torch DDP")
def torch_ddp() -> None:
    trained = TorchDistributedDataParallel(model().to(device()))
    train(trained, adamw(trained.parameters()), mine)
    assert off(trained.module.state_dict()) < 1e-12


@trial("torch fully_shard")
def torch_fully_shard() -> None:
    trained = model().to(device())
    fully_shard(trained)
    train(trained, adamw(trained.parameters()), mine)
    assert off({name: value.full_tensor() for name, value in trained.state_dict().items()}) < 1e-12
