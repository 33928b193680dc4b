"""A model's config.json becomes the Shape that facts has of it; what it lacks is named in one line."""

import json
from dataclasses import replace

import pytest

from course_lib.costs.flops import count_parameters
from course_lib.facts import model
from course_lib.planner.frameworks import shape_from_config

LLAMA_3_8B = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
              "num_key_value_heads": 8, "intermediate_size": 14_336, "vocab_size": 128_256,
              "max_position_embeddings": 8192, "tie_word_embeddings": False}
DEEPSEEK_V3 = {"model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
               "num_key_value_heads": 128, "intermediate_size": 18_432, "moe_intermediate_size": 2048,
               "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3,
               "moe_layer_freq": 1, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "kv_lora_rank": 512,
               "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129_280,
               "max_position_embeddings": 163_840,
               "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}}
QWEN3_8B = LLAMA_3_8B | {"model_type": "qwen3", "num_hidden_layers": 36, "intermediate_size": 12_288, "head_dim": 128,
                         "vocab_size": 151_936, "max_position_embeddings": 40_960, "use_sliding_window": False,
                         "sliding_window": None, "max_window_layers": 36}
QWEN3_30B = QWEN3_8B | {"model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048,
                        "num_key_value_heads": 4, "intermediate_size": 6144, "moe_intermediate_size": 768,
                        "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": []}
GPT_OSS_20B = {"model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "num_attention_heads": 64,
               "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "vocab_size": 201_088,
               "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
               "layer_types": 12 * ["sliding_attention", "full_attention"], "max_position_embeddings": 131_072,
               "initial_context_length": 4096}
MAVERICK = {"model_type": "llama4", "vision_config": {"hidden_size": 1408}, "text_config": {
    "model_type": "llama4_text", "num_hidden_layers": 48, "hidden_size": 5120, "num_attention_heads": 40,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16_384,
    "num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "vocab_size": 202_048,
    "attention_chunk_size": 8192, "max_position_embeddings": 8192}}
KNOWN = {
    "Llama 3 8B": LLAMA_3_8B,
    "Mixtral 8x22B": LLAMA_3_8B | {
        "model_type": "mixtral", "num_hidden_layers": 56, "hidden_size": 6144, "num_attention_heads": 48,
        "intermediate_size": 16_384, "vocab_size": 32_000, "num_local_experts": 8, "num_experts_per_tok": 2,
        "sliding_window": None, "max_position_embeddings": 65_536},
    "Qwen3-8B": QWEN3_8B,
    "Qwen3-0.6B": QWEN3_8B | {"num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16,
                              "intermediate_size": 3072, "tie_word_embeddings": True},
    "Qwen3-30B-A3B": QWEN3_30B,
    "DeepSeek-V3": DEEPSEEK_V3,
    "DeepSeek-V2": DEEPSEEK_V3 | {
        "model_type": "deepseek_v2", "num_hidden_layers": 60, "hidden_size": 5120, "intermediate_size": 12_288,
        "moe_intermediate_size": 1536, "n_routed_experts": 160, "num_experts_per_tok": 6, "n_shared_experts": 2,
        "first_k_dense_replace": 1, "num_nextn_predict_layers": 0, "vocab_size": 102_400},
    "Kimi K2": DEEPSEEK_V3 | {
        "model_type": "kimi_k2", "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384,
        "first_k_dense_replace": 1, "num_nextn_predict_layers": 0, "vocab_size": 163_840},
    "gpt-oss-20b": GPT_OSS_20B,
    "Llama 4 Maverick": MAVERICK,
    "Nemotron-4 340B": LLAMA_3_8B | {
        "model_type": "nemotron", "num_hidden_layers": 96, "hidden_size": 18_432, "num_attention_heads": 96,
        "intermediate_size": 73_728, "vocab_size": 256_000, "max_position_embeddings": 4096},
    "GPT-2": {"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25, "n_inner": None, "vocab_size": 50_257,
              "n_positions": 1024},
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_published_config_is_the_shape_that_facts_has(name):
    known = model(name).shape
    found = shape_from_config(KNOWN[name], known.sequence_length)
    same_head = known.head_dim if found.head_dim == 0 and found.latent is None else found.head_dim
    assert replace(found, head_dim=same_head, source=known.source, date=known.date) == known


@pytest.mark.parametrize("config, facts", [
    (DEEPSEEK_V3, {"sequence_length": 4096}), (GPT_OSS_20B, {"sequence_length": 4096}),  # before it was stretched
    (QWEN3_8B, {"sequence_length": 40_960}),
    (LLAMA_3_8B | {"model_type": "mistral", "sliding_window": 4096}, {"window": 4096, "window_every": 1}),
    (LLAMA_3_8B | {"model_type": "qwen2", "sliding_window": 32_768}, {"window": 0}),
    (QWEN3_30B | {"decoder_sparse_step": 2, "mlp_only_layers": [1, 3]}, {"dense_layers": 26, "dense_ffn": 6144}),
    (QWEN3_30B | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 5632},
     {"shared_experts": 1, "shared_ffn": 5632})])
def test_rows_windows_and_layers_that_are_dense_among_experts_are_those_of_the_config(config, facts):
    shape = shape_from_config(config)
    assert {name: getattr(shape, name) for name in facts} == facts
    assert shape_from_config(config, 512).sequence_length == 512


def test_gpt_neox_20b_has_as_many_parameters_as_its_authors_count_read_from_a_file_and_its_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "gpt_neox", "num_hidden_layers": 44, "hidden_size": 6144, "num_attention_heads": 64,
        "intermediate_size": 24_576, "vocab_size": 50_432, "max_position_embeddings": 2048}), encoding="utf-8")
    shape = shape_from_config(tmp_path / "config.json")
    assert count_parameters(shape) == 20_554_567_680
    assert shape == shape_from_config(str(tmp_path)) and shape.source.endswith("config.json")


