/// @file A kernel with a fault planted in it (faults.cpp): each must be found (faults_test.cpp).
#pragma once

namespace trainer::kernels::test {

enum class Planted {
  none,
  ends_before_barrier,
  lane_missing,
  shuffles_on_both_sides_of_if,
  half_a_mask,
  two_barriers,
  part_unwritten,
  no_barrier,
  barrier_of_warp_alone,
  reads_beyond,
  writes_beyond,
  blocks_write_one_place,
  reads_result_through_cache,
  pack_not_aligned,
};

/// y = the sum of the first 256 of x, in blocks of 256; returns a cudaError_t.
int start_planted(Planted fault, const float* x, float* y, int count);

}  // namespace trainer::kernels::test
