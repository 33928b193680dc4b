"""Mistakes that people make with several axes: each changes the gradient, or its norm, and so none goes unseen."""

import importlib
import math
from functools import partial

import pytest
import torch
import torch.distributed as dist

from course_lib.groups.gradients import total_norm
from course_lib.groups.membership import member
from course_lib.hybrid_parallel import clip_grad_norm_, gather_whole, gradient_pieces, kinds, reduce_gradients
from course_lib.hybrid_parallel.model import gradients_here
from course_lib.runtime import launch
from tests.hybrid_parallel.cases import alone, batch, laid_out, off_by_name

SP = {"sequence_parallel": True}
WRONG = 0.02  # of a tensor's largest number; right ones agree to 1e-5


def gradient(text, options, rows=None, reduced=True, experts=0):
    """The first step's, whole. rows: another function of (dp's rank, dp's size) than the right one."""
    model, _ = laid_out(text, options, experts=experts)
    inputs, targets = (rows or (lambda r, n: batch(0, r, n)))(model.dp.r, model.dp.n)
    if not reduced:
        model.reduce_gradients = lambda: None
    model.forward_backward(inputs, targets)
    return model, gather_whole(gradient_pieces(model))


def difference(text, options, experts=0, **how):
    return off_by_name(gradient(text, options, experts=experts, **how)[1], alone(1, experts=experts)[2])


def swapped():
    """Gradients averaged over the ranks of tp, in the place of dp's."""
    model, _ = gradient("dp2,tp2", {}, reduced=False)
    swap = {"dp": "tp", "tp": "dp"}
    reduce_gradients({p: model.kinds[name] for name, p in model.named_parts()},
                     lambda *axes: model.layout.member(*(swap.get(axis, axis) for axis in axes if axis != "cp")))
    return off_by_name(gather_whole(gradient_pieces(model)), alone(1)[2])


def other_rows_within_tp():  # in four: of two ranks the second one holds bytes that plain English has not
    return difference("tp4", {}, rows=lambda r, n: batch(dist.get_rank(), r, n))


def replaced(module, function, other, text, options, experts=0):
    """Where `other`, given the right function, stands in its place."""
    module = importlib.import_module(f"course_lib.{module}")
    setattr(module, function, partial(other, getattr(module, function)))
    return difference(text, options, experts=experts)


def nothing(*_):
    """In the place of what does something."""


def half_of(right, *arguments, **named):
    return right(*arguments, **named) / 2


MISTAKES = [
    (4, swapped), (4, other_rows_within_tp),
    # a loss that is a sum over the ranks of cp, where gradients are averaged over them
    (2, replaced, "hybrid_parallel.parallelize", "mean_loss", half_of, "cp2", {}),
    # what sums norms over tp in backward; the router's gradient, of a part of the tokens; experts' averages over edp
    (2, replaced, "tensor_parallel.parallelize", "share_parameters", nothing, "tp2", SP),
    (4, replaced, "hybrid_parallel.parallelize", "share_parameters", nothing, "dp2,tp2,ep4", {}, 12),
    (4, replaced, "hybrid_parallel.model", "scale_gradients", nothing, "dp2,tp2,ep4", {}, 12)]


@pytest.mark.parametrize("n, mistake", [(n, mistake) for n, *mistake in MISTAKES])
def test_a_mistake_changes_the_gradient(n, mistake):
    assert launch(*mistake, world_size=n)[0] > WRONG


def norms(text, options):
    """For each kind of norm (ours, with everything counted on every rank, what this rank has alone); then, clipped."""
    model, _ = gradient(text, options)
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
