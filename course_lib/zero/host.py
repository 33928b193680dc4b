"""Memory of the host for what the device has no room for.

On a GPU it is pinned: the system may not move or swap such pages, so that the copy engine reads them on its own, while
kernels run. On the CPU the host's memory is all there is; the code path is the same, and the bytes are counted apart.
"""

import torch
from torch import Tensor


def host_tensor(num_elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros on the host, to exchange with `device`."""
    return torch.zeros(num_elements, dtype=dtype, device="cpu", pin_memory=device.type != "cpu")
