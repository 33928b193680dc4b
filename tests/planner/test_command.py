"""python -m course_lib.planner: what it prints, what it refuses, and the flags of frameworks."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from course_lib.facts import model
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import cluster
from course_lib.planner.command import main, rows_of
from course_lib.planner.estimate import estimate, estimate_job
from course_lib.planner.flags import chunks_in_letters, megatron_flags, torchtitan_lines
from course_lib.planner.plan import plan
from course_lib.planner.ranking import distinct

ASKED = ("--model", "llama-3-8b", "--gpus", "8xH100", "--tokens", "1M")
SMALL = model("Llama 3 8B")

# Every name that the flags may have: NVIDIA/Megatron-LM d98e8a6, megatron/training/arguments.py and the fields of
# TransformerConfig, ModelParallelConfig, TrainingConfig and CheckpointConfig, which become flags.
MEGATRON = set("""
tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size sequence-parallel
expert-model-parallel-size expert-tensor-parallel-size pipeline-model-parallel-layout
num-virtual-stages-per-pipeline-rank account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split
use-distributed-optimizer overlap-grad-reduce overlap-param-gather grad-reduce-in-bf16 use-megatron-fsdp
data-parallel-sharding-strategy ckpt-format recompute-granularity recompute-method recompute-num-layers
recompute-modules micro-batch-size global-batch-size seq-length max-position-embeddings bf16 fp16 fp8-format fp8-recipe
fp4-format num-layers hidden-size ffn-hidden-size num-attention-heads group-query-attention num-query-groups
kv-channels swiglu untie-embeddings-and-output-weights disable-bias-linear mtp-num-layers multi-latent-attention
q-lora-rank kv-lora-rank qk-head-dim qk-pos-emb-head-dim v-head-dim num-experts moe-router-topk moe-ffn-hidden-size
moe-layer-freq moe-shared-expert-intermediate-size moe-token-dispatcher-type moe-grouped-gemm""".split())


def answer(capsys, *arguments):
    code = main([*ASKED, *arguments])
    return code, capsys.readouterr().out


# What it prints

def test_a_table_with_reasons_and_the_error_beside_it(capsys):
    code, text = answer(capsys)
    lines = text.splitlines()
    assert code == 0 and lines[0].startswith("Llama 3 8B on 8 H100 in nodes of 8: 128 rows of 8,192 tokens, bf16")
    first = distinct(plan(SMALL, cluster("H100", 8), 128))[0]
    assert re.match(rf"1=? +{first.layout} +{first.job.v} ", lines[2])
    assert sum(bool(re.match(r"\d=? +(dp|pp|cp|tp)", line)) for line in lines) == 5
    assert sum(bool(re.match(r"\d against 1: ", line)) for line in lines) == 4
    assert lines[-4].startswith("how far off: ") and all(" too " in line for line in lines[-3:]), "the nearest runs"


@pytest.mark.parametrize("model, gpus, tokens, code, told", [
    ("llama-3-70b", "64xH100", "2M", 0, r"(?s)^1= .*\n2= .*within 1 % of each other"),
    ("Llama 3 8B", "7 x h100", "1M", 0, r"\d of 7 devices, \d idle"),
    ("llama-3-405b", "8xH100", "1M", 1, "128 devices would do")])
def test_ties_idle_devices_and_what_would_fit_are_told(capsys, model, gpus, tokens, code, told):
    assert main(["--model", model, "--gpus", gpus, "--tokens", tokens]) == code
    assert re.search(told, capsys.readouterr().out, re.M)


def test_an_axis_can_be_fixed(capsys):
    _, text = answer(capsys, "--tp", "4", "--zero", "1", "--json")
    plans = json.loads(text)["plans"]
    assert plans and all(each["tp"] == 4 and each["zero_stage"] in (0, 1) for each in plans)
    assert all(each["zero_stage"] == 1 for each in plans if each["dp"] * each["cp"] > 1)


@pytest.mark.parametrize("words, name, value", [
    (("--optimizer", "adam8bit"), "optimizer", "adam8bit"), (("--offload", "optimizer"), "offload", "optimizer"),
    (("--lora-rank", "16"), "lora_rank", 16), (("--hsdp", "2"), "replicas", 2)])
def test_what_saves_memory_is_asked_for_and_told(capsys, words, name, value):
    _, text = answer(capsys, *words, "--json")
    plans = json.loads(text)["plans"]
    assert plans and all(each[name] == value for each in plans)
    code, text = answer(capsys, *words, "--top", "2")
    assert code == 0 and str(value) in text.splitlines()[2]


def test_json_has_what_the_table_has(capsys):
    found = plan(SMALL, cluster("H100", 8), 128)
    code, text = answer(capsys, "--json", "--top", "3")
    told = json.loads(text)
    assert code == 0 and told["global_batch"] == 128 and told["device"] == "H100" and told["error"]
    assert [each["layout"] for each in told["plans"]] == [str(each.layout) for each in distinct(found)[:3]]
    assert told["plans"][0]["step_s"] == found[0].step_s and told["plans"][0]["memory"] == found[0].memory
    assert [each["layout"] for each in told["nearly"]] == [str(each.layout) for each in found.nearly[:3]]


def test_why_not_is_answered_in_words_and_as_json(capsys):
    code, text = answer(capsys, "--why-not", "dp2,tp4")
    assert code == 0 and text.startswith("dp2,tp4: ")
    _, text = answer(capsys, "--why-not", "dp3,tp4", "--json")
    assert json.loads(text)["verdict"] == "cannot be built"


def test_tokens_are_counted_in_powers_of_two_and_become_rows():
    assert rows_of("2M", 8192) == 256 and rows_of("512k", 4096) == 128 and rows_of("16777216", 8192) == 2048
    for text in ("-1", "2X", "", "1000", "1.2.3M"):
        with pytest.raises(ValueError, match="--tokens"):
            rows_of(text, 8192)


def test_a_config_of_hugging_face_is_a_model(capsys, tmp_path):
    of = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
          "num_key_value_heads": 8, "intermediate_size": 14_336, "vocab_size": 128_256, "tie_word_embeddings": False,
          "max_position_embeddings": 8192}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(of))
    code = main(["--model", str(path), *ASKED[2:], "--json"])
    told = json.loads(capsys.readouterr().out)
    _, text = answer(capsys, "--json")
    assert code == 0 and told["plans"] == json.loads(text)["plans"]
    path.write_text(json.dumps(of | {"model_type": "perceptron"}))
    with pytest.raises(SystemExit) as ended:
        main(["--model", str(path), *ASKED[2:]])
    assert ended.value.code == 2 and capsys.readouterr().err.count("\n") == 1


# What it refuses

@pytest.mark.parametrize("arguments, told", [
    (["--model", "GPT-17", "--gpus", "8xH100", "--tokens", "1M"], "no model is called 'GPT-17'"),
    (["--model", "llama-3-8b", "--gpus", "8xZ80", "--tokens", "1M"], "Z80"),
    (["--model", "llama-3-8b", "--gpus", "H100", "--tokens", "1M"], "such as 64xH100"),
    (["--model", "llama-3-8b", "--gpus", "0xH100", "--tokens", "1M"], "such as 64xH100"),
    (["--model", "llama-3-8b", "--gpus", "8xH100", "--tokens", "many"], "--tokens 'many'"),
    (["--model", "no/config.json", "--gpus", "8xH100", "--tokens", "1M"], "expected a config.json"),
    ([*ASKED, "--tp", "0"], "expected a whole number of at least 1"),
    ([*ASKED, "--why-not", "xp3"], "'xp3' in the layout"),
    ([*ASKED, "--software", "Word"], "no software is called 'Word'"),
    ([*ASKED, "--json", "--megatron"], "not allowed with"),
    (["--gpus", "8xH100"], "required"),
])
def test_a_mistake_is_one_line_and_ends_with_2(capsys, arguments, told):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    text = capsys.readouterr().err
    assert ended.value.code == 2 and told in text and text.count("\n") == 1


def test_it_starts_as_a_module():
    ran = subprocess.run([sys.executable, "-m", "course_lib.planner", "--gpus", "8"], capture_output=True, text=True)
    assert ran.returncode == 2 and ran.stderr.count("\n") == 1


# Frameworks

def names(flags):
    return {re.match(r"--([\w-]+)", flag)[1] for flag in flags}


def value(flags, name):
    return next(flag for flag in flags if flag.startswith(f"--{name} ")).split(" ", 1)[1]


def test_every_flag_is_one_that_megatron_has():
    flags = set()
    for each in plan(model("Llama 3 405B"), cluster("H100", 8192), 2048)[:200]:
        flags |= names(megatron_flags(each))
    assert flags <= MEGATRON


def test_megatron_is_told_of_the_layout_as_it_is():
    layout = ParallelLayout(dp=128, pp=16, tp=8, zero_stage=1)
    of = estimate(model("Llama 3 405B"), cluster("H100", 16_384), layout, 2048, v=8, gradient_bytes=4)
    flags = megatron_flags(of)
    assert value(flags, "tensor-model-parallel-size") == "8" and value(flags, "pipeline-model-parallel-size") == "16"
    assert value(flags, "num-virtual-stages-per-pipeline-rank") == "8" and value(flags, "num-layers") == "126"
    assert {"account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split", "sequence-parallel",
            "use-distributed-optimizer"} <= names(flags), "126 layers and both ends are 128 chunks"
    assert "use-megatron-fsdp" not in names(flags) and "recompute-granularity" not in names(flags)


def test_megatron_counts_recomputed_layers_in_each_chunk():
    of = estimate(model("Llama 3 70B"), cluster("H100", 64), ParallelLayout(dp=2, pp=8, tp=4), 256, v=5,
                  recompute="full", gradient_bytes=4)
    assert value(megatron_flags(of), "recompute-method") == "uniform"
    partly = megatron_flags(estimate_job(replace(of.job, recompute_layers=5)))
    assert value(partly, "recompute-method") == "block" and value(partly, "recompute-num-layers") == "1"


def test_modules_that_are_made_again_alone_are_named():
    of = estimate(model("DeepSeek-V3"), cluster("H100", 2048), ParallelLayout(dp=2048, ep=64, zero_stage=1), 15360 * 2,
                  recompute_modules=("layernorm", "moe_act"), uneven=True)
    assert value(megatron_flags(of), "recompute-modules") == "layernorm moe_act"
    assert value(megatron_flags(of), "recompute-granularity") == "selective"


def test_layers_of_token_prediction_are_dealt_out_in_letters():
    shape = replace(SMALL.shape, num_layers=5, mtp_layers=1)
    assert chunks_in_letters(shape, 4) == "Et|tt|tt|mL"
    assert chunks_in_letters(shape, 3) == "Ett|tt|tmL"


def test_torchtitan_gets_degrees_that_multiply_to_the_devices(capsys):
    code, text = answer(capsys, "--torchtitan")
    assert code == 0
    degrees = dict(re.findall(r"config\.parallelism\.(\w+)_degree = (\d+)", text))
    assert (int(degrees["data_parallel_shard"]) * int(degrees["tensor_parallel"]) * int(degrees["pipeline_parallel"])
            * int(degrees["context_parallel"])) == 8
    assert "num_tokens_per_train_step = 1048576" in text


def test_torchtitan_refuses_what_it_does_not_have():
    of = estimate(SMALL, cluster("H100", 8), ParallelLayout(dp=8, zero_stage=1), 16)
    with pytest.raises(ValueError, match="torchtitan has no others"):
        torchtitan_lines(of)
