#!/usr/bin/env python3
"""The Python side of tools/bench: the same LoRA training step with diffusers + peft + torch.optim.AdamW.

Same protocol and settings as step_worker.cpp. As fast as diffusers users can set it up, torch.compile of the blocks only
where asked for: SDPA attention, frozen base in the given dtype, fp32 LoRA (bf16 where asked for), on CUDA fp32 products in
TF32 (set_float32_matmul_precision("high")), fused AdamW, set_to_none. Checkpointing is torch.utils.checkpoint, non-reentrant; selective is create_selective_checkpoint_contexts with a policy that keeps the
same operations as ours; fp8 is a linear layer that dequantises e4m3 with one scale an output channel.
"""
import ctypes
import functools
import json
import os
import resource
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
from diffusers import Flux2Transformer2DModel  # noqa: E402
from peft import LoraConfig  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts  # noqa: E402

aten = torch.ops.aten
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
ATTENTION = (aten._scaled_dot_product_flash_attention_for_cpu.default, aten._scaled_dot_product_flash_attention.default,
             aten._scaled_dot_product_efficient_attention.default, aten._scaled_dot_product_cudnn_attention.default)
MATMULS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)
# Ours calls the products of a double block in another order; these are, in diffusers' order, the same ones as ours
# keeps: every second of its own. Single blocks have one order.
SECOND_OF_DOUBLE = {0, 2, 3, 5, 6, 8, 12, 14, 16, 19}


class DequantisedProduct(torch.autograd.Function):
    """x W^T that saves the packed weight, not the dense one."""

    @staticmethod
    def forward(ctx, x, values, scale):
        ctx.save_for_backward(values, scale)
        return torch.nn.functional.linear(x, dense(values, scale, x.dtype))

    @staticmethod
    def backward(ctx, grad):
        values, scale = ctx.saved_tensors
        return grad @ dense(values, scale, grad.dtype), None, None


def dense(values, scale, dtype):
    return values.to(dtype).mul_(scale.to(dtype))


class Fp8Linear(torch.nn.Module):
    def __init__(self, linear):
        super().__init__()
        weight = linear.weight.data.float()
        scale = weight.abs().amax(1, keepdim=True) / 448
        self.register_buffer("scale", torch.where(scale == 0, 1.0, scale))
        self.register_buffer("values", (weight / self.scale).clamp_(-448, 448).to(torch.float8_e4m3fn))

    def forward(self, x):
        return DequantisedProduct.apply(x, self.values, self.scale)


def pack(module):
    """Every frozen linear layer of the blocks, as ours: embedders, modulation and the last layer stay."""
    for name, child in module.named_children():
        if name.startswith("lora_"):
            continue
        if isinstance(child, torch.nn.Linear):
            setattr(module, name, Fp8Linear(child))
        else:
            pack(child)


