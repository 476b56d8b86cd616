/// @file Records what a program does to the files below one folder, and makes single calls fail. The test program
/// defines open, write, rename, ... itself (interpose.cpp), so the code under test runs as it is shipped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace trainer::faults {

/// One call that changed files, or made a change durable. Paths are relative to the recorded folder, "" being itself.
struct Operation {
  enum class Kind { create, write, truncate, allocate, sync, close, rename, unlink, mkdir, rmdir };
  Kind kind = Kind::write;
  std::string path;    ///< of the file or folder; of an open file the name it was opened by
  std::string target;  ///< rename: the new name
  int64_t file = 0;    ///< identity of an open file, whatever its names; 0: a folder or a name
  int64_t offset = 0;  ///< write, truncate: where
  std::string data;    ///< write: what
  bool lost = false;   ///< sync: it failed, and what it was for is never durable, whatever is synced later
};
std::string text_of(const Operation& operation);

/// How a call fails: it returns -1 with `error`, or, a short write, takes half of the bytes.
struct Failure {
  int error = 0;
  bool short_write = false;
  bool loses = false;  ///< a sync: the kernel calls what it did not write clean, as Linux does; noted as `lost`
};

/// Recording of the calls below `folder`, as long as it lives; one at a time in a process.
class Journal {
 public:
  explicit Journal(std::filesystem::path folder);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// Asked before each call with its number (from 0); nothing: it is performed.
  std::function<const Failure*(std::size_t number, Operation::Kind kind)> fail;

  [[nodiscard]] const std::vector<Operation>& operations() const { return operations_; }
  [[nodiscard]] std::size_t calls() const { return calls_; }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

  /// For interpose.cpp: the failure of the next call, and what was done.
  const Failure* next(Operation::Kind kind);
  void add(Operation operation) { operations_.push_back(std::move(operation)); }

 private:
  std::filesystem::path folder_;
  std::vector<Operation> operations_;
  std::size_t calls_ = 0;
};

/// The journal that records now, or null.
Journal* recording();

}  // namespace trainer::faults
