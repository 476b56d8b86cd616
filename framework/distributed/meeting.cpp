#include <distributed/meeting.hpp>

#include <c10/util/Logging.h>
#include <signal.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <base/log.hpp>
#include <distributed/address.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

namespace trainer::distributed {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBeat{500};
constexpr milliseconds kSilence{4 * kBeat};     // of a rank that is dead, when something broke
constexpr milliseconds kInquest{12 * kBeat};    // how long to look for who is gone
constexpr milliseconds kLeaveTogether{10'000};  // how long the store's holder waits for the others to read the fault

std::string key(const std::string& name) { return "trainer/" + name; }
std::string key(const std::string& name, int rank) { return key(name + "/") + std::to_string(rank); }

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::string to_text(const Peer& peer) { return std::to_string(peer.pid) + ' ' + peer.address + ' ' + peer.host; }

Peer parse_peer(const std::string& text) {
  Peer peer;
  std::istringstream in(text);
  in >> peer.pid >> peer.address >> peer.host;
  return peer;
}

/// The store's server writes to ranks that may have gone a moment ago; their silence is what ends the run, not a
/// signal.
void survive_closed_connections() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

/// c10d reports every failed attempt with a C++ stack, and its flight recorder keeps one of every exchange (in a table
/// that groups in threads of one process, as in tests, write without a lock); what a user can act on is in our errors.
void quiet_c10d() {
  static std::once_flag once;  // the environment must not change while another thread reads it
  std::call_once(once, [] {
    ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);
    ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
    c10::initLogging();
  });
}

c10::intrusive_ptr<c10d::Store> open_store(const Place& place, milliseconds timeout) {
  quiet_c10d();
  survive_closed_connections();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(place.port);
  options.isServer = place.rank == 0 && !place.launchers_store;
  options.waitWorkers = false;
  options.timeout = timeout;
  const std::string where = place.address + ":" + std::to_string(place.port);
  try {
    const auto store = c10::make_intrusive<c10d::TCPStore>(place.address, options);
    if (place.attempt.empty()) return store;
    return c10::make_intrusive<c10d::PrefixStore>("attempt-" + place.attempt, store);
  } catch (const std::exception& error) {
    const std::string detail = first_line(error.what());
    if (options.isServer)
      throw Error(ExitCode::unavailable, "rank 0 cannot listen on port " + std::to_string(place.port) +
                                             " (MASTER_PORT), where the other ranks look for it: " + detail);
    throw Error(ExitCode::collective_timeout, "rank 0 did not come: nobody answered at " + where +
                                                  " (MASTER_ADDR, MASTER_PORT) for " +
                                                  std::to_string(timeout.count() / 1000) + " s: " + detail);
  }
}

/// "training, step 12" -> "training".
std::string_view kind_of(std::string_view doing) { return doing.substr(0, doing.find(',')); }

}  // namespace

/// What the thread and its rank share. Lives as long as either: a thread that hangs in the store is left behind.
struct Meeting::Board {
  c10::intrusive_ptr<c10d::Store> joining;  ///< the rank's connection
  c10::intrusive_ptr<c10d::Store> store;    ///< the thread's
  int rank = 0;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::thread thread;
  Sign own;
  std::vector<Seen> seen;
  Clock::time_point read = Clock::now();  ///< when the signs were read last
  std::optional<Fault> fault, to_tell;
  bool news = false;  ///< another kind of work began, which the others should know when this rank is never heard again
  bool lost = false;  ///< the store broke
  bool abandoned = false;
  bool ended = false;  ///< the thread did

  void run();
  void exchange();
  /// Waits until `done` or the thread ended, `most` at most. Lock held.
  template <typename Done>
  void wait(std::unique_lock<std::mutex>& lock, milliseconds most, const Done& done) {
    changed.wait_for(lock, most, [&] { return ended || done(); });
  }
};

void Meeting::Board::run() {
  std::unique_lock lock(mutex);
  while (!lost) {
    const bool last = own.left;
    ++own.beat;
    news = false;
    lock.unlock();
    exchange();
    lock.lock();
    changed.notify_all();
    if (last) break;
    changed.wait_for(lock, kBeat, [&] { return own.left || news || (to_tell && !fault); });
  }
  ended = true;
  changed.notify_all();
}

