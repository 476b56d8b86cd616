/// @file Names a part of a training step for the profiler, as long as the object lives. Costs nothing to speak of when
/// nobody listens.
#pragma once

#include <memory>

namespace at {
struct RecordFunction;
}

namespace trainer::execution {

/// The parts that profile/step_table.hpp knows. Everything else of a step is forward, recompute or backward.
inline constexpr auto kMarkStep = "trainer::step";
inline constexpr auto kMarkData = "trainer::data";            ///< batch, noise, timesteps
inline constexpr auto kMarkRanks = "trainer::ranks";          ///< gradients averaged over processes
inline constexpr auto kMarkOptimizer = "trainer::optimizer";  ///< clipping, optimiser, EMA

class Mark {
 public:
  /// `name` must outlive the mark.
  explicit Mark(const char* name);
  ~Mark();
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

 private:
  std::unique_ptr<at::RecordFunction> function_;
};

}  // namespace trainer::execution
