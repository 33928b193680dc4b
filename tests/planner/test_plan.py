"""The search: what it tries, what comes first, and that looking at fewer candidates finds the same."""

from dataclasses import replace
from itertools import product

import pytest

from course_lib.facts import SC21_LAYOUTS, Shape, model
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner import search
from course_lib.planner.candidates import Choices, chunk_counts, micro_batch_sizes, piece_counts, rule_of_thumb
from course_lib.planner.cluster import cluster
from course_lib.planner.constants import MEGATRON_CORE, TORCHTITAN
from course_lib.planner.estimate import estimate, estimate_job
from course_lib.planner.job import Job
from course_lib.planner.plan import plan, reasons_for
from course_lib.planner.rows import job_of_row, row_of_layout
from course_lib.planner.search import TIE, complexity, pareto, ties

LLAMA = model("Llama 3 405B")
MIDDLE_LLAMA, SMALL = model("Llama 3 70B"), model("Llama 3 8B")
TINY = Shape(12, 1024, 8, 4, 4096, 32_000, 2048, gated=True)
MIDDLE = replace(TINY, hidden_size=4096, num_heads=32, num_kv_heads=8, ffn_size=14_336)


@pytest.fixture(scope="module")
def plans():
    return plan(LLAMA, cluster("H100", 16_384), 2048)


# What comes first

def test_plans_fit_and_ascend_up_to_ties(plans):
    assert plans.idle_devices == 0 and all(each.fits and each.layout.world_size == 16_384 for each in plans)
    shortest = min(each.step_s for each in plans)
    assert plans[0].step_s <= (1 + TIE) * shortest
    for number, each in enumerate(plans[:-1]):
        assert each.step_s <= (1 + TIE) * min(later.step_s for later in plans[number + 1:])


def test_of_ties_the_simplest_comes_first():
    plans = plan(MIDDLE_LLAMA, cluster("H100", 64), 256)
    tied = ties(plans)
    assert len(tied) > 1 and tied == plans[:len(tied)]
    assert tied == sorted(tied, key=complexity)
    assert all(each.step_s > (1 + TIE) * min(t.step_s for t in tied) for each in plans[len(tied):])
    assert ties([]) == []


def test_a_plan_for_16384_devices_looks_at_few_enough_layouts_for_a_second(monkeypatch):
    """A bound takes about 30 microseconds and a memory or a step 100 on a slow laptop."""
    looked = []
    for name in ("memory_bytes", "step_seconds"):
        called = getattr(search, name)
        monkeypatch.setattr(search, name, lambda *given, called=called: looked.append(1) or called(*given))
    plan(LLAMA, cluster("H100", 16_384), 2048)
    assert len(looked) <= 6000


def test_no_plan_on_the_front_is_beaten_in_both_time_and_memory(plans):
    front = pareto(plans)
    assert front[0].step_s == min(each.step_s for each in plans)
    for each in plans:
        assert any(f.step_s <= each.step_s and f.memory_bytes <= each.memory_bytes for f in front)
    assert all(a.step_s < b.step_s and a.memory_bytes > b.memory_bytes for a, b in zip(front, front[1:]))


# What is tried

