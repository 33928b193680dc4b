"""Experts over the ranks of dp, cp and tp: each row once, bytes, other kinds of experts, balance, dropout."""

from dataclasses import replace
from functools import partial

import torch

from course_lib import hybrid_parallel as hp
from course_lib.costs.hybrid import StageWork, expert_bytes, expert_width_bytes, tensor_bytes
from course_lib.expert_parallel import SINGLE, BiasBalancer, moe_gpt
from course_lib.expert_parallel.layer import moe_layers
from course_lib.hybrid_parallel import kinds
from course_lib.reference import GPT
from course_lib.runtime import launch, record_communication
from course_lib.why_distribute import shape_of
from tests.hybrid_parallel.cases import BATCH, CONFIG, batch, laid_out, off_by_name, plain

SP, M2, ZB = {"sequence_parallel": True}, {"num_microbatches": 2}, {"num_microbatches": 3, "schedule": "ZB-H1"}
E, K = 12, 2
COUNTED = [("dp2,tp2,ep2", {}), ("dp2,tp2,ep2", SP), ("dp2,tp2", {}), ("tp4,ep2", {}), ("tp4,ep2,etp2", SP),
           ("dp2,tp2,etp2", M2), ("pp2,tp2,ep2", M2), ("dp2,pp2,ep2", ZB), ("dp2,cp2,ep4", {}),
           ("dp4,ep2", {})]


def note(found, module, inputs, *_):
    found.append(list(inputs[1]))


def note_choices(found, layer, *_):
    found.append(layer.tokens_per_expert().tolist())


def counted(cases):
    """Of a step: the choices of this rank's tokens, rows that came to its experts, bytes by axis, numbers held."""
    found = []
    for text, options in cases:
        model, _ = laid_out(text, options, experts=E)
        chosen, came = [], []
        for layer in moe_layers(model):
            layer.register_forward_hook(partial(note_choices, chosen))
            layer.experts.register_forward_hook(partial(note, came))
        with record_communication() as log:
            model.forward_backward(*batch(0, model.dp.r, model.dp.n))
        held = sum(p.numel() for layer in moe_layers(model) for p in layer.experts.parameters())
        found.append((chosen, came, hp.bytes_by_axis(log, model.layout), held))
    return found


def test_each_row_goes_through_its_expert_once_and_bytes_along_ep_etp_and_tp_are_the_formulas_of_these_rows():
    tokens = BATCH * CONFIG.sequence_length * CONFIG.num_layers
    of_expert = 2 * CONFIG.hidden_size * 4 * CONFIG.hidden_size // K + 4 * CONFIG.hidden_size // K + CONFIG.hidden_size
    for (text, options), ranks in zip(COUNTED, zip(*launch(counted, COUNTED, world_size=4, timeout=120))):
        layout, of_tp = hp.ParallelLayout.from_string(text), tensor_bytes_of(text, options)
        assert sum(sum(map(sum, chosen)) for chosen, *_ in ranks) == tokens * K, text
        assert sum(sum(map(sum, came)) for _, came, *_ in ranks) == tokens * K, text
        assert {held for *_, held in ranks} == {
            CONFIG.num_layers * E * of_expert // (layout.pp * layout.ep * layout.etp)}, text
        for rank, (*_, sent, mine) in enumerate(ranks):
            for axis, formula, column in (("ep", expert_bytes, 0), ("etp", expert_width_bytes, 1)):
                group = layout.group_of(rank, axis)
                counts = list(zip(*(ranks[other][column] for other in group)))  # [forward pass][place][expert]
                assert counts and sent.get(axis, 0) == formula(counts, group.index(rank), CONFIG.hidden_size), (
                    text, axis, rank)
            if len(layout.group_of(rank, "edp")) == 2 and layout.group_of(rank, "edp") not in layout.groups("dp"):
                assert sent["edp"] == 4 * mine, "one all-reduce of two ranks"
            if layout.tp > 1 and layout.pp == 1:
                assert sent["tp"] == of_tp[E] < of_tp[0], text


def tensor_bytes_of(text, options):
    """Along tp, by the formula, with so many experts and with an MLP in their place; without pp."""
    layout, m = hp.ParallelLayout.from_string(text), options.get("num_microbatches", 1)
    names = ("embedding", *(f"blocks.{i}" for i in range(CONFIG.num_layers)), "norm", "head")
    return {experts: tensor_bytes(StageWork(names, BATCH // layout.dp // m, m, num_experts=experts), shape_of(CONFIG),
                                  layout.tp, 1, "sequence_parallel" in options) for experts in (E, 0)}


def test_gated_experts_without_biases_and_a_shared_one_are_cut_as_well():
    def gradient(text):
        torch.manual_seed(0)
        model = moe_gpt(GPT(CONFIG), 4, group=SINGLE, tokens_group=SINGLE, activation="swiglu", bias=False,
                        num_shared=1)
        model = hp.parallelize(model, hp.ParallelLayout.from_string(text))
        model.forward_backward(*batch(0, model.dp.r, model.dp.n))
        return hp.gather_whole(hp.gradient_pieces(model)), kinds.table(model.kinds)

    right, _ = launch(gradient, "dp1", world_size=1)[0]
    for text in ("tp4,ep2,etp2", "dp2,tp2,etp2"):
        found, table = launch(gradient, text, world_size=4)[0]
        assert off_by_name(found, right) < 1e-5
        assert "experts       ep, etp        edp            edp            blocks.0.mlp.experts.w1" in table


def test_biases_that_balance_move_as_in_one_process():
    def biases(text):
        model = hp.parallelize(plain(4), hp.ParallelLayout.from_string(text))
        optimizer, found = hp.HybridOptimizer(model, torch.optim.SGD, lr=0.1), []
        balancer = BiasBalancer(model, rate=0.1, group=model.layout.member("dp", "cp", "tp"))
        for step in range(2):
            model.forward_backward(*batch(step, model.dp.r, model.dp.n))
            optimizer.step()
            optimizer.zero_grad()
            balancer.step()
            found.append(balancer.tokens_per_expert.tolist())
        return found

    right, = launch(biases, "dp1", world_size=1)
    for text in ("dp2,tp2,ep4", "tp4,ep2,etp2"):
        assert launch(biases, text, world_size=4) == [right] * 4


def test_dropout_after_experts_leaves_twice_of_about_half_and_another_half_on_each_rank_of_tp():
    def outputs():
        torch.manual_seed(0)
        model = moe_gpt(GPT(replace(CONFIG, dropout=0.5)), 2, group=SINGLE, tokens_group=SINGLE)
        layout = hp.ParallelLayout.from_string("tp2,ep2")
        stage, = hp.parallelize(model.eval(), layout).stages  # evaluates as the model did
        layer, tokens = stage.get_submodule("blocks.0.mlp"), torch.ones(1, 32, CONFIG.hidden_size)
        kept = layer(tokens).detach()
        return layer.train()(tokens).detach(), kept

    for dropped, kept in launch(outputs, world_size=2):
        masks = (dropped != 0).chunk(2, 1)  # of the tokens of rank 0, of those of rank 1
        assert (kept != 0).all() and torch.allclose(dropped, 2 * kept * (dropped != 0))
        assert all(0.4 < mask.float().mean() < 0.6 for mask in masks) and not torch.equal(*masks)
