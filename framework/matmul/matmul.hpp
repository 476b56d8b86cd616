/// @file Which library computes fp32 matrix products on the CPU: MKL, which LibTorch takes, or the oneDNN that LibTorch
/// brings along for other dtypes. MKL uses AVX2 where the processor is not Intel's, oneDNN what the processor has.
/// Measured and why: docs/adr/0008-matrix-products-of-fp32.md.
#pragma once

#include <string>

namespace trainer::matmul {

enum class Library { mkl, onednn };

/// oneDNN on processors with AVX-512 that are not Intel's, else MKL: a function of the machine alone, so that a resume
/// on the same one takes the same library.
Library suited();
/// `mm`, `addmm` and `bmm` of dense fp32 CPU tensors go to `library` from now on, in every thread and below autograd.
/// Small products, strided views and other dtypes stay with LibTorch's choice. With oneDNN attention goes to our kernel
/// (attention.hpp). The two round differently; each gives the same bits for the same shapes and thread count. Not to be
/// called while another thread computes.
void use(Library library);
[[nodiscard]] Library used();
/// "mkl" or "onednn".
std::string name_of(Library library);

}  // namespace trainer::matmul
