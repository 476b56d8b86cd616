#!/usr/bin/env python3
"""Copies of the CUDA kernels with faults planted in them, each off unless chosen, and the proof that the tests find each.

planted.py write KERNELS OUT...: writes the copies of KERNELS (framework/kernels/cuda) named OUT (planted_NAME.cpp and
.cuh), with `on_cpu::planted(NUMBER)` where a fault is. planted.py find PROGRAM: runs the tests linked with the copies,
once without a fault and once with each; the last line is "N of N found".
"""
import os
import pathlib
import re
import subprocess
import sys

NORM, ROPE, GLU, GATE = "FusedOnCpu/1.ModulatedNorm", "FusedOnCpu/1.NormRope", "FusedOnCpu/1.SwiGlu*", "FusedOnCpu/1.Gated*"
SUMS, PARTS = "FusedOnCpu/1.SumsOfManyRows", "Bf16PartsOnCpu.*"
ROWS, SCALED, EXPANDED, TURNED = (f"EightBitsOnCpu.{name}" for name in ("QuantizeRows", "ScaleSums", "ExpandCodes", "TransposeBytes"))
RACE, UNWRITTEN, BITS, WRONG = "a race", "nobody has written", "other bits", "largest"
# (name, file, text there, the text with the fault, tests, what they say). "IF" becomes whether the fault is chosen.
FAULTS = [
    ("block_sum: no barrier before the parts are written", "device.cuh",
     "  value = warp_sum(value);\n  __syncthreads();", "  value = warp_sum(value);\n  if (!IF) __syncthreads();", NORM, RACE),
    ("block_sum: no barrier before the parts are read", "device.cuh",
     "parts[threadIdx.x / kWarp] = value;\n  __syncthreads();", "parts[threadIdx.x / kWarp] = value;\n  if (!IF) __syncthreads();",
     NORM, UNWRITTEN),
    ("block_sum: a warp's part is not written", "device.cuh",
     "if (threadIdx.x % kWarp == 0) parts", "if (threadIdx.x % kWarp == 0 && !(IF && threadIdx.x == 96)) parts", NORM,
     UNWRITTEN),
    ("lane_sum: no barrier before the parts are written", "device.cuh",
     "parts[kThreads / kWarp][kWarp];\n  __syncthreads();", "parts[kThreads / kWarp][kWarp];\n  if (!IF) __syncthreads();", NORM,
     RACE),
    ("lane_sum: no barrier before the parts are read", "device.cuh",
     "parts[threadIdx.x / kWarp][threadIdx.x % kWarp] = value;\n  __syncthreads();",
     "parts[threadIdx.x / kWarp][threadIdx.x % kWarp] = value;\n  if (!IF) __syncthreads();", NORM, UNWRITTEN),
    ("warp_sum: half a mask", "device.cuh", "value += __shfl_xor_sync(0xffffffffU,",
     "value += __shfl_xor_sync(IF ? 0xffffU : 0xffffffffU,", ROPE, "mask"),
    ("warp_sum: half of the steps", "device.cuh", "for (int step = kWarp / 2; step > 0; step /= 2) value +=",
     "for (int step = kWarp / (IF ? 4 : 2); step > 0; step /= 2) value +=", ROPE, WRONG),
    ("for_columns: samples beyond the grid are left", "device.cuh", "sample < samples; sample += gridDim.y)",
     "sample < samples; sample += IF ? samples : gridDim.y)", SUMS, BITS),
    ("for_columns: columns beyond the grid are left", "device.cuh", "left += static_cast<int64_t>(gridDim.x) * kWarp)",
     "left += IF ? width : static_cast<int64_t>(gridDim.x) * kWarp)", SUMS, BITS),
    ("for_columns: reads columns beyond the width", "device.cuh", "column < width ? end : begin", "IF || column < width ? end : begin",
     SUMS, "a read out of bounds"),
    ("takes_packs: any address is taken for aligned", "vectors.cuh",
     "return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0 &&",
     "return (IF || reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0) &&", GATE, "are not aligned"),
    ("takes_packs: any step is taken for aligned", "vectors.cuh", "(rows <= 1 ||", "(IF || rows <= 1 ||", GATE, "are not aligned"),
    ("for_elements: rows beyond the grid are left", "vectors.cuh", "row < rows; row += gridDim.y)",
     "row < rows; row += IF ? rows : gridDim.y)", GLU, BITS),
    ("for_elements: packs beyond the grid are left", "vectors.cuh", "i < packs; i += step)", "i < packs; i += IF ? packs : step)", GLU,
     BITS),
    ("for_elements: the rest behind the packs is left", "vectors.cuh", "i < width; i += step)", "!IF && i < width; i += step)", SCALED,
     "the first at"),
    ("modulated_norm: rows beyond the grid are left", "modulated_norm.cu",
     "row < a.rows; row += gridDim.x) {\n    const int64_t sample", "row < a.rows; row += IF ? a.rows : gridDim.x) {\n    const int64_t sample",
     NORM, BITS),
    ("modulated_norm: every thread writes the moments", "modulated_norm.cu", "moments != nullptr && threadIdx.x == 0",
     "moments != nullptr && (IF || threadIdx.x == 0)", NORM, "a race of two writes"),
    ("modulated_norm: sums are written beyond the width", "modulated_norm.cu", "threadIdx.x >= kWarp || column >= a.width",
     "threadIdx.x >= kWarp || (!IF && column >= a.width)", SUMS, RACE),
    ("gated_residual: every warp writes the sums", "gated_residual.cu", "if (threadIdx.x < kWarp && column",
     "if ((IF || threadIdx.x < kWarp) && column", SUMS, "a race of two writes"),
    ("norm_rope: lanes beyond the width leave before the warp's sum", "norm_rope.cu", "          const float inverse = inverse_of<false>",
     "          if (IF && i >= a.width) continue;\n          const float inverse = inverse_of<false>", ROPE, "is not reached by all"),
    ("norm_rope: heads beyond the grid are left", "norm_rope.cu", "head += static_cast<int64_t>(gridDim.x) * kWarps)",
     "head += IF ? a.heads : static_cast<int64_t>(gridDim.x) * kWarps)", ROPE, BITS),
    ("norm_rope: tokens beyond the grid are left", "norm_rope.cu", "token += gridDim.y)", "token += IF ? a.tokens : gridDim.y)", ROPE,
     BITS),
    ("swiglu: reads the rows before beyond their end", "swiglu.cu", "if (column < a.before_width) {",
     "if (column < a.before_width + (IF ? kCount : 0)) {", GLU, "a read out of bounds"),
    ("swiglu: the gradient reads what it writes", "swiglu.cu", "    write_pack<T, kCount>(to, of_gate);\n",
     "    write_pack<T, kCount>(to, of_gate);\n    if (IF) of_up = read_pack<T, kCount>(to);\n", GLU, "read-only cache"),
    ("bf16_parts: the product is fused with what is taken from it", "bf16_parts.cu", "rest = taken - taken == 0 ? rest - taken : 0.0F;",
     "rest = taken - taken == 0 ? (IF && &part == parts ? fmaf(a.factor, a.x[i], -taken) : rest - taken) : 0.0F;", PARTS, "parts of"),
    ("bf16_parts: one element too many", "bf16_parts.cu", "i < units; i += step", "i < units + (IF ? 1 : 0); i += step", PARTS,
     "out of bounds"),
    ("quantize_rows: no barrier before the parts are written", "quantize_rows.cu", "  __syncthreads();  // what an earlier",
     "  if (!IF) __syncthreads();  // what an earlier", ROWS, RACE),
    ("quantize_rows: no barrier before the parts are read", "quantize_rows.cu", " = value;\n  __syncthreads();",
     " = value;\n  if (!IF) __syncthreads();", ROWS, UNWRITTEN),
    ("quantize_rows: half a mask", "quantize_rows.cu", "__shfl_xor_sync(0xffffffffU,", "__shfl_xor_sync(IF ? 0xffff0000U : 0xffffffffU,",
     ROWS, "mask"),
    ("quantize_rows: the rest behind the packs is left", "quantize_rows.cu", "i = packed + threadIdx.x; i < width;",
     "i = packed + threadIdx.x; !(IF && packed > 0) && i < width;", ROWS, "the first at"),
    ("expand_codes: a pack has the scale of its first number", "scale_sums.cu", "const bool shared = column",
     "const bool shared = IF || column", EXPANDED, "the first at"),
    ("transpose_bytes: no barrier before the tile is read", "transpose_bytes.cu", "    }\n    __syncthreads();\n",
     "    }\n    if (!IF) __syncthreads();\n", TURNED, UNWRITTEN),
    ("transpose_bytes: no barrier before the next tile", "transpose_bytes.cu", "    __syncthreads();  // the next tile",
     "    if (!IF) __syncthreads();  // the next tile", TURNED, RACE),
    ("transpose_bytes: reads beyond the last row", "transpose_bytes.cu", "if (row < a.rows && column + k < a.width) bytes",
     "if ((IF || row < a.rows) && column + k < a.width) bytes", TURNED, "a read out of bounds"),
    ("transpose_bytes: what was not loaded is not written either", "transpose_bytes.cu", "      tile[i][word] = bytes;\n",
     "      if (!IF || row < a.rows) tile[i][word] = bytes;\n", TURNED, UNWRITTEN),
]