def by_hand(shape, of, rows, sequence_length):
    """Every Job on all devices with every choice, without a thought of what is worth it."""
    n, layers = of.num_devices, shape.num_layers
    for tp, pp, cp, dp in product(range(1, n + 1), repeat=4):
        if tp * pp * cp * dp != n or rows % dp or shape.num_heads % tp or sequence_length % (2 * cp) and cp > 1:
            continue
        if shape.num_kv_heads % tp and tp % shape.num_kv_heads or sequence_length // cp < 256:
            continue
        for micro_batch, v, zero in product(range(1, 17), range(1, layers + 1), range(4)):
            chunks = pp * v
            if layers % chunks and ((layers + 2) % chunks or chunks == 1) or rows // dp % micro_batch:
                continue
            if v > 1 and (pp == 1 or rows // dp // micro_batch % pp) or zero == 3 and pp > 1:
                continue
            if zero and dp * cp == 1:
                continue
            layout = ParallelLayout(dp=dp, pp=pp, cp=cp, tp=tp, zero_stage=zero)
            job = Job(shape, of, layout, rows, micro_batch, sequence_length, v, sequence_parallel=tp > 1,
                      gradient_bytes=4)
            yield job
            for k in range(v, -(-layers // pp), v):
                yield replace(job, recompute="full", recompute_layers=k)
            yield replace(job, recompute="full")


@pytest.mark.parametrize("num_devices, rows, shape, sequence_length, room", [
    (4, 8, TINY, 8192, 0.08),
    (8, 16, replace(MIDDLE, num_layers=10), 4096, 0.45),
    (8, 4, replace(MIDDLE, num_layers=14), 16_384, 0.45),
])
def test_no_layout_at_all_is_faster_than_the_first_plan(num_devices, rows, shape, sequence_length, room):
    """By more than a tie. There is so little room that memory decides."""
    of = cluster("A100", num_devices)
    found = plan(shape, of, rows, sequence_length=sequence_length, room=room)
    everything = [estimate_job(job) for job in by_hand(shape, of, rows, sequence_length)]
    fitting = [each.step_s for each in everything if each.memory_bytes <= room * of.usable_bytes]
    assert 0 < len(fitting) < len(everything)
    assert min(each.step_s for each in found) <= (1 + TIE) * min(fitting)
    assert min(fitting) <= min(each.step_s for each in found if not each.num_devices < num_devices)


@pytest.mark.parametrize("count, given, found", [
    (piece_counts, (8192, 1024), [1, 2, 4, 8, 16, 32]), (piece_counts, (8192, 4), [1, 2, 4]),
    (piece_counts, (511, 4), [1]), (micro_batch_sizes, (48,), [1, 2, 3, 4, 6, 8, 12, 16]),
    (chunk_counts, (80, 8, 8), [1, 2, 5, 10]), (chunk_counts, (126, 16, 16), [1, 2, 4, 8]),
    (chunk_counts, (80, 8, 12), [1]),  # Megatron wants the micro-batches to be a multiple of the stages
    (chunk_counts, (80, 2, 4096), [1]),  # there is no bubble to speak of
    (chunk_counts, (80, 8, 8, Choices(chunks=(5, 7))), [5])])
def test_pieces_micro_batches_and_chunks_are_whole_and_worth_it(count, given, found):
    assert count(*given) == found


def test_an_axis_that_is_named_is_kept():
    asked = Choices(tensor=(2,), pipeline=(4,), data=(2,), zero_stages=(1,), recompute=("full",))
    found = plan(SMALL, cluster("H100", 16), 32, choices=asked, slowest=100)
    assert found and {(each.layout.tp, each.layout.pp, each.layout.dp, each.layout.zero_stage, each.job.recompute)
                      for each in found} == {(2, 4, 2, 1, "full")}


def test_layers_are_made_again_only_as_many_as_must():
    found = plan(SMALL, cluster("A100", 8), 64, sequence_length=32_768, choices=Choices(context=(1,)))
    partly = [each.job for each in found if each.job.recompute_layers]
    assert partly
    for job in partly[:20]:
        fewer = job.recompute_layers - job.v
        assert fewer % job.v == 0
        less = replace(job, recompute="full" if fewer else "none", recompute_layers=fewer)
        assert estimate_job(less).memory_bytes > 0.9 * job.cluster.usable_bytes


def test_light_modules_are_made_again_before_whole_layers():
    """Megatron-Core makes norms again alone; software that cannot has none of it."""
    shape, rows = MIDDLE_LLAMA, 256
    found = plan(shape, cluster("H100", 64), rows, slowest=1.5, choices=Choices(light=True))
    light = [each for each in found if each.job.recompute_modules]
    assert light and all(each.job.recompute_modules == ("layernorm",) for each in light)
    for each in light:
        kept = estimate_job(replace(each.job, recompute_modules=()))
        assert kept.memory_bytes > found.asked.limit_bytes >= each.memory_bytes
        assert kept.step_s < each.step_s < 1.03 * kept.step_s
    assert not any(each.job.recompute_modules
                   for choices, software in ((Choices(light=True), TORCHTITAN), (Choices(), MEGATRON_CORE))
                   for each in plan(shape, cluster("H100", 64), rows, software=software, slowest=1.5, choices=choices))


def test_each_layer_made_again_costs_time_and_saves_memory():
    few = [estimate(SMALL, cluster("H100", 8), ParallelLayout(dp=8, zero_stage=1), 16, 2)]
    job = few[0].job
    few += [estimate_job(replace(job, recompute="full", recompute_layers=k)) for k in (8, 16, 32)]
    assert few[-1].step_s == estimate_job(replace(job, recompute="full")).step_s
    kept, again = ([b - a for a, b in zip(numbers, numbers[1:])] for numbers in (
        [each.memory["activations"] for each in few], [each.seconds["matmul"] for each in few]))
    assert again[1] == pytest.approx(again[0]) and again[2] == pytest.approx(2 * again[0]) and again[0] > 0
    assert kept[2] == pytest.approx(2 * kept[1]) and max(kept) < 0


# Devices that the model does not divide

def test_devices_that_nothing_divides_stand_idle_and_are_counted():
    found = plan(SMALL, cluster("H100", 7), 64)
    assert found and found.idle_devices == 7 - found[0].num_devices > 0
    dozen = plan(SMALL, cluster("H100", 56), 96)
    assert dozen[0].num_devices + dozen.idle_devices == 56 and dozen[0].num_devices >= 32


# Nearly

def test_what_is_faster_and_nearly_fits_is_listed_apart():
    of = cluster("H100", 64)
    found = plan(MIDDLE_LLAMA, of, 256)
    assert found.nearly and found.reason == ""
    for each in found.nearly:
        assert 0.9 * of.usable_bytes < each.memory_bytes <= 1.1 * of.usable_bytes
        assert each.step_s < min(one.step_s for one in found)


# Reasons

def test_leaving_the_node_and_recomputing_are_told_as_reasons():
    wide, narrow = (estimate(SMALL, cluster("H100", 16), ParallelLayout(dp=16 // tp, tp=tp, zero_stage=1), 16)
                    for tp in (16, 8))
    first = reasons_for(wide, narrow)[0]
    assert first.startswith("tensor parallelism +") and first.endswith("tp16 leaves the node of 8")
    kept, made = (estimate(SMALL, cluster("H100", 8), ParallelLayout(dp=8, zero_stage=3), 16, recompute=policy)
                  for policy in ("none", "full"))
    partly = estimate_job(replace(made.job, recompute_layers=16))
    assert any("recompute full, not none" in reason for reason in reasons_for(made, kept))
    assert any("recompute 16 layers, not none" in reason for reason in reasons_for(partly, kept))
    assert reasons_for(kept, kept) == []


# The papers' rule of thumb

def test_the_rule_gives_all_ten_layouts_of_the_papers_table_1():
    for run in SC21_LAYOUTS:
        job = job_of_row(row_of_layout(run))
        found = rule_of_thumb(replace(job.shape, tied=True, biases=True, learned_positions=True), job.cluster)
        assert found == job.layout, run.name


def test_where_the_rule_finds_nothing_it_says_how_much_is_missing():
    with pytest.raises(ValueError, match="7.31 TB of state on 8 H100"):
        rule_of_thumb(model("Llama 3 405B"), cluster("H100", 8))
