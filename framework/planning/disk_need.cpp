#include <sys/stat.h>
#include <unistd.h>

#include <base/unfinished.hpp>
#include <base/units.hpp>
#include <checkpoint/committed.hpp>
#include <planning/disk_need.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <vector>

namespace trainer::planning {
namespace {

namespace fs = std::filesystem;

std::string text_of(uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

/// The products and sums of absurd recipes end at the highest number.
uint64_t times(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<uint64_t>::max() : product;
}
uint64_t plus(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<uint64_t>::max() : sum;
}

uint64_t bytes_of(const std::vector<int64_t>& shape, uint64_t each) {
  for (const int64_t side : shape) each = times(each, static_cast<uint64_t>(side));
  return each;
}

/// The folder itself or the first above it that is there.
fs::path existing(fs::path folder) {
  while (!folder.empty() && !fs::exists(folder) && folder != folder.parent_path()) folder = folder.parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

uint64_t bytes_in(const fs::path& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  fs::recursive_directory_iterator entries(folder, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    // Half-written, of a process that was killed: the next start deletes them.
    if (name.starts_with(".tmp-") || name.starts_with(".trash-")) entries.disable_recursion_pending();
    if (std::error_code gone; !is_unfinished(name) && entries->is_regular_file(gone)) bytes += entries->file_size(gone);
  }
  return bytes;
}

uint64_t bytes_of(const fs::path& file) {
  std::error_code none;
  const uint64_t bytes = fs::file_size(file, none);
  return none ? 0 : bytes;
}

uint64_t without(uint64_t bytes, uint64_t there) { return bytes > there ? bytes - there : 0; }

/// What is still to be written into the run's folder.
uint64_t left_to_write(const fs::path& folder, const DiskNeed& need) {
  return plus(plus(without(need.checkpoints, bytes_in(folder / "ckpt")),
                   without(need.reserve, bytes_of(folder / "reserve.bin"))),
              without(need.results, bytes_in(folder / "lora") + bytes_in(folder / "model")));
}

void require_room(uint64_t bytes, uint64_t room, const fs::path& where, const std::string& what) {
  if (bytes > room)
    throw Error(ExitCode::io,
                where.string() + ": " + what + " " + text_of(bytes) + ", " + text_of(room) +
                    " are free; free some space or write elsewhere",
                "IO_NO_SPACE");
}

bool on_one_file_system(const fs::path& one, const fs::path& two) {
  struct stat first {
  }, second{};
  return ::stat(one.c_str(), &first) == 0 && ::stat(two.c_str(), &second) == 0 && first.st_dev == second.st_dev;
}

/// Latents as fp32, the widest that an autoencoder gives.
uint64_t cache_bytes(const preparation::Uncached& missing, const BatchShape& batch) {
  uint64_t text = 0;
  for (const auto& tensor : batch.conditioning) text += bytes_of(tensor.shape, c10::elementSize(tensor.dtype));
  return plus(times(text, missing.texts),
              batch.latents.empty() ? 0 : times(bytes_of(batch.latents, sizeof(float)), missing.latents));
}

}  // namespace

std::string DiskNeed::text() const {
  if (checkpoint == 0) return "what the run needs is not known";
  return "up to " + text_of(plus(plus(checkpoints, reserve), plus(results, cache))) + ": checkpoints " +
         text_of(checkpoints) + (reserve > 0 ? ", reserve " + text_of(reserve) : "") + ", results " + text_of(results) +
         (cache > 0 ? ", cache " + text_of(cache) : "");
}

DiskNeed disk_need(assembly::Assembly& assembly, const preparation::Uncached& missing,
                   const std::optional<BatchShape>& batch) {
  const recipe::Recipe& recipe = assembly.recipe;
  const uint64_t moments = 2 * sizeof(float), average = recipe.train.ema_decay > 0 ? sizeof(float) : 0;
  DiskNeed need;
  const auto placement = assembly.components.placement();
  const assembly::LoadedModel loaded =
      assembly.models.load(assembly.strategies.stack(), {assembly::Weights::shapes, placement.get()});
  for (const Parameter* parameter : loaded.trained) {
    const auto count = static_cast<uint64_t>(parameter->value().numel());
    need.checkpoint += parameter->value().nbytes() + count * (moments + average);
    need.result += parameter->value().nbytes();
  }
  const int64_t every = recipe.checkpoint.every, keep = recipe.checkpoint.keep;
  const int64_t for_good = recipe.checkpoint.keep_every > 0 ? recipe.run.steps / recipe.checkpoint.keep_every : 0;
  const int64_t saves = every > 0 ? (recipe.run.steps - 1) / every + 1 : 1;
  const int64_t kept = keep > 0 && keep < saves - for_good ? keep + 1 + for_good : saves;
  // The new one is there before the oldest goes.
  need.checkpoints = times(need.checkpoint, static_cast<uint64_t>(kept));
  if (recipe.checkpoint.reserve) need.reserve = 2 * need.checkpoint;
  need.results = times(need.result, static_cast<uint64_t>(saves));
  if (batch) need.cache = cache_bytes(missing, *batch);
  return need;
}

fs::path require_writable(const fs::path& wanted, const std::string& key) {
  const fs::path folder = existing(wanted);
  if (!fs::is_directory(folder))
    throw Error(ExitCode::io, key + " " + wanted.string() + ": " + folder.string() +
                                  " is a file, not a folder; choose another " + key);
  if (::access(folder.c_str(), (folder == wanted ? R_OK : 0) | W_OK | X_OK) != 0)
    throw Error(ExitCode::locked, key + " " + wanted.string() + ": " + folder.string() + " cannot be written to: " +
                                      (errno == EACCES ? std::string("no permission") : std::strerror(errno)) +
                                      "; choose another " + key);
  return folder;
}

std::string check_room(const recipe::Recipe& recipe, const DiskNeed& need) {
  const fs::path run = recipe.run.output, spare = recipe.checkpoint.fallback;
  const fs::path folder = require_writable(run, "run.output"),
                 cache = require_writable(recipe.cache.folder, "cache.folder");
  const uint64_t free = fs::space(folder).available, free_cache = fs::space(cache).available;
  uint64_t left = left_to_write(run, need);
  if (!spare.empty()) {
    const fs::path elsewhere = require_writable(spare, "checkpoint.fallback");
    const uint64_t free_there = fs::space(elsewhere).available;
    require_room(need.checkpoint, free_there, elsewhere, "one checkpoint, in checkpoint.fallback, would take");
    // What a full disk refuses goes there, but for a result: no end of the run, if that is another disk with room.
    const std::vector<fs::path> roots = checkpoint::roots_of(run, spare);
    const uint64_t there = roots.size() > 1 ? bytes_in(roots.back()) : 0;
    if (!on_one_file_system(folder, elsewhere) && without(need.checkpoints, there) <= free_there)
      left = std::min(left, plus(need.checkpoint, need.result));
  }
  if (on_one_file_system(folder, cache)) {
    require_room(plus(left, need.cache), free, folder,
                 "the checkpoints, results and cache that are still to be written take");
  } else {
    require_room(need.cache, free_cache, cache, "pictures and captions that are not cached yet take");
    require_room(left, free, folder, "the checkpoints and results that are still to be written take");
  }
  return text_of(free) + " free for " + recipe.run.output + "; " + need.text();
}

}  // namespace trainer::planning
