#!/usr/bin/env python3
"""Writes a FLUX.2 transformer of random parameters, the same every time, for tools/bench.

    make_model.py 100m|400m FOLDER
"""
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
from diffusers import Flux2Transformer2DModel  # noqa: E402


HEADS = {"100m": 6, "400m": 12}


def main():
    size, folder = sys.argv[1:]
    torch.manual_seed(0)
    model = Flux2Transformer2DModel(in_channels=128, num_layers=2, num_single_layers=8, attention_head_dim=128,
                                    num_attention_heads=HEADS[size], joint_attention_dim=1024, axes_dims_rope=(32, 32, 32, 32))
    for parameter in model.parameters():
        if parameter.dim() == 2:  # the deviation that keeps the size of activations, through every depth
            torch.nn.init.normal_(parameter, std=0.5 * parameter.shape[1] ** -0.5)
    model.save_pretrained(folder)


main()
