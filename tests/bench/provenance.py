"""What the numbers of tools/bench hold for: the machine, the versions on both sides, the commit. Refuses sides that stand on
different versions of torch.
"""
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys

# What else may keep a library below the processor, on both sides.
HOLDING = ("TRAINER_CPU_LEVEL", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def own_torch():
    """The version of LibTorch that ours is built with."""
    pins = (ROOT / "tools/libtorch.txt").read_text().split()
    return next(pin.partition("==")[2] for pin in pins if pin.startswith("torch=="))


def versions_of(options):
    """Of the libraries on the other side. Both must stand on one torch, or the ratio is that of two versions of it."""
    if not options.python:
        return []
    wanted = ("import torch, diffusers, transformers, peft; "
              "print(*(part.__version__ for part in (torch, diffusers, transformers, peft)))")
    done = subprocess.run([options.python, "-c", wanted], capture_output=True, text=True)
    versions = done.stdout.split()
    if len(versions) != 4:
        sys.exit(f"{options.python} lacks what the bench needs (tests/interop/requirements.txt): {done.stderr.strip()[-300:]}")
    if versions[0].partition("+")[0] != own_torch():
        sys.exit(f"{options.python} has torch {versions[0]}, ours has {own_torch()}: the same version on both sides, please")
    return versions


def card_of(options):
    """Name and driver of the GPU; nothing on the CPU."""
    if options.device.startswith("cpu"):
        return ""
    words = ["nvidia-smi", "--query-gpu=name,driver_version,power.limit", "--format=csv,noheader", "-i",
             options.device.partition(":")[2] or "0"]
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=60).stdout.strip() or "unknown"
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"


def commit_of(root):
    """From git, or as it was carried (tools/gpu_check --pack), where there may be no git."""
    if (carried := root / "carried.json").exists():
        return json.loads(carried.read_text())["trainer"]
    try:
        done = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty"], capture_output=True, text=True)
        return done.stdout.strip() or "unknown"
    except OSError:
        return "unknown"


def machine(options):
    """What the numbers hold for."""
    model = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return {"command": sys.argv, "processor": model[0] if model else platform.processor(), "cores": os.cpu_count(),
            "system": platform.platform(), "trainer": commit_of(ROOT), "torch": own_torch(),
            "torch, diffusers, transformers, peft": options.versions, "device": card_of(options) or options.device,
            "level": options.level or "the processor's",
            "held back by": {name: os.environ[name] for name in HOLDING if name in os.environ},
            "date": datetime.date.today().isoformat(), "load_average": os.getloadavg()}
