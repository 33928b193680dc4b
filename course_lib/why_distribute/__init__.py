"""Chapter 1: does it fit, how long does it take, what does it cost, and what do more devices give?

Arithmetic before hardware. Each formula is one line with its paper's letters, and is in course_lib.costs; the numbers
that go in are in course_lib.facts. This chapter's own files:

    small_gpt.py  the formulas for the one model that can be measured here
    data.py       a sharded reader of a file that memory cannot hold
    plan.py       a whole run on one page, and which strategy to begin with

The first two need torch, and load on first use.
"""

from course_lib.costs.flops import (
    activation_bytes,
    activation_bytes_per_layer,
    count_parameters,
    forward_flops_per_token,
    matmul_intensity,
    roofline,
    sc21_step_flops,
    step_flops,
    training_flops,
    utilisation,
)
from course_lib.costs.memory import PRECISIONS, Memory, lora_memory, lora_parameters, training_memory
from course_lib.costs.money import (
    dollars,
    kilowatt_hours,
    reading_s,
    sc21_training_seconds,
    tokens_per_s,
    training_days,
    training_seconds,
)
from course_lib.costs.scaling import (
    amdahl,
    data_parallel_step,
    fit_amdahl,
    gustafson,
    strong_efficiency,
    weak_efficiency,
)
from course_lib.lazy import load_on_use
from course_lib.why_distribute.plan import Strategy, TrainingNeeds, plan_run, rule_of_thumb, starting_strategy

load_on_use(__name__, {"data": ("stream_rows",), "small_gpt": ("shape_of", "small_gpt_activation_bytes")})
