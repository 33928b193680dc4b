"""Exercise 8.3: tokens to the ranks of their experts and home again, once for each rank and not for each expert.

    R  ranks, r this one    E  experts, rank r has those from r E/R on    N  tokens of a rank, of D numbers
    n_out tokens for other ranks, n_in from them        bytes that a rank sends: how many it will send, 8 (R-1);
    tokens, 8 D n_out; for which of the experts there, E/R n_out; and others' results home, 8 D n_in

Source: DeepSeek-AI 2024, DeepSeek-V3, section 3.2.2, where a token crosses once to each node that has experts for it.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.calls import count_calls, num_calls, sent_by
from course_lib.grading.chapters.split import PartsExercise, normal
from course_lib.grading.compare import describe, plain
from course_lib.grading.exercise import Traffic, Trial, ranks_of
from course_lib.grading.spent import Spent, amount, most

Inputs = list[dict[str, Any]]
Answers = list[dict[str, Any]]
NAMES = {"received": "received", "theirs": "theirs", "home": "back(y)"}
PADDED = ("as many tokens as there are, each once to a rank, however many of its experts are there. No rows that are "
          "filled up, nothing that is gathered, and choices travel as they are, a byte each")


class Dispatch(PartsExercise):
    number = "8.3"
    function = "my_dispatch"
    points = 5
    parts = NAMES
    right = "tokens arrive and results come home"
    budget = ("four collectives: how many, tokens, choices, and results home; to the byte what others have to have, "
              "8 (R-1), 8 D + E/R for each token sent, 8 D for each result")
    hints = (
        "all_to_all_single needs to know how many rows come from each rank, and only the others know it. What has to "
        "be sent first? And to which ranks does a token go that has two experts on one of them?",
        "goes = choices.view(N, R, E/R).amax(-1) is 1 where a token goes to a rank; its sums over the tokens are what "
        "you send to each rank, and an all-to-all of these is what you will receive. goes.T.nonzero() lists all pairs "
        "of rank and token in the order of sending. On the way home sizes change places, and index_add adds up what "
        "several ranks made of a token.",
        "goes = choices.view(len(tokens), R, -1).amax(-1)  # (N, R)\n"
        "sent = goes.sum(0)\n"
        "arriving = torch.empty_like(sent)\n"
        "dist.all_to_all_single(...)\n"
        "sent, arriving = sent.tolist(), arriving.tolist()\n"
        "to, token = goes.T.nonzero().unbind(1)\n"
        "received = tokens.new_empty(sum(arriving), tokens.shape[1])\n"
        "dist.all_to_all_single(received, tokens[token], arriving, sent)  # sizes of the output come first\n"
        "...  # the same with choices.view(N, R, -1)[token, to]\n"
        "def back(y):\n"
        "    home = tokens.new_empty(len(token), tokens.shape[1])\n"
        "    dist.all_to_all_single(home, y, ..., ...)\n"
        "    return torch.zeros_like(tokens).index_add(0, ..., home)\n"
        "return received, theirs, back",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for R, each, D, N, k, hot in ((3, 2, 2, 4, 2, None), (2, 3, 1, 5, 3, None), (3, 2, 2, 3, 2, 1),
                                      (1, 3, 2, 4, 2, None), (4, 4, 64, 48, 4, None)):
            ranks, E = [], R * each
            for r in range(R):
                likes = torch.rand(N + r, E, generator=generator)
                if hot is not None:  # everything is for this rank's experts: the others receive nothing
                    likes[:, hot * each:(hot + 1) * each] += 1.0
                choices = torch.zeros(N + r, E, dtype=torch.uint8).scatter_(1, likes.topk(k).indices, 1)
                ranks.append({"tokens": normal(generator, N + r, D), "choices": choices})
            nothing = "" if hot is None else f", all for rank {hot}"
            made.append(Trial(ranks, f"{ranks_of(R)}, {E} experts, k = {k}, tokens of {amount(8 * D)}{nothing}"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = dict.fromkeys(NAMES)

        def there_and_back() -> None:
            returned = function(inputs["tokens"].clone(), inputs["choices"].clone())
            if not isinstance(returned, tuple | list) or len(returned) != 3 or not callable(returned[2]):
                answer["received"] = f"not two tensors and a function but {describe(plain(returned))}"
                return
            received, theirs, back = returned
            answer.update(received=plain(received), theirs=plain(theirs))
            if isinstance(received, Tensor) and isinstance(theirs, Tensor):
                fit = theirs.ndim == 2 and len(theirs) == len(received)
                answer["home"] = plain(back(used(received, theirs) if fit else received))

        _, calls = count_calls(there_and_back)
        return {**answer, "calls": calls}

    def expected(self, inputs: Inputs) -> Answers:
        return travelled(inputs)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, Answers]]:
        right = travelled(inputs)
        yield ("a token is sent once for each of its experts: once to each rank is enough, with its choices there",
               travelled(inputs, for_each_expert=True))
        yield ("theirs says nothing of this rank's experts: of a token's choices send the E/R columns of the rank that "
               "it goes to", travelled(inputs, columns="first"))
        yield ("theirs has all E columns: a rank wants to know of its own E/R experts",
               travelled(inputs, columns="all"))
        yield ("results come home in the order in which they were sent, by rank, and back takes it for the order of "
               "the tokens: token[i] says whose the i-th is", travelled(inputs, home="unsorted"))
        yield ("back keeps what one rank made of a token: where several did, add their results up, with index_add",
               travelled(inputs, home="last"))
        yield ("back makes the mean of what the ranks made of a token: add it up", travelled(inputs, home="mean"))
        yield ("every rank has all tokens: only those go to a rank that have experts there",
               travelled(inputs, everything=True))
        yield ("tokens are received in another order: by the rank that they come from, and as they were there",
               travelled(inputs, backwards=True))
        yield ("tokens and choices arrive, but nothing comes home", [{**answer, "home": None} for answer in right])

    def kept(self, trial: Trial, answers: Answers) -> list[Spent]:
        return [num_calls(answers, 4, "how many, tokens, choices, and results home; for all ranks in one call each")]

    def sent(self, trial: Trial) -> list[int]:
        """The bytes of each rank, to the byte."""
        R, E = trial.world_size, trial.inputs[0]["choices"].shape[1]
        goes = [rank["choices"].unflatten(1, (R, -1)).amax(-1).sum(0).tolist() for rank in trial.inputs]
        row = trial.inputs[0]["tokens"][0].nbytes
        return [8 * (R - 1) + sum((row + E // R) * goes[r][s] + row * goes[s][r] for s in range(R) if s != r)
                for r in range(R)]

    def bound(self, trial: Trial) -> int:
        return max(self.sent(trial))

    def waste(self, answers: Answers) -> str:
        return PADDED

    def spent(self, trial: Trial, answers: Answers, traffic: Traffic) -> list[Spent]:
        each, allowed = [sent_by(rank, answers, traffic) for rank in range(trial.world_size)], self.sent(trial)
        rank = most(each, allowed)
        exact = Spent("sent", each[rank], allowed[rank], rank=rank, why=PADDED, claimed=True)
        return [exact if spent.what == "sent" and spent.claimed else spent
                for spent in super().spent(trial, answers, traffic)]


def used(received: Tensor, theirs: Tensor) -> Tensor:
    """What a rank's experts make of a token together, each something else."""
    return received * (theirs.double() @ (torch.arange(theirs.shape[1]) + 2.0).double()).unsqueeze(1)


