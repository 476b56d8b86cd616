#include "crash_states.hpp"

#include <base/files.hpp>

#include <fstream>
#include <stdexcept>

namespace trainer::faults {
namespace {

namespace fs = std::filesystem;
using Kind = Operation::Kind;

void apply_to(std::string& content, const Operation& operation) {
  const auto offset = static_cast<std::size_t>(operation.offset);
  if (operation.kind == Kind::truncate) return content.resize(offset);
  if (content.size() < offset + operation.data.size()) content.resize(offset + operation.data.size());
  content.replace(offset, operation.data.size(), operation.data);
}

/// The next of a sequence of numbers below `bound`.
uint64_t drawn(uint64_t& state, uint64_t bound) {
  state = state * 6364136223846793005U + 1442695040888963407U;  // Knuth's MMIX; quality does not matter here
  return (state >> 33) % bound;
}

}  // namespace

std::string text_of(const Operation& operation) {
  static const char* const names[] = {"create", "write",  "truncate", "allocate", "sync",
                                      "close",  "rename", "unlink",   "mkdir",    "rmdir"};
  std::string text = std::string(names[static_cast<int>(operation.kind)]) + " " + operation.path;
  if (!operation.target.empty()) text += " -> " + operation.target;
  if (operation.lost) text += " (fails)";
  if (!operation.data.empty()) text += " (" + std::to_string(operation.data.size()) + " bytes)";
  return text;
}

std::string text_of(const Loss& loss) {
  static const char* const data[] = {"lost", "kept", "random", "torn"};
  return std::string("data ") + data[static_cast<int>(loss.data)] + ", names " + data[static_cast<int>(loss.names)] +
         ", seed " + std::to_string(loss.seed);
}

Disk::Disk(const fs::path& folder) { load(folder, *root_); }

void Disk::load(const fs::path& from, Folder& into) {
  for (const auto& entry : fs::directory_iterator(from)) {
    Entry& made = into.durable[entry.path().filename().string()];
    if (entry.is_directory()) {
      made.folder = std::make_shared<Folder>();
      load(entry.path(), *made.folder);
    } else {
      made.file = std::make_shared<File>();
      made.file->durable = read_file(entry.path(), std::size_t{1} << 30, "file");
    }
  }
  into.now = into.durable;
}

std::shared_ptr<Disk::Folder> Disk::folder_at(const std::string& path) const {
  std::shared_ptr<Folder> folder = root_;
  for (const fs::path& part : fs::path(path)) {
    folder = folder->now.at(part.string()).folder;
    if (folder == nullptr) throw std::logic_error(path + " is no folder");
  }
  return folder;
}

Disk::Place Disk::place(const std::string& path) const {
  const fs::path whole(path);
  return {folder_at(whole.parent_path().string()), whole.filename().string()};
}

void Disk::change_in(std::map<std::string, Entry>& names, const Change& change) {
  if (!change.remove.empty()) names.erase(change.remove);
  if (!change.insert.empty()) names[change.insert] = change.entry;
}

void Disk::change(Folder& folder, Change change) {
  change_in(folder.now, change);
  folder.pending.push_back(std::move(change));
}

void Disk::apply(const Operation& operation) {
  switch (operation.kind) {
    case Kind::create: {
      const auto file = open_[operation.file] = std::make_shared<File>();
      const Place at = place(operation.path);
      return change(*at.folder, {"", at.name, {file, nullptr}});
    }
    case Kind::mkdir: {
      const Place at = place(operation.path);
      return change(*at.folder, {"", at.name, {nullptr, std::make_shared<Folder>()}});
    }
    case Kind::write:
    case Kind::truncate: {
      auto& file = open_[operation.file];
      if (file == nullptr) {  // opened, not created
        const Place at = place(operation.path);
        file = at.folder->now.at(at.name).file;
      }
      return file->pending.push_back(operation);
    }
    case Kind::sync: {
      if (operation.file == 0) {
        const auto folder = folder_at(operation.path);
        if (!operation.lost)
          for (const Change& one : folder->pending) change_in(folder->durable, one);
        return folder->pending.clear();
      }
      File& file = *open_.at(operation.file);
      if (!operation.lost)
        for (const Operation& one : file.pending) apply_to(file.durable, one);
      return file.pending.clear();
    }
    case Kind::rename: {
      const Place from = place(operation.path), to = place(operation.target);
      const Entry moved = from.folder->now.at(from.name);
      if (from.folder == to.folder) return change(*from.folder, {from.name, to.name, moved});
      throw std::logic_error("a rename between folders is not modelled: " + text_of(operation));
    }
    case Kind::unlink:
    case Kind::rmdir: {
      const Place at = place(operation.path);
      return change(*at.folder, {at.name, "", {}});
    }
    case Kind::close:
    case Kind::allocate:
      return;
  }
}

void Disk::crash_into(const fs::path& folder, const Loss& loss) const {
  uint64_t draw = loss.seed;
  write_out(*root_, folder, loss, draw);
}

void Disk::write_out(const Folder& folder, const fs::path& to, const Loss& loss, uint64_t& draw) {
  std::map<std::string, Entry> names = folder.durable;
  for (const Change& one : folder.pending) {
    const bool lost = loss.names == Loss::Names::lost || (loss.names == Loss::Names::random && drawn(draw, 2) == 0);
    if (!lost) change_in(names, one);
  }
  for (const auto& [name, entry] : names) {
    if (entry.folder != nullptr) {
      fs::create_directory(to / name);
      write_out(*entry.folder, to / name, loss, draw);
      continue;
    }
    std::string content = entry.file->durable;
    for (const Operation& one : entry.file->pending) {
      if (loss.data == Loss::Data::lost || (loss.data == Loss::Data::random && drawn(draw, 2) == 0)) continue;
      apply_to(content, one);
    }
    if (loss.data == Loss::Data::torn && !entry.file->pending.empty()) {
      const std::size_t sector = drawn(draw, 2) == 0 ? 512 : 4096;
      content.resize(drawn(draw, content.size() / sector + 1) * sector);
    }
    std::ofstream(to / name, std::ios::binary) << content;
  }
}

}  // namespace trainer::faults
