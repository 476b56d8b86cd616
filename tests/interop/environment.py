"""The Python with diffusers, transformers and peft that tests/interop compares with.

TRAINER_INTEROP_PYTHON names an existing one. Otherwise a virtual environment is made once, in the user's cache, named
after requirements.txt; torch comes from PyTorch's index for the CPU (0.2 GB), or from the package index with its CUDA
libraries (3 GB) where that index cannot be reached.
"""

import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import venv

REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def cache_folder():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "trainer"


def pip(folder, *arguments, check=True):
    command = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=check, stdin=subprocess.DEVNULL).returncode == 0


def make(folder):
    lines = [line.split("#")[0].strip() for line in REQUIREMENTS.read_text().splitlines()]
    torch = [line for line in lines if line.startswith("torch")]
    print(f"making {folder}", file=sys.stderr)
    venv.create(folder, with_pip=True)
    # Everything but torch's CUDA libraries is pinned, so that two environments of one name are the same.
    if not pip(folder, "--no-deps", "--retries", "0", "--index-url", CPU_INDEX, *torch, check=False):
        pip(folder, *torch)
    pip(folder, "--no-deps", *[line for line in lines if line and line not in torch])


def interop_python():
    """The path of the Python, made first if need be. Interrupted, it is made anew the next time."""
    if chosen := os.environ.get("TRAINER_INTEROP_PYTHON"):
        return chosen
    name = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = cache_folder() / f"interop-venv-{name}"
    complete = folder / "complete"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            complete.touch()
    return str(folder / "bin/python")
