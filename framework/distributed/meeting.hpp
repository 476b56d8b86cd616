/// @file Where the ranks of a run meet: a key-value store (c10d's TCPStore) that they join at the start, and a thread
/// of each that from then on tells the others what its rank does and reads what they do. So a rank that fails can say
/// so, and one that is gone or hangs can be named. Only the thread touches the store after the start: its calls may
/// block when the process that holds the store hangs, and the rank itself must not.
#pragma once

#include <ATen/core/Tensor.h>
#include <distributed/environment.hpp>
#include <distributed/signs.hpp>
#include <trainer/sdk/error.hpp>

#include <memory>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace trainer::distributed {

/// What a rank says about itself once, when it joins.
struct Peer {
  std::string host;     ///< name of its machine
  int64_t pid = 0;      ///< of its process
  std::string address;  ///< numeric, on the network that leads to the store: where others connect to it
};

/// What a rank tells the others of a library's message: the rest is a stack of calls.
inline std::string first_line(const std::string& message) { return message.substr(0, message.find('\n')); }

class Meeting {
 public:
  /// Waits until all ranks are there, `timeout` at most. Throws Error: collective_timeout naming the ranks that did not
  /// come; usage when two processes have one rank; unavailable when the port is taken.
  Meeting(const Place& place, std::chrono::milliseconds timeout);
  /// After `leave` or a failure only: the process must be about to end otherwise.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  [[nodiscard]] const std::vector<Peer>& peers() const { return peers_; }
  /// "rank 2 (host gpu7, process 4711)"
  [[nodiscard]] std::string name_of(int rank) const;
  /// A connection for making a process group; not to be used after that.
  [[nodiscard]] c10::intrusive_ptr<c10d::Store> store() const;

  /// Some work was done; cheap. `what` is for messages.
  void progress(const std::string& what);
  /// More of the same was done.
  void progress();
  /// This rank has come to the next collective. Call `waiting` while it is not through.
  void enter();
  /// Throws Error when the run cannot go on: another rank failed (with its exit code), or is late for the collective
  /// since `enter` (collective_timeout). Cheap.
  void waiting() const;
  /// From now on `waiting` throws, in whichever thread waits: this rank cannot go on.
  void abandon();
  /// Throws Error when another rank failed, or gave no sign of life for the timeout (collective_timeout); for long work
  /// between collectives.
  void check() const;
  /// A collective broke. Finds out who is gone and throws Error (collective_timeout) that names it, or what
  /// `waiting` throws.
  [[noreturn]] void broken(const std::string& detail) const;

  /// Tells the others that this rank cannot go on, unless another one was first; then leaves.
  void fail(const Error& error) noexcept;
  /// Nothing more is to come from this rank. The rank that holds the store waits a few seconds for the others.
  void leave() noexcept;

 private:
  struct Board;
  void join();
  void wait_for_all();
  /// From then on the thread speaks for this rank.
  void begin();
  void throw_fault() const;
  /// The thread that speaks for this rank gets no answer. Lock held.
  [[nodiscard]] bool store_is_silent() const;
  [[noreturn]] void give_up(const Missing& missing) const;
  [[nodiscard]] Missing holder_missing() const;

  Place place_;
  std::chrono::milliseconds timeout_;
  std::vector<Peer> peers_;
  std::shared_ptr<Board> board_;
  Clock::time_point entered_;
};

}  // namespace trainer::distributed
