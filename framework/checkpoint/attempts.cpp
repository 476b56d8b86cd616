#include <fcntl.h>
#include <unistd.h>

#include <base/files.hpp>
#include <base/json_depth.hpp>
#include <checkpoint/attempts.hpp>
#include <checkpoint/committed.hpp>
#include <checkpoint/recovery.hpp>
#include <nlohmann/json.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <utility>

namespace trainer::checkpoint {
namespace {

/// Asking whose the folder is takes microseconds, or as long as the server of a network file system does: after a slow
/// answer nothing is asked for so many times as long.
constexpr int kRest = 100;
constexpr std::chrono::milliseconds kSlow{5};

namespace fs = std::filesystem;

constexpr std::size_t kFileLimit = std::size_t{1} << 16;

struct Record {
  int64_t from, reached, ended_at;
  int failures;
};

/// What the run before left, or nothing when it ended well. A damaged file says nothing: it is only a hint.
std::optional<Record> read(const fs::path& file) {
  std::error_code failed;
  if (!fs::is_regular_file(file, failed) || fs::file_size(file, failed) > kFileLimit) return {};
  const std::string text = read_file(file, kFileLimit, "attempts");
  if (nests_deeply(text)) return {};
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto number = [&](const char* key) {
    const auto it = json.is_object() ? json.find(key) : json.end();
    return it != json.end() && it->is_number_unsigned() ? it->get<int64_t>() : -1;
  };
  const Record record{number("from"), number("reached"), number("ended_at"),
                      static_cast<int>(std::min<int64_t>(number("failures"), Attempts::kLimit))};
  if (record.from < 0 || record.reached < 0 || record.ended_at < 0 || record.failures < 0) return {};
  return record;
}

std::string counted(int failures, int64_t from, int64_t ended_at) {
  return std::to_string(failures) + " runs in a row went on from the checkpoint of step " + std::to_string(from) +
         " and ended " + (ended_at > from ? "after step " + std::to_string(ended_at) : "before a step was done");
}

/// The newest checkpoint before `step`, with what to do with it.
std::string older(const fs::path& run_folder, const fs::path& fallback, int64_t step) {
  for (const fs::path& folder : newest_first(roots_of(run_folder, fallback)))
    if (folder.filename() < step_name(step))  // digits of one length
      return "; to go on from an older one: --resume " + folder.string() + " --set run.output=ANOTHER";
  return {};
}

}  // namespace

Attempts::Before Attempts::before(const fs::path& run_folder, int64_t from, const fs::path& fallback) {
  const fs::path file = run_folder / "attempts.json";
  const std::optional<Record> record = read(file);
  if (!record || record->from != from) return {};
  const bool again = record->failures > 0 && record->ended_at == record->reached;
  const Before before{record->reached, again ? record->failures + 1 : 1};
  if (before.failures >= kLimit)
    throw Error(ExitCode::bad_input,
                run_folder.string() + ": " + counted(before.failures, from, before.ended_at) +
                    "; another would do the same. Look at their last messages. To try once more delete " +
                    file.string() + older(run_folder, fallback, from),
                "RUN_ATTEMPTS");
  return before;
}

void Attempts::require_another(const fs::path& run_folder, int64_t from, const fs::path& fallback) {
  before(run_folder, from, fallback);
}

Attempts::Attempts(const fs::path& run_folder, int64_t from, const fs::path& fallback, std::function<bool()> may_write)
    : file_(run_folder / "attempts.json"), may_write_(std::move(may_write)), from_(from), reached_(from) {
  const Before earlier = before(run_folder, from, fallback);
  failures_ = earlier.failures;
  ended_at_ = earlier.ended_at;
  if (failures_ >= kSuspicious)
    warning_ = counted(failures_, from, ended_at_) + "; after " + std::to_string(kLimit) + " no further one is made";
  if (ask()) write();
}

bool Attempts::ask() {
  const Clock::time_point begin = Clock::now();
  mine_ = !may_write_ || may_write_();
  const Clock::time_point end = Clock::now();
  ask_again_ = end - begin < kSlow ? end : end + kRest * (end - begin);
  return mine_;
}

void Attempts::reached(int64_t step) {
  reached_ = step;
  if (Clock::now() < ask_again_ ? mine_ : ask()) write();
}

void Attempts::write() const {
  // Through a link another file would be overwritten; opening a FIFO would wait.
  const int fd = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (fd < 0) return;
  const nlohmann::ordered_json json{
      {"from", from_}, {"reached", reached_}, {"failures", failures_}, {"ended_at", ended_at_}};
  const std::string text = json.dump() + "\n";
  if (::ftruncate(fd, 0) == 0) static_cast<void>(::write(fd, text.data(), text.size()) == 0);
  ::close(fd);
}

void Attempts::ended_well() {
  if (!ask()) return;
  std::error_code ignored;
  fs::remove(file_, ignored);
}

}  // namespace trainer::checkpoint
