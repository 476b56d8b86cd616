/// @file Signs of life: what each rank tells the others about itself, and who is to be named when one is missing. Free
/// of LibTorch and of clocks of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trainer::distributed {

using Clock = std::chrono::steady_clock;

/// What a rank writes about itself, twice a second.
struct Sign {
  uint64_t beat = 0;      ///< grows with every sign: the process lives
  uint64_t progress = 0;  ///< grows with every bit of work done
  uint64_t meeting = 0;   ///< how many collectives it has come to
  bool left = false;      ///< it ended in an orderly way
  std::string doing;      ///< for messages, e.g. "training, step 12"
  friend bool operator==(const Sign&, const Sign&) = default;
};

std::string to_text(const Sign& sign);
/// The default sign for a text that `to_text` could not have written.
Sign parse_sign(const std::string& text);

/// The newest sign of a rank, and when it was seen to change.
struct Seen {
  Sign sign;
  Clock::time_point beat, progress;

  void update(const Sign& now_seen, Clock::time_point now);
};

/// Why a run cannot go on: the first to fail and what happened. All ranks report the same one.
struct Fault {
  int rank = 0;         ///< that failed, or is gone or late
  int exit_code = 1;    ///< of every rank
  bool told = true;     ///< by that rank itself; otherwise others found out
  std::string message;  ///< without the rank's number
  friend bool operator==(const Fault&, const Fault&) = default;
};

std::string to_text(const Fault& fault);
/// Nothing for an empty text, which means that all is well.
std::optional<Fault> parse_fault(const std::string& text);

/// A rank and how it fails to be there.
struct Missing {
  int rank = 0;
  std::string how;  ///< "gives no sign of life since 12 s; its last was: training, step 12"
};

/// Ranks whose process gave no sign for `silence`. `read`: when signs were last read; what changed after it is not
/// known. Ranks that left are never missing.
std::vector<Missing> silent_ranks(const std::vector<Seen>& seen, int own_rank, Clock::time_point read,
                                  std::chrono::milliseconds silence);

/// Ranks that did not come to the collective at which this rank waits since `entered`, and neither did any work for
/// `timeout`; also those that came and fell silent.
std::vector<Missing> late_ranks(const std::vector<Seen>& seen, int own_rank, uint64_t meeting,
                                Clock::time_point entered, Clock::time_point now, std::chrono::milliseconds timeout);

}  // namespace trainer::distributed
