"""The exercises of chapter 5 compare with layers that nobody has cut."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from course_lib.costs.splitting import largest_t, split_layer_bytes
from course_lib.facts import Shape
from course_lib.grading.compare import alike
from course_lib.grading.exercise import SentBytes
from course_lib.grading.judges.models import ROUNDING
from course_lib.grading.judges.split import NO_WAY_BACK
from course_lib.grading.judges.tensor_parallel.layers import (
    ROW_BIASES,
    FAndG,
    GatedColumns,
    QKVRows,
    RowWithResidual,
    SplitBlock,
)
from course_lib.grading.judges.tensor_parallel.sums import TOO_LARGE, GradientNorm, SmallestHiddenSize, VocabLoss
from course_lib.grading.on_rank import tensor_parallel as on_rank
from course_lib.reference.gpt import Block, GPTConfig


def test_f_and_g_around_what_ranks_do_give_the_gradients_of_their_sum():
    asked = FAndG()
    for trial in asked.trials(seed=1):
        x = trial.inputs[0]["x"].clone().requires_grad_()
        beside = [x.detach().clone().requires_grad_() for _ in trial.inputs]
        ws = [rank["w"].clone().requires_grad_() for rank in trial.inputs]
        total = sum(w * (x + own) for w, own in zip(ws, beside))
        (trial.inputs[0]["c"] * total).sum().backward()
        for answer, w, own in zip(asked.solve(trial.inputs), ws, beside):
            right = {"g": total.detach(), "w": w.grad, "x": x.grad + own.grad}
            assert alike({name: answer[name] for name in right}, right, ROUNDING)


def test_features_and_gradients_of_a_gated_layer_are_those_of_one_process():
    asked = GatedColumns()
    for trial in asked.trials(seed=1):
        x, gate, up = (tensor.clone().requires_grad_() for tensor in trial.inputs[0]["given"].values())
        y = F.silu(x @ gate.T) * (x @ up.T)
        y.backward(torch.cat([rank["dy"] for rank in trial.inputs], -1))
        answers = asked.solve(trial.inputs)
        assert alike(torch.cat([answer["y"] for answer in answers], -1), y.detach(), ROUNDING)
        assert all(alike(answer["gradients"]["x"], x.grad, ROUNDING) for answer in answers)
        assert alike(sum(answer["gradients"]["gate"] for answer in answers), gate.grad, ROUNDING)


def test_a_row_layer_with_bias_and_residual_is_that_of_one_process():
    asked = RowWithResidual()
    for trial in asked.trials(seed=1):
        x = torch.cat([rank["given"]["x"] for rank in trial.inputs], -1).requires_grad_()
        _, weight, bias, residual = (tensor.clone().requires_grad_() for tensor in trial.inputs[0]["given"].values())
        y = residual + F.linear(x, weight, bias)
        y.backward(trial.inputs[0]["dy"])
        answers = asked.solve(trial.inputs)
        for answer in answers:
            right = {"bias": bias.grad, "residual": residual.grad}
            assert alike(answer["y"], y.detach(), ROUNDING)
            assert alike({name: answer["gradients"][name] for name in right}, right, ROUNDING)
        assert alike(torch.cat([answer["gradients"]["x"] for answer in answers], -1), x.grad, ROUNDING)


def test_heads_of_all_ranks_attend_as_grouped_queries_do_in_torch():
    asked = QKVRows()
    for trial in asked.trials(seed=1):
        (H, K), weight = trial.inputs[0]["heads"], trial.inputs[0]["weight"]
        t, d = trial.world_size, len(weight) // (H + 2 * K)
        x = torch.randn(1, 5, weight.shape[1], dtype=torch.float64)

        def attend(rows, heads, kv_heads):
            parts = (x @ rows.T).unflatten(-1, (heads + 2 * kv_heads, d)).transpose(1, 2)  # noqa: B023
            q, k, v = parts.split([heads, kv_heads, kv_heads], dim=1)
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

        parts = [attend(rows, H // t, (len(rows) // d - H // t) // 2) for rows in asked.solve(trial.inputs)]
        assert alike(torch.cat(parts, dim=1), attend(weight, H, K), ROUNDING)


def test_loss_and_gradient_are_those_of_torch_on_whole_logits():
    asked = VocabLoss()
    for trial in asked.trials(seed=1):
        logits = torch.cat([rank["logits"] for rank in trial.inputs], -1).requires_grad_()
        loss = F.cross_entropy(logits.flatten(0, 1), trial.inputs[0]["targets"].flatten())
        loss = loss + trial.inputs[0]["c"] * logits.logsumexp(-1).square().mean()
        loss.backward()
        answers = asked.solve(trial.inputs)
        assert all(math.isclose(answer["loss"], loss.item(), rel_tol=1e-9) for answer in answers)
        assert alike(torch.cat([answer["gradient"] for answer in answers], -1), logits.grad, ROUNDING)


def test_the_norm_is_that_of_all_gradients_side_by_side():
    asked = GradientNorm()
    for trial in asked.trials(seed=1):
        parts = [sum(each) for each in zip(*(rank["partial"] for rank in trial.inputs))]
        slices = [gradient for rank in trial.inputs for gradient in rank["sliced"]]
        all_of_it = torch.cat([gradient.flatten() for gradient in [*slices, *trial.inputs[0]["whole"], *parts]])
        for answer in asked.solve(trial.inputs):
            assert math.isclose(answer["norm"], all_of_it.norm().item(), rel_tol=1e-9)
            assert alike(answer["partial"], parts, ROUNDING)


def test_a_split_block_is_the_courses_own_block_with_its_slices_side_by_side():
    asked = SplitBlock()
    for trial in asked.trials(seed=1):
        t, given = trial.world_size, [rank["given"] for rank in trial.inputs]
        D = given[0]["x"].shape[-1]
        block = Block(GPTConfig(hidden_size=D, num_heads=D // trial.inputs[0]["head_dim"])).double()
        block.mlp.activation = torch.nn.GELU()
        names = {"attention_norm": "norm_1", "attention.qkv": "qkv", "attention.output": "output", "mlp_norm": "norm_2",
                 "mlp.input": "up", "mlp.output": "down"}

        def join(name, tensors):
            if name.startswith("norm") or name in ROW_BIASES:
                return tensors[0]
            if name in ("output.weight", "down.weight"):
                return torch.cat(tensors, 1)
            return torch.cat([part for section in zip(*(each.chunk(3 if name.startswith("qkv") else 1)
                                                        for each in tensors)) for part in section])

        for name, parameter in block.named_parameters():
            module, _, kind = name.rpartition(".")
            parameter.data.copy_(join(f"{names[module]}.{kind}", [own[f"{names[module]}.{kind}"] for own in given]))
        x = given[0]["x"].clone().requires_grad_()
        y = block(x)
        y.backward(trial.inputs[0]["dy"])
        answers = asked.solve(trial.inputs)
        for answer in answers:
            assert alike([answer["y"], answer["gradients"]["x"]], [y.detach(), x.grad], ROUNDING)
        for name, parameter in block.named_parameters():
            module, _, kind = name.rpartition(".")
            key = f"{names[module]}.{kind}"
            assert alike(join(key, [answer["gradients"][key] for answer in answers]), parameter.grad, ROUNDING), key
        numbers = x.shape[0] * x.shape[1]
        assert abs(asked.bound(trial) - split_layer_bytes(D, numbers, t, bytes_per_number=8)) <= 4


def test_par_of_the_block_is_told_beside_what_was_sent():
    asked = SplitBlock()
    trial = asked.trials(seed=1)[-1]
    right, par = asked.solve(trial.inputs), asked.bound(trial)
    for sent, words in ((par, None), (2 * par, "over budget: rank 0 sent 196.6 kB, where 98.3 kB will do")):
        answers = [{**answer, "calls": [["all_reduce", 0, sent / 5]] * 5} for answer in right]
        judged = asked.judge(trial, answers, SentBytes([[0] * 4] * 4, exact=True))
        assert judged.cause is None if words is None else words in judged.cause
        assert "par 98.3 kB" in judged.figures()


def test_a_result_without_a_way_back_is_told_so():
    asked = RowWithResidual()
    trial = asked.trials(seed=1)[0]
    answers = [{"y": answer["y"], "gradients": dict.fromkeys(answer["gradients"]), "calls": []}
               for answer in asked.solve(trial.inputs)]
    assert NO_WAY_BACK in asked.judge(trial, answers, SentBytes([[0] * 3] * 3, exact=True)).cause


def test_anything_that_is_not_a_loss_and_a_gradient_or_a_norm_is_told_as_what_it_is():
    trial = VocabLoss().trials(seed=1)[0]
    for returned, words in ((None, "not two things but nothing (None)"), (2.0, "not two things but a float"),
                            (("two", None), "the loss is a str"), ((math.nan, None), TOO_LARGE)):
        answer = on_rank.vocab_loss(lambda *_, returned=returned: returned, trial.inputs[0])
        assert words in VocabLoss().judge(trial, [answer] * 2, SentBytes([[0] * 2] * 2, exact=True)).cause
    trial = GradientNorm().trials(seed=1)[0]
    for returned, words in ((torch.ones(2), "norm has float32[2]"), (True, "norm has a bool")):
        answer = on_rank.gradient_norm(lambda *_, returned=returned: returned, trial.inputs[0])
        assert words in GradientNorm().judge(trial, [answer] * 2, SentBytes([[0] * 2] * 2, exact=True)).cause


@pytest.mark.parametrize("number", [0.5, Fraction(1, 2), np.float64(0.5), np.array(0.5), torch.tensor(0.5),
                                    torch.tensor([0.5]), torch.tensor(0.5, requires_grad=True)], ids=repr)
def test_a_loss_and_a_norm_are_numbers_of_any_type(number):
    loss = on_rank.vocab_loss(lambda *_: (number, None), VocabLoss().trials(seed=1)[0].inputs[0])
    norm = on_rank.gradient_norm(lambda *_: number, GradientNorm().trials(seed=1)[0].inputs[0])
    assert loss["loss"] == norm["norm"] == 0.5


@pytest.mark.parametrize("asked", [GatedColumns(), RowWithResidual()], ids=lambda each: each.number)
def test_no_floor_is_above_what_a_sum_sends_or_a_gather_in_its_place(asked):
    for trial in asked.trials(seed=1):
        t, own = trial.world_size, trial.inputs[0]
        gathered = own["dy"] if isinstance(asked, GatedColumns) else own["given"]["x"]
        assert asked.least(trial) == min(round(t * asked.bound(trial)), t * (t - 1) * gathered.nbytes)


def test_products_of_a_rank_that_computes_all_are_told_beside_a_t_th_of_them():
    asked = GatedColumns()
    trial = asked.trials(seed=1)[1]
    B, T, D, part = 2, 4, 5, 2
    right, allowed = asked.solve(trial.inputs), 2 * 3 * 2 * B * T * D * part
    for flops, words in ((allowed, None), (3 * allowed, f"rank 0 computes {3 * allowed:,} FLOPs in its products")):
        answers = [{**answer, "flops": flops, "calls": [["all_reduce", 0, asked.bound(trial)]]} for answer in right]
        judged = asked.judge(trial, answers, SentBytes([[0] * 3] * 3, exact=True))
        assert judged.cause is None if words is None else words in judged.cause


@pytest.mark.parametrize("asked", [FAndG(), GatedColumns(), RowWithResidual(), QKVRows(), VocabLoss(), GradientNorm(),
                                   SplitBlock()], ids=lambda each: each.number)
@pytest.mark.parametrize("answer", [None, "words", {}, [torch.ones(2, device="meta")], {"y": 1, "gradients": [2]},
                                    {"f": torch.ones(1), "loss": math.inf, "norm": None, "partial": [torch.ones(1)]}])
def test_whatever_ranks_send_is_judged(asked, answer):
    trial = asked.trials(seed=1)[0]
    assert asked.judge(trial, [answer] * trial.world_size, SentBytes([[0] * 3] * 3, exact=True)).cause


def test_at_the_smallest_hidden_size_the_chapters_own_bound_is_t():
    asked = SmallestHiddenSize()
    for t, F_, wires, W in ((8, 600e12, (8, 450e9, 50e9), 450e9), (16, 300e12, (8, 300e9, 25e9), 200e9)):
        G, nvlink, card = wires
        exact = asked.solve(t, G, F_, nvlink, card, 1.0, 2)
        h = 64 * round(exact / 64)
        shape = Shape(1, h, h // 64, h // 64, 4 * h, 1000, 2048)
        assert math.isclose(largest_t(shape, F_, W) - 1, (t - 1) * h / exact, rel_tol=1e-9)
    h100 = [round(asked.solve(t, G, 600e12, 450e9, 50e9, 0.25, 2)) for t, G in ((8, 8), (16, 8), (8, 1))]
    assert h100 == [8296, 20_000, 74_667]
