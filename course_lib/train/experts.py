"""A mixture of experts in the place of each MLP, as --experts, --top-k and --balance ask for it."""

import argparse
from collections.abc import Mapping
from typing import Any

from torch import nn

from course_lib.expert_parallel import SINGLE, BiasBalancer, moe_gpt, moe_layers
from course_lib.hybrid_parallel import HybridTrainer
from course_lib.reference import GPT, GPTConfig

BALANCES = {"auxiliary": 0.01, "bias": 0.001, "none": 0.0}  # their default weights: GShard's, DeepSeek-V3's


def describe_experts(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """What a checkpoint remembers of them, plain JSON; None where there are none."""
    if arguments.experts is None:
        return None
    weight = arguments.balance_weight or BALANCES[arguments.balance]
    return {"num_experts": arguments.experts, "k": arguments.top_k, "balance": arguments.balance, "weight": weight}


def make_model(config: GPTConfig, experts: Mapping[str, Any] | None) -> GPT:
    """A plain GPT, or one with all its experts, which parallelize deals out. ValueError for what cannot be."""
    model = GPT(config)
    if experts is None:
        return model
    weight = experts["weight"] if experts["balance"] == "auxiliary" else 0.0
    return moe_gpt(model, experts["num_experts"], experts["k"], balance=weight, group=SINGLE, tokens_group=SINGLE)


class Balancer:
    """--balance bias: to be called after each step, before it is saved. Nothing for the other ways."""

    def __init__(self, trainer: HybridTrainer, experts: Mapping[str, Any] | None) -> None:
        here = experts is not None and experts["balance"] == "bias" and has_experts(trainer.model)
        everyones = trainer.layout.member("dp", "cp", "tp")  # ranks of tp that count the same tokens change no sign
        self.balancer = BiasBalancer(trainer.model, experts["weight"], everyones) if here else None

    def __call__(self, trainer: HybridTrainer) -> None:
        if self.balancer is not None:
            self.balancer.step()


def has_experts(model: nn.Module) -> bool:
    """Whether this rank's stage has layers with experts."""
    try:
        return bool(moe_layers(model))
    except ValueError:  # a stage with no block
        return False