def travelled(inputs: Inputs, for_each_expert: bool = False, columns: str = "", home: str = "",
              everything: bool = False, backwards: bool = False) -> Answers:
    """What each rank answers, all of them in one process; arguments but the first are mistakes."""
    R = len(inputs)
    each = inputs[0]["choices"].shape[1] // R
    answers, made = [], [[] for _ in inputs]  # made: of each rank, (token, result) as they come home
    for r in range(R):
        tokens, choices, origin = [], [], []
        for s, rank in enumerate(inputs):
            own = rank["choices"].unflatten(1, (R, each))[:, r]  # (N, E/R)
            goes = own.sum(1) if for_each_expert else torch.ones(len(own)).long() if everything else own.amax(1)
            token = torch.arange(len(own)).repeat_interleave(goes.long())
            token = token.flip(0) if backwards else token
            said = rank["choices"] if columns == "all" else rank["choices"][:, :each] if columns == "first" else own
            tokens.append(rank["tokens"][token])
            choices.append(said[token])
            origin += [(s, t) for t in token.tolist()]
        received, theirs = torch.cat(tokens), torch.cat(choices)
        answers.append({"received": received, "theirs": theirs})
        for (s, t), y in zip(origin, used(received, theirs)):
            made[s].append((t, y))
    for answer, rank, results in zip(answers, inputs, made):
        total = torch.zeros_like(rank["tokens"])
        order = sorted(t for t, _ in results) if home == "unsorted" else [t for t, _ in results]
        for t, (_, y) in zip(order, results):
            total[t] = y if home == "last" else total[t] + y
        times = torch.tensor(order).bincount(minlength=len(total)).clamp(min=1)
        answer["home"] = total / times.unsqueeze(1) if home == "mean" else total
    return answers
