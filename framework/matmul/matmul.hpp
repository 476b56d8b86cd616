/// @file Who computes matrix products on the CPU. fp32: MKL, which LibTorch takes, or the oneDNN that LibTorch brings
/// along for other dtypes; MKL uses AVX2 where the processor is not Intel's, oneDNN what the processor has
/// (docs/adr/0008-matrix-products-of-fp32.md). bf16: oneDNN where the processor multiplies it, else our own panels
/// (docs/adr/0011-bf16-without-instructions.md).
#pragma once

#include <string>

namespace trainer::matmul {

enum class Library { mkl, onednn };

/// oneDNN on processors with AVX-512 that are not Intel's, else MKL: a function of the machine alone, so that a resume
/// on the same one takes the same library.
Library suited();
/// `mm`, `addmm` and `bmm` of dense fp32 CPU tensors go to `library` from now on, in every thread and below autograd.
/// Small products, strided views and other dtypes stay with LibTorch's choice. With either library attention goes
/// to our kernel (attention.hpp), and products and convolutions of bf16 go to trainer::multiply where the processor has
/// none. The two libraries round differently; each gives the same bits for the same shapes and thread count. Not to be
/// called while another thread computes.
void use(Library library);
[[nodiscard]] Library used();
/// All of LibTorch's own kernels come back, as when a process starts. For tests and benches.
void use_libtorchs();
/// Whether anything is ours: since use().
[[nodiscard]] bool in_use();
/// "mkl" or "onednn".
std::string name_of(Library library);

}  // namespace trainer::matmul
