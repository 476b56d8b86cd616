/// @file What a disk may hold after a crash: a model of files and folders that knows what was made durable. Weaker than
/// ext4 or xfs on purpose: nothing is durable before its own fsync, changes of names are in no order, be they of one
/// folder or of several (a rename within a folder is one change), and un-synced data may be there, be missing, or be
/// torn.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "journal.hpp"

namespace trainer::faults {

/// What becomes of changes that were not synced.
struct Loss {
  enum class Data { lost, kept, random, torn };  ///< of a file's writes: none, all, some of them, all but cut off
  enum class Names { lost, kept, random };       ///< of a folder's changes: none, all, some of them
  Data data = Data::lost;
  Names names = Names::lost;
  uint64_t seed = 0;
};
std::string text_of(const Loss& loss);

class Disk {
 public:
  /// What lies below `folder` now, all of it durable.
  explicit Disk(const std::filesystem::path& folder);
  void apply(const Operation& operation);
  /// Writes what is left after a crash now into `folder`, which must be empty.
  void crash_into(const std::filesystem::path& folder, const Loss& loss) const;

 private:
  struct File {
    std::string durable;
    std::vector<Operation> pending;  ///< write and truncate since the last sync
  };
  struct Folder;
  struct Entry {  ///< one of the two
    std::shared_ptr<File> file;
    std::shared_ptr<Folder> folder;
  };
  struct Change {  ///< of a folder's names; a rename within it is one change
    std::string remove, insert;
    Entry entry;
  };
  struct Folder {
    std::map<std::string, Entry> durable, now;
    std::vector<Change> pending;
  };
  struct Place {
    std::shared_ptr<Folder> folder;
    std::string name;
  };
  static void change_in(std::map<std::string, Entry>& names, const Change& change);
  static void change(Folder& folder, Change change);
  [[nodiscard]] Place place(const std::string& path) const;
  [[nodiscard]] std::shared_ptr<Folder> folder_at(const std::string& path) const;
  static void load(const std::filesystem::path& from, Folder& into);
  static void write_out(const Folder& folder, const std::filesystem::path& to, const Loss& loss, uint64_t& draw);

  std::shared_ptr<Folder> root_ = std::make_shared<Folder>();
  std::map<int64_t, std::shared_ptr<File>> open_;
};

}  // namespace trainer::faults
