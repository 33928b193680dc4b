"""Activation memory: the rows of the paper's table, term by term, and what the small GPT keeps, measured."""

import pytest
import torch

from course_lib import facts
from course_lib.costs.flops import activation_bytes, activation_bytes_per_layer, activation_terms
from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import launch, record_memory
from course_lib.sequence_parallel import recompute
from course_lib.tensor_parallel import parallelize
from course_lib.why_distribute import shape_of

GPT_3 = facts.model("GPT-3").shape
SBH = GPT_3.sequence_length * GPT_3.hidden_size
SCORES = 5 * GPT_3.num_heads * GPT_3.sequence_length**2


@pytest.mark.parametrize("kind, t, split, whole, cut, scores", [  # in sbh: on each rank, and cut by t; scores: cut by t
    ("none", 1, False, 0, 34, 1), ("none", 8, False, 10, 24, 1), ("none", 8, True, 0, 34, 1),
    ("selective", 8, False, 10, 24, 0), ("selective", 8, True, 0, 34, 0), ("full", 8, False, 2, 0, 0)])
def test_every_row_of_the_papers_table_is_the_sum_of_its_terms(kind, t, split, whole, cut, scores):
    by_the_paper = whole * SBH + (cut * SBH + scores * SCORES) // t
    assert activation_bytes_per_layer(GPT_3, 1, recompute=kind, dropout=True, tensor_parallel=t,
                                      sequence_parallel=split) == by_the_paper


def test_the_terms_are_the_papers_11_sbh_of_attention_19_of_the_mlp_and_4_of_the_norms():
    terms = {term.name: term for term in activation_terms(GPT_3, 1, dropout=True)}
    of_mlp = "input of the MLP", "input of the GELU", "its output", "mask of the MLP's dropout"
    assert sum(term.num_bytes for name, term in terms.items() if name.endswith("norm")) == 4 * SBH
    assert sum(terms[name].num_bytes for name in of_mlp) == 19 * SBH
    assert sum(term.num_bytes for term in terms.values() if term.core and term.by_tensor) == SCORES


@pytest.mark.parametrize("config, batch_size, kind, dropout", [
    *((GPTConfig(num_layers=4, hidden_size=128, sequence_length=128), 4, kind, 0.1)
      for kind in ("none", "selective", "full")),
    (GPTConfig(num_layers=2, hidden_size=96, num_heads=3, vocab_size=512, sequence_length=128), 3, "none", 0.0)])
def test_what_the_small_gpt_keeps_is_within_2_percent_of_the_formula(config, batch_size, kind, dropout):
    config = GPTConfig(**{**vars(config), "dropout": dropout})
    kept = kept_by_a_rank(GPT(config), batch_size, kind)
    formula = activation_bytes(shape_of(config), batch_size, recompute=kind, bytes_per_number=4, dropout=dropout > 0,
                               mask_bytes=4)
    assert formula < kept < 1.02 * formula  # the means and deviations of the norms, token numbers, positions


def kept_by_a_rank(model, batch_size, kind):
    """Bytes that a rank keeps of the model from forward to backward."""
    if kind != "none":
        for block in model.blocks:
            block.forward = recompute(block.forward, kind)
    tokens = torch.randint(0, model.config.vocab_size, (batch_size, model.config.sequence_length))
    with record_memory(model=model) as log:
        loss = model(tokens, tokens.clone())[1]
        kept = log.by_kind["activations"]
        loss.backward()
    return kept


@pytest.mark.sweep("t", few=[2], all=[2, 4], words="2 ranks of 2 and 4")
def test_what_a_rank_of_tensor_and_sequence_parallelism_keeps_is_within_2_percent_of_the_formula(t):
    config = GPTConfig(num_layers=4, hidden_size=128, sequence_length=128)
    cases = [(False, "none"), (True, "none"), (False, "selective"), (True, "selective"), (False, "full")]

    def body():
        return [kept_by_a_rank(parallelize(GPT(config), None, split, gather_again=split), 4, kind)
                for split, kind in cases]

    formulas = [activation_bytes(shape_of(config), 4, recompute=kind, bytes_per_number=4, tensor_parallel=t,
                                 sequence_parallel=split) for split, kind in cases]
    for of_rank in launch(body, world_size=t):
        assert all(formula < kept < 1.02 * formula for formula, kept in zip(formulas, of_rank)), (of_rank, formulas)
