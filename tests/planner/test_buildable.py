"""Every plan can be built: random clusters and models, of which chapter 9's trainer and Megatron-Core's own rules
refuse no plan.
"""

import random
from functools import lru_cache, partial

import pytest
import torch

from course_lib.expert_parallel import SINGLE, moe_gpt
from course_lib.facts import Shape
from course_lib.hybrid_parallel.parallelize import require_trainable
from course_lib.pipeline_parallel.schedules import interleaved_1f1b
from course_lib.planner.cluster import cluster
from course_lib.planner.estimate import Estimate
from course_lib.planner.job import Job
from course_lib.planner.plan import plan
from course_lib.reference import GPT, GPTConfig
from tests.sweep import seeds

LOOKED_AT = 6  # plans of each cluster
VOCABULARY = 96_768  # Megatron pads it to a multiple of tp; this one is a multiple of many
SMALL_VOCABULARY = 1344


@lru_cache(maxsize=4)
def gpt(layers, heads, sequence_length, experts):
    """As many layers, heads, tokens and experts, each of which is narrow: what a cut asks for is divisors."""
    with torch.device("meta"):
        model = GPT(GPTConfig(layers, 4 * heads, heads, SMALL_VOCABULARY, sequence_length))
        return moe_gpt(model, experts, 1, group=SINGLE, tokens_group=SINGLE) if experts > 1 else model


def random_case(chance: random.Random):
    heads = chance.choice((4, 6, 8, 12, 16, 24, 32))
    experts = chance.choice((1, 1, 4, 6, 8, 16))
    hidden, layers = heads * chance.choice((64, 128)), chance.randint(1, 24)
    shape = Shape(layers, hidden, heads, heads, 4 * hidden, VOCABULARY, chance.choice((512, 1024, 1536, 3000, 4096)),
                  num_experts=experts, active_experts=1)
    name, most, per_node = chance.choice((("H100", 64, 8), ("A100", 24, 4), ("V100", 16, 8), ("B200", 72, 72)))
    return shape, cluster(name, chance.randint(1, most), per_node), chance.choice((1, 3, 7, 8, 12, 32, 96))


def megatron_refuses(job: Job) -> list[str]:
    """NVIDIA/Megatron-LM d98e8a6: megatron/training/arguments.py, core/transformer/transformer_config.py,
    core/parallel_state.py, core/pipeline_parallel/schedules.py, core/transformer/attention.py.
    """
    shape, L, m = job.shape, job.layout, job.num_microbatches
    layers = shape.num_layers if shape.num_layers % (L.pp * job.v) == 0 else shape.num_layers + 2  # with both ends
    rules = {
        "the world divides tp pp cp": L.world_size % (L.tp * L.pp * L.cp) == 0,
        "the global batch is a multiple of micro-batch and dp": job.global_batch % (job.micro_batch * L.dp) == 0,
        "layers divide by pp": layers % L.pp == 0,
        "layers of a stage divide by v": layers // L.pp % job.v == 0,
        "interleaving needs pp of at least 2": job.v == 1 or L.pp > 1,
        "micro-batches of interleaving come in groups of pp": job.v == 1 or m >= L.pp and (
            m % L.pp == 0),
        "heads divide by tp": shape.num_heads % L.tp == 0,
        "groups of queries divide by tp, or tp by them": (
            shape.num_kv_heads % L.tp == 0 or L.tp % shape.num_kv_heads == 0),
        "the MLP's width divides by tp": shape.ffn_size % L.tp == 0,
        "an expert's width divides by etp": shape.ffn_size % L.etp == 0,
        "experts divide by ep": shape.num_experts % L.ep == 0,
        "the stage divides by ep etp": L.dp * L.cp * L.tp % (L.ep * L.etp) == 0,
        "experts with tp need sequence parallelism": shape.num_experts == 1 or L.tp == 1 or job.sequence_parallel,
        "sequence parallelism cuts each piece by tp": not job.sequence_parallel or (
            job.sequence_length // L.cp % L.tp == 0),
        "a row is 2 cp pieces": L.cp == 1 or job.sequence_length % (2 * L.cp) == 0,
        "recomputed layers of a chunk are at most its layers": job.recompute_layers % job.v == 0 and (
            job.recompute_layers // job.v <= -(-layers // (L.pp * job.v))),
    }
    return [rule for rule, kept in rules.items() if not kept]


def trainer_refuses(each: Estimate) -> str:
    job = each.job
    model = gpt(job.shape.num_layers, job.shape.num_heads, job.sequence_length, job.shape.num_experts)
    schedule = partial(interleaved_1f1b, v=job.v) if job.v > 1 else "1f1b"
    try:
        require_trainable(model, job.layout, batch_size=job.global_batch, num_microbatches=job.num_microbatches,
                          schedule=schedule, sequence_parallel=job.sequence_parallel)
    except ValueError as refusal:
        return str(refusal)
    return ""


@pytest.mark.sweep("seed", few=[0], all=seeds(10), words="20 random clusters of 200")
def test_every_plan_of_20_random_clusters_can_be_built(seed):
    chance, planned = random.Random(seed), 0
    for _ in range(20):
        shape, of, rows = random_case(chance)
        plans = plan(shape, of, rows)
        planned += bool(plans)
        for each in [*plans[:LOOKED_AT], *plans.nearly[:2]]:
            assert each.fits or each in plans.nearly
            assert each.num_devices <= of.num_devices
            assert megatron_refuses(each.job) == [], each
            assert trainer_refuses(each) == "", each
    assert planned > 10
