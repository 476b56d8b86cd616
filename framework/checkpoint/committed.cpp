#include <base/entries.hpp>
#include <base/files.hpp>
#include <base/json_depth.hpp>
#include <checkpoint/committed.hpp>
#include <checkpoint/earlier.hpp>
#include <checkpoint/recovery.hpp>
#include <nlohmann/json.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t kNoteLimit = std::size_t{1} << 20;
constexpr uint64_t kRoom = uint64_t{1} << 15;  ///< more than run.json and its temporary copy take
constexpr const char* kKey = "newest_checkpoint";

fs::path note_file(const fs::path& run_folder) { return run_folder / "run.json"; }

/// run.json; an empty object when there is none or it is damaged, which is told where its id is read.
Json read_note(const fs::path& run_folder) {
  if (type_of(note_file(run_folder)) == fs::file_type::not_found) return Json::object();
  const std::string text = read_file(note_file(run_folder), kNoteLimit, "run.json");
  if (nests_deeply(text)) return Json::object();
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json::object();
}

/// Whether a checkpoint was found damaged and renamed, which was told then. Also in the run's folder: an earlier
/// version noted where that was before it was moved or copied.
bool set_aside(const fs::path& run_folder, const Committed& noted) {
  const std::string bad = step_name(noted.step) + ".bad";
  for (const fs::path& root : {noted.folder.parent_path(), run_folder / "ckpt"})
    for (const std::string& name : names_in(root))
      if (name.starts_with(bad)) return true;
  return false;
}

/// As it is noted: below the run's folder relative to it, so that the note holds where that is moved or copied.
std::string as_noted(const fs::path& run_folder, const fs::path& folder) {
  const fs::path whole = fs::absolute(folder).lexically_normal();
  const fs::path below = whole.lexically_relative(fs::absolute(run_folder).lexically_normal());
  return (below.empty() || *below.begin() == ".." ? whole : below).string();
}

/// A result of training: each was written after a checkpoint of its step.
std::optional<fs::path> any_result(const fs::path& run_folder) {
  for (const char* folder : {"lora", "model"})
    for (const std::string& name : names_in(run_folder / folder))
      if (name.ends_with(".safetensors")) return run_folder / folder / name;
  return {};
}

constexpr const char* kAdvice =
    "Put it back there (or set checkpoint.fallback as it was); to go on from another one: --resume CHECKPOINT_FOLDER; "
    "to start anew from step 0: --resume never with a folder without checkpoints";

}  // namespace

std::optional<Committed> committed(const fs::path& run_folder) {
  const Json json = read_note(run_folder);
  const auto note = json.find(kKey);
  if (note == json.end()) return {};
  const bool good = note->is_object() && note->contains("step") && note->at("step").is_number_unsigned() &&
                    note->at("step").get<uint64_t>() <= uint64_t{INT64_MAX} && note->contains("folder") &&
                    note->at("folder").is_string();
  if (!good)
    throw Error(ExitCode::bad_input,
                note_file(run_folder).string() + ": \"" + kKey + "\" is damaged; take that key out of the file",
                "RUN_NOTE");
  return Committed{note->at("step").get<int64_t>(), fs::absolute(run_folder / note->at("folder").get<std::string>())};
}

void note_committed(const fs::path& run_folder, const std::string& run_id, const std::optional<Committed>& newest) {
  Json json = read_note(run_folder);
  const Json before = json;
  if (!json.contains("run_id")) json["run_id"] = run_id;
  if (newest)
    json[kKey] = {{"step", newest->step}, {"folder", as_noted(run_folder, newest->folder)}};
  else
    json.erase(kKey);
  if (json == before) return;
  const std::string text = json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  const Reserve room(run_folder, ".note-room.bin");
  try {
    write_file_atomically(note_file(run_folder), text);
  } catch (const Error& error) {
    if (error.code() != "IO_NO_SPACE" || !room.release()) throw;
    write_file_atomically(note_file(run_folder), text);
  }
  try {
    room.hold(kRoom);
  } catch (const Error&) {  // the next note tries again
  }
}

fs::path folder_in_fallback(const fs::path& fallback, const std::string& run_id) {
  return fallback / ("run-" + run_id);
}

std::vector<fs::path> roots_of(const fs::path& run_folder, const fs::path& fallback) {
  std::vector<fs::path> roots{run_folder / "ckpt"};
  if (const auto id = stored_run_id(run_folder); id && !fallback.empty())
    roots.push_back(folder_in_fallback(fallback, *id) / "ckpt");
  return roots;
}

std::vector<int64_t> steps_anywhere(const fs::path& run_folder, const fs::path& fallback) {
  std::vector<int64_t> all;
  for (const fs::path& root : roots_of(run_folder, fallback)) {
    const std::vector<int64_t> steps = steps_in(root);
    all.insert(all.end(), steps.begin(), steps.end());
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

void require_committed(const fs::path& run_folder, const std::vector<int64_t>& steps) {
  const std::optional<Committed> noted = committed(run_folder);
  if (noted && (steps.empty() || steps.back() < noted->step) && !set_aside(run_folder, *noted))
    throw Error(
        ExitCode::not_found,
        run_folder.string() + ": its newest checkpoint, of step " + std::to_string(noted->step) +
            ", is not where this start looks: " + noted->folder.string() + "; " +
            (steps.empty() ? "no other is found" : "the newest found is of step " + std::to_string(steps.back())) +
            ". " + kAdvice,
        "CKPT_GONE");
  if (noted || !steps.empty()) return;
  if (const auto result = any_result(run_folder))
    throw Error(ExitCode::not_found,
                run_folder.string() + ": holds the result " + result->filename().string() +
                    ", but the checkpoint of its step is not there. " + kAdvice,
                "CKPT_GONE");
}

}  // namespace trainer::checkpoint
