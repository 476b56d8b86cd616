"""Trains the quickstart's miniature for a few steps, then lets diffusers judge the files (compare.py). Before that, the
recorded verdicts of the `safetensors` package on our corpus are made again and compared.

TRAINER_PROGRAM is the program, TRAINER_PREDICT our side of the comparison, TRAINER_CORPUS writes the corpus,
TRAINER_SOURCE_ROOT is the source tree.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

from environment import interop_python

ROOT = pathlib.Path(os.environ["TRAINER_SOURCE_ROOT"])
QUICKSTART = ROOT / "recipes/quickstart.toml"
STEPS = 20


def train(recipe, folder, **more):
    settings = {
        "run.output": folder,
        "run.steps": STEPS,
        "checkpoint.every": 0,
        "metrics.tensorboard": "false",
        "cache.folder": folder.parent / "cache",
        **more,
    }
    arguments = [argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]
    print(f"training {folder.name}", flush=True)
    subprocess.run(
        [os.environ["TRAINER_PROGRAM"], "run", "--quiet", recipe, *arguments], check=True, stdout=subprocess.DEVNULL
    )


def without_adapter(folder):
    """The quickstart as a full fine-tune."""
    text = re.sub(r"\[adapter\]\n(?:[^\[].*\n|\n)*", "", QUICKSTART.read_text())
    recipe = folder / "full.toml"
    recipe.write_text(text.replace('"quickstart/', f'"{QUICKSTART.parent}/quickstart/'))
    return recipe


def main():
    python = interop_python()
    verdicts = ROOT / "tests/data/safetensors/make_verdicts.py"
    subprocess.run([python, verdicts, os.environ["TRAINER_CORPUS"], "--check"], check=True)
    with tempfile.TemporaryDirectory(prefix="trainer-interop-") as name:
        work = pathlib.Path(name)
        train(
            QUICKSTART,
            work / "lora",
            **{"sample.prompts": '["a cyanotype of a fox", "a red apple"]', "sample.seeds": "[0, 3]"},
        )
        # alpha is not the rank, B starts at zero, few layers: what the file must carry by itself
        train(
            QUICKSTART,
            work / "scaled",
            **{
                "sample.prompts": "[]",
                "adapter.rank": 4,
                "adapter.alpha": 10,
                "adapter.init": "kaiming",
                "adapter.targets": '["transformer_blocks.*.attn.to_q", "transformer_blocks.*.ff.linear_out"]',
            },
        )
        train(
            without_adapter(work),
            work / "full",
            **{"sample.prompts": "[]", "train.batch_size": 2, "train.micro_batch_size": 2, "optimizer.lr": 1e-4},
        )
        for run in ("lora", "scaled"):
            for kind in ("comfyui", "kohya"):
                source, output = work / f"{run}/lora/quickstart-{STEPS}.safetensors", work / f"{run}-{kind}.safetensors"
                arguments = ["export", source, "--format", kind, "--output", output]
                subprocess.run([os.environ["TRAINER_PROGRAM"], *arguments], check=True, stdout=subprocess.DEVNULL)
        environment = {**os.environ, "TRAINER_INTEROP_WORK": name, "HF_HUB_OFFLINE": "1"}
        compare = pathlib.Path(__file__).with_name("compare.py")
        return subprocess.run([python, compare], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
