"""Chapter 1: does it fit, how long does it take, what does it cost, and what do more devices give?

Arithmetic before hardware. Each formula is one line with its paper's letters; the numbers that go in are in facts.

    counting.py  parameters and FLOPs of a shape: 6ND, and the exact count
    memory.py    bytes by kind and precision, activations, LoRA
    money.py     seconds, dollars, kilowatt-hours; MFU and HFU; roofline
    scaling.py   Amdahl, Gustafson, T = T1/n + alpha + beta M, strong and weak efficiency
    data.py      loading rates, and a sharded reader of a file that memory cannot hold
    plan.py      a whole run on one page, and which strategy to begin with
"""

from course_lib.why_distribute.counting import (
    count_parameters,
    forward_flops_per_token,
    sc21_step_flops,
    shape_of,
    step_flops,
    training_flops,
)
from course_lib.why_distribute.data import loading_bytes_per_s, reading_s, stream_rows, tokens_per_s
from course_lib.why_distribute.memory import (
    PRECISIONS,
    Memory,
    activation_bytes,
    activation_bytes_per_layer,
    lora_memory,
    lora_parameters,
    small_gpt_activation_bytes,
    training_memory,
)
from course_lib.why_distribute.money import (
    dollars,
    kilowatt_hours,
    matmul_intensity,
    roofline,
    sc21_training_seconds,
    training_days,
    training_seconds,
    utilisation,
)
from course_lib.why_distribute.plan import Run, Strategy, plan_run, rule_of_thumb, starting_strategy
from course_lib.why_distribute.scaling import (
    amdahl,
    data_parallel_step,
    fit_amdahl,
    gustafson,
    ideal_on_cores,
    strong_efficiency,
    total_time,
    weak_efficiency,
)

__all__ = [
    "PRECISIONS", "Memory", "Run", "Strategy", "activation_bytes", "activation_bytes_per_layer", "amdahl",
    "count_parameters", "data_parallel_step", "dollars", "fit_amdahl", "forward_flops_per_token", "gustafson",
    "ideal_on_cores", "kilowatt_hours", "loading_bytes_per_s", "lora_memory", "lora_parameters", "matmul_intensity",
    "plan_run", "reading_s", "roofline", "rule_of_thumb", "sc21_step_flops", "sc21_training_seconds", "shape_of",
    "small_gpt_activation_bytes", "starting_strategy", "step_flops", "stream_rows", "strong_efficiency", "tokens_per_s",
    "total_time", "training_days", "training_flops", "training_memory", "training_seconds", "utilisation",
    "weak_efficiency",
]
