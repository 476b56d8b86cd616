/// @file The folder of a run: its lock, its id, its checkpoints and the names of its results. Only the writer (rank 0)
/// locks and writes; on other ranks the calls that write do nothing.
#pragma once

#include <checkpoint/places.hpp>
#include <checkpoint/run_lock.hpp>
#include <distributed/group.hpp>
#include <plugin/manifest.hpp>
#include <recipe/recipe.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trainer::run {

/// The values of --resume and --resume-with.
struct Resume {
  std::string from = "auto";  ///< auto, never, required or a checkpoint folder
  std::string with;           ///< which side wins where they differ: "recipe", "checkpoint", or "" for neither
};

class RunFolder {
 public:
  /// Locks the folder, removes what a killed run left half-written, and compares its recipe with the one that made the
  /// folder. Throws Error: locked, bad_recipe (another recipe made it), not_found (no checkpoint to resume from).
  /// Borrows all but `resume`.
  RunFolder(const recipe::Recipe& recipe, Resume resume, const plugin::Found& found, distributed::Group& ranks);

  /// Collective. Throws Error (not_found) on a rank that does not see the writer's folder.
  void require_shared();
  /// On the writer alone. Throws Error (locked) when another process took the folder.
  void require_mine();
  [[nodiscard]] bool is_mine();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const std::string& run_id() const { return run_id_; }
  [[nodiscard]] const Resume& resume() const { return resume_; }
  /// Whether the run continues its own newest checkpoint, and not one named by --resume FOLDER.
  [[nodiscard]] bool resumes_itself() const;
  /// The checkpoints that the run may continue, the newest first; contents are not checked.
  [[nodiscard]] std::vector<std::filesystem::path> resumable() const;
  /// On the writer alone.
  checkpoint::Places& checkpoints() { return *checkpoints_; }

  /// RUN/lora/NAME-800.safetensors, or RUN/model/... of a run without adapter; makes the folder.
  [[nodiscard]] std::filesystem::path result_file(bool adapter, int64_t step) const;
  /// RUN/samples/NAME-800.png
  [[nodiscard]] std::filesystem::path grid_file(int64_t step) const;

 private:
  /// Throws Error (bad_recipe) when a checkpoint to resume from was made with another recipe.
  void require_recipe(const plugin::Found& found) const;

  const recipe::Recipe& recipe_;
  Resume resume_;
  distributed::Group& ranks_;
  std::filesystem::path path_;
  std::string run_id_;
  std::optional<checkpoint::RunLock> lock_;
  std::optional<checkpoint::Places> checkpoints_;
};

}  // namespace trainer::run
