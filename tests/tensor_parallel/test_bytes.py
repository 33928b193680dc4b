"""What a cut model sends is what the formulas say, to the byte; and what it keeps for backward."""

import gc

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.costs.splitting import split_layer_bytes, split_parameters
from course_lib.facts import Shape
from course_lib.reference import GPT, Block, GPTConfig
from course_lib.runtime import record_communication, record_memory
from course_lib.tensor_parallel import ColumnParallelLinear, parallelize
from tests.ranks import on_ranks
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


@on_ranks(1, 2, 4)
def test_a_layer_sends_four_all_reduces_of_btd_and_dealt_out_the_same_in_halves():
    t = dist.get_world_size()
    all_reduce, of_shared = 2 * (t - 1) * BTD // t, 2 * (t - 1) * 6 * D * 4 // t
    # Two norms' weights and biases, and two rows' biases: the parameters that are shared
    shared = {("all_reduce", 2 * D * 4): 2, ("all_reduce", D * 4): 2}
    halves = {("all_gather", BTD): 2, ("reduce_scatter", BTD): 2}
    again = {("all_gather", BTD): 4, ("reduce_scatter", BTD): 2}
    found = {way: of_a_layer(**how) for way, how in WAYS.items()}
    for way, how in WAYS.items():
        sent = sum(each for _, each in found[way]) - (of_shared if "sequence_parallel" in how else 0)
        assert sent == split_layer_bytes(D, B * T, t, 4, "gather_again" in how), way
    assert found == {
        "TP": [({("all_reduce", BTD): 2}, 2 * all_reduce)] * 2,
        "TP+SP": [(halves, 2 * all_reduce), (halves | shared, 2 * all_reduce + of_shared)],
        "TP+SP again": [(halves, 2 * all_reduce), (again | shared, 3 * all_reduce + of_shared)]}


@on_ranks(2)
def test_embedding_loss_and_read_out_send_one_btd_each_and_no_logits():
    (forward, _), (backward, _) = logged(1)
    assert [kind for kind in forward if kind != ("all_reduce", BTD)] == [("all_reduce", B * T * 4)] * 3
    assert (len(forward), len(backward)) == (1 + 2 + 3, 2 + 1)  # embedding, layer, loss; layer, read-out


def kept_elements(how):
    """Numbers that a block in training keeps for backward."""
    block, x = parallelize(Block(GPTConfig(1, 64, 4, V, 64)), **how), torch.randn(2, 64, 64, requires_grad=True)
    with record_memory(model=block) as log:
        y = block(x)
        kept = log.by_kind["activations"] - y.nbytes
    return kept // 4


@on_ranks(4)
def test_gathering_again_keeps_a_tth_of_the_inputs_of_columns():
    btd, kept = 2 * 64 * 64, {way: kept_elements(how) for way, how in WAYS.items()}
    assert kept["TP"] > kept["TP+SP"] > kept["TP+SP again"]
    # The inputs of qkv and of the MLP; what is kept instead, the norms' outputs, is kept by nobody else
    assert kept["TP+SP"] - kept["TP+SP again"] == 2 * btd - 2 * btd // 4


@on_ranks(1, 2, 3, 4)
def test_parameters_gradients_and_adamws_state_are_the_formula_to_the_byte():
    shape = Shape(num_layers=2, hidden_size=D, num_heads=12, num_kv_heads=12, ffn_size=4 * D, vocab_size=V,
                  sequence_length=T, tied=True, learned_positions=True, biases=True)
    numbers = split_parameters(shape, dist.get_world_size())
    for way, how in WAYS.items():
        model = parallelize(GPT(GPTConfig(2, D, 12, V, T)), **how)
        optimizer = torch.optim.AdamW(model.parameters())
        with record_memory(model=model, optimizer=optimizer) as log:
            model(*batch())[1].backward()
            optimizer.step()
            gc.collect()
            for _ in range(4):
                dist.barrier()  # or a thread of gloo's may hold a message for a moment longer
            held = dict(log.by_kind)
        state = 8 * numbers + 4 * len(list(model.parameters()))
        assert held == {"parameters": 4 * numbers, "gradients": 4 * numbers, "activations": 0, "other": 0,
                        "optimizer_state": state}, way


class Order(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.append(operator.name())
        return operator(*args, **(kwargs or {}))


@on_ranks(2)
def test_the_input_gradient_is_on_its_way_while_the_weights_is_computed():
    for dealt, again, expected in ((False, False, ["mm", "allreduce", "mm"]), (True, False, ["mm", "reduce", "mm"]),
                                   (True, True, ["allgather", "mm", "reduce", "mm"])):
        layer = ColumnParallelLinear(8, 16, sequence_parallel=dealt, gather_again=again)
        y = layer(torch.randn(2, 4, 8, requires_grad=True)).sum()
        with Order() as order:
            y.backward()
        assert [name.split("::")[1].strip("_").split("_")[0] for name in order.names
                if name in ("aten::mm", "aten::bmm") or "c10d::" in name] == expected
