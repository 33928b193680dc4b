"""A Shape from a Hugging Face config.json, so that any model of a known architecture can be planned.

What a Shape has no place for is left out: biases of q, k and v alone, normalisation of q and k, scales of rotary
positions, the part of a model that reads images. Where dense layers alternate with experts, the dense ones come first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.facts import LatentAttention, Shape, nearest_first


@dataclass(frozen=True)
class Config:
    """What the file says, and `name`, under which errors mention it."""

    values: Mapping[str, Any]
    name: str

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number. ValueError for another value, and where there is none (null is none) and no default."""
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ValueError(f"{self.name} has no {key!r}: expected a whole number of {least} or more")
        if type(value) is not int or value < least:
            raise ValueError(f"{self.name}: {key}={value!r}: expected a whole number of {least} or more")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """The boolean under `key`. ValueError for anything else that stands there."""
        value = self.values.get(key, default)
        if type(value) is not bool:
            raise ValueError(f"{self.name}: {key}={value!r}: expected true or false")
        return value

    def entries(self, key: str) -> list[Any]:
        """The list under `key`, [] where there is none. ValueError for anything else that stands there."""
        value = self.values.get(key) or []
        if not isinstance(value, list):
            raise ValueError(f"{self.name}: {key}={value!r}: expected a list")
        return value


Sizes = dict[str, Any]  # arguments of Shape


def shape_from_config(config: str | Path | Mapping[str, Any], sequence_length: int = 0) -> Shape:
    """The Shape of a config.json: its path, the folder that it is in, or what is in it.

    sequence_length: 0 for what the model was trained with before its context was stretched, as far as the file tells;
    else the longest that it takes. ValueError, in one line, for a file that is none, an architecture that is not
    here, and a key that is missing or cannot be.

    >>> shape = shape_from_config({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12,
    ...                            "vocab_size": 50257, "n_positions": 1024})
    >>> shape.ffn_size, shape.d
    (3072, 64)
    """
    read = Config(config, "this config") if isinstance(config, Mapping) else load(Path(config))
    kind = read.values.get("model_type")
    if str(kind) not in READERS and isinstance(read.values.get("text_config"), Mapping):
        read = Config(read.values["text_config"], f"text_config of {read.name}")
        kind = read.values.get("model_type")
    if kind is None:
        raise ValueError(f"{read.name} has no 'model_type': expected one of {', '.join(READERS)}")
    if str(kind) not in READERS:
        raise ValueError(f"{read.name}: model_type={kind!r}: expected one of {', '.join(nearest_first(kind, READERS))}")
    sizes = READERS[kind](read)
    return Shape(**sizes | {"sequence_length": sequence_length or sizes["sequence_length"]}, source=read.name)


def load(path: Path) -> Config:
    """The config.json at `path`, or in the folder `path`. ValueError where it cannot be read."""
    path = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): expected a config.json") from None
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}): expected a config.json") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__}: expected the object of a config.json")
    return Config(values, str(path))


# What each architecture calls its sizes


def llama(c: Config, gated: bool = True, biases: bool = False) -> Sizes:
    """Sizes of a Llama, and of all that are built like it."""
    heads, hidden = c.whole("num_attention_heads"), c.whole("hidden_size")
    head_dim = c.whole("head_dim", 0, least=0)
    return {"num_layers": c.whole("num_hidden_layers"), "hidden_size": hidden, "num_heads": heads,
            "num_kv_heads": c.whole("num_key_value_heads", heads), "ffn_size": c.whole("intermediate_size"),
            "vocab_size": c.whole("vocab_size"), "sequence_length": trained_length(c),
            "head_dim": 0 if head_dim * heads == hidden else head_dim, "gated": gated, "biases": biases,
            "tied": c.flag("tie_word_embeddings"), **window(c)}


def trained_length(c: Config) -> int:
    """Tokens of a row in pre-training: before rotary positions were stretched for longer ones."""
    scaling = c.values.get("rope_scaling") or c.values.get("rope_parameters")
    stretched = Config(scaling, c.name) if isinstance(scaling, Mapping) else c
    longest = c.whole("max_position_embeddings")
    return stretched.whole("original_max_position_embeddings", c.whole("initial_context_length", longest))


