/// @file Where a run's checkpoints are: in its folder, or, when that takes none, in the recipe's fallback folder.
#pragma once

#include <checkpoint/patience.hpp>
#include <checkpoint/reserve.hpp>
#include <checkpoint/run_lock.hpp>
#include <checkpoint/store.hpp>
#include <trainer/sdk/error.hpp>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trainer::checkpoint {

struct PlacesOptions {
  std::filesystem::path fallback;      ///< empty: none. Several runs may share it: each has a folder with its id there
  bool reserve = false;                ///< keep room for the last save
  std::function<void()> may_commit{};  ///< called before a checkpoint gets its name; throws when it must not
};

class Places {
 public:
  using Note = std::function<void(const std::string&)>;

  Places(const std::filesystem::path& run_folder, const std::string& run_id, PlacesOptions options);

  /// Steps with a folder in either place, ascending; contents are not checked.
  [[nodiscard]] std::vector<int64_t> steps() const;

  /// The newest that is whole in either place, as Store::newest. Throws Error (not_found) when none of those that are
  /// there is whole.
  std::optional<Loaded> newest(std::vector<std::string>& notes);

  /// Keeps room for a checkpoint of `content` and an export of it, if the recipe wants that. Without room a note.
  void reserve_for(const Content& content, const Note& note) const;
  void release_reserve() const { reserve_.release(); }

  /// Saves with Store::save, patiently; what a full or failing disk refuses goes to the fallback, with a note. `last`:
  /// the reserve is used up for it, and while one of the two disks is full both are tried again and again, whatever is
  /// wrong with the other. Where it is is noted (committed.hpp). Returns the checkpoint's folder.
  std::filesystem::path save(int64_t step, const std::function<Content()>& content,
                             const std::map<std::string, std::string>& fingerprints, bool last,
                             const Patience& patience, const Note& note);

  /// As Store::rotate, in each place.
  void rotate(const Keep& keep);

 private:
  std::optional<Loaded> newest_of_fallback(std::vector<std::string>& notes, std::optional<Error>& none_whole);
  /// Throws Error (locked) while another run has it: a copy of this run's folder has its id.
  void open_fallback();
  PlacesOptions options_;
  void note(const std::filesystem::path& saved, int64_t step, const Note& note) const;
  std::filesystem::path run_folder_, fallback_folder_;
  std::string run_id_;
  Store own_;
  std::optional<RunLock> fallback_lock_;
  std::optional<Store> fallback_;  ///< once there is something in it, or must be
  Reserve reserve_;
};

}  // namespace trainer::checkpoint
