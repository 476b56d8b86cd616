/// @file A weight file of which the header is read and nothing else.
#pragma once

#include <trainer/sdk/weights.hpp>

#include <memory>

namespace trainer::planner {

/// Names, dtypes and shapes of `file`; `read` gives meta tensors, which are not counted: they stand for a mapped file.
std::shared_ptr<WeightSource> shapes_of(std::shared_ptr<WeightSource> file);

}  // namespace trainer::planner
