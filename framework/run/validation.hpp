/// @file When a run measures its validation loss, and where it writes it. What the loss is: validation_loss.hpp.
#pragma once

#include <run/record.hpp>
#include <run/stop.hpp>
#include <run/training.hpp>

namespace trainer::run {

class Validation {
 public:
  /// All borrowed. `held_out`: the samples; null: none, and nothing is due.
  Validation(const recipe::Recipe& recipe, execution::BatchSource* held_out, Stop& stop, Record& record,
             distributed::Group& ranks);

  /// Whether the recipe wants it after this step; the same on all ranks.
  [[nodiscard]] bool is_due(int64_t step) const;
  /// Collective. Measures it, unless the log has this step already. A signal or a failure leaves it out, with a
  /// warning.
  void measure(Training& training);

 private:
  const recipe::Recipe& recipe_;
  execution::BatchSource* held_out_;
  Stop& stop_;
  Record& record_;
  distributed::Group& ranks_;
};

}  // namespace trainer::run
