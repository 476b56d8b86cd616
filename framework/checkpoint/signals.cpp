#include <signal.h>
#include <unistd.h>
#include <checkpoint/signals.hpp>
#include <trainer/sdk/error.hpp>

#include <atomic>
#include <thread>

namespace trainer::checkpoint {
namespace {

std::atomic<int> requested{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may touch lock-free atomics only");

extern "C" void on_signal(int number) {
  if (requested.exchange(number) != 0 && number == SIGINT) ::_exit(static_cast<int>(ExitCode::interrupted));
}

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, number);
  return set;
}

void watch() {
  const sigset_t set = stop_signals();
  for (int number = 0;;)
    if (::sigwait(&set, &number) == 0) on_signal(number);
}

}  // namespace

void catch_stop_signals() {
  static const bool once = [] {
    struct sigaction action {};
    action.sa_handler = on_signal;  // for threads that were there before
    action.sa_flags = SA_RESTART;
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(number, &action, nullptr);
    const sigset_t set = stop_signals();
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);  // threads that begin from here on inherit it
    std::thread(watch).detach();
    return true;
  }();
  static_cast<void>(once);
  ::signal(SIGPIPE, SIG_IGN);  // Ctrl-C also ends `tee`: what we print next must not end us before we have saved
  ::signal(SIGXFSZ, SIG_IGN);  // a file size limit becomes a write error
}

int stop_signal() { return requested.load(); }

}  // namespace trainer::checkpoint
