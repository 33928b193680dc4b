"""The exercises of chapter 7 compare with rows that nobody has shared out, and tell mistakes apart."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from course_lib.costs.context_parallel import imbalance, ring_attention_bytes, ring_work, ulysses_attention_bytes
from course_lib.grading.chapters.models import ROUNDING
from course_lib.grading.chapters.sequence_parallel.doors import GatherAndScatter
from course_lib.grading.chapters.sequence_parallel.merge import MergedAttention
from course_lib.grading.chapters.sequence_parallel.numbers import (
    H100,
    LLAMA_70B,
    NDR,
    NVLINK,
    AttentionSeconds,
    LayerBytes,
)
from course_lib.grading.chapters.sequence_parallel.passing import PassAround
from course_lib.grading.chapters.sequence_parallel.positions import (
    DocumentPositions,
    contiguous,
    joined,
    layouts,
    striped,
    zigzag,
)
from course_lib.grading.chapters.sequence_parallel.recompute import Recomputed, measured
from course_lib.grading.chapters.sequence_parallel.ring import WholeRing
from course_lib.grading.compare import alike
from course_lib.grading.exercise import Traffic
from course_lib.sequence_parallel import layout_order


@pytest.mark.parametrize("asked", [GatherAndScatter(), MergedAttention(), PassAround(), Recomputed(), WholeRing()],
                         ids=lambda each: each.number)
def test_no_mistake_looks_right_and_no_two_look_the_same(asked):
    inputs = asked.trials(seed=2)[0].inputs
    answers = [("right", asked.expected(inputs)), *asked.mistakes(inputs)]
    for number, (cause, given) in enumerate(answers):
        assert not any(alike(given, other, asked.tolerance) for _, other in answers[:number]), cause


def test_gather_and_scatter_around_what_ranks_do_give_the_gradients_of_their_sum():
    asked = GatherAndScatter()
    for trial in asked.trials(seed=1):
        whole, c = (torch.cat([rank[name] for rank in trial.inputs], 1) for name in ("x", "c"))
        hs = [torch.exp(rank["w"] * whole) for rank in trial.inputs]
        x_gradient = sum(c * h * rank["w"] for h, rank in zip(hs, trial.inputs))
        answers = asked.expected(trial.inputs)
        assert all(alike(answer["gathered"], whole, ROUNDING) for answer in answers)
        assert all(alike(answer["w"], c * h * whole, ROUNDING) for answer, h in zip(answers, hs))
        for name, right in (("scattered", sum(hs)), ("x", x_gradient)):
            assert alike(torch.cat([answer[name] for answer in answers], 1), right, ROUNDING)


def test_merged_parts_are_attention_over_all_keys():
    q, k, v = torch.randn(3, 1, 2, 8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores = q @ k.mT / 2
    parts = [{"out": own.softmax(-1) @ v_own, "lse": own.logsumexp(-1)}
             for own, v_own in zip(scores.chunk(4, -1), v.chunk(4, 2))]
    for answer in MergedAttention().expected(parts):
        assert alike(answer["out"], F.scaled_dot_product_attention(q, k, v), ROUNDING)
        assert alike(answer["lse"], scores.logsumexp(-1), ROUNDING)


@pytest.mark.parametrize("name, layout", [("contiguous", contiguous), ("striped", striped), ("zigzag", zigzag)])
def test_layouts_are_the_chapters_own_for_one_document(name, layout):
    for R in (1, 2, 3, 4):
        dealt = layout(list(range(24 * R)), R)
        assert dealt == [own.tolist() for own in layout_order(24 * R, R, name).chunk(R)]
        asked = DocumentPositions()
        trial = type(asked.trials(0)[0])([[24 * R]] * R, "one document")
        spent, = asked.spent(trial, [{"returned": torch.tensor(own)} for own in dealt], Traffic([[0] * R] * R, True))
        assert math.isclose(spent.measured, imbalance(ring_work(24 * R, R, name)), abs_tol=1e-12)


def test_zigzag_of_each_document_reaches_par_and_every_likely_layout_is_told_what_is_uneven():
    asked = DocumentPositions()
    for trial in asked.trials(seed=1):
        lengths, R = trial.inputs[0], trial.world_size
        ends = [sum(lengths[:i + 1]) for i in range(len(lengths))]
        documents = [list(range(end - length, end)) for end, length in zip(ends, lengths)]

        def judged(dealt, trial=trial, R=R):
            return asked.judge(trial, [{"returned": torch.tensor(own)} for own in dealt], Traffic([[0] * R] * R, True))

        assert judged(joined(documents, R, zigzag)).cause is None
        for why, dealt in layouts(lengths, R):
            assert R == 1 or why in judged(dealt).cause


def test_torchs_checkpoint_gives_what_is_expected_and_is_recognised():
    asked = Recomputed()
    for trial in asked.trials(seed=1):
        answer = measured(trial.inputs[0], lambda function, x: checkpoint(function, x, use_reentrant=False))
        assert answer["by_torch"] and answer["runs"] == 2
        assert alike(asked.given([answer]), asked.expected(trial.inputs), asked.tolerance)


def test_a_layers_bytes_are_those_of_its_tensors_and_sequence_parallelism_cuts_what_lies_outside():
    asked = LayerBytes()
    assert asked.expected(1, 4, 8, 2, 1, 1, False) == 128
    h, f, H, K = LLAMA_70B
    numbers = 4 * h + h + 2 * h * K // H + h + 4 * f
    assert asked.expected(100, h, f, H, K, 1, False) == 100 * (2 * numbers + 4 * H)
    for t in (2, 4, 8):
        without, cut = (asked.expected(100, h, f, H, K, t, parallel) for parallel in (False, True))
        assert without - cut == 100 * 8 * h * (1 - 1 / t)
        assert cut * t == asked.expected(100, h, f, H, K, 1, False)


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
        answers = asked.expected(trial.inputs)
        assert alike(in_order([answer["y"] for answer in answers]), y.detach(), ROUNDING)
        for name, leaf in zip("qkv", (q, k, v)):
            assert alike(in_order([answer["gradients"][name] for answer in answers]), leaf.grad, ROUNDING)
        B, H, c, d = trial.inputs[0]["dy"].shape
        R = trial.world_size
        assert asked.bound(trial) == sum(ring_attention_bytes(B, H, R * c, d, R, 8))


def test_seconds_of_attention_are_the_chapters_bytes_over_the_wires():
    asked = AttentionSeconds()
    T, H, K, d = 1 << 17, 64, 8, 128
    for u, R in ((1, 64), (8, 8), (8, 1)):
        switching, _, sending = asked.parts(T, u, R, H, K, d, H100, NVLINK, NDR)
        assert math.isclose((R - 1) * sending * NDR, ring_attention_bytes(1, K // u, T, d, R, 2)[0], rel_tol=1e-9)
        assert math.isclose(switching * NVLINK, ulysses_attention_bytes(1, H, K, T // R, d, u, 2)[0], rel_tol=1e-9)


def test_at_a_million_tokens_ring_and_both_take_as_long_and_at_an_eighth_of_it_both_are_faster():
    def took(T, u, R):
        return AttentionSeconds().expected(T, u, R, 64, 8, 128, H100, NVLINK, NDR)

    assert math.isclose(took(1 << 20, 1, 64), took(1 << 20, 8, 8), rel_tol=0.01)
    assert took(1 << 17, 1, 64) > 1.4 * took(1 << 17, 8, 8)
