"""Collects what tools/gpu_check needs on another machine: a folder in the shape of this repository with its build,
without LibTorch. Libraries that LibTorch and the C library do not bring lie in lib/.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ["tools/gpu_check", "tools/bench", "tools/levels.py", "tools/libtorch.txt", "tests/bench", "tests/gpu",
           "tests/e2e/small.toml", "recipes/quickstart.toml", "recipes/quickstart", "recipes/flux2_dev_one_gpu.toml", "tests/e2e/headers.py", "tests/e2e/program.py",
           "tests/data/parity/tiny-dev/model", "tests/data/parity/tiny-klein/model"]
BUILT = ["framework/cli/trainer", "framework/engine/libtrainer.so", "framework/sdk/libtrainer_sdk.so.0",
         "tests/gpu/png_sizes.so", "tests/gpu/gpu_test", "tests/equivalence/equivalence_test",
         "tests/bench/step_worker", "tests/bench/phase_worker", "tests/bench/byte_counter.so"]
KERNELS = "framework/kernels/libtrainer_cuda_kernels.so"  # made with nvcc
MAYBE = ["framework/distributed/libtrainer_nccl.so"]  # made with NCCL
PLUGINS = ["plugins", "strategies", "tests/out_of_tree/strangers"]
# Of the C and C++ libraries (a system with this glibc has as new a libstdc++), or found with LibTorch.
ELSEWHERE = re.compile(r"ld-linux|lib(c|m|dl|rt|pthread|resolv|util|stdc\+\+|gcc_s)\.so|libtorch|libc10|libtrainer|libcud|libnv|libcup|libgomp")
CARRIED = 64 << 20  # bytes of a checkout of this repository and the archive beside it, to be carried together


def copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.cpp", "*.hpp", "meson.build"))
        return
    shutil.copy(source, target)
    if shutil.which("strip") and (target.suffix in (".so", ".0") or os.access(target, os.X_OK)):
        subprocess.run(["strip", "--strip-unneeded", target], stderr=subprocess.DEVNULL)  # refuses scripts


def room(root=ROOT):
    """Bytes for an archive beside the checkout's own files."""
    try:
        listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                capture_output=True).stdout
    except OSError:
        listed = b""  # no checkout
    files = (root / os.fsdecode(name) for name in listed.split(b"\0") if name)
    return CARRIED - sum(file.stat().st_size for file in files if file.is_file())


def built_files(build, kernels):
    """Without kernels of ours nothing that a GPU computes would be ours, and the suite a test of LibTorch."""
    if kernels and not (build / KERNELS).exists():
        sys.exit(f"{build / KERNELS} is missing: without the CUDA kernels the suite says nothing about them. Get nvcc "
                 "(tools/setup --nvcc), set the build up again with it, or pack for a dry run with --without-kernels")
    for name in [*BUILT, *([KERNELS] if kernels else [])]:
        if not (build / name).exists():
            sys.exit(f"{build / name} is missing; build it first: tools/build release, or ninja -C {build}")
        yield name
    yield from (name for name in MAYBE if (build / name).exists())
    for folder in PLUGINS:
        for manifest in sorted((build / folder).rglob("*.plugin.toml")):
            yield str(manifest.relative_to(build))
            library = re.search(r'^library = "(.*)"', manifest.read_text(), re.MULTILINE)[1]
            yield str((manifest.parent / library).relative_to(build))


def libraries(build, names):
    """What the dynamic linker takes from this system for them."""
    found = {}
    for name in names:
        listed = subprocess.run(["ldd", str(build / name)], capture_output=True, text=True).stdout
        for library, path in re.findall(r"^\s*(\S+) => (/\S+)", listed, re.MULTILINE):
            if not ELSEWHERE.search(library):
                found[library] = path
    return found


def write_layout(build, images=None):
    """The program's parts lie where the folder was copied to, and its image module needs no libvips."""
    program = build / "framework/cli/trainer"
    plugins = sorted({str(file.parent) for kind in ("plugins", "strategies")
                      for file in (build / kind).rglob("*.plugin.toml")})
    lines = {"engine": "framework/engine/libtrainer.so", "images": images or "tests/gpu/png_sizes.so",
             "nccl": "framework/distributed/libtrainer_nccl.so"}
    text = "".join(f"{key} = {json.dumps(str(build / path))}\n" for key, path in lines.items())
    (program.parent / "trainer.layout.toml").write_text(text + f"plugins = {json.dumps(plugins)}\n")


def copy_pictures(pack):
    """Those whose size png_sizes.cpp tells, with their captions."""
    for file in sorted((ROOT / "recipes/quickstart/pictures").glob("*.png")):
        copy(file, pack / "pictures" / file.name)
        copy(file.with_suffix(".txt"), pack / "pictures" / file.with_suffix(".txt").name)


def fill_cache(pack, images):
    """The other machine may lack libvips: pictures and captions are encoded here, by the program as it is carried, since
    an entry's name holds the plugins' bytes. `images` is the image module that decodes."""
    build = pack / "build/release"
    program = build / "framework/cli/trainer"
    write_layout(build, images.resolve())
    command = [str(program), "cache", str(pack / "tests/e2e/small.toml"), "--set", f"cache.folder={pack / 'cache'}",
               "--set", f"data.0.folder={pack / 'pictures'}", "--set", f"run.output={pack / 'cache-run'}"]
    env = {**os.environ, "TRAINER_LIBTORCH": os.environ.get("TRAINER_LIBTORCH", str((ROOT / ".deps/libtorch").resolve())),
           "LD_LIBRARY_PATH": str(build / "framework/sdk")}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    shutil.rmtree(pack / "cache-run", ignore_errors=True)


def make(pack, build, wheels=None, kernels=True):
    """Fills the new folder `pack`, and packs it into one file beside it, which is returned."""
    if pack.exists():
        sys.exit(f"{pack} exists; name a new folder")
    names = list(built_files(build, kernels))
    for name in SOURCES:
        copy(ROOT / name, pack / name)
    for name in names:
        copy(build / name, pack / "build/release" / name)
    for library, path in libraries(build, (n for n in names if not n.endswith(".toml"))).items():
        copy(pathlib.Path(path).resolve(), pack / "lib" / library)
    copy_pictures(pack)
    fill_cache(pack, build / "framework/data/libtrainer_images.so")
    commit = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    (pack / "carried.json").write_text(json.dumps({"trainer": commit.stdout.strip()}) + "\n")
    for wheel in sorted(wheels.glob("*.whl")) if wheels else ():
        copy(wheel, pack / "wheels" / wheel.name)
    archive = pack.with_name(pack.name + ".tar.gz")
    with tarfile.open(archive, "w:gz", compresslevel=6) as file:
        file.add(pack, pack.name)
    return archive
