#!/usr/bin/env python3
"""Kernels that promise bits have no product in their PTX that a driver may fuse with a sum: ptx_test.py NVCC FOLDER.

The library carries PTX for GPUs newer than its machine code. There `mul.f32` may become one operation with the `add.f32`
or `sub.f32` that uses it, which rounds once instead of twice; `mul.rn.f32` (__fmul_rn) may not.
"""
import pathlib
import re
import subprocess
import sys

PROMISE_BITS = ("bf16_parts", "quantize_rows", "scale_sums")


def fusible(ptx):
    """Lines that add or take away what a product without .rn left in a register, and lines fused already."""
    lines = ptx.splitlines()
    products = set()
    for line in lines:
        if match := re.match(r"\s*mul\.f32\s+(%f\d+),", line):
            products.add(match[1])
        elif re.match(r"\s*\.?(visible )?\.entry", line):
            products.clear()
        elif re.match(r"\s*fma\.", line):
            yield line.strip()
        elif re.match(r"\s*(add|sub)\.f32\s", line) and products & set(re.findall(r"%f\d+", line.split(",", 1)[1])):
            yield line.strip()


def main():
    nvcc, framework = sys.argv[1], pathlib.Path(sys.argv[2])
    found = 0
    for kernel in PROMISE_BITS:
        source = framework / "kernels/cuda" / f"{kernel}.cu"
        ptx = subprocess.run([nvcc, "-std=c++20", "-O3", "-arch=compute_120", "-ptx", f"-I{framework}", "-o", "-", source],
                             capture_output=True, text=True, check=True).stdout
        assert ".entry" in ptx, f"no kernel in the PTX of {source}"
        for line in fusible(ptx):
            print(f"{source}: a driver may fuse \"{line}\" with the product before it: write that one with __fmul_rn")
            found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