void Meeting::Board::exchange() {
  std::unique_lock lock(mutex);
  const Sign sign = own;
  const std::string tell = to_tell && !fault ? to_text(*to_tell) : std::string();
  const std::size_t ranks = seen.size();
  lock.unlock();
  try {
    store->set(key("sign", rank), bytes(to_text(sign)));
    if (!tell.empty()) store->compareSet(key("fault"), {}, bytes(tell));
    std::vector<std::string> keys{key("fault")};
    for (std::size_t other = 0; other < ranks; ++other) keys.push_back(key("sign", static_cast<int>(other)));
    // The fault's key is there only after a fault; asking for it alone would wait.
    const bool told = store->check({keys.front()});
    if (!told) keys.erase(keys.begin());
    const std::vector<std::vector<uint8_t>> values = store->multiGet(keys);
    lock.lock();
    read = Clock::now();
    if (told && !fault) fault = parse_fault(text(values.front()));
    for (std::size_t other = 0; other < ranks; ++other)
      seen[other].update(parse_sign(text(values[other + (told ? 1 : 0)])), read);
  } catch (const std::exception&) {
    if (!lock.owns_lock()) lock.lock();
    lost = true;
  }
}

Meeting::Meeting(const Place& place, milliseconds timeout)
    : place_(place), timeout_(timeout), board_(std::make_shared<Board>()), entered_(Clock::now()) {
  board_->rank = place.rank;
  board_->joining = open_store(place, timeout);
  try {
    join();
    wait_for_all();
    begin();
  } catch (const Error&) {
    if (place_.rank == 0)
      std::this_thread::sleep_for(kSilence);  // the others find out the same, as long as the store is there
    throw;
  } catch (const std::exception& error) {
    throw Error(ExitCode::collective_timeout,
                "the store at " + place_.address + ":" + std::to_string(place_.port) +
                    ", which rank 0 or its launcher holds, went away while the ranks met: " + first_line(error.what()));
  }
}

void Meeting::join() {
  const Peer own{host_name(), ::getpid(), address_towards(place_.address, place_.port)};
  c10d::Store& store = *board_->joining;
  store.set(key("sign", place_.rank), bytes(to_text(Sign{})));
  const std::string before = text(store.compareSet(key("here", place_.rank), {}, bytes(to_text(own))));
  if (before == to_text(own)) return;
  const Peer other = parse_peer(before);
  throw Error(ExitCode::usage, "two processes are rank " + std::to_string(place_.rank) + ": " +
                                   std::to_string(other.pid) + " on " + other.host + " and " + std::to_string(own.pid) +
                                   " on " + own.host);
}

void Meeting::wait_for_all() {
  c10d::Store& store = *board_->joining;
  std::vector<std::string> keys;
  for (int rank = 0; rank < place_.size; ++rank) keys.push_back(key("here", rank));
  std::vector<int> missing;
  const Clock::time_point begin = Clock::now();
  do {
    missing.clear();
    for (int rank = 0; rank < place_.size; ++rank)
      if (!store.check({keys[static_cast<std::size_t>(rank)]})) missing.push_back(rank);
    if (!missing.empty()) std::this_thread::sleep_for(milliseconds(50));
  } while (!missing.empty() && Clock::now() - begin < timeout_);
  if (!missing.empty()) {
    std::string names;
    for (const int rank : missing) names += (names.empty() ? "" : ", ") + std::to_string(rank);
    throw Error(ExitCode::collective_timeout, (missing.size() == 1 ? "rank " : "ranks ") + names + " of " +
                                                  std::to_string(place_.size) + " did not come within the " +
                                                  std::to_string(timeout_.count() / 1000) +
                                                  " s of distributed.timeout");
  }
  for (const std::vector<uint8_t>& value : store.multiGet(keys)) peers_.push_back(parse_peer(text(value)));
}

Meeting::~Meeting() {
  std::unique_lock lock(board_->mutex);
  if (!board_->thread.joinable()) return;
  const bool ended = board_->ended;
  lock.unlock();
  if (ended)
    board_->thread.join();
  else
    board_->thread.detach();  // it hangs in the store, whose holder hangs
}

std::string Meeting::name_of(int rank) const {
  const Peer& peer = peers_.at(static_cast<std::size_t>(rank));
  return "rank " + std::to_string(rank) + " (host " + peer.host + ", process " + std::to_string(peer.pid) + ")";
}

c10::intrusive_ptr<c10d::Store> Meeting::store() const { return board_->joining; }

void Meeting::begin() {
  board_->store = board_->joining->clone();
  board_->seen.assign(peers_.size(), {{}, Clock::now(), Clock::now()});
  board_->read = Clock::now();
  board_->thread = std::thread([board = board_] { board->run(); });
}

void Meeting::progress(const std::string& what) {
  const std::lock_guard lock(board_->mutex);
  ++board_->own.progress;
  if (kind_of(board_->own.doing) != kind_of(what)) {
    board_->news = true;
    board_->changed.notify_all();
  }
  board_->own.doing = what;
}