def window(c: Config) -> Sizes:
    """The fields of a model whose layers look back at a window: all of them, or, as layer_types lists, one in so many.
    """
    width = c.whole("sliding_window", 0, least=0)
    kinds = c.entries("layer_types")
    windows = sum(kind == "sliding_attention" for kind in kinds) if kinds else c.whole("num_hidden_layers")
    unless_told = not str(c.values.get("model_type")).startswith("qwen")
    if not (width and windows and c.flag("use_sliding_window", unless_told)):
        return {}
    if (kinds and len(kinds) % windows) or "max_window_layers" in c.values and not kinds:
        raise ValueError(f"{c.name}: sliding_window={width} in some layers: expected all of them, or layer_types with "
                         "one in so many")
    return {"window": width, "window_every": len(kinds) // windows if kinds else 1}


def mixtral(c: Config) -> Sizes:
    """Sizes of a Llama with experts in every layer."""
    return llama(c) | {"num_experts": c.whole("num_local_experts"), "active_experts": c.whole("num_experts_per_tok")}


def gpt_oss(c: Config) -> Sizes:
    """Sizes of gpt-oss: a Mixtral with biases."""
    return mixtral(c) | {"biases": True}


def qwen_moe(c: Config) -> Sizes:
    """Sizes of a Qwen with experts, whose first or every other layer may have none."""
    sizes = llama(c)
    experts = {"num_experts": c.whole("num_experts"), "active_experts": c.whole("num_experts_per_tok"),
               "ffn_size": c.whole("moe_intermediate_size")}
    if shared := c.whole("shared_expert_intermediate_size", 0, least=0):
        experts |= {"shared_experts": 1, "shared_ffn": shared}
    step, plain = c.whole("decoder_sparse_step", 1), c.entries("mlp_only_layers")
    sparse = [layer for layer in range(sizes["num_layers"]) if (layer + 1) % step == 0 and layer not in plain]
    return sizes | experts | dense(sizes["num_layers"] - len(sparse), sizes["ffn_size"])


def dense(layers: int, ffn: int) -> Sizes:
    """The fields of layers without experts; {} where there are none."""
    return {"dense_layers": layers, "dense_ffn": ffn} if layers else {}


def deepseek(c: Config) -> Sizes:
    """Sizes of DeepSeek-V2, -V3 and Kimi K2: latent attention, shared experts, dense layers first."""
    sizes, ffn = llama(c), c.whole("moe_intermediate_size")
    latent = LatentAttention(c.whole("q_lora_rank", 0, least=0), c.whole("kv_lora_rank"), c.whole("qk_nope_head_dim"),
                             c.whole("qk_rope_head_dim"), c.whole("v_head_dim"))
    if (every := c.whole("moe_layer_freq", 1)) != 1:
        raise ValueError(f"{c.name}: moe_layer_freq={every}: expected 1, experts in every layer after the first ones")
    shared = c.whole("n_shared_experts", 0, least=0)
    return sizes | dense(c.whole("first_k_dense_replace", 0, least=0), sizes["ffn_size"]) | {
        "ffn_size": ffn, "head_dim": 0, "latent": latent, "num_experts": c.whole("n_routed_experts"),
        "active_experts": c.whole("num_experts_per_tok"), "shared_experts": shared, "shared_ffn": ffn if shared else 0,
        "mtp_layers": c.whole("num_nextn_predict_layers", 0, least=0)}


def llama4(c: Config) -> Sizes:
    """Its windows (attention_chunk_size) are as long as the rows that it is trained on, and are left out."""
    sizes = llama(c)
    layers, step = sizes["num_layers"], c.whole("interleave_moe_layer_step", 1)
    with_experts = len(c.entries("moe_layers")) or layers // step
    return sizes | dense(layers - with_experts, c.whole("intermediate_size_mlp")) | {
        "num_experts": c.whole("num_local_experts"), "active_experts": c.whole("num_experts_per_tok"),
        "shared_experts": 1, "shared_ffn": sizes["ffn_size"], "window": 0, "window_every": 1}


def gpt2(c: Config) -> Sizes:
    """Sizes of a GPT-2, whose config has names of its own."""
    hidden, heads = c.whole("n_embd"), c.whole("n_head")
    return {"num_layers": c.whole("n_layer"), "hidden_size": hidden, "num_heads": heads, "num_kv_heads": heads,
            "ffn_size": c.whole("n_inner", 4 * hidden), "vocab_size": c.whole("vocab_size"),
            "sequence_length": c.whole("n_positions"), "tied": c.flag("tie_word_embeddings", True), "biases": True,
            "learned_positions": True}


READERS: dict[str, Callable[[Config], Sizes]] = {
    "llama": llama, "mistral": llama, "qwen2": llama, "qwen3": llama, "phi3": llama, "olmo2": llama,
    "mixtral": mixtral, "qwen2_moe": qwen_moe, "qwen3_moe": qwen_moe,
    "deepseek_v2": deepseek, "deepseek_v3": deepseek, "kimi_k2": deepseek,
    "gpt_oss": gpt_oss, "llama4_text": llama4, "gpt2": gpt2,
    "gpt_neox": lambda c: llama(c, gated=False, biases=True),
    "nemotron": lambda c: llama(c, gated=False),
}