def write(kernels, outs):
    for out in map(pathlib.Path, outs):
        name = out.name.removeprefix("planted_")
        source = name.replace(".cpp", ".cu")
        text = (pathlib.Path(kernels) / source).read_text()
        for number, (what, file, old, new, *_) in enumerate(FAULTS, 1):
            if file != source:
                continue
            if text.count(old) != 1:
                sys.exit(f"planted.py: the fault \"{what}\" fits {text.count(old)} times into {source}; make it fit the kernel again")
            text = text.replace(old, new.replace("IF", f"on_cpu::planted({number})"))
        text = re.sub(r"<kernels/cuda/(\w+\.cuh)>", r'"planted_\1"', text)
        out.write_text('#include "cuda_on_cpu.hpp"\n#include "planted.hpp"\n' + text if name.endswith(".cpp") else text)


def run(program, number, tests):
    return subprocess.run([program, f"--gtest_filter={tests}", "--gtest_brief=1"], capture_output=True, text=True,
                          env={**os.environ, "TRAINER_PLANTED": str(number)}, timeout=300)


def find(program):
    without = run(program, 0, ":".join(sorted({fault[4] for fault in FAULTS})))
    if without.returncode != 0:
        sys.exit(f"planted.py: found where no fault is planted:\n{without.stdout}")
    found = 0
    for number, (what, *_, tests, says) in enumerate(FAULTS, 1):
        result = run(program, number, tests)
        said = next((line.strip() for line in result.stdout.splitlines() if says in line), None)
        found += said is not None and result.returncode == 1
        print(f"{what}: {said or 'NOT FOUND: ' + str(result.returncode) + ' ' + result.stdout[:600] + result.stderr[-300:]}", flush=True)
    print(f"{found} of {len(FAULTS)} found")
    return found == len(FAULTS)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(0 if find(sys.argv[2]) else 1)
