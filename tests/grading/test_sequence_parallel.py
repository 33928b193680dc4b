"""The exercises of chapter 7 compare with rows that nobody has shared out."""

import math
import time

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from course_lib.costs.context_parallel import (
    LAYOUTS,
    imbalance,
    ring_attention_bytes,
    ring_work,
    ulysses_attention_bytes,
)
from course_lib.grading.compare import alike
from course_lib.grading.exercise import SentBytes, Trial
from course_lib.grading.judges.models import ROUNDING
from course_lib.grading.judges.sequence_parallel.attention import MergedAttention, PassAround, WholeRing
from course_lib.grading.judges.sequence_parallel.layers import GatherAndScatter, RecomputeFunction
from course_lib.grading.judges.sequence_parallel.numbers import (
    H100,
    LLAMA_70B,
    NDR,
    NODES,
    NVLINK,
    AttentionSeconds,
    DocumentPositions,
    LayerBytes,
)
from course_lib.grading.on_rank import sequence_parallel as on_rank
from course_lib.runtime import launch
from course_lib.sequence_parallel import layout_order


def test_gather_and_scatter_around_what_ranks_do_give_the_gradients_of_their_sum():
    asked = GatherAndScatter()
    for trial in asked.trials(seed=1):
        whole, c = (torch.cat([rank[name] for rank in trial.inputs], 1) for name in ("x", "c"))
        hs = [torch.exp(rank["w"] * whole) for rank in trial.inputs]
        x_gradient = sum(c * h * rank["w"] for h, rank in zip(hs, trial.inputs))
        answers = asked.solve(trial.inputs)
        assert all(alike(answer["gathered"], whole, ROUNDING) for answer in answers)
        assert all(alike(answer["w"], c * h * whole, ROUNDING) for answer, h in zip(answers, hs))
        for name, right in (("scattered", sum(hs)), ("x", x_gradient)):
            assert alike(torch.cat([answer[name] for answer in answers], 1), right, ROUNDING)


