"""LocalSGD averages every H steps; the parameter server keeps its bound and ends; one worker is plain training."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.data_parallel import AsyncParameterServer, LocalSGD
from course_lib.runtime import RankFailed, launch, record_communication
from tests.data_parallel.cases import batch, difference, make, mine
from tests.groups.mistakes import answers
from tests.ranks import on_ranks


def sgd(model, lr=0.05):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=0.01)


def step_on(optimizer, model, rows):
    optimizer.zero_grad()
    model(*rows).backward()
    optimizer.step()


def same_everywhere(model):
    """Whether rank 0 has this rank's parameters."""
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    rank_0s = flat.clone()
    dist.broadcast(rank_0s, 0)
    return torch.equal(flat, rank_0s)


# Local SGD

@on_ranks(1, 2, 3)
def test_with_h_1_it_is_sgd_on_the_whole_batch():
    model, alone = make("Tied", seed=dist.get_rank()), make("Tied")
    local, single = LocalSGD(model, sgd(model), sync_every=1), sgd(alone)
    for step in range(6):
        step_on(local, model, mine(batch("Tied", step)))
        step_on(single, alone, batch("Tied", step))
    assert difference(model, alone) < 1e-12


@on_ranks(2)
def test_with_h_3_it_averages_after_every_third_step_what_each_rank_made_alone():
    model, rank = make("Tied"), dist.get_rank()
    models = [make("Tied") for _ in range(2)]  # what every rank makes, computed here
    local, others = LocalSGD(model, sgd(model), sync_every=3), [sgd(other) for other in models]
    with record_communication() as log:
        for step in range(7):
            shards = list(zip(*[tensor.chunk(2) for tensor in batch("Tied", step)]))
            for optimizer, one, shard in [(local, model, shards[rank]), *zip(others, models, shards)]:
                step_on(optimizer, one, shard)
            if step % 3 == 2:
                average = [sum(copies) / 2 for copies in zip(*[one.state_dict().values() for one in models])]
                for one in models:
                    one.load_state_dict(dict(zip(one.state_dict(), average)))
            assert difference(model, models[rank]) < 1e-12
        local.synchronize()
        local.synchronize()
    assert log.calls("all_reduce") == 3 and same_everywhere(model)


# The parameter server: at a rate at which stale gradients with momentum do not grow to inf

def work(server, model, steps):
    with server:
        for step in steps:
            server.pull()
            model(*batch("Difficult", step)).backward()
            server.push()


@on_ranks(2)
def test_with_one_worker_it_is_plain_training_and_leaves_unused_parameters_alone():
    model, alone = make("Difficult", seed=dist.get_rank()), make("Difficult")
    server = AsyncParameterServer(model, torch.optim.AdamW(model.parameters()))
    server.serve() if server.is_server else work(server, model, range(5))
    optimizer = torch.optim.AdamW(alone.parameters())
    for step in range(5):
        step_on(optimizer, alone, batch("Difficult", step))
    assert difference(model, alone) == 0


@pytest.mark.parametrize("s", [0, 1, 3])
@on_ranks(4)
def test_no_worker_leads_by_more_than_the_bound_and_gradients_are_no_staler_than_it_allows(s):
    model, workers = make("Difficult"), 3
    server = AsyncParameterServer(model, sgd(model, lr=1e-3), max_staleness=s)
    if server.is_server:
        updates = server.serve()
        assert [update.written for update in updates] == list(range(7 + 8 + 9))
        assert max(update.lead for update in updates) <= s
        assert max(update.staleness for update in updates) <= (2 * s + 1) * (workers - 1)
        for worker in range(1, 4):
            assert [u.clock for u in updates if u.worker == worker] == list(range(6 + worker))
    else:
        work(server, model, range(6 + dist.get_rank()))  # unequal numbers of steps
    assert same_everywhere(model)


@pytest.mark.parametrize("bound, s", [(0, 0), (2, 2), (None, 4)])
def test_a_fast_worker_runs_exactly_the_bound_ahead_of_a_slow_one_and_then_waits_for_it_or_finishes_without_one(
        bound, s):
    def body():
        model, token = make("Difficult"), torch.zeros(1)
        server = AsyncParameterServer(model, sgd(model, lr=1e-3), max_staleness=bound)
        if server.is_server:
            return server.serve()
        with server:
            for step in range(s + 1 + (bound is not None)):
                server.pull()
                model(*batch("Difficult", step)).backward()
                if dist.get_rank() == 1 and step == 0:
                    dist.recv(token, src=2)  # both have the first parameters
                if dist.get_rank() == 2 and step == 0:
                    dist.send(token, dst=1)
                    dist.recv(token, src=1)  # slow: until the fast one has pushed all it may
                server.push()
                if dist.get_rank() == 1 and step == s:
                    dist.send(token, dst=2)

    updates = launch(body, world_size=3)[0]
    assert [(u.worker, u.clock) for u in updates[:s + 2]] == [*((1, clock) for clock in range(s + 1)), (2, 0)]
    assert max(u.lead for u in updates if u.worker == 1) == s
    assert [u.staleness for u in updates[:s + 2]] == [0] * (s + 1) + [s + 1]
    if bound is not None:  # it waited for that push
        assert next(u.read for u in updates if (u.worker, u.clock) == (1, s + 1)) >= s + 2


def test_a_worker_that_fails_is_named_and_nobody_hangs():
    def batches():
        yield from range(1)
        if dist.get_rank() == 2:
            raise OSError("no more data")
        yield from range(1, 4)

    def body():
        model = make("Difficult")
        server = AsyncParameterServer(model, sgd(model, lr=1e-3), max_staleness=0)
        server.serve() if server.is_server else work(server, model, batches())

    with pytest.raises(RankFailed, match="no more data"):
        launch(body, world_size=4)


def test_mistakes_are_answered_with_what_was_expected(snapshot):
    def body():
        model = make("Difficult")
        alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
        server = AsyncParameterServer(model, sgd(model))
        found = answers({
            "period": lambda: LocalSGD(model, None, 0),
            "bound": lambda: AsyncParameterServer(model, sgd(model, lr=1e-3), max_staleness=-1),
            "alone": lambda: AsyncParameterServer(model, sgd(model, lr=1e-3), group=alone),
            "before pull": server.pull if server.is_server else server.push,
            "the other's part": server.__enter__ if server.is_server else server.serve,
        })
        if server.is_server:
            server.serve()
        else:
            work(server, model, [0])
        return found

    assert "\n".join(launch(body, world_size=2)) == snapshot
