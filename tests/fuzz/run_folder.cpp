// Bytes as the files of a run folder: "@NAME" on a line of its own begins a file. What a start reads before it trains.
#include <base/hash.hpp>
#include <checkpoint/attempts.hpp>
#include <checkpoint/committed.hpp>
#include <checkpoint/earlier.hpp>
#include <checkpoint/recovery.hpp>
#include <checkpoint/run_lock.hpp>
#include <metrics/log_file.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <string>

#include "target.hpp"
#include "temp_file.hpp"

namespace {

using namespace trainer;
namespace fs = std::filesystem;

constexpr int64_t kStep = 3;
constexpr std::array kFiles{"run.json", "attempts.json", "log.jsonl", "recipe.toml", ".lock", "lora"};

std::string read(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// The place of a file in the folder; empty for a name that stands for none.
fs::path place(const fs::path& folder, const std::string& name) {
  if (std::find(kFiles.begin(), kFiles.end(), name) != kFiles.end()) return folder / name;
  for (const int64_t step : {kStep, 2 * kStep})
    if (name == "state" + std::to_string(step))
      return folder / "ckpt" / checkpoint::step_name(step) / checkpoint::kStateName;
  return {};
}

void write(const fs::path& folder, std::string_view bytes) {
  fs::path file;
  while (!bytes.empty()) {
    const std::size_t end = std::min(bytes.find('\n'), bytes.size());
    const std::string line(bytes.substr(0, end));
    const bool broken = end < bytes.size();
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    if (line.starts_with('@')) {
      file = place(folder, line.substr(1));
      if (!file.empty()) fs::create_directories(file.parent_path());
      if (!file.empty()) std::ofstream(file, std::ios::binary | std::ios::app);
    } else if (!file.empty()) {
      std::ofstream(file, std::ios::binary | std::ios::app) << line << (broken ? "\n" : "");
    }
  }
}

/// Manifests that make checkpoints of the states, so that what is in them is read.
void seal(const fs::path& folder) {
  for (const int64_t step : {kStep, 2 * kStep}) {
    const fs::path checkpoint = folder / "ckpt" / checkpoint::step_name(step);
    if (!fs::exists(checkpoint)) continue;
    const std::string state = read(checkpoint / checkpoint::kStateName);
    std::ofstream(checkpoint / checkpoint::kTensorsName, std::ios::binary);
    std::ofstream(checkpoint / checkpoint::kManifestName, std::ios::binary) << checkpoint::manifest_text(
        {step,
         "00ff",
         {{checkpoint::kTensorsName, 0, xxh128("")}, {checkpoint::kStateName, state.size(), xxh128(state)}},
         {}});
  }
}

void check_log(const fs::path& file) {
  const std::string before = read(file);
  const metrics::LogFile log(file, kStep);
  const std::string after = read(file);
  fuzz::require(before.starts_with(after), "a log is cut, never changed");
  fuzz::require(after.empty() || after.ends_with('\n'), "it ends with a whole line");
  for (std::size_t at = 0; at < after.size(); at = after.find('\n', at) + 1) {
    const auto line = nlohmann::json::parse(after.substr(at, after.find('\n', at) - at), nullptr, false);
    if (line.is_object() && line.contains("step") && line["step"].is_number_integer())
      fuzz::require(line["step"].get<int64_t>() <= kStep, "no line is of a later step");
  }
}

void start(const fs::path& folder) {
  {  // of a run on another machine that gave signs of life and is dead
    const checkpoint::RunLock lock(folder, {.boot = "here", .beat = std::chrono::milliseconds(1), .beats = false});
    fuzz::require(checkpoint::RunLock::holder(folder).has_value(), "who holds a folder is known");
  }
  fuzz::require(read(folder / ".lock").empty(), "a run that ends leaves no holder");
  if (const auto id = checkpoint::stored_run_id(folder))
    fuzz::require(id->find('/') == std::string::npos && !id->empty(), "an id can be a part of a file name");
  checkpoint::recipe_before(folder, folder / "spare");
  try {
    const std::vector<int64_t> steps = checkpoint::steps_anywhere(folder, folder / "spare");
    checkpoint::require_committed(folder, steps);
    if (const auto noted = checkpoint::committed(folder))
      fuzz::require(!steps.empty() && steps.back() >= noted->step, "what is noted is found or told");
  } catch (const Error& error) {
    fuzz::require(error.code() == "CKPT_GONE" || error.code() == "RUN_NOTE" || error.code().empty(),
                  "only a missing checkpoint or a damaged note is refused");
  }
  try {
    checkpoint::Attempts attempts(folder, kStep);
    attempts.reached(kStep + 1);
  } catch (const Error& error) {
    fuzz::require(error.code() == "RUN_ATTEMPTS", "only too many attempts are refused");
  }
  checkpoint::note_committed(folder, "00ff", checkpoint::Committed{kStep, folder / "ckpt"});
  if (fs::exists(folder / "log.jsonl")) check_log(folder / "log.jsonl");
}

void parse(std::string_view bytes) {
  static const fuzz::TempFolder temp;
  const fs::path folder = temp.path() / "run";
  fs::remove_all(folder);
  fs::create_directories(folder);
  write(folder, bytes);
  seal(folder);
  start(folder);
}

}  // namespace
TRAINER_FUZZ_TARGET("run_folder", parse);
