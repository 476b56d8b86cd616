"""tools/bench --encoders: text encoders and the autoencoder at their published shapes with random weights, which each side
makes for itself. The vocabulary is cut to what a bench needs; a caption fills all its tokens."""
from sides import alternate, compared, start

LAYERS = 2  # that are run, of each text encoder; captions a minute are scaled to those that the program runs
# FLUX.2 takes no hidden state behind layer 27 of Qwen3-4B's 36 and 30 of Mistral's 40: the program runs none behind them.
SHAPES = {
    "qwen3": {"of": "Qwen3-4B", "layers_needed": 27,
              "config": {"model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32,
                         "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1e6}},
    "mistral": {"of": "Mistral-Small 24B", "layers_needed": 30,
                "config": {"model_type": "mistral", "hidden_size": 5120, "intermediate_size": 32768,
                           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5,
                           "rope_theta": 1e9, "sliding_window": None}},
}
COMMON = {"vocab_size": 1024, "hidden_act": "silu", "num_hidden_layers": LAYERS + 1, "max_position_embeddings": 4096}
DEFAULTS = {"pairs": 3, "warmup": 1, "dtype": "bf16", "tokens": 512, "height": 32, "width": 32}  # sides in 16 pixels
PARTS = (*SHAPES, "encode", "decode")
COLUMNS = ["part", "sides", "seconds", "in a minute", "ratio (quartiles)", "CPU ratio"]


def settings_of(options, part, dtype):
    shape = SHAPES.get(part)
    return {"part": part, "dtype": dtype, "threads": 0 if options.defaults else options.threads, "tokens": options.tokens,
            "layers": LAYERS, "config": {**COMMON, **shape["config"]} if shape else {}, "matmul": options.matmul,
            "width": 16 * options.width, "height": 16 * options.height}


def measure(options):
    """Captions against transformers; pictures in bf16 against fp32, both ours."""
    for part in options.encoders.split(","):
        if part in SHAPES:
            sides = start(options, settings_of(options, part, options.dtype), "encoder_worker", "python_encoder.py")
            about = {"shapes": SHAPES[part]["of"], "tokens": options.tokens, "layers_run": LAYERS, "dtype": options.dtype,
                     "layers_scaled_to": SHAPES[part]["layers_needed"]}
        else:
            sides = {dtype: start(options, settings_of(options, part, dtype), "encoder_worker", only="ours")["ours"]
                     for dtype in ("bf16", "fp32")}
            about = {"shapes": "the published autoencoder", "pixels": [16 * options.width, 16 * options.height]}
        result = {"part": part, **about, **compared(options, alternate(options, sides, "time"))}
        for name, side in sides.items():
            side.close()
            result[name]["in_a_minute"] = 60 / result[name]["seconds"] * LAYERS / about.get("layers_scaled_to", LAYERS)
        yield result


def line_of(r):
    names = [name for name in ("ours", "python", "bf16", "fp32") if name in r]
    both = [" / ".join(f"{r[name][key]:.{digits}f}" for name in names) for key, digits in (("seconds", 3), ("in_a_minute", 2))]
    if "layers_scaled_to" in r:
        what = f"{r['part']} {r['dtype']}, {r['tokens']} tokens"
        both[0] += f" ({r['layers_run']} layers)"
        both[1] += f" (scaled to {r['layers_scaled_to']} layers)"
    else:
        what = f"{r['part']} {r['pixels'][0]} x {r['pixels'][1]}"
    cells = [what, " / ".join(names), *both]
    if "ratio" not in r:
        return [*cells, "-", "-"]
    low, high = r["ratio"]["quartiles"]
    return [*cells, f"{r['ratio']['median']:.3f} ({low:.3f}-{high:.3f})" + ("" if r["valid"] else " INVALID"),
            f"{r['cpu_ratio']['median']:.3f}"]