void Meeting::progress() {
  const std::lock_guard lock(board_->mutex);
  ++board_->own.progress;
}

void Meeting::abandon() {
  const std::lock_guard lock(board_->mutex);
  board_->abandoned = true;
}

void Meeting::enter() {
  entered_ = Clock::now();
  const std::lock_guard lock(board_->mutex);
  ++board_->own.meeting;
}

void Meeting::check() const {
  throw_fault();
  std::unique_lock lock(board_->mutex);
  const bool unheard = store_is_silent();
  const std::vector<Missing> silent = silent_ranks(board_->seen, place_.rank, board_->read, timeout_);
  lock.unlock();
  if (unheard) give_up(holder_missing());
  if (!silent.empty()) give_up(silent.front());
}

bool Meeting::store_is_silent() const { return board_->lost || Clock::now() - board_->read >= timeout_; }

void Meeting::throw_fault() const {
  const std::lock_guard lock(board_->mutex);
  if (!board_->fault) return;
  const Fault& fault = *board_->fault;
  throw Error(static_cast<ExitCode>(fault.exit_code),
              fault.told ? "stopped, because " + name_of(fault.rank) + " failed first: " + fault.message
                         : name_of(fault.rank) + " " + fault.message);
}

void Meeting::give_up(const Missing& missing) const {
  std::unique_lock lock(board_->mutex);
  if (!board_->fault)
    board_->to_tell = Fault{missing.rank, static_cast<int>(ExitCode::collective_timeout), false, missing.how};
  board_->changed.notify_all();
  board_->wait(lock, kSilence, [&] { return board_->fault.has_value(); });
  if (!board_->fault) board_->fault = board_->to_tell;  // the store cannot be reached
  lock.unlock();
  throw_fault();
  throw Error(ExitCode::collective_timeout, name_of(missing.rank) + " " + missing.how);
}

Missing Meeting::holder_missing() const {
  return {0, place_.launchers_store ? "cannot be asked: the store that torchrun holds at " + place_.address + ":" +
                                          std::to_string(place_.port) + " does not answer"
                                    : "is gone: it holds the store through which the ranks speak, and does not answer"};
}

void Meeting::waiting() const {
  throw_fault();
  std::unique_lock lock(board_->mutex);
  if (board_->abandoned) throw Error(ExitCode::failed, "this rank gave up an exchange");
  const Clock::time_point now = Clock::now();
  const bool silent = store_is_silent();
  const std::vector<Missing> late = late_ranks(board_->seen, place_.rank, board_->own.meeting, entered_, now, timeout_);
  Clock::time_point all_came = entered_;
  for (const Seen& one : board_->seen) all_came = std::max(all_came, one.progress);
  lock.unlock();
  if (silent) give_up(holder_missing());
  if (!late.empty()) give_up(late.front());
  if (now - all_came >= 2 * timeout_)
    throw Error(ExitCode::collective_timeout, "all ranks came, but their exchange does not end: look at the network");
}

void Meeting::broken(const std::string& detail) const {
  const Clock::time_point begin = Clock::now();
  while (Clock::now() - begin < kInquest) {
    throw_fault();
    std::unique_lock lock(board_->mutex);
    if (board_->lost) {
      lock.unlock();
      give_up(holder_missing());
    }
    const std::vector<Missing> silent = silent_ranks(board_->seen, place_.rank, board_->read, kSilence);
    if (!silent.empty()) {
      lock.unlock();
      give_up(silent.front());
    }
    board_->wait(lock, kBeat, [&] { return board_->fault.has_value(); });
  }
  throw Error(ExitCode::collective_timeout, "the connection to another rank broke: " + detail);
}

void Meeting::fail(const Error& error) noexcept {
  {
    std::unique_lock lock(board_->mutex);
    if (!board_->fault) board_->to_tell = Fault{place_.rank, static_cast<int>(error.exit_code()), true, error.what()};
    board_->changed.notify_all();
    board_->wait(lock, kSilence, [&] { return board_->fault.has_value(); });
  }
  leave();
}

void Meeting::leave() noexcept {
  std::unique_lock lock(board_->mutex);
  const auto all_left = [&] {
    for (int rank = 0; rank < place_.size; ++rank) {
      const Seen& one = board_->seen[static_cast<std::size_t>(rank)];
      if (rank != place_.rank && !one.sign.left && board_->read - one.beat < kSilence) return false;
    }
    return true;
  };
  if (place_.rank == 0 && !place_.launchers_store) board_->wait(lock, kLeaveTogether, all_left);
  board_->own.left = true;
  board_->changed.notify_all();
  board_->wait(lock, kSilence, [] { return false; });
}

}  // namespace trainer::distributed
