"""Chapter 3: three steps equal those of one process that sees all rows."""


from course_lib import data_parallel
from course_lib.runtime import device
from tests.pretend.trials.register import trial
from tests.pretend.trials.training import adamw, mine, model, off, train

HOOKS = ("all_reduce_hook", "fp16_hook", "bf16_hook", "top_k_hook", "power_sgd_hook")


@trial("data_parallel DDP")
def ddp() -> None:
    trained = data_parallel.DistributedDataParallel(model().to(device()), bucket_cap_mb=2e-4)
    train(trained, adamw(trained.parameters()), mine)
    assert off(trained.module.state_dict()) < 1e-12


@trial("data_parallel hook", *HOOKS)
def hook(name: str) -> None:
    chosen = getattr(data_parallel, name)
    chosen = chosen() if isinstance(chosen, type) else chosen
    trained = data_parallel.DistributedDataParallel(model().to(device()), hook=chosen)
    train(trained, adamw(trained.parameters()), mine)
    assert all(value.isfinite().all() for value in trained.module.state_dict().values())


@trial("data_parallel local SGD")
def local_sgd() -> None:
    trained = model().to(device())
    optimizer = data_parallel.LocalSGD(trained, adamw(trained.parameters()), sync_every=2)
    train(trained, optimizer, mine)
    optimizer.synchronize()


@trial("data_parallel sampler")
def sampler() -> None:
    own = list(data_parallel.ShardedSampler(10))
    assert len(own) == 3 and set(own) <= set(range(10))


@trial("data_parallel averages")
def averages() -> None:
    trained = model().to(device())
    trained(mine(0)).square().mean().backward()
    data_parallel.average_each(trained.parameters())
    data_parallel.average_flat(trained.parameters())
    data_parallel.loss_weight(3)


@trial("data_parallel parameter server")
def parameter_server() -> None:
    trained = model().to(device())
    server = data_parallel.AsyncParameterServer(trained, adamw(trained.parameters()))
    if server.is_server:
        server.serve()
        return
    with server:
        for step in range(2):
            server.pull()
            trained.zero_grad()
            trained(mine(step)).square().mean().backward()
            server.push()
