#include <signal.h>
#include <unistd.h>
#include <checkpoint/signals.hpp>
#include <trainer/sdk/error.hpp>

#include <atomic>
#include <thread>

namespace trainer::checkpoint {
namespace {

std::atomic<int> requested{0};
std::atomic<bool> interrupted{false};  ///< by SIGINT
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "a signal handler may touch lock-free atomics only");

extern "C" void on_signal(int number) {
  int none = 0;
  requested.compare_exchange_strong(none, number);
  if (number == SIGINT && interrupted.exchange(true)) ::_exit(static_cast<int>(ExitCode::interrupted));
}

/// Those that whoever started us does not want ignored, as nohup does SIGHUP and a shell SIGINT of what it puts in the
/// background. As at the first call, before any handler is set.
const sigset_t& stop_signals() {
  static const sigset_t set = [] {
    sigset_t all;
    sigemptyset(&all);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction before {};
      const bool ignored = ::sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_IGN;
      if (!ignored || number == SIGTERM) sigaddset(&all, number);
    }
    return all;
  }();
  return set;
}

void watch() {
  for (int number = 0;;)
    if (::sigwait(&stop_signals(), &number) == 0) on_signal(number);
}

}  // namespace

void catch_stop_signals() {
  static const bool once = [] {
    struct sigaction action {};
    action.sa_handler = on_signal;  // for threads that were there before
    action.sa_flags = SA_RESTART;
    for (const int number : {SIGINT, SIGTERM, SIGHUP})
      if (sigismember(&stop_signals(), number) == 1) ::sigaction(number, &action, nullptr);
    ::pthread_sigmask(SIG_BLOCK, &stop_signals(), nullptr);  // threads that begin from here on inherit it
    std::thread(watch).detach();
    return true;
  }();
  static_cast<void>(once);
  ::signal(SIGPIPE, SIG_IGN);  // Ctrl-C also ends `tee`: what we print next must not end us before we have saved
  ::signal(SIGXFSZ, SIG_IGN);  // a file size limit becomes a write error
}

int stop_signal() { return requested.load(); }

}  // namespace trainer::checkpoint
