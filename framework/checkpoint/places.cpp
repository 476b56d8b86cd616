#include <checkpoint/places.hpp>

#include <base/entries.hpp>
#include <base/units.hpp>
#include <checkpoint/committed.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <utility>

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Header, state, manifest and what the file system itself needs.
constexpr uint64_t kSlack = uint64_t{1} << 20;

bool is_of_the_disk(const Error& error) { return error.exit_code() == ExitCode::io; }

bool is_full(const Error& error) { return error.code() == "IO_NO_SPACE"; }

}  // namespace

Places::Places(const fs::path& run_folder, const std::string& run_id, PlacesOptions options)
    : options_(std::move(options)),
      run_folder_(run_folder),
      run_id_(run_id),
      own_(run_folder, run_id, options_.may_commit),
      reserve_(run_folder) {
  if (options_.fallback.empty()) return;
  fallback_folder_ = folder_in_fallback(options_.fallback, run_id);
  if (type_of(fallback_folder_ / "ckpt") == fs::file_type::directory) open_fallback();
}

void Places::open_fallback() {
  try {
    fallback_lock_.emplace(fallback_folder_);
  } catch (const Error& error) {
    if (error.code() == "IO_PERMISSION")
      throw Error(ExitCode::io, "checkpoint.fallback " + fallback_folder_.string() + ": no permission to write there",
                  "IO_PERMISSION");
    if (error.exit_code() != ExitCode::locked) throw;
    throw error.context("checkpoint.fallback is in use by a copy of this run (one run_id in run.json); name another");
  }
  fallback_.emplace(fallback_folder_, run_id_, [this] {
    try {
      if (options_.may_commit) options_.may_commit();
    } catch (const Error& error) {  // a folder that cannot be looked at is what the fallback is for
      if (!is_of_the_disk(error)) throw;
    }
    fallback_lock_->require_mine();
  });
}

std::vector<int64_t> Places::steps() const {
  std::vector<int64_t> all = own_.steps();
  if (fallback_)
    for (const int64_t step : fallback_->steps()) all.push_back(step);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::optional<Loaded> Places::newest_of_fallback(std::vector<std::string>& notes, std::optional<Error>& none_whole) {
  if (!fallback_) return {};
  try {
    return fallback_->newest(notes);
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::not_found) throw;
    none_whole = error;
    return {};
  }
}

std::optional<Loaded> Places::newest(std::vector<std::string>& notes) {
  std::optional<Error> none_whole;
  std::optional<Loaded> elsewhere = newest_of_fallback(notes, none_whole);
  // Not even looked at when it cannot be the newer one: looking reads all of it.
  const std::vector<int64_t> here = own_.steps();
  if (elsewhere && (here.empty() || here.back() < elsewhere->manifest.step)) return elsewhere;
  try {
    std::optional<Loaded> found = own_.newest(notes);
    if (!found && none_whole) throw *none_whole;
    if (none_whole) notes.emplace_back(none_whole->what());
    return elsewhere && (!found || found->manifest.step < elsewhere->manifest.step) ? elsewhere : found;
  } catch (const Error& error) {
    if (!elsewhere || error.exit_code() != ExitCode::not_found) throw;
    notes.emplace_back(error.what());
    return elsewhere;
  }
}

void Places::reserve_for(const Content& content, const Note& note) const {
  if (!options_.reserve) return reserve_.release(), void();
  uint64_t bytes = kSlack + content.state.size();
  for (const auto& [name, tensor] : content.tensors) bytes += 2 * static_cast<uint64_t>(tensor.nbytes());
  try {
    reserve_.hold(bytes);
  } catch (const Error& error) {
    if (!is_of_the_disk(error)) throw;
    note("no room is kept for the last save: " + std::string(error.what()));
  }
}

fs::path Places::save(int64_t step, const std::function<Content()>& content,
                      const std::map<std::string, std::string>& fingerprints, bool last, const Patience& patience,
                      const Note& note) {
  fs::path saved;
  const auto save_in = [&](Store& store) { saved = store.save(step, content(), fingerprints); };
  Patience here = patience, there = patience, both = patience;
  here.room = there.room = std::chrono::milliseconds{0};
  both.attempts = 1;  // each place has had its own
  if (!last) both.room = std::chrono::milliseconds{0};
  if (last)
    here.make_room = [&] {
      const bool released = reserve_.release();
      if (released) note("the disk is full; the room that was kept for this save is used");
      return released;
    };
  const auto save_elsewhere = [&] {
    if (!fallback_) open_fallback();
    save_in(*fallback_);
  };
  save_patiently(
      [&] {
        try {
          save_patiently([&] { save_in(own_); }, here, note);
        } catch (const Error& error) {
          if (!is_of_the_disk(error) || fallback_folder_.empty()) throw;
          note(std::string(error.what()) + "; saving in " + fallback_folder_.string());
          try {
            save_patiently(save_elsewhere, there, note);
          } catch (const Error& trouble) {  // may be for good; on the run's own disk there may be room again
            if (!is_full(error) || is_full(trouble)) throw;
            note(trouble.what());
            throw error;
          }
        }
      },
      both, note);
  return this->note(saved, step, note), saved;
}

void Places::note(const fs::path& saved, int64_t step, const Note& note) const {
  try {
    note_committed(run_folder_, run_id_, Committed{step, fs::absolute(saved)});
  } catch (const Error& error) {
    if (!is_of_the_disk(error)) throw;
    note("it is saved in " + saved.string() + ", but that could not be noted in run.json: " + error.what() +
         "; a start that does not find it there would not miss it");
  }
}

void Places::rotate(const Keep& keep) {
  try {
    own_.rotate(keep);
  } catch (const Error& error) {
    if (fallback_ && is_of_the_disk(error)) fallback_->rotate(keep);
    throw;
  }
  if (fallback_) fallback_->rotate(keep);
}

}  // namespace trainer::checkpoint
