"""What can be pretended: which GPUs a machine has, and what its wires refuse."""

from dataclasses import dataclass

from course_lib.runtime.operations import OPERATIONS

# https://docs.pytorch.org/docs/stable/distributed.html, table of backends, column gloo/GPU: broadcast and all_reduce
# alone have a tick. (Its source has more for CUDA tensors, which no page promises.)
REFUSED_BY_GLOO = ("recv from any rank", *(row.name for row in OPERATIONS.values()
                                           if not any(form.from_gpu for form in row.forms)))
REFUSED_BY_NCCL = ("recv from any rank",)


@dataclass(frozen=True)
class Mode:
    """One machine, pretended."""

    name: str
    num_gpus: int
    auto: str | None = None  # the backend that launch's "auto" stands for; None: what launch chooses itself


MODES = {
    mode.name: mode
    for mode in (
        Mode("cpu", 0),
        Mode("shared", 0, auto="gloo-cuda"),  # nothing is pretended: a notebook's ranks share this machine's own GPU
        Mode("nccl", 4),
        Mode("gloo-cuda", 1, auto="gloo-cuda"),
        Mode("laptop", 1),  # one GPU: NCCL for one rank, gloo for more, and libraries see the GPU all the same
    )
}
