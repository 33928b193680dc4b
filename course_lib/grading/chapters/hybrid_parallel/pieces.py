"""What exercises 9.3 and 9.4 share: a small model on a mesh, its real gradients, and which part of them a rank has.

    kind        is on               and there a rank has                             gradients of
    split       its stage           a slice along tp                                 its rows and tokens (dp, cp)
    replicated  its stage           all of it                                        its rows and tokens
    partial     its stage           all of it                                        a tp-th of its rows and tokens
    tied        both end stages     a slice along tp, used in another way on each    its rows and tokens
    expert      its stage           the experts of its ep rank                       rows and tokens of its ep group

The model has no more than it takes: an embedding and its transpose, two norms, an MLP, a gate, one expert for each ep
rank; with gate and experts all ranks of tp compute the same. Everything is float64.
"""

import math

import torch
from torch import Tensor

from course_lib.grading.chapters.hybrid_parallel.mesh import Sizes, coordinates
from course_lib.grading.chapters.split import normal

Gradients = dict[str, Tensor]
FIRST, LAST = "first", "last"
STAGES = {"up": FIRST, "down": FIRST, "norm": FIRST, "gate": LAST, "expert": LAST, "final_norm": LAST}
KINDS = {"embedding": "tied", "up": "split", "down": "split", "norm": "partial", "gate": "replicated",
         "expert": "expert", "final_norm": "partial"}
CUT = {"embedding": 0, "up": 1, "down": 0}  # along which dim tp cuts
PLANE = ("dp", "cp")


def places(sizes: Sizes) -> list[dict[str, int]]:
    """The coordinates of all ranks in the default order, ep and edp among them."""
    found = []
    for rank in range(math.prod(size for axis, size in sizes.items() if axis != "ep")):
        where = coordinates(rank, sizes)  # cp lies inside dp
        edp, ep = divmod(where["dp"] * sizes["cp"] + where["cp"], sizes["ep"])
        found.append({**where, "ep": ep, "edp": edp})
    return found


def held_by(where: dict[str, int], sizes: Sizes) -> dict[str, str]:
    """The kinds of what a rank has, by name."""
    stages = {FIRST: where["pp"] == 0, LAST: where["pp"] == sizes["pp"] - 1}
    return {name: kind for name, kind in KINDS.items()
            if (any(stages.values()) if kind == "tied" else stages[STAGES[name]])}


def slice_of(name: str, whole: Tensor, where: dict[str, int], sizes: Sizes) -> Tensor:
    """What a rank has of it. An expert's gradients are stacked, (E, ...)."""
    if name == "expert":
        whole = whole[where["ep"]]
    return whole.tensor_split(sizes["tp"], CUT[name])[where["tp"]] if name in CUT else whole


def token_gradients(generator: torch.Generator, num_tokens: int, num_experts: int, D: int, V: int) -> Gradients:
    """Of each token's own loss: (num_tokens, shape), the embedding once as a table ("embedding") and once as the head.

    The gradient of a loss over several tokens is the sum of theirs.
    """
    weights = {"embedding": normal(generator, V, D), "head": normal(generator, V, D),
               "up": normal(generator, D, 2 * D), "down": normal(generator, 2 * D, D), "norm": normal(generator, D),
               "gate": normal(generator, D), "expert": normal(generator, num_experts, D, D),
               "final_norm": normal(generator, D)}
    tokens, targets = torch.randint(V, (2, num_tokens), generator=generator).tolist()
    found: dict[str, list[Tensor]] = {name: [] for name in weights}
    for n, (token, target) in enumerate(zip(tokens, targets)):
        own = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        h = own["embedding"][token] * own["norm"]
        h = h + torch.tanh(h @ own["up"]) @ own["down"]
        h = h + torch.sigmoid(h @ own["gate"]) * torch.tanh(h @ own["expert"][n % num_experts])
        logits = own["head"] @ (h * own["final_norm"])
        gradients = torch.autograd.grad(logits.logsumexp(0) - logits[target], list(own.values()))
        for name, gradient in zip(own, gradients):
            found[name].append(gradient)
    return {name: torch.stack(gradients) for name, gradients in found.items()}


def shares(sizes: Sizes) -> list[list[int]]:
    """The tokens of each place in the plane of dp and cp, by dp and then cp: not equally many, as where rows are
    padded."""
    start, dealt = 0, []
    for place in range(sizes["dp"] * sizes["cp"]):
        count = 4 + 3 * (place % 3)
        dealt.append(list(range(start, start + count)))
        start += count
    return dealt


def rank_gradients(each: Gradients, dealt: list[list[int]], where: dict[str, int], sizes: Sizes) -> Gradients:
    """What a rank has after backward of the sum of its tokens' losses, before anything is added up over the ranks."""
    ep, plane = sizes["ep"], where["dp"] * sizes["cp"] + where["cp"]
    tokens = dealt[plane]
    parts = {"partial": tokens[where["tp"]::sizes["tp"]],
             "expert": [token for place in range(plane // ep * ep, (plane // ep + 1) * ep) for token in dealt[place]]}
    found = {}
    for name, kind in held_by(where, sizes).items():
        used = parts.get(kind, tokens)
        whole = each[name][used].sum(0)
        if kind == "tied":
            whole = (whole if where["pp"] == 0 else 0) + (
                each["head"][used].sum(0) if where["pp"] == sizes["pp"] - 1 else 0)
        found[name] = slice_of(name, whole, where, sizes).clone()
    return found


def whole_gradients(each: Gradients, dealt: list[list[int]]) -> Gradients:
    """Of the mean loss over all tokens, as one process has them."""
    num_tokens = sum(map(len, dealt))
    means = {name: gradients[:num_tokens].sum(0) / num_tokens for name, gradients in each.items()}
    return {name: means[name] + means["head"] if name == "embedding" else means[name] for name in KINDS}
