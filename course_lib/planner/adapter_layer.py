"""What adapters of q and v add to a layer: two narrow products beside each (Hu et al. 2021, "LoRA", section 4.1)."""

from course_lib.costs.kernels import matmul_seconds
from course_lib.facts import Shape
from course_lib.planner.rates import Rates


def adapter_seconds(shape: Shape, rates: Rates, n: float, t: int, rank: int) -> float:
    """Forward, of n tokens: down to `rank` numbers, and up to this rank's heads. 0 without adapters."""
    if not rank:
        return 0.0
    P, W, w = rates.flops_per_s, rates.operand_bytes_per_s, rates.number_bytes
    columns = (shape.num_heads * shape.d / t, max(shape.num_kv_heads / t, 1) * shape.d)
    return sum(matmul_seconds(n, shape.hidden_size, rank, P, W, w) + matmul_seconds(n, rank, out, P, W, w)
               for out in columns)
