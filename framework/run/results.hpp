/// @file What a run hands to its user: the trained weights as a file, and a summary at the end.
#pragma once

#include <run/record.hpp>
#include <run/run_folder.hpp>
#include <run/training.hpp>

#include <filesystem>
#include <string>

namespace trainer::run {

/// Only the writer exports and prints; on other ranks nothing happens.
class Results {
 public:
  /// All borrowed.
  Results(const recipe::Recipe& recipe, RunFolder& folder, Record& record, distributed::Group& ranks);

  /// Writes the present weights to RUN/lora/NAME-800.safetensors, averaged when the recipe averages. Throws Error
  /// as export_trained.
  void export_weights(Training& training);
  /// Does the same, unless this process trained nothing and the file is whole already.
  void export_missing(Training& training);
  /// Prints the summary, as text or JSON. `samples`, `checkpoint`: the newest; empty without one.
  void print(const Training& training, const std::filesystem::path& samples, const std::filesystem::path& checkpoint);

 private:
  void print_json(const Training& training, const std::filesystem::path& samples,
                  const std::filesystem::path& checkpoint) const;
  const recipe::Recipe& recipe_;
  RunFolder& folder_;
  Record& record_;
  distributed::Group& ranks_;
  std::filesystem::path last_;
};

/// Exports what this process trained, for when the last checkpoint has no room: the file is several times smaller.
/// Returns a line that says where it is, or nothing when it has no room either.
std::string export_at_least(Training& training, RunFolder& folder);

}  // namespace trainer::run
