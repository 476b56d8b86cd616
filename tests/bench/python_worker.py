#!/usr/bin/env python3
"""The Python side of tools/bench_step: the same LoRA training step with diffusers + peft + torch.optim.AdamW.

Same protocol and arguments as step_worker.cpp. As fast as diffusers users can set it up without torch.compile: SDPA
attention, frozen base in the given dtype, fp32 LoRA, foreach AdamW, set_to_none.
"""
import os
import resource
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
from diffusers import Flux2Transformer2DModel  # noqa: E402
from peft import LoraConfig  # noqa: E402


def main():
    folder, dtype, checkpointing, batch, side, tokens, rank, threads = sys.argv[1:9]
    batch, side, tokens, rank = int(batch), int(side), int(tokens), int(rank)
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    model = Flux2Transformer2DModel.from_pretrained(folder, torch_dtype=torch_dtype, local_files_only=True)
    parameters = sum(p.numel() for p in model.parameters())
    model.requires_grad_(False)
    singles = model.config.num_single_layers
    targets = ["to_q", "to_k", "to_v", "to_out.0", "to_qkv_mlp_proj"]
    targets += [f"single_transformer_blocks.{i}.attn.to_out" for i in range(singles)]
    model.add_adapter(LoraConfig(r=rank, lora_alpha=rank, target_modules=targets))
    trained = [p for p in model.parameters() if p.requires_grad]
    for p in trained:
        p.data = p.data.float()
    if checkpointing == "on":
        model.enable_gradient_checkpointing()
    model.train()
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    channels = model.config.in_channels
    ids = torch.cartesian_prod(torch.arange(1), torch.arange(side), torch.arange(side), torch.arange(1))
    text_ids = torch.cartesian_prod(torch.arange(1), torch.arange(1), torch.arange(1), torch.arange(tokens))
    latents = torch.randn(batch, side * side, channels)
    text = torch.randn(batch, tokens, model.config.joint_attention_dim).to(torch_dtype)
    guidance = torch.ones(batch) if model.config.guidance_embeds else None
    print("ready", parameters, flush=True)
    for _ in sys.stdin:
        begin, cpu = time.perf_counter(), time.process_time()
        noise = torch.randn_like(latents)
        sigma = torch.sigmoid(torch.randn(batch))
        s = sigma.view(-1, 1, 1)
        noisy = ((1 - s) * latents + s * noise).to(torch_dtype)
        prediction = model(hidden_states=noisy, encoder_hidden_states=text, timestep=sigma, guidance=guidance,
                           img_ids=ids, txt_ids=text_ids, return_dict=False)[0]
        loss = torch.nn.functional.mse_loss(prediction.float(), noise - latents)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        wall, used = time.perf_counter() - begin, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(f"{wall:.6f} {used:.6f} {value:.8f} {peak}", flush=True)


main()
