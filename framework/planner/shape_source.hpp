/// @file A weight file of which the header is read and nothing else.
#pragma once

#include <trainer/sdk/weights.hpp>

#include <memory>

namespace trainer::planner {

/// Names, dtypes and shapes of `file`; `read` gives tensors on `host`, the dry device that stands for the host's
/// memory. As with real files, small ones are copies and counted, large ones are mapped and not
/// (weights/tensor_file.hpp). Installs the byte counter.
std::shared_ptr<WeightSource> shapes_of(std::shared_ptr<WeightSource> file, at::Device host = {at::kMeta, 0});

}  // namespace trainer::planner
