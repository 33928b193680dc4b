"""The search: what it tries, what comes first, and the papers' rule beside it."""

from dataclasses import replace

import pytest

from course_lib.facts import Shape, model, published_rows
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import cluster
from course_lib.planner.errors import error_of, errors_by_kind
from course_lib.planner.estimate import estimate
from course_lib.planner.plan import Choices, jobs, layouts, pareto, plan, reasons_for
from course_lib.planner.rows import job_of_row
from course_lib.planner.rule import rule_of_thumb

LLAMA = model("Llama 3 405B")
SMALL = model("Llama 3 8B")


@pytest.fixture(scope="module")
def plans():
    return plan(LLAMA, cluster("H100", 16_384), 2048)


def test_what_comes_first_takes_the_least_time_of_all_that_fits(plans):
    assert [each.step_s for each in plans] == sorted(each.step_s for each in plans)
    assert all(each.fits for each in plans)
    assert all(each.layout.world_size == 16_384 for each in plans)


def test_a_plan_for_16384_devices_looks_at_few_enough_layouts_for_a_second(plans):
    """At most 3000: an estimate takes about a tenth of a millisecond on a slow laptop."""
    asked = sum(1 for _ in jobs(LLAMA.shape, cluster("H100", 16_384), 2048, 8192))
    assert len(plans) < asked <= 3000


def test_what_meta_did_is_among_the_plans_and_near_the_best(plans):
    meta = next(each for each in plans if each.layout == ParallelLayout(dp=128, pp=16, tp=8, zero_stage=2)
                and each.job.v == 8 and each.job.recompute == "none")
    assert meta.step_s <= 1.05 * plans[0].step_s


def test_every_layout_that_divides_is_tried_once():
    shape = Shape(8, 64, 8, 8, 256, 256, 128)
    found = list(layouts(shape, cluster("A100", 16), 128, Choices(zero_stages=(0,))))
    assert len(found) == len(set(found))
    expected = {(tp, pp) for tp in (1, 2, 4, 8) for pp in (1, 2, 4, 8) if tp * pp <= 16}
    assert {(each.tp, each.pp) for each in found} == expected


def test_experts_and_long_rows_have_their_axes():
    shape = Shape(8, 64, 8, 8, 256, 256, 32_768, num_experts=4, active_experts=2)
    found = list(layouts(shape, cluster("A100", 8), 32_768, Choices(zero_stages=(0,))))
    assert {each.cp for each in found} == {1, 2, 4, 8} and {each.ep for each in found} == {1, 2, 4}


def test_nothing_fits_is_an_empty_plan():
    assert plan(LLAMA, cluster("A100", 8), 8) == []


def test_no_plan_on_the_front_is_beaten_in_both_time_and_memory(plans):
    front = pareto(plans)
    assert front[0] is plans[0]
    for each in plans:
        assert any(f.step_s <= each.step_s and f.memory_bytes <= each.memory_bytes for f in front)
    assert all(a.step_s < b.step_s and a.memory_bytes > b.memory_bytes for a, b in zip(front, front[1:]))


def test_leaving_the_node_is_told_as_the_reason():
    wide = {tp: estimate(SMALL, cluster("H100", 16), ParallelLayout(dp=16 // tp, tp=tp, zero_stage=1), 16)
            for tp in (8, 16)}
    first = reasons_for(wide[16], wide[8])[0]
    assert first.startswith("tensor parallelism +") and first.endswith("tp16 leaves the node of 8")


def test_recomputing_is_told_as_the_reason():
    kept, made = (estimate(SMALL, cluster("H100", 8), ParallelLayout(dp=8, zero_stage=3), 16, recompute=policy)
                  for policy in ("none", "full"))
    assert any("recompute full, not none" in reason for reason in reasons_for(made, kept))
    assert reasons_for(kept, kept) == []


# The papers' rule

def test_the_rule_gives_the_layouts_of_the_paper():
    """Those of table 1 that the course has."""
    for row in published_rows(group="sc21"):
        job = job_of_row(row)
        found = rule_of_thumb(replace(job.shape, tied=True, biases=True, learned_positions=True), job.cluster)
        assert (found.tp, found.pp, found.dp) == (row["tp"], row["pp"], row["dp"]), row["id"]


def test_where_the_rule_finds_nothing_it_says_how_much_is_missing():
    with pytest.raises(ValueError, match="7.31 TB of state on 8 H100"):
        rule_of_thumb(LLAMA, cluster("H100", 8))


def test_an_advice_comes_with_the_error_on_runs_of_its_kind(plans):
    error = error_of(plans[0].job)
    assert error is not None and 0 < error.median <= error.p90 <= error.largest
    assert str(error).startswith(error.kind)
    assert sum(each.num_rows for each in errors_by_kind().values()) == len(published_rows()) - 32
