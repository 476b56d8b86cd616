"""Our files in diffusers: they load without a warning or an ignored key, and compute what ours compute.

Runs in the environment of environment.py, on the results that interop_test.py made in TRAINER_INTEROP_WORK.
"""

import json
import logging
import os
import pathlib
import subprocess
import unittest
import warnings

import numpy
import torch
import diffusers
import transformers
from diffusers import Flux2Pipeline, Flux2Transformer2DModel
from peft import LoraConfig, get_peft_model_state_dict
from PIL import Image
from safetensors.torch import load_file, save_file

WORK = pathlib.Path(os.environ["TRAINER_INTEROP_WORK"])
MODEL = pathlib.Path(os.environ["TRAINER_SOURCE_ROOT"]) / "recipes/quickstart/model"
PREDICT = os.environ["TRAINER_PREDICT"]
PREFIX = "transformer."
PROMPTS, SEEDS = ("a cyanotype of a fox", "a red apple"), (0, 3)
TOLERANCE = 1e-5  # of the largest value, fp32 against fp32

torch.set_num_threads(1)
torch.set_grad_enabled(False)
diffusers.utils.logging.disable_progress_bar()
transformers.utils.logging.disable_progress_bar()


class Judge(logging.Handler):
    """Collects warnings of all libraries, however they are given."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())

    def __enter__(self):
        self.loggers = [
            logging.getLogger(name) for name in ("", "diffusers", "transformers", "peft", "huggingface_hub")
        ]
        for logger in self.loggers:
            logger.addHandler(self)
        self.catcher = warnings.catch_warnings(record=True)
        self.caught = self.catcher.__enter__()
        warnings.simplefilter("always")
        return self

    def __exit__(self, *error):
        self.messages += [str(warning.message) for warning in self.caught]
        self.catcher.__exit__(*error)
        for logger in self.loggers:
            logger.removeHandler(self)


def pipeline():
    return Flux2Pipeline.from_pretrained(MODEL, dtype=torch.float32)


def with_lora(test, file, complaints=()):
    """A pipeline with our LoRA; nothing may be ignored or complained about but what `complaints` says."""
    pipe = pipeline()
    with Judge() as judge:
        pipe.load_lora_weights(file.parent, weight_name=file.name, adapter_name="ours")
    test.assertEqual(judge.messages, list(complaints))
    return pipe


def inputs():
    """Random inputs of the transformer in our layout, two samples of 4 x 3 latent cells and 32 tokens."""
    generator = torch.Generator().manual_seed(5)
    return {
        "latents": torch.randn(2, 48, 1, 4, 3, generator=generator),
        "timestep": torch.tensor([0.9, 0.35]),
        "prompt_embeds": torch.randn(2, 32, 192, generator=generator),
        "guidance": torch.tensor([1.0, 3.5]),
    }


def theirs(transformer, given):
    """The prediction of diffusers for our inputs, in our layout."""
    batch, channels, _, height, width = given["latents"].shape
    ids = torch.cartesian_prod(torch.arange(1), torch.arange(height), torch.arange(width), torch.arange(1))
    text_ids = torch.cartesian_prod(
        torch.arange(1), torch.arange(1), torch.arange(1), torch.arange(given["prompt_embeds"].shape[1])
    )
    out = transformer(
        hidden_states=given["latents"].flatten(2).transpose(1, 2),
        timestep=given["timestep"],
        guidance=given["guidance"],
        encoder_hidden_states=given["prompt_embeds"],
        img_ids=ids.expand(batch, -1, -1),
        txt_ids=text_ids.expand(batch, -1, -1),
        return_dict=False,
    )[0]
    return out.transpose(1, 2).reshape(batch, channels, 1, height, width)


def ours(model, lora):
    save_file(inputs(), WORK / "inputs.safetensors")
    subprocess.run([PREDICT, model, lora, WORK / "inputs.safetensors", WORK / "output.safetensors"], check=True)
    return load_file(WORK / "output.safetensors")["prediction"]


def error(a, reference):
    return ((a - reference).abs().max() / reference.abs().max()).item()


class Lora(unittest.TestCase):
    def check(self, name, layers):
        file = WORK / f"{name}/lora/quickstart-20.safetensors"
        tensors = load_file(file)
        self.assertEqual(len(tensors), 2 * layers)
        pipe = with_lora(self, file)
        loaded = {
            key.replace(".ours.", "."): value for key, value in pipe.transformer.named_parameters() if ".lora_" in key
        }
        self.assertEqual(set(loaded), {key.removeprefix(PREFIX) for key in tensors})
        for key, value in tensors.items():
            self.assertTrue(torch.equal(loaded[key.removeprefix(PREFIX)], value), key)
        reference = theirs(pipe.transformer, inputs())
        found = error(ours(MODEL / "transformer", file), reference)
        print(f"{name}: error {found:.2e}", end=" ", flush=True)
        self.assertLess(found, TOLERANCE)
        pipe.transformer.disable_adapters()
        base = theirs(pipe.transformer, inputs())
        self.assertLess(error(ours(MODEL / "transformer", "none"), base), TOLERANCE)
        self.assertGreater(error(base, reference), 1e-2, "the LoRA must matter, or equality proves nothing")

    def test_default_layers(self):
        self.check("lora", 16)

    def test_alpha_that_is_not_the_rank(self):
        self.check("scaled", 2 * 2)

    def check_formats(self, name):
        """The same LoRA in three files: diffusers reads them by three of its converters."""
        file = WORK / f"{name}/lora/quickstart-20.safetensors"
        reference = theirs(with_lora(self, file).transformer, inputs())
        for kind in ("comfyui", "kohya"):
            pipe = with_lora(self, WORK / f"{name}-{kind}.safetensors")
            found = error(theirs(pipe.transformer, inputs()), reference)
            here = error(ours(MODEL / "transformer", WORK / f"{name}-{kind}.safetensors"), reference)
            print(f"{name} {kind}: diffusers {found:.2e}, ours {here:.2e}", end=" ", flush=True)
            self.assertLess(found, 1e-6)
            self.assertLess(here, TOLERANCE)

    def test_three_formats(self):
        self.check_formats("lora")

    def test_three_formats_of_few_layers(self):
        self.check_formats("scaled")

    def test_kohya_file_with_an_alpha_of_its_own(self):
        """As musubi-tuner writes it: fused qkv of one A, alpha 1, rank 8; read by diffusers and by us."""
        torch.manual_seed(2)
        width = 192
        stem = "lora_unet_double_blocks_0_img_attn_"
        tensors = {}
        for layer, rows in (("qkv", 3 * width), ("proj", width)):
            tensors[f"{stem}{layer}.lora_down.weight"] = torch.randn(8, width)
            tensors[f"{stem}{layer}.lora_up.weight"] = torch.randn(rows, 8)
            tensors[f"{stem}{layer}.alpha"] = torch.tensor(1.0)
        save_file(tensors, WORK / "musubi.safetensors")
        reference = theirs(with_lora(self, WORK / "musubi.safetensors").transformer, inputs())
        self.assertLess(error(ours(MODEL / "transformer", WORK / "musubi.safetensors"), reference), TOLERANCE)
        for kind in ("diffusers", "comfyui", "kohya"):
            subprocess.run([os.environ["TRAINER_PROGRAM"], "export", WORK / "musubi.safetensors", "--format", kind,
                            "--output", WORK / f"musubi-{kind}.safetensors"], check=True)  # fmt: skip
            pipe = with_lora(self, WORK / f"musubi-{kind}.safetensors")
            self.assertLess(error(theirs(pipe.transformer, inputs()), reference), 1e-6, kind)
        back = load_file(WORK / "musubi-kohya.safetensors")
        self.assertEqual(set(back), set(tensors))
        for key, value in tensors.items():
            self.assertTrue(torch.equal(back[key], value), key)

    def test_theirs_computes_the_same_here(self):
        """A LoRA made and saved by diffusers, with an alpha that is not its rank."""
        pipe = pipeline()
        torch.manual_seed(1)
        pipe.transformer.add_adapter(
            LoraConfig(r=4, lora_alpha=10, init_lora_weights=False, target_modules=["to_q", "linear_out"])
        )
        Flux2Pipeline.save_lora_weights(
            WORK,
            get_peft_model_state_dict(pipe.transformer),
            weight_name="theirs.safetensors",
            transformer_lora_adapter_metadata=pipe.transformer.peft_config["default"].to_dict(),
        )
        reference = theirs(pipe.transformer, inputs())
        self.assertLess(error(ours(MODEL / "transformer", WORK / "theirs.safetensors"), reference), TOLERANCE)

    def test_alphas_are_those_that_peft_takes(self):
        """Of a configuration without lora_alpha, with two patterns that fit, and with a dot that is no dot."""
        tensors = load_file(WORK / "scaled/lora/quickstart-20.safetensors")
        targets = sorted({key.removeprefix(PREFIX).rsplit(".lora_", 1)[0] for key in tensors})
        found = []
        unfit = "The following alpha_pattern keys did not match any targeted module and were ignored: ['attn_to_q']."
        for config in ({"lora_alpha": 4}, {}, {"alpha_pattern": {"to_q": 3, "attn.to_q": 20}},
                       {"alpha_pattern": {"attn.to_q": 20, "to_q": 3}},
                       {"lora_alpha": 10, "alpha_pattern": {"linear.out": 1, "attn_to_q": 50}}):  # fmt: skip
            config = {f"{PREFIX}{key}": value for key, value in {"r": 4, "target_modules": targets, **config}.items()}
            metadata = {"format": "pt", "lora_adapter_metadata": json.dumps(config)}
            save_file(tensors, WORK / "alphas.safetensors", metadata=metadata)
            complaints = [unfit] if "attn_to_q" in str(config) else []
            reference = theirs(with_lora(self, WORK / "alphas.safetensors", complaints).transformer, inputs())
            self.assertLess(error(ours(MODEL / "transformer", WORK / "alphas.safetensors"), reference), TOLERANCE, config)
            found.append(reference)
        for i, one in enumerate(found):
            for other in found[:i]:
                self.assertGreater(error(one, other), 10 * TOLERANCE, "each configuration must matter")

    def test_the_judge_notices_an_ignored_key(self):
        tensors = load_file(WORK / "scaled/lora/quickstart-20.safetensors")
        tensors = {key.replace("blocks.1.attn.to_q", "blocks.7.attn.to_q"): value for key, value in tensors.items()}
        save_file(tensors, WORK / "odd.safetensors")
        with self.assertRaises(AssertionError):
            with_lora(self, WORK / "odd.safetensors")


class FullFineTune(unittest.TestCase):
    def test_loads_strictly_and_computes_the_same(self):
        file = WORK / "full/model/quickstart-20.safetensors"
        tensors = load_file(file)
        original = load_file(next((MODEL / "transformer").glob("*.safetensors")))
        self.assertEqual(
            {key: (value.dtype, value.shape) for key, value in tensors.items()},
            {key: (value.dtype, value.shape) for key, value in original.items()},
        )
        transformer = Flux2Transformer2DModel.from_config(Flux2Transformer2DModel.load_config(MODEL / "transformer"))
        transformer.load_state_dict(tensors, strict=True)
        reference = theirs(transformer.float().eval(), inputs())
        found = error(ours(file, "none"), reference)
        print(f"full: error {found:.2e}", end=" ", flush=True)
        self.assertLess(found, TOLERANCE)
        self.assertGreater(error(ours(MODEL / "transformer", "none"), reference), 1e-2, "training must matter")


class Pictures(unittest.TestCase):
    def noise(self, seed, index):
        subprocess.run(
            [PREDICT, "noise", str(seed), str(index), "48", "4", "4", WORK / "noise.safetensors"], check=True
        )
        return load_file(WORK / "noise.safetensors")["noise"]

    def check(self, pipe, step):
        pipe.set_progress_bar_config(disable=True)
        worst = 0
        for index, prompt in enumerate(PROMPTS):
            for seed in SEEDS:
                image = pipe(
                    prompt=prompt,
                    latents=self.noise(seed, index),
                    height=64,
                    width=64,
                    num_inference_steps=20,
                    guidance_scale=3.0,
                    max_sequence_length=32,
                    text_encoder_out_layers=(2, 4, 6),
                ).images[0]
                file = WORK / f"lora/samples/step-{step:010}/p{index:02}-seed{seed}.png"
                here = numpy.asarray(Image.open(file).convert("RGB")).astype(int)
                there = numpy.asarray(image.convert("RGB")).astype(int)
                self.assertEqual(here.shape, there.shape)
                worst = max(worst, abs(here - there).max())
        print(f"step {step}: largest difference {worst} of 255", end=" ", flush=True)
        self.assertLessEqual(worst, 2)

    def test_before(self):
        self.check(pipeline(), 0)

    def test_after(self):
        self.check(with_lora(self, WORK / "lora/lora/quickstart-20.safetensors"), 20)


if __name__ == "__main__":
    unittest.main(verbosity=2)
