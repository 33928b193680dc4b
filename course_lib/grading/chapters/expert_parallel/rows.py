"""Exercise 8.2: tokens sorted by expert, each expert's rows filled up to whole blocks, and the way back.

    N  tokens of D numbers    E  experts    k  experts of a token, n_e rows for expert e    b  rows of a block
    rows  (sum of b ceil(n_e / b), D)      y  what the experts made of them      combined (N, D) = sum of weight * y

Source: Gale et al. 2022, MegaBlocks: Efficient Sparse Training with Mixture-of-Experts (blocks of 128 rows).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.calls import count_calls
from course_lib.grading.chapters.split import PartsExercise, normal
from course_lib.grading.compare import alike, describe, plain
from course_lib.grading.exercise import Trial
from course_lib.grading.spent import Spent, amount

Inputs = list[dict[str, Any]]
Answers = list[dict[str, Any]]
NAMES = {"rows": "rows", "combined": "back(y)", "tokens": "the gradient of the tokens",
         "weights": "the gradient of the weights"}
HELD = 4  # times the bytes of rows: rows, what back gathers and weighs, and indices


class BlockRows(PartsExercise):
    number = "8.2"
    function = "my_block_rows"
    points = 4
    parts = NAMES
    right = "rows, results and gradients are right"
    budget = "at most 4 times the bytes of rows held on the way there or back: places, no matrix of tokens by rows"
    hints = (
        "Two numbers say where a row goes: where its expert's rows begin, and how many of the same expert come before "
        "it. Once you have the place of each of the N k rows, the way back reads from the same places.",
        "A stable argsort of the flattened experts puts the slots in order; order // k are their tokens. counts by "
        "bincount, padded to multiples of block, and their cumsum: an expert begins at cumsum - padded. In sorted "
        "order the i-th slot is the (i - (counts' cumsum - counts) of its expert)-th of its expert.",
        "flat = experts.flatten()\n"
        "order = flat.argsort(stable=True)\n"
        "counts = flat.bincount(minlength=num_experts)\n"
        "padded = ...\n"
        "moved = (padded.cumsum(0) - padded) - (...)  # (E,): how much further an expert begins than without padding\n"
        "place = torch.arange(len(flat)) + moved[flat[order]]\n"
        "rows = tokens.new_zeros(...).index_copy(0, place, tokens[order // k])\n"
        "def back(y):\n"
        "    weighed = y[place] * ...\n"
        "    return torch.zeros_like(tokens).index_add(0, ..., weighed)\n"
        "return rows, back",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for N, D, E, k, block, chosen in ((7, 2, 4, 2, 4, 3), (6, 3, 4, 1, 2, 2), (3, 2, 2, 2, 1, 2),
                                          (1, 1, 4, 3, 8, 4), (256, 64, 16, 2, 16, 13)):
            likes = torch.rand(N, chosen, generator=generator) + torch.linspace(0, 0.4, chosen)
            if N == 7:  # 4, 6 and 4 rows, and none: full blocks, and one that is not
                likes[torch.randperm(N, generator=generator), torch.tensor([0, 0, 0, 1, 2, 2, 2])] = -1.0
            inputs = {"given": {"tokens": normal(generator, N, D), "weights": normal(generator, N, k).sigmoid()},
                      "experts": likes.topk(k).indices, "numbers": [E, block], "dy": normal(generator, N, D)}
            made.append(Trial([inputs], f"{N} token{'s' * (N > 1)}, k = {k}, {E} experts, blocks of {block}, rows of "
                                        f"{amount(8 * D * rows_in_all(inputs))}"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        from course_lib.runtime import record_memory

        leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs["given"].items()}
        experts, (num_experts, block) = inputs["experts"].clone(), inputs["numbers"]
        answer: dict[str, Any] = dict.fromkeys(NAMES)

        def there_and_back() -> int:
            with record_memory() as log:
                before = log.current
                pair = function(leaves["tokens"], experts, leaves["weights"], num_experts, block)
            held = log.peak - before
            if not isinstance(pair, tuple | list) or len(pair) != 2 or not callable(pair[1]):
                answer["rows"] = f"not a tensor and a function but {describe(plain(pair))}"
                return held
            answer["rows"] = plain(pair[0])
            if not isinstance(pair[0], Tensor) or pair[0].shape != (rows_in_all(inputs), inputs["dy"].shape[1]):
                return held
            y = used(pair[0], inputs)
            with record_memory() as log:
                before = log.current
                combined = pair[1](y)
            answer["combined"] = plain(combined)
            if isinstance(combined, Tensor) and combined.requires_grad and combined.shape == inputs["dy"].shape:
                combined.backward(inputs["dy"].clone())
            answer.update({name: plain(leaf.grad) for name, leaf in leaves.items()})
            return max(held, log.peak - before)

        held, calls = count_calls(there_and_back)
        return {**answer, "held": held, "calls": calls}

    def expected(self, inputs: Inputs) -> Answers:
        return placed(inputs)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, Answers]]:
        right = placed(inputs)
        yield ("rows lie one behind the other without a gap: each expert's rows are filled up with zeros to a multiple "
               "of `block`", [{**dict.fromkeys(NAMES), "rows": sorted_rows(rank)} for rank in inputs])
        yield ("only the end of all rows is filled up: each expert's rows are, so that no block has two experts",
               placed(inputs, padded_at_the_end=True))
        for one_more in ("all", "chosen"):
            yield ("an expert whose rows fill their blocks gets another one: round up, n_e of 8 are 2 blocks of 4",
                   placed(inputs, one_more=one_more))
        yield ("each expert has as many rows as the busiest one: round up each expert's own number",
               placed(inputs, all_alike=True))
        yield ("slots are taken for tokens: the flattened slot s belongs to token s // k", placed(inputs, token="%"))
        yield ("rows of the same expert are in another order: first come, first placed, so sort with stable=True",
               placed(inputs, backwards=True))
        yield ("rows are right, and back returns each result to another token: the i-th result belongs to the token of "
               "the row at place i", placed(inputs, back="unsorted"))
        yield ("rows are right, and back takes each result times the weight of another slot: sort the weights as the "
               "rows are", placed(inputs, back="weights unsorted"))
        yield "rows are right, and back leaves the weights out", placed(inputs, back="unweighed")
        yield ("rows are right, and back makes the mean of a token's results: the weights are all that weighs them",
               placed(inputs, back="mean"))
        yield ("rows are right, and back keeps one of a token's k results: write them with index_add, as an assignment "
               "keeps the last one", placed(inputs, back="last"))
        yield ("the results are right, but rows do not lead back to the tokens: index_copy goes the way of autograd",
               placed(inputs, detached="rows"))
        yield ("the results are right, but nothing leads back to the weights", placed(inputs, detached="weights"))
        yield "the results are right, but nothing has a gradient", [{**answer, "tokens": None, "weights": None}
                                                                    for answer in right]

    def kept(self, trial: Trial, answers: Answers) -> list[Spent]:
        rows = answers[0]["rows"].nbytes
        return [Spent("holds", answers[0]["held"], HELD * rows, on=" on its way", slack=4096, claimed=True,
                      why="a matrix that says for each row and token whether they belong together is larger than both: "
                          "hold places, as index_copy and index_add take them")]

    def bound(self, trial: Trial) -> int:
        return 0

    def difference(self, given: list[Any], expected: Answers) -> str:
        has, should = given[0]["rows"], expected[0]["rows"]
        if isinstance(has, Tensor) and has.shape != should.shape:
            return f"rows is {describe(has)}: expected {describe(should)}, each expert's rows in whole blocks"
        name = next(name for name in NAMES if not alike(given[0][name], expected[0][name], self.tolerance))
        return f"{NAMES[name]} is {describe(given[0][name])}: expected {describe(expected[0][name])}"


def rounded_up(counts: Tensor, block: int) -> Tensor:
    return -(-counts // block) * block


def rows_in_all(inputs: dict[str, Any]) -> int:
    return sum(padded_counts(inputs))


def padded_counts(inputs: dict[str, Any]) -> list[int]:
    E, block = inputs["numbers"]
    return rounded_up(inputs["experts"].flatten().bincount(minlength=E), block).tolist()


def used(rows: Tensor, inputs: dict[str, Any]) -> Tensor:
    """What the experts make of their rows, each of them something else, and of empty rows too."""
    of_expert = torch.arange(inputs["numbers"][0]).repeat_interleave(torch.tensor(padded_counts(inputs)))
    return torch.tanh(rows) * (of_expert.unsqueeze(1) + 1) + 1


def sorted_rows(inputs: dict[str, Any]) -> Tensor:
    order = inputs["experts"].flatten().argsort(stable=True)
    return inputs["given"]["tokens"][order // inputs["experts"].shape[1]]


def placed(inputs: Inputs, padded_at_the_end: bool = False, one_more: str = "", all_alike: bool = False,
           token: str = "//", backwards: bool = False, back: str = "", detached: str = "") -> Answers:
    """The parts of the answer; arguments but the first are mistakes."""
    rank, = inputs
    tokens, weights = (tensor.clone().requires_grad_() for tensor in rank["given"].values())
    experts, (E, block) = rank["experts"], rank["numbers"]
    N, k = experts.shape
    counts = experts.flatten().bincount(minlength=E)
    padded = rounded_up(counts, block)
    if padded_at_the_end:
        padded = counts.clone()
        padded[-1] += -len(experts.flatten()) % block
    elif one_more:
        padded = (counts // block + 1) * block * (counts > 0 if one_more == "chosen" else 1)
    elif all_alike:
        padded = padded.amax().expand(E)
    order = experts.flatten().argsort(stable=True)
    if backwards:
        order = torch.cat([part.flip(0) for part in order.split(counts.tolist())])
    starts, first = padded.cumsum(0) - padded, counts.cumsum(0) - counts
    expert = experts.flatten()[order]
    place = starts[expert] + torch.arange(N * k) - first[expert]
    owner = order % N if token == "%" else order // k
    source = tokens.detach() if detached == "rows" else tokens
    rows = tokens.new_zeros(int(padded.sum()), tokens.shape[1]).index_copy(0, place, source[owner])
    if len(rows) != rows_in_all(rank):
        return [{**dict.fromkeys(NAMES), "rows": plain(rows)}]
    y = used(rows, rank)[place]
    w = (weights.detach() if detached == "weights" else weights).flatten()
    if back != "unweighed":
        y = y * (w if back == "weights unsorted" else w[order]).unsqueeze(1)
    to = torch.arange(N * k) // k if back == "unsorted" else owner
    combined = torch.zeros_like(tokens).index_add(0, to, y) / (k if back == "mean" else 1)
    if back == "last":  # autograd gives to all of them, as if they had been added up
        last = torch.stack([(to == token).nonzero().max() for token in range(N)])
        combined = y[last].detach() + combined - combined.detach()
    if combined.requires_grad:
        combined.backward(rank["dy"])
    return [{"rows": plain(rows), "combined": plain(combined), "tokens": plain(tokens.grad),
             "weights": plain(weights.grad)}]
