"""A plan says how the modules of a model are cut: {pattern of a module's name: what becomes of it}.

A pattern is matched, as in a shell, with the name or with its end after a dot: "mlp.input" is every block's. The first
pattern that matches counts. What a model of another kind needs is a dozen lines like these.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

SPECIAL = set("*?[")  # what means something else than itself in a pattern


@dataclass(frozen=True)
class Column:
    """A Linear -> ColumnParallelLinear.

    num_sections: equal ones after each other in its output, gate | up say. heads: "q", "kv" or "qkv", whose rows are
    heads of the module around it, which stay whole. gather_output: everyone gets all of it. last: the read-out, behind
    which tokens are dealt out no more.
    """

    num_sections: int = 1
    heads: str = ""
    gather_output: bool = False
    last: bool = False


@dataclass(frozen=True)
class Row:
    """A Linear -> RowParallelLinear."""


@dataclass(frozen=True)
class Vocabulary:
    """An Embedding -> VocabParallelEmbedding."""


@dataclass(frozen=True)
class Region:
    """A module whose first tensor goes into several column layers: it is copied to the group once, for all of them.

    draws_alone: the random numbers it draws are for parts, of attention's weights say.
    """

    draws_alone: bool = False


@dataclass(frozen=True)
class Tokenwise:
    """Computes on each token by itself, like a norm: under sequence_parallel on this rank's."""


@dataclass(frozen=True)
class Apart:
    """Has other numbers on other ranks, and adds up its gradients itself: experts."""


@dataclass(frozen=True)
class Entry:
    """Under sequence_parallel its input, and all that follows, is dealt out along T: the first block."""


Plan = Mapping[str, Column | Row | Vocabulary | Region | Tokenwise | Apart | Entry]

GPT_PLAN: Plan = {  # reference.GPT
    "embedding.token": Vocabulary(),
    "blocks.0": Entry(),
    "attention.qkv": Column(heads="qkv"),
    "attention.output": Row(),
    "mlp.input": Column(),
    "mlp.output": Row(),
    "*norm*": Tokenwise(),
    "head": Column(gather_output=True, last=True),
}

LLAMA_PLAN: Plan = {  # the names of Hugging Face's Llama, and of many others
    "embed_tokens": Vocabulary(),
    "layers.0": Entry(),
    "self_attn": Region(draws_alone=True),
    "q_proj": Column(heads="q"),
    "k_proj": Column(heads="kv"),
    "v_proj": Column(heads="kv"),
    "qkv_proj": Column(heads="qkv"),
    "o_proj": Row(),
    "mlp": Region(),
    "gate_proj": Column(),
    "up_proj": Column(),
    "gate_up_proj": Column(num_sections=2),
    "down_proj": Row(),
    "*norm*": Tokenwise(),
    "lm_head": Column(gather_output=True, last=True),
}


def find_style(plan: Plan, name: str) -> object | None:
    """What `plan` says about the module called `name`; None where it says nothing."""
    return next((style for pattern, style in plan.items() if fits(name, pattern)), None)


def fits(name: str, pattern: str) -> bool:
    """Whether `pattern` matches the end of `name`, from a dot on: "attention.qkv" fits "blocks.0.attention.qkv"."""
    if not SPECIAL & set(pattern):  # a shell's patterns are compiled, a millisecond each
        return f".{name}".endswith(f".{pattern}")
    return fnmatchcase(f".{name}", f"*.{pattern}")
