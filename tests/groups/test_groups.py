"""What chapters do with a process group: the same answer on every rank, in as few messages as it takes."""

import gc
import math
import weakref
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.groups.exchange import (
    agree,
    require_same,
    start_agreement,
    start_all_gather,
    start_gather,
    start_reduce_scatter,
)
from course_lib.groups.gradients import (
    GradientBucket,
    add_up,
    broadcast,
    cut_tensors,
    is_missing,
    mark_missing,
    pack,
    remember_replacement,
    unpack,
    unpack_into,
    watch_optimizers,
    when_complete,
    write_gradient,
)
from course_lib.groups.membership import member
from course_lib.runtime import record_communication
from tests.checkpoint import runs
from tests.ranks import on_ranks

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def tensors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in ((2, 3), (), (5,), (0, 4), (1, 2, 2))]


# Membership

@on_ranks(3)
def test_a_member_stands_for_its_group_and_none_for_the_world():
    rank = dist.get_rank()
    me = member([dist.new_group([0, 2]), dist.new_group([1])][rank % 2])
    assert (me.n, me.r) == ((1, 0) if rank == 1 else (2, rank // 2)) and member(me) is me and member().n == 3
    with pytest.raises(ValueError, match=r"group='world' is not a group: expected None \(the world\)"):
        member("world")


# Packing

@on_ranks(3)
def test_two_exchanges_between_the_same_neighbours_may_be_under_way_and_an_empty_one_is_not_sent():
    me = member()
    right, left = (me.r + 1) % me.n, (me.r - 1) % me.n
    with record_communication() as log:
        finish = [me.start_exchange(torch.full((size,), 10.0 * me.r + size), right, torch.empty(size), left)
                  for size in (0, 1, 2)]
        assert [each().tolist() for each in finish] == [[], [10.0 * left + 1], [10.0 * left + 2] * 2]
    assert log.calls("send") == 2


def test_unpack_is_the_inverse_of_pack_and_leaves_padding_alone():
    given = tensors()
    flat, shapes = pack([tensor.mT if tensor.dim() == 2 else tensor for tensor in given])
    assert flat.shape == (16,) and shapes[0] == (3, 2)
    padded = torch.cat([flat, torch.full((3,), math.nan)])
    for each in (flat, padded):
        parts = unpack(each, shapes)
        assert [part.shape for part in parts] == shapes
        assert all(part.untyped_storage().data_ptr() == each.data_ptr() for part in parts)  # views
        assert torch.equal(pack(parts)[0], flat)
    copies = [torch.empty_like(tensor) for tensor in given]
    unpack_into(copies, pack(given)[0])
    assert all(torch.equal(a, b) for a, b in zip(copies, given))


def test_a_message_holds_one_dtype_and_at_most_the_cap_in_the_order_in_which_it_is_full():
    sizes = [(3, torch.float32), (1, torch.float64), (2, torch.float32), (9, torch.float32), (0, torch.float32),
             (1, torch.float64), (1, torch.float32)]
    given = [torch.zeros(size, dtype=dtype) for size, dtype in sizes]
    place = {id(tensor): index for index, tensor in enumerate(given)}
    assert [[place[id(t)] for t in some] for some in cut_tensors(given, 20)] == [[0, 2], [3], [1, 5], [6]]
    assert [[place[id(t)] for t in some] for some in cut_tensors(given, 0)] == [[0], [1], [2], [3], [5], [6]]


@on_ranks(1, 2, 3, 4)
def test_broadcast_and_add_up_need_one_message_a_dtype_and_one_rank_alone_needs_none_to_broadcast():
    n, rank = dist.get_world_size(), dist.get_rank()
    mine = tensors(rank)
    with record_communication() as log:
        broadcast([*mine, torch.zeros(2, dtype=torch.int64)])
    assert all(map(torch.equal, mine, tensors(0))) and log.calls("broadcast") == 2 * (n > 1)
    mine = tensors(rank)
    with record_communication() as log:
        add_up(mine, divide_by=n)
    for summed, *parts in zip(mine, *map(tensors, range(n))):
        torch.testing.assert_close(summed, sum(parts) / n)
    assert log.calls() == 1


# Agreement

@on_ranks(3)
def test_what_one_rank_sees_all_ranks_say_and_facts_come_in_order():
    r = dist.get_rank()
    for wrong, words in (((1,), "at place 1 of the group: no targets"), ((0, 1, 2), "no targets"),
                         ((0, 2), "at places 0, 2 of the group: no targets")):
        problem = "no targets" if r in wrong else None
        for attempt in (lambda problem=problem: agree(problem, r), start_agreement(problem, [r])):
            with pytest.raises(ValueError) as refused:
                attempt()
            assert str(refused.value) == words
    assert agree(None, {"rank": r}) == [{"rank": rank} for rank in range(3)]
    assert start_agreement(None, [r, -r])() == [[0, 0], [1, -1], [2, -2]]


@on_ranks(1, 2, 3, 4)
def test_ranks_that_hold_the_same_send_eight_bytes_and_others_are_told_the_first_difference():
    n, is_last = dist.get_world_size(), dist.get_rank() == dist.get_world_size() - 1
    with record_communication() as log:
        require_same(["a", "b"], None, "letters", "the same ones")
    assert log.message_bytes() == (8 * n if n > 1 else 0)
    last = f"place {n - 1} has"
    other = f"the ranks hold different letters: place 0 has b, {last} c. Expected the same ones on every rank"
    for lines, said in ((["a", "c" if is_last else "b"], other),
                        (["a", "b"][:1 + is_last], f"place 0 has nothing more, {last} b")):
        with pytest.raises(ValueError, match=said) if n > 1 else nullcontext():
            require_same(lines, None, "letters", "the same ones")


# Exchange

@on_ranks(1, 2, 3, 4)
def test_both_halves_of_an_all_reduce_give_its_result_and_send_half_of_its_bytes_each():
    me, S = member(), 5
    flats = [torch.arange(me.n * S, dtype=torch.float32) * (rank + 1) for rank in range(me.n)]
    for ahead in (None, 1):
        flat = flats[me.r].clone()
        with record_communication() as log:
            start_reduce_scatter(flat, me, tag=3, blocks_ahead=ahead)(flat.chunk(me.n)[me.r])
            half = log.sent_bytes
            start_all_gather(flat, me, tag=3)()
        assert torch.allclose(flat, sum(flats) / me.n) and half == log.sent_bytes - half == 4 * S * (me.n - 1)


@on_ranks(4)
def test_what_arrives_in_16_bits_is_added_in_32_and_several_gathers_are_under_way_at_once():
    flat, out = torch.full((4,), 1.0 + dist.get_rank() / 128).bfloat16(), torch.empty(1)
    start_reduce_scatter(flat, None, tag=0)(out)
    assert out.item() == (4 + 6 / 128) / 4  # 1.01171875 needs more bits than bf16 has
    finish = [start_gather(torch.tensor([dist.get_rank() + 10 * k])) for k in range(3)]
    assert [[part.item() for part in each()] for each in finish] == [[10 * k + r for r in range(4)] for k in range(3)]


# Gradients

class Summing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.sums = nn.Linear(2, 2, bias=False), []
        when_complete(self.parameters(), self.add_up)

    def add_up(self, parameter):
        self.sums.append(parameter.grad.sum().item())


def test_a_method_is_called_when_gradients_are_complete_and_does_not_keep_its_object_alive():
    model = Summing()
    inner, sums = model.layer, model.sums
    for _ in range(2):
        inner(torch.ones(1, 2)).sum().backward()
    assert sums == [4.0, 8.0]
    whole = weakref.ref(model)
    del model
    gc.collect()
    inner(torch.ones(1, 2)).sum().backward()
    assert whole() is None and sums == [4.0, 8.0]


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


def test_a_mark_is_as_good_as_a_zero_and_nothing_else_looks_like_it():
    part = torch.empty(3)
    mark_missing(part)
    assert is_missing(part) and torch.equal(part + torch.tensor([1.0, -1.0, 0.0]), torch.tensor([1.0, -1.0, 0.0]))
    assert not any(map(is_missing, (part + 0.0, torch.tensor([-0.0, 1.0]), torch.tensor([math.nan]), torch.empty(0))))


# Replaced

@on_ranks(1)
def test_optimisers_are_looked_at_only_from_the_first_cut_on():
    cut, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (cut, other)]
    assert not watch_optimizers.cache_info().currsize
    for optimizer in optimizers:
        optimizer.step()
    for _ in range(2):
        remember_replacement(cut.parameters(), "a test")
    assert watch_optimizers.cache_info().currsize == 1
    optimizers[1].step()
    with pytest.raises(ValueError, match="this SGD was made before a test cut the parameters it steps on"):
        optimizers[0].step()
