"""The program of diffusers issue 12776: FLUX.2 with LoRA on the modulation that all blocks share, every block recomputed.
Prints the second table of docs/double-backward.md: a row a way, two cells a directory of tests/data/parity.

    pytorch_flux2.py PARITY_DIR...

All double blocks read one modulation tensor, all single blocks another. The library passes the raw tensor today; the code
of before the fix, in which the modulation hands out a tuple of chunks, is put back for the rows named Tuple. The judge is
double_backward.safetensors, gradients recorded without checkpointing.
"""

import json
import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from diffusers import Flux2Transformer2DModel
from diffusers.models.transformers.transformer_flux2 import Flux2Modulation
from peft import LoraConfig
from safetensors.torch import load_file
from torch.utils.checkpoint import checkpoint

SPLIT, FORWARD = Flux2Modulation.split, Flux2Modulation.forward
INPUTS = ("hidden_states", "encoder_hidden_states", "timestep", "guidance", "img_ids", "txt_ids")


def pass_tuples(enabled):
    """The old code: the module itself returns a tuple of chunk tuples."""
    if enabled:
        Flux2Modulation.forward = lambda self, temb: SPLIT(FORWARD(self, temb), self.mod_param_sets)
        Flux2Modulation.split = staticmethod(lambda mod, _sets: mod)
    else:
        Flux2Modulation.forward, Flux2Modulation.split = FORWARD, staticmethod(SPLIT)


def worst_error(directory, use_reentrant, input_grad):
    """Of all LoRA gradients, relative to the largest value of each. `use_reentrant` None: nothing is recomputed."""
    spec = json.loads((directory / "double_backward.json").read_text())
    recorded, data = load_file(directory / "double_backward.safetensors"), load_file(directory / "dit.safetensors")
    model = Flux2Transformer2DModel.from_pretrained(directory / "model" / "transformer", local_files_only=True)
    model.requires_grad_(False)
    model.add_adapter(LoraConfig(r=spec["rank"], lora_alpha=spec["alpha"], target_modules=spec["target_modules"]))
    trained = {name.replace(".default.", "."): p for name, p in model.named_parameters() if "lora_" in name}
    with torch.no_grad():
        for name, p in trained.items():
            p.copy_(recorded[f"init.{name}"])
    if use_reentrant is not None:
        model.enable_gradient_checkpointing(
            lambda block, *args: checkpoint(block.__call__, *args, use_reentrant=use_reentrant)
        )
    data["in.hidden_states"].requires_grad_(input_grad)
    out = model(**{name: data.get(f"in.{name}") for name in INPUTS}, return_dict=False)[0]
    (out * data["cotangent"]).sum().backward()
    zero = torch.zeros(())
    errors = []
    for name, p in trained.items():
        reference = recorded[f"grad.{name}"]
        errors.append(float(((zero if p.grad is None else p.grad) - reference).abs().max() / reference.abs().max()))
    return max(errors)


def outcome(directory, use_reentrant, input_grad):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            error = worst_error(directory, use_reentrant, input_grad)
        except RuntimeError as refused:
            if "backward through the graph a second time" not in str(refused):
                raise
            return "`RuntimeError`: backward through the graph a second time"
    if error < 1e-5:
        return "within 1e-5"
    warned = any("None of the inputs have requires_grad=True" in str(one.message) for one in caught)
    return f"**wrong by {100 * error:.0f} %**, {'a' if warned else 'no'} warning"


def main():
    torch.set_num_threads(1)
    for name, tuples in (("Raw", False), ("Tuple", True)):
        pass_tuples(tuples)
        for way, use_reentrant in (("not recomputed", None), ("non-reentrant", False), ("reentrant", True)):
            cells = [outcome(Path(directory), use_reentrant, input_grad) for directory in sys.argv[1:] for input_grad in (False, True)]
            print(f"| {name}, {way} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
