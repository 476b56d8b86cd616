/// @file How a step's samples are shared out among ranks. Free of LibTorch.
#pragma once

#include <cstdint>

namespace trainer::distributed {

/// What one rank does of every step: samples [rank * n, (rank + 1) * n) of the batch with n = batch_size / ranks, in
/// micro-batches of one size, so that the mean over ranks of means over micro-batches is the mean over the batch.
struct Share {
  int64_t micro_batch_size = 1;
  int64_t micro_batches = 1;      ///< of this rank
  int64_t first_micro_batch = 0;  ///< among those of all ranks
  int64_t all_micro_batches = 1;  ///< of all ranks
};

/// Micro-batches are of `micro_batch_size` samples where that divides the rank's samples, else of the largest number
/// below that does. `micro_batch_size` divides `batch_size`. Throws Error (bad_recipe) when the ranks do not divide the
/// batch.
Share share_of(int64_t batch_size, int64_t micro_batch_size, int rank, int ranks);

}  // namespace trainer::distributed
