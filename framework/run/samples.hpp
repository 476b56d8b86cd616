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
  /// All but `decoder`, which makes the autoencoder, borrowed. A plan without prompts: nothing is drawn.
  Samples(const recipe::Recipe& recipe, const sampling::SamplePlan& plan, Decoder decoder, RunFolder& folder,
          Stop& stop, Record& record, distributed::Group& ranks);

  /// Whether the recipe wants pictures after this step.
  [[nodiscard]] bool is_due(int64_t step) const;
  /// Draws with the weights of now. A picture that cannot be drawn is a warning, not the end of the run.
  void draw(Training& training, const std::string& title);
  /// Those of the present step, unless the folder has them: a run that was killed made no more of them.
  void draw_missing(Training& training);
  /// Those after the last step, as sample.after says; not again when the same command only makes what is missing.
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
