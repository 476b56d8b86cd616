#!/usr/bin/env python3
"""The Python side of tools/bench --encoders: a caption through the decoder layers with transformers. Same protocol and
settings as encoder_worker.cpp; as diffusers' pipelines call it, but without the head for the next token and with no layer
that ours does not run.
"""
import json
import os
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
import transformers  # noqa: E402

CLASSES = {"qwen3": (transformers.Qwen3Config, transformers.Qwen3Model),
           "mistral": (transformers.MistralConfig, transformers.MistralModel)}


def build(settings):
    make_config, make_model = CLASSES[settings["part"]]
    config = make_config(**{**settings["config"], "num_hidden_layers": settings["layers"]})
    with torch.device("meta"):
        model = make_model(config)
    model = model.to({"bf16": torch.bfloat16, "fp32": torch.float32}[settings["dtype"]]).to_empty(device="cpu")
    block = torch.randn(1 << 20)  # normal numbers over and over: making 1e9 takes longer than what is measured
    for parameter in model.parameters():
        values = block.repeat(parameter.numel() // block.numel() + 1)[: parameter.numel()]
        parameter.data.copy_(values.view(parameter.shape) * 0.5 * parameter.shape[-1] ** -0.5)
    model.rotary_emb = type(model.rotary_emb)(config=config)  # its buffers are of no file
    return model.eval()


@torch.no_grad()
def main():
    settings = json.loads(sys.argv[1])
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    model = build(settings)
    ids = torch.randint(model.config.vocab_size, (1, settings["tokens"]))
    mask = torch.ones_like(ids)
    print("ready", sum(p.numel() for p in model.parameters()), flush=True)
    for _ in sys.stdin:
        begin, cpu = time.perf_counter(), time.process_time()
        states = model(input_ids=ids, attention_mask=mask, output_hidden_states=True, use_cache=False).hidden_states
        torch.cat(states[1:], -1)
        print(f"{time.perf_counter() - begin:.6f} {time.process_time() - cpu:.6f}", flush=True)


main()
