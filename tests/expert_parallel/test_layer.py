"""A layer whose experts are dealt out gives the results and all gradients of one process, and sends what the formulas
say. Many cases travel in one launch."""

import itertools
from copy import deepcopy
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from course_lib import expert_parallel as ep
from course_lib.costs.splitting import expert_layer_parameters
from course_lib.expert_parallel import dispatch
from course_lib.runtime import launch, record_memory, record_timeline
from tests.expert_parallel.cases import Case, cases, few, layer_alone, run, tokens_of
from tests.groups.mistakes import answers
from tests.ranks import on_ranks


@on_ranks(2, 3, 4)
def test_results_gradients_bytes_and_drops_are_those_of_one_process_and_the_formulas():
    n = dist.get_world_size()
    assert not run(list(cases() if n == 2 else cases((torch.float64,))), n)[:3]
    assert n < 4 or not run(list(cases((torch.float64,))), 2)[:3]


@on_ranks(1, 2, 3, 4)
def test_groups_of_one_chunks_and_two_levels_change_nothing_but_the_messages_and_what_crosses_between_nodes():
    for arguments, how in {  # ranks per group, and per node; 16 is more than there are tokens
            1: [((1,), {})], 2: [((1,), {})], 3: [((3,), {"num_chunks": 2}), ((3,), {"num_chunks": 16})],
            4: [((4, 1), {}), ((4, 2), {}), ((4, 4), {})]}[dist.get_world_size()]:
        assert not run(list(few()), *arguments, **how)[:3]


@on_ranks(2)
def test_the_next_chunk_is_on_its_way_while_this_one_is_computed():
    happened, start, compute = [], dispatch.start_all_to_all_rows, ep.Experts.forward

    def started(*arguments):
        happened.append("start")
        finish = start(*arguments)
        return lambda: (happened.append("wait"), finish())[1]

    def computed(*arguments):
        happened.append("compute")
        return compute(*arguments)

    with patch.object(dispatch, "start_all_to_all_rows", started), patch.object(ep.Experts, "forward", computed):
        ep.MoELayer(4, 8, 4, num_chunks=3)(torch.randn(6, 4))
    one = ["start", "compute", "start"]  # the next chunk goes, this one is computed, and goes back
    assert happened == ["start", "wait", *one, "wait", *one, "wait", "compute", "start", *["wait"] * 3]


@on_ranks(2)
def test_a_timeline_names_the_chunks_on_the_way_there_and_back():
    layer, tokens = ep.MoELayer(8, 16, 4, num_chunks=3), torch.randn(12, 8, requires_grad=True)
    with record_timeline() as timeline:
        layer(tokens).sum().backward()
    assert [event.labels["chunk"] for event in timeline.events if event.name == "experts"] == [0, 1, 2] * 2
    # counts; three there and three back
    assert sum(event.lane == "communication" for event in timeline.events) == 1 + 2 * 6


@on_ranks(2)
def test_ranks_without_tokens_take_part_and_splits_say_how_many_rows_go_and_come():
    rank, layer = dist.get_rank(), ep.MoELayer(4, 8, 4, k=1)
    out = layer(torch.randn([3, 0][rank], 4))
    out.sum().backward()
    assert out.shape == ([3, 0][rank], 4) and all(p.grad is not None for p in layer.parameters())
    experts = torch.tensor([[[1, 0]], [[0, 3], [3, 2]]][rank])
    assert ep.dispatch_splits(experts, 4) == [([2, 0], [2, 1]), ([1, 3], [0, 3])][rank]


@on_ranks(3)
def test_the_whole_state_comes_from_any_number_of_ranks_and_a_copied_layer_computes_the_same():
    whole = layer_alone(Case()).eval()
    layer = ep.MoELayer.from_unsplit(whole)
    state = ep.full_state_dict(layer)
    assert len(layer.experts.w1) in (2, 3) and not any(module.training for module in layer.modules())
    assert all(torch.equal(state[name], value) for name, value in whole.state_dict().items())
    tokens, _ = tokens_of(dist.get_rank(), Case())
    assert torch.equal(layer(tokens), deepcopy(layer)(tokens))


@on_ranks(2, 3)
def test_a_rank_holds_a_part_of_the_experts_in_parameters_gradients_and_optimizer():
    n, rank = dist.get_world_size(), dist.get_rank()
    for gated, biases, shared in itertools.product((True, False), (True, False), (0, 2)):
        layer = ep.MoELayer(32, 64, 8, activation="swiglu" if gated else "gelu", bias=biases, num_shared=shared)
        optimizer = torch.optim.AdamW(layer.parameters())
        with record_memory(layer=layer, optimizer=optimizer) as log:
            layer(torch.randn(16, 32)).sum().backward()
            optimizer.step()
        expected, held = 4 * expert_layer_parameters(32, 64, 8, n, rank, gated, biases, shared), log.peak_by_kind
        assert held["parameters"] == held["gradients"] == expected, (gated, biases, shared)
        assert held["optimizer_state"] == pytest.approx(2 * expected, rel=0.02)


def test_a_layer_is_the_same_whatever_it_is_dealt_out_over():
    def body():
        torch.manual_seed(3 + dist.get_rank())  # place 0's counts
        return ep.full_state_dict(ep.MoELayer(6, 10, 8, num_shared=1))

    alone, *dealt_out = [state for n in (1, 2, 3) for state in launch(body, world_size=n)]
    assert all(torch.equal(state[name], alone[name]) for state in dealt_out for name in ("experts.w1", "shared.w2"))


@on_ranks(2)
def test_under_autocast_experts_compute_in_its_dtype_and_the_router_does_not():
    layer = ep.MoELayer(8, 16, 4)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(torch.randn(5, 8).bfloat16())
    out.float().sum().backward()
    assert (out.dtype, layer.routing.scores.dtype) == (torch.bfloat16, torch.float32)
    assert layer.experts.w1.grad.dtype == torch.float32


def test_what_cannot_be_dealt_out_is_refused_with_what_was_expected(snapshot):
    def body():
        nodes = ep.make_groups(1)
        return answers({
            "unsplit": lambda: ep.MoELayer.from_unsplit(ep.MoELayer(4, 8, 4)),
            "nodes": lambda: ep.MoELayer(4, 8, 4, group=ep.SINGLE, nodes=nodes),
            "both": lambda: ep.MoELayer(4, 8, 4, num_chunks=2, nodes=nodes),
            "uneven": lambda: ep.MoELayer(4, 8, 3, nodes=nodes),
            "groups": lambda: ep.make_groups(3),
        })

    assert "\n".join(launch(body, world_size=2)) == snapshot
