"""What a process imports ahead of the ranks it will become.

Libraries, and of the course this package alone, which must be the notebook's own version. The chapters' and the
reader's modules would be stale after an edit: each rank imports those afresh.
"""

# The first SERVES_AFTER are what no rank can do without. The others are what torch would otherwise import lazily,
# seconds long, in every rank that builds an optimiser or wraps a model.
PRELOAD = (
    "torch",
    "cloudpickle",
    "psutil",
    "course_lib.runtime.ranks.rank",
    "numpy",
    "sympy",
    "torch.fx",
    "torch.optim",
    "torch._dynamo",
    "torch.nn.parallel",
    "torch.distributed.device_mesh",
    "torch.distributed.tensor",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.optim",
    "torch.distributed.checkpoint",
    "torch.utils.data",
    "torch.utils.checkpoint",
    "tqdm.auto",
)
SERVES_AFTER = 4