def without(config: dict, key: str) -> dict:
    return {name: value for name, value in config.items() if name != key}


@pytest.mark.parametrize("config, told", [
    (without(LLAMA_3_8B, "num_hidden_layers"), "this config has no 'num_hidden_layers': expected a whole number of 1"),
    (without(DEEPSEEK_V3, "kv_lora_rank"), "this config has no 'kv_lora_rank'"),
    (without(LLAMA_3_8B, "model_type"), "this config has no 'model_type': expected one of llama, mistral"),
    (LLAMA_3_8B | {"model_type": "qwen3_next"}, "model_type='qwen3_next': expected one of qwen3"),
    (LLAMA_3_8B | {"model_type": "nemotron_h"}, "model_type='nemotron_h': expected one of nemotron, "),
    (LLAMA_3_8B | {"vocab_size": "128256"}, "vocab_size='128256': expected a whole number"),
    (LLAMA_3_8B | {"hidden_size": 0}, "hidden_size=0: expected a whole number of 1 or more"),
    (LLAMA_3_8B | {"num_key_value_heads": 5}, "num_heads=32, num_kv_heads=5: expected a multiple"),
    (LLAMA_3_8B | {"tie_word_embeddings": "no"}, "tie_word_embeddings='no': expected true or false"),
    (DEEPSEEK_V3 | {"moe_layer_freq": 2}, "moe_layer_freq=2: expected 1"),
    (MAVERICK | {"text_config": without(MAVERICK["text_config"], "num_local_experts")},
     "text_config of this config has no 'num_local_experts'"),
    (LLAMA_3_8B | {"model_type": ["llama"]}, "model_type=['llama']: expected one of llama"),
    (LLAMA_3_8B | {"layer_types": "all"}, "layer_types='all': expected a list"),
    (GPT_OSS_20B | {"layer_types": 8 * ["sliding_attention", "sliding_attention", "full_attention"]},
     "sliding_window=128 in some layers: expected all of them, or layer_types"),
    ({}, "this config has no 'model_type'"),
    (None, "cannot be read (No such file or directory): expected a config.json"),
    ("{", "is no JSON"), ("[1]", "holds a list: expected the object of a config.json"),  # what a file holds
])
def test_what_is_missing_or_unknown_is_named_in_one_line(config, told, tmp_path):
    path = tmp_path / "my.json"
    if isinstance(config, str):
        path.write_text(config, encoding="utf-8")
    with pytest.raises(ValueError) as error:
        shape_from_config(config if isinstance(config, dict) else path)
    assert told in str(error.value) and "\n" not in str(error.value)
    assert isinstance(config, dict) or str(path) in str(error.value)
