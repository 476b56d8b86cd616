#include <checkpoint/patience.hpp>

#include <base/heartbeat.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <thread>
#include <utility>

namespace trainer::checkpoint {
namespace {

using std::chrono::milliseconds;

std::string in_seconds(milliseconds time) { return std::to_string((time.count() + 999) / 1000) + " s"; }

}  // namespace

void save_patiently(const std::function<void()>& save, const Patience& patience,
                    const std::function<void(const std::string&)>& note) {
  const auto sleep = [&](milliseconds time) {
    if (patience.sleep) return patience.sleep(time);
    constexpr milliseconds kSlice{
        1000};  // waiting for room is getting something done, for ranks that wait for this one
    for (; time.count() > 0; time -= std::min(time, kSlice)) {
      beat();
      std::this_thread::sleep_for(std::min(time, kSlice));
    }
  };
  milliseconds pause = patience.pause, room = patience.room;
  bool asked = false;
  for (int attempt = 1;;) {
    try {
      return save();
    } catch (const Error& error) {
      if (error.exit_code() != ExitCode::io) throw;
      const bool full = error.code() == "IO_NO_SPACE";
      if (full && patience.make_room && !std::exchange(asked, true) && patience.make_room()) continue;
      if (full ? room.count() <= 0 : ++attempt > patience.attempts) throw;
      const milliseconds wait = full ? std::min(patience.every, room) : pause;
      note(std::string(error.what()) +
           (full ? "; waiting for room, at most " + in_seconds(room) : "; trying again in " + in_seconds(wait)));
      sleep(wait);
      if (full)
        room -= wait;
      else
        pause *= 2;
    }
  }
}

}  // namespace trainer::checkpoint
