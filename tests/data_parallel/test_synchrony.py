"""LocalSGD averages every H steps; the parameter server keeps its bound and ends; one worker is plain training."""

import pytest
import torch
import torch.distributed as dist

from course_lib.data_parallel import AsyncParameterServer, LocalSGD
from course_lib.runtime import RankFailed, launch, record_communication
from tests.data_parallel.cases import batch, difference, make, mine
from tests.groups.mistakes import answers


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


# Local SGD

@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_with_h_1_it_is_sgd_on_the_whole_batch(world_size):
    def body():
        model, alone = make("Tied", seed=dist.get_rank()), make("Tied")
        local, single = LocalSGD(model, sgd(model), sync_every=1), sgd(alone)
        for step in range(6):
            for optimizer, loss in ((local, model(*mine(batch("Tied", step)))), (single, alone(*batch("Tied", step)))):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return difference(model, alone)

    assert max(launch(body, world_size=world_size)) < 1e-12


def test_with_h_3_it_averages_after_every_third_step_what_each_rank_made_alone():
    def body():
        models = [make("Regression") for _ in range(dist.get_world_size())]  # what every rank makes, computed here
        model = make("Regression")
        local, others = LocalSGD(model, sgd(model), sync_every=3), [sgd(other) for other in models]
        found = []
        with record_communication() as log:
            for step in range(7):
                x, y = batch("Regression", step)
                shards = list(zip(x.chunk(len(models)), y.chunk(len(models))))
                for optimizer, one, shard in [(local, model, shards[dist.get_rank()]), *zip(others, models, shards)]:
                    optimizer.zero_grad()
                    one(*shard).backward()
                    optimizer.step()
                if step % 3 == 2:
                    with torch.no_grad():
                        for copies in zip(*[one.parameters() for one in models]):
                            average = sum(copies) / len(copies)
                            for copy in copies:
                                copy.copy_(average)
                found.append(difference(model, models[dist.get_rank()]))
            local.synchronize()
            local.synchronize()
        return max(found), log.calls("all_reduce"), [p.detach() for p in model.parameters()]

    (off, calls, first), (_, _, second) = launch(body, world_size=2)
    assert off < 1e-12 and calls == 3 and all(torch.equal(a, b) for a, b in zip(first, second))


# The parameter server

def work(server, model, steps):
    with server:
        for step in steps:
            server.pull()
            model(*batch("Unused", step)).backward()
            server.push()


def test_with_one_worker_it_is_plain_training_and_leaves_unused_parameters_alone():
    def body():
        model, alone = make("Unused", seed=dist.get_rank()), make("Unused")
        server = AsyncParameterServer(model, torch.optim.AdamW(model.parameters()))
        if server.is_server:
            server.serve()
        else:
            work(server, model, range(5))
        optimizer = torch.optim.AdamW(alone.parameters())
        for step in range(5):
            optimizer.zero_grad()
            alone(*batch("Unused", step)).backward()
            optimizer.step()
        return difference(model, alone)

    assert launch(body, world_size=2) == [0.0, 0.0]


@pytest.mark.parametrize("s", [0, 1, 3])
def test_no_worker_leads_by_more_than_the_bound_and_gradients_are_no_staler_than_it_allows(s):
    def body():
        model = make("Unused")
        server = AsyncParameterServer(model, sgd(model), max_staleness=s)
        if server.is_server:
            updates = server.serve()
        else:
            work(server, model, range(6 + dist.get_rank()))  # unequal numbers of steps
        return updates if server.is_server else None, [p.detach() for p in model.parameters()]

    results = launch(body, world_size=4)
    updates, workers = results[0][0], 3
    assert len(updates) == 7 + 8 + 9
    assert [update.written for update in updates] == list(range(len(updates)))
    assert max(update.lead for update in updates) <= s
    assert max(update.staleness for update in updates) <= (2 * s + 1) * (workers - 1)
    for worker in range(1, 4):
        assert [u.clock for u in updates if u.worker == worker] == list(range(6 + worker))
    assert all(torch.equal(a, b) for _, parameters in results for a, b in zip(parameters, results[0][1]))


@pytest.mark.parametrize("bound, s", [(0, 0), (2, 2), (None, 4)])
def test_a_fast_worker_runs_exactly_the_bound_ahead_of_a_slow_one_and_then_waits_for_it_or_finishes_without_one(
        bound, s):
    def body():
        model, token = make("Unused"), torch.zeros(1)
        server = AsyncParameterServer(model, sgd(model), max_staleness=bound)
        if server.is_server:
            return server.serve()
        with server:
            for step in range(s + 1 + (bound is not None)):
                server.pull()
                model(*batch("Unused", step)).backward()
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
    def body():
        model = make("Unused")
        server = AsyncParameterServer(model, sgd(model), max_staleness=0)
        if server.is_server:
            server.serve()
        else:
            with server:
                for step in range(4):
                    server.pull()
                    if dist.get_rank() == 2 and step == 1:
                        raise OSError("no more data")
                    model(*batch("Unused", step)).backward()
                    server.push()

    with pytest.raises(RankFailed, match="no more data"):
        launch(body, world_size=4)


def test_mistakes_are_answered_with_what_was_expected(snapshot):
    def body():
        model = make("Unused")
        alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
        server = AsyncParameterServer(model, sgd(model))
        found = answers({
            "period": lambda: LocalSGD(model, None, 0),
            "bound": lambda: AsyncParameterServer(model, sgd(model), max_staleness=-1),
            "alone": lambda: AsyncParameterServer(model, sgd(model), group=alone),
            "before pull": server.pull if server.is_server else server.push,
            "the other's part": server.__enter__ if server.is_server else server.serve,
        })
        if server.is_server:
            server.serve()
        else:
            work(server, model, [0])
        return found

    assert "\n".join(launch(body, world_size=2)) == snapshot
