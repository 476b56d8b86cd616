#!/usr/bin/env python3
"""The Python side of tools/bench --phases: the parts of a run besides its training step, with diffusers, transformers
and peft. Same protocol and settings as phase_worker.cpp. Each part as these libraries are meant to be used: all captions
in one call of the encoder, the pictures in one of the autoencoder, files in safetensors, and on disk before the clock
stops, as ours are.
"""
import json
import os
import pathlib
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
import diffusers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from diffusers import AutoencoderKLFlux2, Flux2Pipeline, Flux2Transformer2DModel  # noqa: E402
from diffusers.image_processor import VaeImageProcessor  # noqa: E402
from peft import LoraConfig  # noqa: E402
from peft.utils import get_peft_model_state_dict  # noqa: E402
from PIL import Image  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

diffusers.utils.logging.set_verbosity_error()
diffusers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def to_disk(*files):
    for file in files:
        with open(file, "rb+") as handle:
            os.fsync(handle.fileno())


class Phases:
    def __init__(self, settings):
        self.settings = settings
        self.device = torch.device(settings["device"])
        self.model = pathlib.Path(settings["model"])
        self.folder = pathlib.Path(settings["folder"])
        self.folder.mkdir(parents=True, exist_ok=True)
        self.captions_ = pathlib.Path(settings["captions"]).read_text().splitlines()
        self.transformer = self.load()
        trained = [parameter for parameter in self.transformer.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-4)
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.pipe = Flux2Pipeline.from_pretrained(self.model, transformer=self.transformer, dtype=torch.float32).to(self.device)
        self.pipe.set_progress_bar_config(disable=True)
        self.prompt, _ = self.encode([settings["prompt"]], self.pipe)

    def encode(self, texts, pipe):
        return pipe.encode_prompt(texts, device=self.device, max_sequence_length=self.settings["tokens"],
                                  text_encoder_out_layers=tuple(self.settings["layers"]))

    def load(self):
        transformer = Flux2Transformer2DModel.from_pretrained(self.model / "transformer", local_files_only=True)
        transformer.requires_grad_(False)
        for tensor in list(transformer.parameters()) + list(transformer.buffers()):
            tensor.data = tensor.data.to(self.device, copy=True)  # out of the mapped file, as ours
        targets = ["to_q", "to_k", "to_v", "to_out.0", "to_qkv_mlp_proj"]
        targets += [f"single_transformer_blocks.{i}.attn.to_out" for i in range(transformer.config.num_single_layers)]
        transformer.add_adapter(LoraConfig(r=16, lora_alpha=16, target_modules=targets))
        return transformer.to(self.device)

    @torch.no_grad()
    def captions(self):
        pipe = Flux2Pipeline.from_pretrained(self.model, transformer=None, vae=None, dtype=torch.float32).to(self.device)
        embeds, _ = self.encode(self.captions_, pipe)
        for index, embed in enumerate(embeds):
            file = self.folder / f"text-{index}.safetensors"
            save_file({"prompt_embeds": embed.cpu().contiguous()}, file)
            to_disk(file)

    @torch.no_grad()
    def pictures(self):
        vae = AutoencoderKLFlux2.from_pretrained(self.model / "vae", local_files_only=True).to(self.device)
        processor = VaeImageProcessor(vae_scale_factor=16)
        files = sorted(file for file in pathlib.Path(self.settings["pictures"]).iterdir() if file.suffix in (".png", ".jpg"))
        width, height = self.settings["resolution"]
        pixels = torch.cat([processor.preprocess(Image.open(file).convert("RGB"), height, width) for file in files])
        latents = Flux2Pipeline._patchify_latents(vae.encode(pixels.to(self.device)).latent_dist.mode())
        mean = vae.bn.running_mean.view(1, -1, 1, 1)
        deviation = torch.sqrt(vae.bn.running_var.view(1, -1, 1, 1) + vae.config.batch_norm_eps)
        for index, latent in enumerate((latents - mean) / deviation):
            file = self.folder / f"latents-{index}.safetensors"
            save_file({"latents": latent.cpu().contiguous()}, file)
            to_disk(file)

    @torch.no_grad()
    def sample(self):
        width, height = self.settings["size"]
        self.pipe(prompt_embeds=self.prompt, width=width, height=height, num_inference_steps=self.settings["steps"],
                  guidance_scale=self.settings["guidance"], output_type="np")

    def save(self):
        Flux2Pipeline.save_lora_weights(self.folder, get_peft_model_state_dict(self.transformer))
        torch.save({"optimizer": self.optimizer.state_dict(), "lora": get_peft_model_state_dict(self.transformer)},
                   self.folder / "state.pt")
        to_disk(self.folder / "pytorch_lora_weights.safetensors", self.folder / "state.pt")


def main():
    settings = json.loads(sys.argv[1])
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    phases = Phases(settings)
    print("ready 0", flush=True)
    for line in sys.stdin:
        begin, cpu = time.perf_counter(), time.process_time()
        getattr(phases, line.strip())()
        if phases.device.type == "cuda":
            torch.cuda.synchronize(phases.device)
        print(f"{time.perf_counter() - begin:.6f} {time.process_time() - cpu:.6f}", flush=True)


main()
