"""The embedding, cut by vocabulary: a rank knows V/t tokens, and has zeros for all others. One all-reduce adds up."""


import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.collectives import reduce_from_group
from course_lib.groups.membership import Group, Member
from course_lib.tensor_parallel.cut import cut_evenly
from course_lib.tensor_parallel.linear import CutModule, require_kind


class VocabParallelEmbedding(CutModule):
    """Rank r holds rows r V/t to (r+1) V/t of nn.Embedding(num_embeddings, embedding_dim)."""

    def __init__(self, num_embeddings: int, embedding_dim: int, group: Group = None, *,
                 unsplit: nn.Embedding | None = None) -> None:
        super().__init__(group)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.cuts = {"weight": cut_evenly(num_embeddings, 0, self.member, "embeddings")}
        self.adopt(unsplit, lambda: nn.Embedding(num_embeddings, embedding_dim))
        self.padding_idx = None if unsplit is None else unsplit.padding_idx

    @classmethod
    def from_unsplit(cls, module: nn.Embedding, group: Group = None) -> "VocabParallelEmbedding":
        """This rank's rows of `module`, which has the same numbers on all ranks."""
        require_kind(module, nn.Embedding)
        for option in ("max_norm", "scale_grad_by_freq", "sparse"):
            if getattr(module, option):
                raise ValueError(f"an nn.Embedding with {option}={getattr(module, option)!r}: expected one without")
        return cls(module.num_embeddings, module.embedding_dim, group, unsplit=module)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) int64 -> (B, T, D), the same on all ranks."""
        rows, is_elsewhere = own_rows(tokens, self.num_embeddings, self.member)
        # The gradient of the padding's row is zero, on the rank that has it.
        padding = None if self.padding_idx is None else self.padding_idx - self.member.r * len(self.weight)
        is_mine = padding is not None and 0 <= padding < len(self.weight)
        x = F.embedding(rows, self.weight, padding if is_mine else None)  # (B, T, D)
        return reduce_from_group(x.masked_fill(is_elsewhere.unsqueeze(-1), 0), self.member)

    def extra_repr(self) -> str:
        """Tokens, ranks and width: what print(model) shows."""
        return f"{self.num_embeddings} / {self.member.n}, {self.embedding_dim}"


def own_rows(tokens: Tensor, vocab_size: int, me: Member) -> tuple[Tensor, Tensor]:
    """(each token's row among this rank's V/t, 0 for tokens of other ranks; bool: which ones those are).

    A token that is in no vocabulary stays outside, on all ranks, so that torch complains as it always does.
    """
    first, last = me.r * vocab_size // me.n, (me.r + 1) * vocab_size // me.n
    is_elsewhere = (tokens >= 0) & (tokens < first) | (tokens >= last) & (tokens < vocab_size)
    return (tokens - first).masked_fill(is_elsewhere, 0), is_elsewhere
