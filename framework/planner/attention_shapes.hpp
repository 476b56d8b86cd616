/// @file Shape kernels of the fused attention.
#pragma once

namespace torch {
class Library;
}

namespace trainer::planner {

/// `library` implements "aten" for no dispatch key of its own.
void add_attention_shapes(torch::Library& library);

}  // namespace trainer::planner
