"""ZeRO-3 of one stage of a pipeline: its parameters cut over the ranks of dp and cp, as chapter 6 does with a model.

Experts, of which these ranks have different ones, are units of their own, cut over the ranks of edp.
"""

from torch import nn

from course_lib.expert_parallel import MoELayer
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.pipeline_parallel.partition import Stage
from course_lib.reference import Block
from course_lib.zero import FullyShardedDataParallel
from course_lib.zero.units import homes


def shard_stage(stage: Stage, layout: ParallelLayout) -> FullyShardedDataParallel:
    """`stage` with its blocks as units, and the rest as one.

    A parameter that another stage holds too stays whole: its gradient is complete after the last micro-batch only, when
    the stages add up theirs. The rest is then cut module by module.
    """
    shared = {stage.get_parameter(name) for name in stage.shared}
    blocks = [name for name, module in stage.named_modules() if isinstance(module, Block)]
    experts = {f"{name}.experts": layout.member("edp") for name, module in stage.named_modules()
               if isinstance(module, MoELayer)}
    apart = {home for parameter, where in homes(stage).items() if parameter not in shared for home, _ in where}

    def is_unit(name: str, module: nn.Module) -> bool:
        if name in blocks or name in experts:
            return True
        return not name if not shared else name in apart and not any(name.startswith(f"{block}.") for block in blocks)

    sharded = FullyShardedDataParallel(stage, layout.member("dp", "cp").group, is_unit, groups=experts)
    sharded.shared = {f"module.{name}": common for name, common in stage.shared.items()}
    return sharded
