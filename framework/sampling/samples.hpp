/// @file Sample pictures of a run: drawn with the model as it is, saved one by one, and laid out as a grid.
#pragma once

#include <assembly/assemble.hpp>
#include <recipe/recipe.hpp>
#include <sampling/sample.hpp>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace trainer::sampling {

/// What to draw; conditioning per prompt.
struct SamplePlan {
  recipe::Sample settings;
  std::vector<std::string> prompts;
  std::vector<sampling::Conditioning> conditioning;  ///< one a prompt
  int64_t factor = 16;                               ///< pixels per latent cell and side
};

/// uint8 [3, H, W] pictures: [prompt][seed].
using Pictures = std::vector<std::vector<at::Tensor>>;

/// What drawing tells; either may be empty.
struct DrawWatch {
  std::function<void(int64_t done, int64_t total)> progress;  ///< after the latents of each picture
  std::function<void()> stop_if_asked;  ///< before each step of the sampler and each decoding; throws to end drawing
};

/// Draws every prompt with every seed. `decoder` is made once, used after all latents are there, and freed.
Pictures draw(assembly::LoadedModel& loaded, const SamplePlan& plan,
              const std::function<std::unique_ptr<Autoencoder>()>& decoder, const DrawWatch& watch);

/// Saves and finds the pictures of a run: RUN/samples/step-0000000800/p00-seed42.png, and beside them samples.json,
/// which says what they show.
class SampleFolder {
 public:
  explicit SampleFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}
  void save(int64_t step, const SamplePlan& plan, const Pictures& pictures) const;
  /// The pictures of a step, empty when they are not all there, with a warning when they cannot be read, or show
  /// something else than `plan`.
  [[nodiscard]] Pictures load(int64_t step, const SamplePlan& plan) const;
  /// Whether pictures of `plan` may be saved for a step: none are there, or such ones, damaged perhaps.
  [[nodiscard]] bool may_hold(int64_t step, const SamplePlan& plan) const;
  /// Deletes what a killed run left half-written there (base/unfinished.hpp). A folder that is a link is left alone.
  void remove_unfinished() const;
  [[nodiscard]] std::filesystem::path file(int64_t step, std::size_t prompt, int64_t seed) const;

 private:
  [[nodiscard]] Pictures read(int64_t step, const SamplePlan& plan) const;
  [[nodiscard]] std::filesystem::path step_folder(int64_t step) const;
  std::filesystem::path folder_;
};

/// Writes a grid: prompts as rows; columns are `columns` (title, pictures), each with all its seeds. Returns the file.
std::filesystem::path write_grid(const std::filesystem::path& file, const SamplePlan& plan,
                                 const std::vector<std::pair<std::string, Pictures>>& columns);

}  // namespace trainer::sampling
