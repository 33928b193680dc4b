"""One of each kind of thing with tensors in it that readers send to ranks and return from them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map


@dataclass
class Pair:
    left: Tensor
    right: list[Tensor]


class Tied(nn.Module):
    """Two layers with one weight, a frozen bias, an unused parameter and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
        self.last.weight = self.first.weight
        self.first.bias.requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(100))
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))


def zoo() -> dict[str, Any]:
    """Made on the default device."""
    base = torch.arange(12.0).view(3, 4)
    module = Tied()
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad])
    module.last(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    marked = nn.Parameter(torch.ones(2), requires_grad=False)
    marked.tensor_parallel = True
    return {
        "leaf": torch.ones(3, requires_grad=True),
        "result": torch.ones(3, requires_grad=True) * 2,
        "view": base[1:, 1:],
        "transposed": base.T,
        "expanded": torch.ones(1).expand(3),
        "bf16": torch.ones(2, dtype=torch.bfloat16),
        "bool": torch.tensor([True, False]),
        "int64": torch.arange(3),
        "complex": torch.tensor([1 + 2j, 3 - 1j]),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.5),
        "parameter": marked,
        "dataclass": Pair(torch.zeros(2), [torch.ones(1), torch.ones(2)]),
        "nested": [({"inner": torch.ones(2)}, "a word", 3)],
        "module": module,
        "optimizer": optimizer.state_dict(),
    }


def in_plain_words(value: Any) -> Any:
    """`value` with plain words and numbers for each tensor, all that has to survive a journey but the device."""
    if isinstance(value, Pair):
        return [in_plain_words(value.left), in_plain_words(value.right)]
    if isinstance(value, nn.Module):
        return {name: in_plain_words(tensor) for name, tensor in (*value.named_parameters(), *value.named_buffers())}
    return tree_map(lambda leaf: words(leaf) if isinstance(leaf, Tensor) else
                    in_plain_words(leaf) if isinstance(leaf, (Pair, nn.Module)) else leaf, value)


def words(tensor: Tensor) -> str:
    strides = None if tensor.is_sparse else tensor.stride()
    numbers = tensor.detach().cpu().resolve_conj()
    numbers = numbers.dequantize() if tensor.is_quantized else numbers.to_dense() if tensor.is_sparse else numbers
    return (f"{type(tensor).__name__} {tensor.dtype} {tuple(tensor.shape)} strides {strides} "
            f"requires_grad={tensor.requires_grad} {vars(tensor)} {numbers.tolist()}")


def devices(value: Any) -> set[str]:
    """Kinds of device on which the tensors in `value` lie."""
    if isinstance(value, Tensor):
        return {value.device.type}
    parts = ([value.left, value.right] if isinstance(value, Pair) else
             [*value.parameters(), *value.buffers()] if isinstance(value, nn.Module) else
             [leaf for leaf in tree_leaves(value) if isinstance(leaf, (Tensor, Pair, nn.Module))])
    return set().union(*map(devices, parts))
