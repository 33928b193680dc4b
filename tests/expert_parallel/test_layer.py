"""A layer whose experts are dealt out gives the results and all gradients of one process, and sends what the formulas
say. Many cases travel in one launch."""

from copy import deepcopy

import pytest
import torch
import torch.distributed as dist

from course_lib.costs.experts import expert_layer_parameters
from course_lib.expert_parallel import (
    SINGLE,
    Experts,
    MoELayer,
    dispatch_splits,
    full_state_dict,
    make_groups,
    through,
)
from course_lib.runtime import launch, record_memory, record_timeline
from tests.expert_parallel.cases import Case, cases, few, layer_alone, run, tokens_of
from tests.groups.mistakes import answers

PROBLEM_LIMIT = 3


def problems(drawn, *arguments, world_size, **how):
    of_ranks = launch(run, list(drawn), *arguments, world_size=world_size, **how)
    return "\n".join([problem for of_rank in of_ranks for problem in of_rank][:PROBLEM_LIMIT])


@pytest.mark.parametrize("world_size, ranks_per_group", [(2, 2), (3, 3), (4, 4), (4, 2)])
def test_results_gradients_bytes_and_drops_are_those_of_one_process_and_the_formulas(world_size, ranks_per_group):
    drawn = cases() if world_size == 2 else cases((torch.float64,))
    assert not problems(drawn, ranks_per_group, world_size=world_size)


@pytest.mark.parametrize("world_size", [1, 2])
def test_groups_of_one_rank_send_nothing_and_compute_the_same(world_size):
    assert not problems(few(), 1, world_size=world_size)


@pytest.mark.parametrize("world_size, arguments, how", [
    (3, (3,), {"num_chunks": 2}), (3, (3,), {"num_chunks": 16}),  # 16 is more than there are tokens
    (4, (4, 1), {}), (4, (4, 2), {}), (4, (4, 4), {})])  # ranks per group, and per node
def test_chunks_and_two_levels_change_nothing_but_the_number_of_messages_and_what_crosses_between_nodes(
        world_size, arguments, how):
    assert not problems(few(), *arguments, world_size=world_size, **how)


def test_the_next_chunk_is_on_its_way_while_this_one_is_computed():
    def body():
        happened, start, compute = [], through.start_all_to_all_rows, Experts.forward

        def started(*arguments):
            happened.append("start")
            finish = start(*arguments)
            return lambda: (happened.append("wait"), finish())[1]

        def computed(*arguments):
            happened.append("compute")
            return compute(*arguments)

        through.start_all_to_all_rows, Experts.forward = started, computed
        MoELayer(4, 8, 4, num_chunks=3)(torch.randn(6, 4))
        return happened

    one = ["start", "compute", "start"]  # the next chunk goes, this one is computed, and goes back
    assert launch(body, world_size=2) == [
        ["start", "wait", *one, "wait", *one, "wait", "compute", "start", *["wait"] * 3]] * 2


def test_a_timeline_names_the_chunks_on_the_way_there_and_back():
    def body():
        layer, tokens = MoELayer(8, 16, 4, num_chunks=3), torch.randn(12, 8, requires_grad=True)
        with record_timeline() as timeline:
            layer(tokens).sum().backward()
        spans = [event.labels["chunk"] for event in timeline.events if event.name == "experts"]
        return spans, sum(event.lane == "communication" for event in timeline.events)

    assert launch(body, world_size=2) == [([0, 1, 2] * 2, 1 + 2 * 6)] * 2  # counts; three there and three back


def test_ranks_without_tokens_take_part():
    def body():
        layer = MoELayer(4, 8, 4, k=1)
        out = layer(torch.randn(3 if dist.get_rank() == 0 else 0, 4))
        out.sum().backward()
        return tuple(out.shape), all(p.grad is not None for p in layer.parameters())

    assert launch(body, world_size=2) == [((3, 4), True), ((0, 4), True)]


def test_splits_say_how_many_rows_go_and_come():
    def body():
        return dispatch_splits(torch.tensor([[0, 3], [3, 2]]) if dist.get_rank() else torch.tensor([[1, 0]]), 4)

    assert launch(body, world_size=2) == [([2, 0], [2, 1]), ([1, 3], [0, 3])]


def test_the_whole_state_comes_from_any_number_of_ranks():
    whole = layer_alone(Case()).eval()
    state = whole.state_dict()

    def body():
        layer = MoELayer.from_unsplit(whole)
        return full_state_dict(layer), len(layer.experts.w1), any(module.training for module in layer.modules())

    for found, here, trains in launch(body, world_size=3):
        assert here in (2, 3) and not trains and all(torch.equal(found[name], state[name]) for name in state)


def test_a_rank_holds_a_part_of_the_experts_in_parameters_gradients_and_optimizer():
    def body():
        n, rank = dist.get_world_size(), dist.get_rank()
        layer = MoELayer(32, 64, 8, activation="swiglu", num_shared=1)
        optimizer = torch.optim.AdamW(layer.parameters())
        with record_memory(layer=layer, optimizer=optimizer) as log:
            layer(torch.randn(16, 32)).sum().backward()
            optimizer.step()
        expected = 4 * expert_layer_parameters(32, 64, 8, n, rank, gated=True, num_shared=1)
        return log.peak_by_kind, expected

    for world_size in (2, 3):
        for held, expected in launch(body, world_size=world_size):
            assert held["parameters"] == held["gradients"] == expected
            assert held["optimizer_state"] == pytest.approx(2 * expected, rel=0.02)


def test_a_layer_is_the_same_whatever_it_is_dealt_out_over():
    def body():
        torch.manual_seed(3 + dist.get_rank())  # place 0's counts
        return full_state_dict(MoELayer(6, 10, 8, num_shared=1))

    alone, *dealt_out = launch(body, world_size=1) + launch(body, world_size=2) + launch(body, world_size=3)
    assert all(torch.equal(state["experts.w1"], alone["experts.w1"]) for state in dealt_out)
    assert all(torch.equal(state["shared.w2"], alone["shared.w2"]) for state in dealt_out)


def test_under_autocast_experts_compute_in_its_dtype_and_the_router_does_not():
    def body():
        layer = MoELayer(8, 16, 4)
        with torch.autocast("cpu", torch.bfloat16):
            out = layer(torch.randn(5, 8).bfloat16())
        out.float().sum().backward()
        return out.dtype, layer.routing.scores.dtype, layer.experts.w1.grad.dtype

    assert launch(body, world_size=2) == [(torch.bfloat16, torch.float32, torch.float32)] * 2


def test_what_cannot_be_dealt_out_is_refused_with_what_was_expected(snapshot):
    def body():
        nodes = make_groups(1)
        return answers({
            "unsplit": lambda: MoELayer.from_unsplit(MoELayer(4, 8, 4)),
            "nodes": lambda: MoELayer(4, 8, 4, group=SINGLE, nodes=nodes),
            "both": lambda: MoELayer(4, 8, 4, num_chunks=2, nodes=nodes),
            "uneven": lambda: MoELayer(4, 8, 3, nodes=nodes),
            "groups": lambda: make_groups(3),
        })

    assert "\n".join(launch(body, world_size=2)) == snapshot


def test_a_copied_layer_computes_the_same():
    def body():
        layer = MoELayer(6, 10, 8).double()
        tokens, _ = tokens_of(dist.get_rank(), Case())
        return torch.equal(layer(tokens), deepcopy(layer)(tokens))

    assert launch(body, world_size=2) == [True, True]
