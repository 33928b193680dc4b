"""What a layout would refuse, said by one process before there are ranks: the checks of parallelize and HybridTrainer,
on a model that need have no memory (torch.device("meta")).
"""

from course_lib.groups.membership import Member
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.hybrid_parallel.parallelize import PLAN, generate_schedule, require_fitting
from course_lib.hybrid_parallel.trainer import require_dividing
from course_lib.pipeline_parallel.partition import layers_of
from course_lib.reference import GPT
from course_lib.tensor_parallel import surgery
from course_lib.tensor_parallel.parallelize import styles_of
from course_lib.tensor_parallel.surgery import Column, Row, Vocabulary


def require_trainable(model: GPT, layout: ParallelLayout, *, batch_size: int, num_microbatches: int = 1,
                      schedule: str = "1F1B", sequence_parallel: bool = False) -> None:
    """ValueError for what HybridTrainer would refuse on the ranks of `layout`. `model` is left as it is."""
    require_dividing(batch_size, layout.dp, num_microbatches)
    pipeline = generate_schedule(schedule, layout.pp, num_microbatches)
    layers = [name for name, _ in layers_of(model)]
    if pipeline.num_stages > len(layers):
        each = pipeline.num_stages // layout.pp
        raise ValueError(f"pp={layout.pp}" + (f" with {each} stages for each rank" if each > 1 else "") + f" needs "
                         f"{pipeline.num_stages} stages, and a model of {model.config.num_layers} layers has at most "
                         f"{len(layers)}: a stage for each layer, the embedding, the last norm and the head")
    require_fitting(model, layout, pipeline, sequence_parallel)
    # A place without a process group: what is checked is sizes, and nothing is sent.
    me = Member(None, layout.tp, 0)
    for name, style in styles_of(model, PLAN).items() if layout.tp > 1 else ():
        if isinstance(style, (Column, Row, Vocabulary)):
            around = model.get_submodule(name.rpartition(".")[0])
            surgery.cut_layer(model.get_submodule(name), style, around, False, me, sequence_parallel=sequence_parallel)
