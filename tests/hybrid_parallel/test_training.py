"""Under any layout: the losses, gradients and parameters of one process."""

import pytest

from course_lib.hybrid_parallel import ParallelLayout
from course_lib.runtime import launch
from tests.hybrid_parallel.cases import alone, off, off_by_name, together

SP, M2, M3 = {"sequence_parallel": True}, {"num_microbatches": 2}, {"num_microbatches": 3}
ZB_V, INTERLEAVED, GPIPE = ({"schedule": name, "num_microbatches": 2} for name in ("ZB-V", "interleaved 1F1B", "GPipe"))
MOE, STEERED = {"experts": 4}, {"experts": 4, "balance": 0.01}
TWELVE, MANY = {"experts": 12}, {"experts": 12, "balance": 0.01}  # of micro-batches each is balanced by itself

CASES = [  # layout, options of parallelize, the model
    # one process, and every axis alone
    ("dp1", M3, {}), ("dp2", {}, {}), ("dp3", {}, {}), ("tp2", {}, {}), ("tp2", SP, {}), ("tp4", SP, {}),
    ("cp2", {}, {}), ("cp4", {}, {}), ("pp2", M3, {}), ("pp3", M2, {}), ("pp2", ZB_V, {}), ("pp2", INTERLEAVED, {}),
    ("dp2,ep2", {}, STEERED), ("dp3,zero1", {}, {}), ("dp2,zero2", M3, {}), ("dp3,zero3", M2, {}),
    # every pair
    ("dp2,tp2", SP, {}), ("dp2,cp2", {}, {}), ("dp2,pp2", M3, {}), ("cp2,tp2", SP, {}), ("pp2,tp2", SP | ZB_V, {}),
    ("pp2,cp2", ZB_V, {}), ("cp2,ep2", {}, STEERED), ("dp2,tp2,ep2", SP, STEERED), ("dp2,pp2,ep2", ZB_V, MOE),
    # with ZeRO
    ("dp2,pp2,zero1", M3, {}), ("dp2,pp2,zero2", ZB_V, {}), ("dp2,pp2,zero3", INTERLEAVED, {}),
    ("dp2,pp2,zero3", M3, {}), ("dp2,cp2,zero2", {}, {}), ("cp2,tp2,zero3", SP, {}), ("dp2,tp2,zero1", {}, {}),
    ("dp4,ep2,zero2", {}, STEERED), ("dp2,cp2,ep2,zero1", {}, MOE),
    # three axes and more
    ("dp2,pp2,tp2", M2, {}), ("dp2,pp2,tp2,zero2", SP | ZB_V, {}), ("pp2,cp2,tp2", GPIPE, {}),
    ("dp2,cp2,tp2,ep2,zero1", SP, STEERED),
    # experts over ranks of tp as well, whole or cut
    ("dp2,tp2,ep4", {}, MANY), ("dp2,tp2", {}, MANY), ("dp2,tp2,etp2", SP, MANY), ("tp4,ep2,etp2", {}, MANY),
    ("cp2,tp2,ep2,zero2", SP, MANY), ("dp2,tp2,ep2,etp2,zero1", {}, MANY), ("dp2,tp2,ep2,zero3", SP, MANY),
    ("dp4,ep2,zero3", {}, MANY), ("pp2,tp2,ep2,zero3", M2, TWELVE), ("pp2,tp2,etp2", ZB_V | SP, TWELVE),
    ("dp3,tp2,ep3,zero2", {}, MANY), ("dp3,tp2,ep6", SP, MANY), ("dp2,cp2,tp2,ep2,etp2,zero3", {}, MANY),
    ("dp2,tp4,ep4", SP, MANY), ("dp2,tp4,ep2,etp4", {}, MANY), ("dp3,tp4,ep12", SP, MANY),
    ("dp2,cp2,tp2,pp2,ep2", M3 | SP, TWELVE), ("dp2,tp4,pp2,ep2,etp2,zero1", M2, TWELVE),
]
def world_size_of(case):
    return ParallelLayout.from_string(case[0]).world_size


LAUNCHES = [cases for n in sorted(set(map(world_size_of, CASES))) for many in (False, True)
            if (cases := [case for case in CASES if world_size_of(case) == n and (case[2] in (TWELVE, MANY)) == many])]


def of_model(steps, experts=0, **_):
    """(steps, tolerance of losses, of parameters in the end): AdamW divides by gradients near zero, all rounding."""
    return (2, 1e-5, 5e-3) if experts == 12 else (steps, 1e-4, 1e-3)


def all_of(cases, steps):
    return [together(text, options, of_model(steps, **model)[0], **model) for text, options, model in cases]


@pytest.mark.sweep("cases", few=[cases for cases in LAUNCHES if world_size_of(cases[0]) < 12], all=LAUNCHES,
                   ids=lambda cases: cases[0][0], words="up to 8 ranks of 16")
@pytest.mark.sweep("steps", few=[3], all=[20], words="3 steps of 20, under each layout")
def test_steps_under_any_layout_are_those_of_one_process(cases, steps):
    found = launch(all_of, cases, steps, world_size=world_size_of(cases[0]), timeout=150)
    for (text, options, model), (losses, norms, first, final) in zip(cases, found[0]):
        taken, tolerance, in_the_end = of_model(steps, **model)
        expected_losses, expected_norms, expected_first, expected_final = alone(taken, **model)
        told = f"{text} {options} {model}"
        assert off(losses, expected_losses) < tolerance and off(norms, expected_norms) < tolerance, told
        assert off_by_name(first, expected_first) < 1e-5, told
        assert off_by_name(final, expected_final) < in_the_end, told
    assert all([of_rank[0] for of_rank in rank] == [of_rank[0] for of_rank in found[0]] for rank in found)


SIXTY_FOUR = ("dp4,pp4,tp4,ep4", "dp4,pp4,tp4", "dp4,pp4,tp4,ep8,etp2", "dp2,pp4,cp2,tp4,ep4",
              "dp2,pp4,cp2,tp4,ep4,zero2")


@pytest.mark.ci
@pytest.mark.sweep("text", few=SIXTY_FOUR[:1], all=SIXTY_FOUR, words=f"1 layout of {len(SIXTY_FOUR)} on 64 ranks")
def test_64_ranks_have_the_loss_and_gradients_of_one_process(text):
    large = {"experts": 8, "layers": 4, "rows": 16}
    ranks = launch(lambda: together(text, {"num_microbatches": 4}, 2, **large)[::2], world_size=64, timeout=300)
    expected_losses, _, expected_first, _ = alone(2, **large)
    losses, first = ranks[0]
    assert off(losses, expected_losses) < 1e-5 and off_by_name(first, expected_first) < 1e-5
    assert all(of_rank == losses for of_rank, _ in ranks)
