#include <distributed/signs.hpp>

#include <algorithm>
#include <sstream>

namespace trainer::distributed {
namespace {

using std::chrono::milliseconds;

std::string seconds(Clock::duration time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

std::string last_words(const Seen& seen) {
  return seen.sign.doing.empty() ? std::string() : "; its last sign was: " + seen.sign.doing;
}

}  // namespace

std::string to_text(const Sign& sign) {
  std::ostringstream text;
  text << sign.beat << ' ' << sign.progress << ' ' << sign.meeting << ' ' << sign.left << ' ' << sign.doing;
  return text.str();
}

Sign parse_sign(const std::string& text) {
  Sign sign;
  std::istringstream in(text);
  if (!(in >> sign.beat >> sign.progress >> sign.meeting >> sign.left)) return {};
  in.get();
  std::getline(in, sign.doing, '\0');
  return sign;
}

void Seen::update(const Sign& now_seen, Clock::time_point now) {
  if (now_seen.beat != sign.beat) beat = now;
  if (now_seen.progress != sign.progress || now_seen.meeting != sign.meeting) progress = now;
  sign = now_seen;
}

std::string to_text(const Fault& fault) {
  return std::to_string(fault.rank) + ' ' + std::to_string(fault.exit_code) + ' ' + (fault.told ? '1' : '0') + ' ' +
         fault.message;
}

std::optional<Fault> parse_fault(const std::string& text) {
  if (text.empty()) return std::nullopt;
  Fault fault;
  std::istringstream in(text);
  in >> fault.rank >> fault.exit_code >> fault.told;
  in.get();
  std::getline(in, fault.message, '\0');
  return fault;
}

std::vector<Missing> silent_ranks(const std::vector<Seen>& seen, int own_rank, Clock::time_point read,
                                  milliseconds silence) {
  std::vector<Missing> missing;
  for (int rank = 0; rank < static_cast<int>(seen.size()); ++rank) {
    const Seen& one = seen[static_cast<std::size_t>(rank)];
    if (rank == own_rank || one.sign.left || read - one.beat < silence) continue;
    missing.push_back(
        {rank, "is gone: its process gave no sign of life for " + seconds(read - one.beat) + last_words(one)});
  }
  return missing;
}

std::vector<Missing> late_ranks(const std::vector<Seen>& seen, int own_rank, uint64_t meeting,
                                Clock::time_point entered, Clock::time_point now, milliseconds timeout) {
  std::vector<Missing> missing;
  for (int rank = 0; rank < static_cast<int>(seen.size()); ++rank) {
    const Seen& one = seen[static_cast<std::size_t>(rank)];
    if (rank == own_rank || one.sign.left) continue;
    const bool came = one.sign.meeting >= meeting;
    const Clock::duration waited = now - std::max(came ? one.beat : one.progress, entered);
    if (waited < timeout) continue;
    const bool alive = now - one.beat < timeout;
    missing.push_back({rank, std::string("did not come to where the others wait: ") +
                                 (alive ? "its process lives, but got nothing done" : "it gave no sign of life") +
                                 " for " + seconds(waited) + last_words(one)});
  }
  return missing;
}

}  // namespace trainer::distributed
