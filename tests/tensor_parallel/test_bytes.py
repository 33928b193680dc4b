"""What a cut model sends is what the formulas say, to the byte; and what it keeps for backward."""

import gc

import pytest
import torch
import torch.distributed as dist
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.costs.splitting import split_parameters
from course_lib.facts import Shape
from course_lib.reference import GPT, Block, GPTConfig
from course_lib.runtime import launch, record_communication, record_memory
from course_lib.tensor_parallel import ColumnParallelLinear, RowParallelLinear, parallelize
from tests.tensor_parallel.cases import WAYS, B, D, T, V, batch

BTD = B * T * D * 4  # bytes


def logged(num_layers, **how):
    """Of a pass forward and one backward: [(op, message bytes)] and the bytes sent."""
    model = parallelize(GPT(GPTConfig(num_layers, D, 12, V, T)), **how)
    logs = []
    with record_communication() as log:
        _, loss = model(*batch())
    logs.append(log)
    with record_communication() as log:
        loss.backward()
    logs.append(log)
    return [([(event.op, event.message_bytes) for event in log.events], log.sent_bytes) for log in logs]


def of_a_layer(**how):
    """What a third layer adds: for each direction {(op, message bytes): calls}, and the bytes sent."""
    found = []
    for (more, more_sent), (fewer, fewer_sent) in zip(logged(3, **how), logged(2, **how)):
        calls = {kind: more.count(kind) - fewer.count(kind) for kind in more}
        found.append(({kind: count for kind, count in calls.items() if count}, more_sent - fewer_sent))
    return found


def test_a_layer_sends_four_all_reduces_of_btd_and_dealt_out_the_same_in_halves():
    def body():
        return dist.get_world_size(), {way: of_a_layer(**how) for way, how in WAYS.items()}

    for world_size in (1, 2, 4):
        for t, found in launch(body, world_size=world_size):
            all_reduce = 2 * (t - 1) * BTD // t
            assert found["TP"] == [({("all_reduce", BTD): 2}, 2 * all_reduce)] * 2
            halves = {("all_gather", BTD): 2, ("reduce_scatter", BTD): 2}
            # Two norms' weights and biases, and two rows' biases: the parameters that are shared
            shared = {("all_reduce", 2 * D * 4): 2, ("all_reduce", D * 4): 2}
            of_shared = 2 * (t - 1) * 6 * D * 4 // t
            assert found["TP+SP"] == [(halves, 2 * all_reduce), (halves | shared, 2 * all_reduce + of_shared)]
            again = {("all_gather", BTD): 4, ("reduce_scatter", BTD): 2}
            assert found["TP+SP again"] == [(halves, 2 * all_reduce), (again | shared, 3 * all_reduce + of_shared)]


def test_embedding_loss_and_read_out_send_one_btd_each_and_no_logits():
    def body():
        forward, backward = logged(1)
        return [kind for kind in forward[0] if kind != ("all_reduce", BTD)], len(forward[0]), len(backward[0])

    for others, num_forward, num_backward in launch(body, world_size=2):
        assert others == [("all_reduce", B * T * 4)] * 3
        assert (num_forward, num_backward) == (1 + 2 + 3, 2 + 1)  # embedding, layer, loss; layer, read-out


def test_an_mlp_dealt_out_gathers_twice_and_reduce_scatters_once_each_way():
    def body():
        found = []
        for again in (False, True):
            column = ColumnParallelLinear(D, 4 * D, sequence_parallel=True, gather_again=again)
            row = RowParallelLinear(4 * D, D, sequence_parallel=True)
            x = torch.randn(B, T // 2, D, requires_grad=True)
            with record_communication() as forward:
                y = row(torch.relu(column(x)))
            with record_communication() as backward:
                y.sum().backward()
            found.append([sorted(event.op for event in log.events) for log in (forward, backward)])
        return found

    once = ["all_gather", "reduce_scatter"]
    assert launch(body, world_size=2)[0] == [[once, once], [once, ["all_gather", *once]]]


def kept_elements(how):
    """Numbers that a block in training keeps for backward, parameters left out; memory that is shared counts once."""
    torch.manual_seed(0)
    block = parallelize(Block(GPTConfig(1, 64, 4, V, 64)), **how)
    parameters = {p.untyped_storage().data_ptr() for p in block.parameters()}
    kept = {}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in parameters:
            kept[tensor.untyped_storage().data_ptr()] = tensor  # alive, so that no other comes to lie there
        return tensor

    x = torch.randn(2, 64, 64, requires_grad=True)
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        block(x)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) // 4


def test_gathering_again_keeps_a_tth_of_the_inputs_of_columns():
    t, btd = 4, 2 * 64 * 64
    for kept in launch(lambda: {way: kept_elements(how) for way, how in WAYS.items()}, world_size=t):
        assert kept["TP"] > kept["TP+SP"] > kept["TP+SP again"]
        # The inputs of qkv and of the MLP; what is kept instead, the norms' outputs, is kept by nobody else
        assert kept["TP+SP"] - kept["TP+SP again"] == 2 * btd - 2 * btd // t


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_parameters_gradients_and_adamws_state_are_the_formula_to_the_byte(world_size):
    shape = Shape(num_layers=2, hidden_size=D, num_heads=12, num_kv_heads=12, ffn_size=4 * D, vocab_size=V,
                  sequence_length=T, tied=True, learned_positions=True, biases=True)

    def body():
        held = {}
        for way, how in WAYS.items():
            model = parallelize(GPT(GPTConfig(2, D, 12, V, T)), **how)
            optimizer = torch.optim.AdamW(model.parameters())
            with record_memory(model=model, optimizer=optimizer) as log:
                model(*batch())[1].backward()
                optimizer.step()
                gc.collect()
                held[way] = dict(log.by_kind)
        return held

    numbers, tensors = split_parameters(shape, world_size), len(list(GPT(GPTConfig(2, D, 12, V, T)).parameters()))
    for held in launch(body, world_size=world_size):
        assert held == {way: {"parameters": 4 * numbers, "gradients": 4 * numbers, "activations": 0, "other": 0,
                              "optimizer_state": 8 * numbers + 4 * tensors} for way in WAYS}


class Order(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.append(operator.name())
        return operator(*args, **(kwargs or {}))


def test_the_input_gradient_is_on_its_way_while_the_weights_is_computed():
    def body():
        found = []
        for dealt, again in ((False, False), (True, False), (True, True)):
            layer = ColumnParallelLinear(8, 16, sequence_parallel=dealt, gather_again=again)
            y = layer(torch.randn(2, 4, 8, requires_grad=True)).sum()
            with Order() as order:
                y.backward()
            found.append([name.split("::")[1].strip("_").split("_")[0] for name in order.names
                          if name in ("aten::mm", "aten::bmm") or "c10d::" in name])
        return found

    for of_rank in launch(body, world_size=2):
        plain, dealt, again = of_rank
        assert plain == ["mm", "allreduce", "mm"]
        assert dealt == ["mm", "reduce", "mm"]
        assert again == ["allgather", "mm", "reduce", "mm"]
