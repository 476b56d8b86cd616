"""FLUX.2-dev as files of full length that take no room on disk: real headers, no values."""

import json
import shutil
import struct

from program import MODEL, ROOT, read_header

DOUBLE, SINGLE, WIDE, HEAD, TEXT, CHANNELS, TIME = 8, 48, 6144, 128, 15360, 128, 256


def transformer():
    """The 331 tensors of FLUX.2-dev's transformer."""
    d = WIDE
    shapes = {
        "x_embedder": (d, CHANNELS),
        "context_embedder": (d, TEXT),
        "double_stream_modulation_img.linear": (6 * d, d),
        "double_stream_modulation_txt.linear": (6 * d, d),
        "single_stream_modulation.linear": (3 * d, d),
        "norm_out.linear": (2 * d, d),
        "proj_out": (CHANNELS, d),
    }
    for embedder in ("timestep_embedder", "guidance_embedder"):
        shapes[f"time_guidance_embed.{embedder}.linear_1"] = (d, TIME)
        shapes[f"time_guidance_embed.{embedder}.linear_2"] = (d, d)
    for i in range(DOUBLE):
        block = f"transformer_blocks.{i}."
        for name in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"):
            shapes[block + "attn." + name] = (d, d)
        for name in ("norm_q", "norm_k", "norm_added_q", "norm_added_k"):
            shapes[block + "attn." + name] = (HEAD,)
        for mlp in ("ff", "ff_context"):
            shapes[block + mlp + ".linear_in"] = (6 * d, d)
            shapes[block + mlp + ".linear_out"] = (d, 3 * d)
    for i in range(SINGLE):
        block = f"single_transformer_blocks.{i}.attn."
        shapes[block + "to_qkv_mlp_proj"] = (9 * d, d)
        shapes[block + "to_out"] = (d, 4 * d)
        for name in ("norm_q", "norm_k"):
            shapes[block + name] = (HEAD,)
    return {name + ".weight": shape for name, shape in shapes.items()}


MISTRAL = {
    "hidden_size": 5120,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 32768,
    "vocab_size": 131072,
}


def mistral():
    """The language model of Mistral Small 3.2 (24 B)."""
    d, q, kv, wide = MISTRAL["hidden_size"], 32 * 128, 8 * 128, MISTRAL["intermediate_size"]
    shapes = {"embed_tokens": (MISTRAL["vocab_size"], d), "norm": (d,)}
    for i in range(MISTRAL["num_hidden_layers"]):
        layer = f"layers.{i}."
        shapes |= {
            layer + "input_layernorm": (d,),
            layer + "self_attn.q_proj": (q, d),
            layer + "self_attn.k_proj": (kv, d),
            layer + "self_attn.v_proj": (kv, d),
            layer + "self_attn.o_proj": (d, q),
            layer + "post_attention_layernorm": (d,),
            layer + "mlp.gate_proj": (wide, d),
            layer + "mlp.up_proj": (wide, d),
            layer + "mlp.down_proj": (d, wide),
        }
    return {f"language_model.model.{name}.weight": shape for name, shape in shapes.items()}


def vae():
    """The miniature's autoencoder with the channels of FLUX.2's, and as many layers as the miniature has."""
    channels = {12: 32, 16: 128, 24: 64, 32: 256, 48: 128, 64: 512}
    header, _ = read_header(MODEL / "vae" / "diffusion_pytorch_model.safetensors")
    return {
        name: tuple(channels.get(side, side) for side in entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def write_sparse(path, shapes):
    """A bf16 safetensors file of full length that takes no room on disk; returns the bytes of its tensors."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2
        for side in shape:
            size *= side
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return end


def write_model(folder):
    """Transformer, text encoder and autoencoder with their configs, and the miniature's tokenizer."""
    for part in ("transformer", "text_encoder", "vae"):
        (folder / part).mkdir(parents=True)
    write_sparse(folder / "transformer" / "diffusion_pytorch_model.safetensors", transformer())
    write_sparse(folder / "text_encoder" / "model.safetensors", mistral())
    write_sparse(folder / "vae" / "diffusion_pytorch_model.safetensors", vae())
    shutil.copytree(MODEL / "tokenizer", folder / "tokenizer")
    config = json.loads((MODEL / "text_encoder" / "config.json").read_text())
    config["text_config"] |= MISTRAL
    (folder / "text_encoder" / "config.json").write_text(json.dumps(config))
    config = json.loads((MODEL / "vae" / "config.json").read_text())
    config |= {"block_out_channels": [128, 256, 512, 512], "latent_channels": 32, "norm_num_groups": 32}
    (folder / "vae" / "config.json").write_text(json.dumps(config))
    return folder


def dev_recipe(weights):
    """The recipe of FLUX.2-dev on one card with these weights; nothing else that it names is there."""
    return f"""
extends = "{ROOT}/recipes/flux2_dev_one_gpu.toml"
[model]
path = "{weights}"
[text_encoder]
path = "/nowhere"
tokenizer = "/nowhere"
[autoencoder]
path = "/nowhere"
[[data]]
folder = "/nowhere"
resolution = [1024]
"""
