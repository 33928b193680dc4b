"""A norm counts every number once, whichever ranks hold it; and the kinds of parameters, which say who holds what."""

import math

import pytest
import torch

from course_lib.groups.gradients import total_norm
from course_lib.groups.membership import member
from course_lib.hybrid_parallel import clip_grad_norm_, kinds
from course_lib.hybrid_parallel.model import gradients_here
from course_lib.runtime import launch
from tests.hybrid_parallel.cases import alone, batch, laid_out

SP = {"sequence_parallel": True}


def norms(text, options):
    """For each kind of norm (ours, with everything counted on every rank, what this rank has alone); then, clipped."""
    model, _ = laid_out(text, options)
    model.forward_backward(*batch(0, model.dp.r, model.dp.n))
    everything, found = list(gradients_here(model).values()), {}
    for norm_type in (1.0, 2.0, math.inf):
        found[norm_type] = (clip_grad_norm_(model, 1e9, norm_type).item(),
                            total_norm(everything, [], norm_type, member(), torch.device("cpu")).item(),
                            torch.nn.utils.get_total_norm(everything, norm_type).item())
    clip_grad_norm_(model, 0.1)
    return found, clip_grad_norm_(model, 1e9).item()


def test_every_kind_of_norm_counts_every_number_once_and_clipped_gradients_have_the_norm_that_was_asked_for():
    layouts = [("dp2,tp2", SP), ("pp2,tp2", {"num_microbatches": 2}), ("dp2,cp2,zero2", {}), ("dp2,pp2,zero3", {}),
               ("dp2,pp2,zero1", {"num_microbatches": 2}), ("dp2,tp2", {})]
    for of_rank in launch(lambda: [norms(*layout) for layout in layouts], world_size=4):
        for layout, (found, clipped) in zip(layouts, of_rank):
            for norm_type, (ours, _, _) in found.items():
                expected = torch.nn.utils.get_total_norm(alone(1)[2].values(), norm_type).item()
                assert ours == pytest.approx(expected, rel=1e-5), (layout, norm_type)
            assert clipped == pytest.approx(0.1, rel=1e-4) and found[2.0][0] > 1, layout
        ours, twice, here = of_rank[-1][0][2.0]
        assert twice > 1.4 * ours  # the mistake: all of it twice, and what tp has whole four times
        assert here < 0.998 * ours  # and another one: a part of the matrices


def test_the_kinds_are_a_table_of_every_parameter():
    def body():
        model, _ = laid_out("pp2,tp2", SP)
        return kinds.table(model.kinds), set(model.kinds) >= {name for name, _ in model.named_parts()}

    ranks = launch(body, world_size=4)
    assert all(is_complete and "split, tied   pp " in text for text, is_complete in ranks)
    assert "whole         -              dp, cp         dp, cp, tp     embedding.position.weight" in ranks[0][0]
    assert "sequence      tp             dp, cp         dp, cp, tp     norm.weight, norm.bias" in ranks[2][0]
