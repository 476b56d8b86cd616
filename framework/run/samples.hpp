/// @file The sample pictures of a run: when they are drawn, and where they are. How: sampling/samples.hpp.
#pragma once

#include <run/record.hpp>
#include <run/stop.hpp>
#include <run/training.hpp>
#include <sampling/samples.hpp>

#include <filesystem>
#include <functional>
#include <memory>

namespace trainer::run {

/// Only the writer draws; on other ranks nothing happens.
class Samples {
 public:
  using Decoder = std::function<std::unique_ptr<Autoencoder>()>;
  /// Borrows all but `decoder`, which makes the autoencoder. A plan without prompts draws nothing.
  Samples(const recipe::Recipe& recipe, const sampling::SamplePlan& plan, Decoder decoder, RunFolder& folder,
          Stop& stop, Record& record, distributed::Group& ranks);

  /// Whether the recipe wants pictures after this step.
  [[nodiscard]] bool is_due(int64_t step) const;
  /// Draws with the present weights. A picture that cannot be drawn is a warning, not the end of the run.
  void draw(Training& training, const std::string& title);
  /// After a resume: draws the pictures of this step when the folder lacks them, because the run was killed before.
  void draw_missing(Training& training);
  /// After the last step: draws as sample.after says. When this process trained nothing, existing pictures stay.
  void draw_last(Training& training);
  /// The newest grid; empty without one.
  [[nodiscard]] const std::filesystem::path& last() const { return last_; }

 private:
  [[nodiscard]] bool drawn(int64_t step) const;

  const recipe::Recipe& recipe_;
  const sampling::SamplePlan& plan_;
  Decoder decoder_;
  RunFolder& folder_;
  sampling::SampleFolder pictures_;
  Stop& stop_;
  Record& record_;
  distributed::Group& ranks_;
  std::filesystem::path last_;
};

}  // namespace trainer::run