def keeps(preset, double):
    counts = {False: -1, True: -1}

    def policy(context, op, *args, **kwargs):
        keep = False
        if preset == "attention":
            keep = op in ATTENTION
        elif op in MATMULS:
            counts[context.is_recompute] += 1
            index = counts[context.is_recompute]
            keep = preset == "matmul" or (index in SECOND_OF_DOUBLE if double else index % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def selective(preset):
    def run(module, *args):
        double = type(module).__name__ == "Flux2TransformerBlock"
        context = functools.partial(keeps, preset, double)
        return checkpoint(module.__call__, *args, use_reentrant=False, context_fn=context)

    return run


class HeavyOperators(TorchDispatchMode):
    """Counts those that run, with their floating-point operations."""

    def __init__(self):
        super().__init__()
        self.calls, self.flops = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in MATMULS:
            a, b = args[-2:] if "add" not in str(func) else args[1:3]
            self.calls, self.flops = self.calls + 1, self.flops + 2 * a.numel() * b.shape[-1]
        elif func in ATTENTION:
            self.calls, self.flops = self.calls + 1, self.flops + 4 * args[0].numel() * args[1].shape[2]
        return func(*args, **(kwargs or {}))


def random_model(shape, dtype, device):
    """Made on the device, as ours is (random_model.hpp)."""
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = Flux2Transformer2DModel(
            in_channels=shape["channels"], num_layers=shape["double"], num_single_layers=shape["single"],
            attention_head_dim=shape["head_dim"], num_attention_heads=shape["heads"],
            joint_attention_dim=shape["joint_dim"], axes_dims_rope=(shape["head_dim"] // 4,) * 4,
            guidance_embeds=shape["guidance"])
        for parameter in model.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=0.5 * parameter.shape[1] ** -0.5)
    torch.set_default_dtype(torch.float32)
    return model


def build(settings, dtype):
    if settings["shape"]:
        model = random_model(settings["shape"], dtype, settings["device"])
    else:
        model = Flux2Transformer2DModel.from_pretrained(settings["model"], torch_dtype=dtype, local_files_only=True)
        model.to(settings["device"])
    model.requires_grad_(False)
    if settings["device"] == "cpu":
        for tensor in list(model.parameters()) + list(model.buffers()):
            tensor.data = tensor.data.clone()  # out of the mapped file, into memory that the counter sees
    singles, rank = model.config.num_single_layers, settings["rank"]
    targets = ["to_q", "to_k", "to_v", "to_out.0", "to_qkv_mlp_proj"]
    targets += [f"single_transformer_blocks.{i}.attn.to_out" for i in range(singles)]
    model.add_adapter(LoraConfig(r=rank, lora_alpha=rank, target_modules=targets))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(DTYPES[settings["lora_dtype"]])
    if settings["fp8"]:
        pack(model.transformer_blocks)
        pack(model.single_transformer_blocks)
    if settings["checkpointing"] == "full":
        model.enable_gradient_checkpointing()
    elif settings["checkpointing"] != "none":
        model.enable_gradient_checkpointing(selective(settings["checkpointing"]))
    if settings["compile"]:
        for block in [*model.transformer_blocks, *model.single_transformer_blocks]:
            block.compile()
    return model.train()


class Step:
    def __init__(self, settings):
        torch.manual_seed(0)
        self.device, self.dtype = torch.device(settings["device"]), DTYPES[settings["dtype"]]
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        with self.device:  # only here: a default device costs a little in every call of torch's Python functions
            self.model = build(settings, self.dtype)
            self.make_samples(*(settings[key] for key in ("batch", "height", "width", "tokens")))
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)

    def make_samples(self, batch, height, width, tokens):
        one = torch.arange(1)
        self.ids = torch.cartesian_prod(one, torch.arange(height), torch.arange(width), one)
        self.text_ids = torch.cartesian_prod(one, one, one, torch.arange(tokens))
        self.latents = torch.randn(batch, height * width, self.model.config.in_channels)
        self.text = torch.randn(batch, tokens, self.model.config.joint_attention_dim).to(self.dtype)
        self.guidance = torch.ones(batch) if self.model.config.guidance_embeds else None

    def __call__(self):
        noise = torch.randn_like(self.latents)
        sigma = torch.sigmoid(torch.randn(self.latents.shape[0], device=self.device))
        s = sigma.view(-1, 1, 1)
        noisy = ((1 - s) * self.latents + s * noise).to(self.dtype)
        prediction = self.model(hidden_states=noisy, encoder_hidden_states=self.text, timestep=sigma,
                                guidance=self.guidance, img_ids=self.ids, txt_ids=self.text_ids, return_dict=False)[0]
        loss = torch.nn.functional.mse_loss(prediction.float(), noise - self.latents)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return loss.item()


def tensor_bytes(step, counter):
    """The most within a step and what is there after it; on a GPU its allocator's numbers."""
    if step.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(step.device)
        step()
        return torch.cuda.max_memory_allocated(step.device), torch.cuda.memory_allocated(step.device)
    counter.bench_take_peak_bytes()
    step()
    return counter.bench_take_peak_bytes(), counter.bench_live_bytes()


def main():
    settings = json.loads(sys.argv[1])
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    counter = ctypes.CDLL(settings["counter"]) if settings["counter"] else None
    if counter:
        counter.bench_live_bytes.restype = counter.bench_take_peak_bytes.restype = ctypes.c_int64
    step = Step(settings)
    print("ready", sum(p.numel() for p in step.model.parameters()), flush=True)
    for line in sys.stdin:
        if line.strip() == "bytes":
            print(*tensor_bytes(step, counter), flush=True)
        elif line.strip() == "ops":
            with HeavyOperators() as heavy:
                step()
            print(heavy.calls, heavy.flops, -1, -1, flush=True)
        else:
            begin, cpu = time.perf_counter(), time.process_time()
            loss = step()
            wall, used = time.perf_counter() - begin, time.process_time() - cpu
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            print(f"{wall:.6f} {used:.6f} {loss:.8f} {peak}", flush=True)


main()