def test_merged_parts_are_attention_over_all_keys():
    q, k, v = torch.randn(3, 1, 2, 8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores = q @ k.mT / 2
    parts = [{"out": own.softmax(-1) @ v_own, "lse": own.logsumexp(-1)}
             for own, v_own in zip(scores.chunk(4, -1), v.chunk(4, 2))]
    for answer in MergedAttention().solve(parts):
        assert alike(answer["out"], F.scaled_dot_product_attention(q, k, v), ROUNDING)
        assert alike(answer["lse"], scores.logsumexp(-1), ROUNDING)


def judge(trial, dealt):
    R = trial.world_size
    return DocumentPositions().judge(trial, [{"returned": own} for own in dealt], SentBytes([[0] * R] * R, True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_uneven_about_one_document_is_the_chapters_imbalance(layout):
    for R in (1, 2, 3, 4):
        T = 24 * R
        seen = judge(Trial([[[T]]] * R, "one document"), layout_order(T, R, layout).chunk(R))
        spent, = seen.usage
        assert math.isclose(spent.measured, imbalance(ring_work(T, R, layout)), abs_tol=1e-12)
        assert bool(seen.fault) == (spent.measured > 1e-9)


def test_zigzag_of_each_document_reaches_par_and_no_layout_of_the_row_does():
    for trial in DocumentPositions().trials(seed=1):
        lengths, R = trial.inputs[0][0], trial.world_size
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        documents = [start + layout_order(length, R, "zigzag") for start, length in zip(starts, lengths)]
        dealt = [torch.cat(parts) for parts in zip(*(document.chunk(R) for document in documents))]
        assert judge(trial, dealt).cause is None
        assert R == 1 or all(judge(trial, layout_order(sum(lengths), R, layout).chunk(R)).over for layout in LAYOUTS)


def test_positions_that_are_not_the_rows_are_refused_in_words():
    trial = DocumentPositions().trials(seed=1)[0]
    R, T = trial.world_size, sum(trial.inputs[0][0])
    own = torch.arange(T).chunk(R)
    assert "token 0 is on 2 ranks" in judge(trial, [own[0]] * R).cause
    assert "token 0 is on 0 ranks" in judge(trial, [own[0] - T, *own[1:]]).cause
    for strange in (None, "a list", own[0].float(), own[0][1:], own[0].to("meta")):
        assert f"expected the positions of T/R tokens, int64[{T // R}]" in judge(trial, [strange, *own[1:]]).cause


def test_an_answer_with_nan_is_told_so_and_a_strange_one_is_described():
    asked = MergedAttention()
    trial = asked.trials(seed=1)[0]
    right = asked.solve(trial.inputs)
    nan = [{**answer, "lse": answer["lse"] * float("nan")} for answer in right]
    assert "the answer is not a number" in asked.wrong(trial, nan)
    for strange in (None, "not two tensors", torch.arange(3), torch.zeros(2, device="meta"), [1.0]):
        assert "`out` of all keys" in asked.wrong(trial, [{"out": strange, "lse": None}] * trial.world_size)
    assert asked.wrong(trial, [None] * trial.world_size)


def test_a_block_that_nobody_sends_or_receives_while_the_one_before_is_used_is_named():
    asked = PassAround()
    trial = next(trial for trial in asked.trials(seed=1) if trial.world_size == 3)
    both = [on_rank.SEND, on_rank.RECEIVE]

    def flaw(under_way):
        calls = [["send", 8, 8.0]] * 2
        return asked.flaw(trial, [{"under_way": under_way, "calls": calls}] * 3, SentBytes([[0] * 3] * 3, True))

    assert flaw([both, both, []]) is None
    assert flaw([both, both[1:], []]).startswith("rank 0 used block 1, counted from 0, and had not begun to send:")
    assert "block 0, counted from 0, and had not begun to send or to receive:" in flaw([[], both, []])


def calls_under_way():
    """What is open at six moments on one of two ranks."""
    other, block, seen = 1 - dist.get_rank(), torch.zeros(2), []
    with on_rank.open_calls() as calls:
        waiting = [dist.isend(block, other)]
        seen.append(calls.directions())
        waiting.append(dist.irecv(block.clone(), other))
        seen.append(calls.directions())
        waiting[0].wait()
        seen.append(calls.directions())
        waiting[1].wait()
        exchange = dist.all_to_all_single(block.clone(), block, async_op=True)
        time.sleep(0.05)  # it is over meanwhile, and nobody has waited
        seen.append(calls.directions())
        exchange.wait()
        dist.all_reduce(block)
        seen.append(calls.directions())
        (dist.send if other else dist.recv)(block, other)
        seen.append(calls.directions())
    return seen


def test_a_message_is_under_way_from_its_call_until_somebody_waits_for_it():
    send, both = [on_rank.SEND], [on_rank.SEND, on_rank.RECEIVE]
    for seen in launch(calls_under_way, world_size=2, device="cpu"):
        assert seen == [send, both, both[1:], both, [], []]


def test_torchs_checkpoint_gives_what_is_expected_and_is_recognised():
    asked = RecomputeFunction()
    for trial in asked.trials(seed=1):
        answer = on_rank.recompute(lambda function, x: checkpoint(function, x, use_reentrant=False), trial.inputs[0])
        assert answer["by_torch"] and answer["runs"] == 2 * trial.inputs[0]["layers"]
        assert alike(asked.select_parts([answer]), asked.solve(trial.inputs), asked.tolerance)


def test_a_layers_bytes_are_those_of_its_tensors_and_sequence_parallelism_cuts_what_lies_outside():
    asked = LayerBytes()
    assert asked.solve(1, 4, 8, 2, 1, 1, False) == 128
    h, f, H, K = LLAMA_70B
    numbers = 4 * h + h + 2 * h * K // H + h + 4 * f
    assert asked.solve(100, h, f, H, K, 1, False) == 100 * (2 * numbers + 4 * H)
    for t in (2, 4, 8):
        without, cut = (asked.solve(100, h, f, H, K, t, parallel) for parallel in (False, True))
        assert without - cut == 100 * 8 * h * (1 - 1 / t)
        assert cut * t == asked.solve(100, h, f, H, K, 1, False)


def test_a_whole_ring_is_torchs_attention_over_the_row_in_its_order():
    asked = WholeRing()
    for trial in asked.trials(seed=1):
        order = torch.cat(trial.inputs[0]["positions"])
        assert torch.equal(order, layout_order(len(order), trial.world_size, "zigzag"))

        def in_order(tensors, order=order):
            return torch.cat(tensors, 2)[:, :, order.argsort()]

        q, k, v = (in_order([rank["given"][name] for rank in trial.inputs]).requires_grad_() for name in "qkv")
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y.backward(in_order([rank["dy"] for rank in trial.inputs]))
        answers = asked.solve(trial.inputs)
        assert alike(in_order([answer["y"] for answer in answers]), y.detach(), ROUNDING)
        for name, leaf in zip("qkv", (q, k, v)):
            assert alike(in_order([answer["gradients"][name] for answer in answers]), leaf.grad, ROUNDING)
        B, H, c, d = trial.inputs[0]["dy"].shape
        R = trial.world_size
        assert asked.bound(trial) == sum(ring_attention_bytes(B, H, R * c, d, R, 8))


def test_seconds_of_attention_are_the_chapters_bytes_over_the_wires_where_computing_takes_none():
    T, H, K, d = 1 << 17, 64, 8, 128
    for u, R in ((1, 64), (8, 8), (8, 1)):
        took = AttentionSeconds().solve(T, u, R, H, K, d, math.inf, NVLINK, NDR)
        around = ring_attention_bytes(1, K // u, T, d, R, 2)[0] * NODES.group(R, stride=u).seconds_per_byte("ring")
        switching = ulysses_attention_bytes(1, H, K, T // R, d, u, 2)[0] * NODES.group(8).seconds_per_byte("ring")
        assert math.isclose(took, around + switching, rel_tol=1e-9)


def test_the_ring_of_64_and_the_rings_of_8_have_one_card_and_an_all_gather_over_the_64_has_eight():
    rates = [NODES.group(*ranks).bytes_per_s(op) for op in ("ring", "all_gather") for ranks in ((64, 1), (8, 8))]
    assert rates == pytest.approx([NDR, NDR, 8 * NDR, NDR])


def test_a_ring_on_wires_without_end_takes_the_time_of_half_the_pairs():
    T, H, K, d = 1 << 17, 64, 8, 128
    took = AttentionSeconds().solve(T, 1, 64, H, K, d, H100, math.inf, math.inf)
    assert math.isclose(took, 4 * d * H * T * T / 2 / 64 / H100, rel_tol=1e-9)


def test_at_a_million_tokens_ring_and_both_take_as_long_and_at_an_eighth_of_it_both_are_faster():
    def took(T, u, R):
        return AttentionSeconds().solve(T, u, R, 64, 8, 128, H100, NVLINK, NDR)

    assert math.isclose(took(1 << 20, 1, 64), took(1 << 20, 8, 8), rel_tol=0.01)
    assert took(1 << 17, 1, 64) > 1.4 * took(1 << 17, 8, 8)
