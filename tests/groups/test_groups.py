"""What chapters do with a process group: the same answer on every rank, in as few messages as it takes."""

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.groups.exchange import require_same, start_gather, start_reduce_scatter
from course_lib.groups.gradients import GradientBucket, clip_total_norm, cut_tensors, is_missing, write_gradient
from course_lib.groups.membership import SINGLE, member
from course_lib.runtime import record_communication
from tests.checkpoint import runs
from tests.ranks import on_ranks

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


# Membership

@on_ranks(3)
def test_a_member_stands_for_its_group_and_none_for_the_world():
    rank = dist.get_rank()
    me = member([dist.new_group([0, 2]), dist.new_group([1])][rank % 2])
    assert (me.n, me.r) == ((1, 0) if rank == 1 else (2, rank // 2)) and member(me) is me and member().n == 3
    with pytest.raises(ValueError, match=r"group='world' is not a group: expected None \(the world\)"):
        member("world")


# Packing

def test_a_message_holds_one_dtype_and_at_most_the_cap_in_the_order_in_which_it_is_full():
    sizes = [(3, torch.float32), (1, torch.float64), (2, torch.float32), (9, torch.float32), (0, torch.float32),
             (1, torch.float64), (1, torch.float32)]
    given = [torch.zeros(size, dtype=dtype) for size, dtype in sizes]
    place = {id(tensor): index for index, tensor in enumerate(given)}
    assert [[place[id(t)] for t in some] for some in cut_tensors(given, 20)] == [[0, 2], [3], [1, 5], [6]]
    assert [[place[id(t)] for t in some] for some in cut_tensors(given, 0)] == [[0], [1], [2], [3], [5], [6]]


# Agreement

@on_ranks(2)
def test_ranks_that_hold_the_same_find_that_out_in_eight_bytes():
    with record_communication() as log:
        require_same(["a", "b"], None, "letters", "the same ones")
    assert log.message_bytes() == 8 * 2


# Exchange

@on_ranks(4)
def test_what_arrives_in_16_bits_is_added_in_32_and_several_gathers_are_under_way_at_once():
    flat, out = torch.full((4,), 1.0 + dist.get_rank() / 128).bfloat16(), torch.empty(1)
    start_reduce_scatter(flat, None, tag=0)(out)
    assert out.item() == (4 + 6 / 128) / 4  # 1.01171875 needs more bits than bf16 has
    finish = [start_gather(torch.tensor([dist.get_rank() + 10 * k])) for k in range(3)]
    assert [[part.item() for part in each()] for each in finish] == [[10 * k + r for r in range(4)] for k in range(3)]


# Gradients

@pytest.mark.parametrize("layout", runs.LAYOUTS)
@on_ranks(2)
def test_what_has_trained_is_freed_with_its_optimiser_and_lets_its_group_go(layout):
    run = runs.Run(layout)
    run.step(0)
    parts = [weakref.ref(part) for part in (run.optimizer, *(run.model if layout == "pp" else [run.model]))]
    del run
    gc.collect()
    group = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    assert [part() for part in (*parts, group)] == [None] * 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gradient_is_written_as_a_product_to_the_bit_and_without_a_minus_zero(dtype):
    gradient = torch.cat([torch.randn(1000, generator=torch.Generator().manual_seed(0)), torch.tensor([-0.0, 0.0])])
    gradient = gradient.to(dtype)
    for factor in (1.0, 1 / 2, 1 / 3):
        part = torch.empty_like(gradient)
        write_gradient(gradient, part, factor)
        assert torch.equal(part, gradient * factor) and not part[-2:].signbit().any()
        wide = torch.empty(len(gradient), dtype=torch.float64)
        write_gradient(gradient, wide, factor)
        assert torch.equal(wide, gradient.double() * factor) and not wide[-2:].signbit().any()


@pytest.mark.parametrize("p", [1, 2, 3.5, float("inf")])
def test_a_norm_of_many_dtypes_is_that_of_64_bits_and_so_is_what_it_clips(p):
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(size, generator=generator).to(dtype) for size in (1, 999, 50_000) for dtype in DTYPES]
    exact = torch.linalg.vector_norm(torch.cat([each.double() for each in given]), p)
    expected = [(each * (0.5 / exact)).double() for each in given]
    norm = clip_total_norm(given[1:], given[:1], 0.5, p, SINGLE, given[0].device)
    assert norm.item() == pytest.approx(exact.item(), 1e-5)  # torch adds up each tensor of 32 bits in 32
    for each, right in zip(given, expected):
        assert torch.allclose(each.double(), right, rtol=2e-2 if each.element_size() < 4 else 1e-5, atol=1e-7)


@on_ranks(3)
def test_only_what_no_rank_has_is_missing_from_the_sum():
    for dtype in DTYPES:
        parameters = [nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in ((2, 3), (4,), (), (3,))]
        nobodys, everyones, one_ranks, zeros = parameters
        everyones.grad, zeros.grad = torch.ones_like(everyones), torch.full_like(zeros, -0.0)
        if dist.get_rank() == 1:
            one_ranks.grad = torch.zeros_like(one_ranks)
        bucket = GradientBucket(parameters, num_elements=16)
        for parameter in parameters:
            if parameter.grad is not None:
                bucket.take(parameter, 1 / 3)
        assert len(bucket.mark_missing()) == [2, 1, 2][dist.get_rank()]
        dist.all_reduce(bucket.gradient)
        assert [is_missing(bucket.parts[p]) for p in parameters] == [True, False, False, False]
        assert bucket.gradient[14:].tolist() == [0, 0]  # padding
        assert bucket.parts[everyones].double().mean().item() == pytest.approx(1, rel=1e-2)
