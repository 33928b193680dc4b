"""Exercise 8.7: over whom the gradients of experts are summed, over whom the router's, and what divides both.

    R  ranks; rank s has N_s tokens, and L_s is the sum of their losses      what is trained: L = sum L_s / sum N_s
    ep  ranks among which the E experts are dealt; the ranks r, r + ep, r + 2 ep ... hold the same ones: `same`
    backward brings a rank the gradients of all tokens that came to its experts: sum of dL_s/dW over its ep ranks s
    the toy: loss of a token x with expert e = sum of sigmoid(v_e x) tanh(W_e x), v_e row e of the router

Source: Rajbhandari et al. 2022, DeepSpeed-MoE.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.calls import count_calls
from course_lib.grading.chapters.split import PartsExercise, normal
from course_lib.grading.compare import plain
from course_lib.grading.exercise import Trial, ranks_of
from course_lib.grading.spent import amount

Inputs = list[dict[str, Any]]
Answers = list[dict[str, Any]]


class ExpertGradients(PartsExercise):
    number = "8.7"
    function = "my_expert_gradients"
    points = 3
    parts = {"experts": "the gradients of the experts", "router": "the gradient of the router"}
    right = "the gradients are right"
    budget = "(len(same) - 1) times the bytes of its experts' gradients, and R - 1 times the router's and a number"
    hints = (
        "How many ranks' tokens are in the gradient of an expert before you do anything, and how many in the router's? "
        "And how many are in each when all who have it have been added up?",
        "Everybody's tokens are in both in the end, so both are divided by the number of all tokens, a sum over all "
        "ranks. Experts: the sum over `same`, as ranks outside of it hold others. The router: the sum over all. An "
        "expert to which no token came takes part with zeros, or the others would wait for it.",
        "everyone = range(dist.get_world_size())\n"
        "total = sum_over(torch.tensor(float(num_tokens)), ...)\n"
        "for weight in experts:\n"
        "    if weight.grad is None:\n"
        "        weight.grad = ...\n"
        "    weight.grad = sum_over(weight.grad, ...) / total\n"
        "router.grad = ...",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for R, ep, each, D, N in ((6, 2, 2, 2, 2), (4, 4, 1, 2, 3), (2, 1, 3, 2, 3), (1, 1, 2, 2, 3),
                                  (4, 2, 2, 64, 16)):
            label = f"{ranks_of(R)}, {each * ep} experts over {ep}, {amount(8 * each * D * D)} of their gradients"
            made.append(Trial(toy(generator, R, ep, each, D, N), label))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        experts = [torch.nn.Parameter(weight.clone()) for weight in inputs["experts"]]
        router = torch.nn.Parameter(inputs["router"].clone())
        for weight, gradient, came in zip(experts, inputs["gradients"], inputs["came"]):
            weight.grad = gradient.clone() if came else None
        router.grad = inputs["router_gradient"].clone()
        _, calls = count_calls(function, experts, router, len(inputs["tokens"]), list(inputs["same"]))
        return {"experts": [plain(weight.grad) for weight in experts], "router": plain(router.grad), "calls": calls}

    def expected(self, inputs: Inputs) -> Answers:
        return averaged(inputs)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, Answers]]:
        R, n, N = len(inputs), len(inputs[0]["same"]), [len(rank["tokens"]) for rank in inputs]
        held = [sum(N[s] for s in rank["same"]) for rank in inputs]
        shared = [sum(N[r // (R // n) * (R // n):][:R // n]) for r in range(R)]
        yield ("everything is a sum over the tokens: their mean is trained, so divide by the number of all tokens",
               averaged(inputs, divisors=[1] * R, router_divisors=[1] * R))
        if R > 1:
            yield ("everything is divided by R: what comes in are sums over each rank's tokens, so divide by the "
                   "number of all tokens", averaged(inputs, divisors=[R] * R, router_divisors=[R] * R))
            yield ("each rank divides by its own tokens: one number divides everybody's gradients, that of all tokens",
                   averaged(inputs, divisors=N, router_divisors=N))
            yield ("the router's gradient is divided by this rank's tokens: all ranks' tokens are in it",
                   averaged(inputs, router_divisors=N))
            yield ("nobody has the router's gradients of the others: the sum over all ranks is asked",
                   averaged(inputs, router_over="alone"))
        if n < R:
            yield ("the experts' gradients are too large: they are divided by the tokens of the ranks in `same`, but "
                   "those of all ranks are in them: each held its ep ranks' before you added them up",
                   averaged(inputs, divisors=held))
            yield ("the experts' gradients are divided by the ranks that were added up, len(same): they are sums over "
                   "all ranks' tokens, so divide by the number of these",
                   averaged(inputs, divisors=[n] * R))
        if n > 1:
            yield ("each rank keeps its own experts' gradients: the ranks in `same` hold these experts too, and would "
                   "take another step", averaged(inputs, over="alone"))
        if 1 < n < R:
            yield ("each rank keeps its own experts' gradients, of the tokens that came to it: the ranks in `same` "
                   "hold these experts too, and would take another step",
                   averaged(inputs, over="alone", divisors=shared))
            yield ("the experts' gradients are summed over all ranks, and most hold other experts: sum over `same`",
                   averaged(inputs, over="all"))
            yield ("the router's gradient is summed over `same` only: every rank has the router, so sum over all",
                   averaged(inputs, router_over="same"))
            yield ("the router's gradient is the mean over `same` only: every rank has the router, so sum over all",
                   averaged(inputs, router_over="same", router_divisors=held))
        yield ("an expert to which no token came is left without a gradient: it takes part with zeros, and has the "
               "share of the others afterwards", averaged(inputs, none=True))

    def bound(self, trial: Trial) -> int:
        inputs = trial.inputs[0]
        return ((len(inputs["same"]) - 1) * sum(gradient.nbytes for gradient in inputs["gradients"])
                + (trial.world_size - 1) * (inputs["router"].nbytes + 8))

    def waste(self, answers: Answers) -> str:
        return "experts' gradients are for the ranks in `same`: the others hold other experts"


def toy(generator: torch.Generator, R: int, ep: int, each: int, D: int, N: int) -> Inputs:
    """What the ranks hold after backward of a layer with ep * each experts; nobody chooses the last one of several."""
    E = ep * each
    weights, router = normal(generator, E, D, D), normal(generator, E, D)
    ranks: Inputs = []
    for r in range(R):
        tokens = normal(generator, N + r, D)
        choices = torch.randint(max(E - 1, 1), (N + r,), generator=generator)
        W, v = weights.clone().requires_grad_(), router.clone().requires_grad_()
        toy_losses(tokens, choices, W, v).sum().backward()
        ranks.append({"tokens": tokens, "choices": choices, "all_experts": weights, "dW": W.grad, "router": router,
                      "router_gradient": v.grad})
    for r, rank in enumerate(ranks):
        peers, own = ranks[r // ep * ep:(r // ep + 1) * ep], slice(r % ep * each, (r % ep + 1) * each)
        chosen = torch.cat([peer["choices"] for peer in peers]).bincount(minlength=E)[own]
        rank |= {"experts": list(weights[own]), "gradients": list(sum(peer["dW"] for peer in peers)[own]),
                 "came": [bool(count) for count in chosen], "same": list(range(r % ep, R, ep))}
    return [{name: value for name, value in rank.items() if name != "dW"} for rank in ranks]


def toy_losses(tokens: Tensor, choices: Tensor, weights: Tensor, router: Tensor) -> Tensor:
    """Of each token, (N, D), which goes to one of the (E, D, D) experts."""
    made = torch.tanh(torch.einsum("nij,nj->ni", weights[choices], tokens)).sum(-1)
    return (router[choices] * tokens).sum(-1).sigmoid() * made


def averaged(inputs: Inputs, over: str = "same", divisors: list[int] | None = None, router_over: str = "all",
             router_divisors: list[int] | None = None, none: bool = False) -> Answers:
    """The gradients of each rank afterwards; arguments but the first are mistakes."""
    R, answers = len(inputs), []
    total = [sum(len(rank["tokens"]) for rank in inputs)] * R
    for r, rank in enumerate(inputs):
        ranks = {"same": rank["same"], "all": range(R), "alone": [r]}
        experts = [sum(inputs[s]["gradients"][i] for s in ranks[over]) / (divisors or total)[r]
                   for i in range(len(rank["gradients"]))]
        router = sum(inputs[s]["router_gradient"] for s in ranks[router_over]) / (router_divisors or total)[r]
        answers.append({"experts": [None if none and not came else gradient
                                    for gradient, came in zip(experts, rank["came"])], "router": router})
    return answers
