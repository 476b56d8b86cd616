#include <signal.h>
#include <unistd.h>
#include <checkpoint/signals.hpp>
#include <trainer/sdk/error.hpp>

#include <atomic>

namespace trainer::checkpoint {
namespace {

std::atomic<int> requested{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may touch lock-free atomics only");

extern "C" void on_signal(int number) {
  if (requested.exchange(number) != 0 && number == SIGINT) ::_exit(static_cast<int>(ExitCode::interrupted));
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(number, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);  // Ctrl-C also ends `tee`: what we print next must not end us before we have saved
  ::signal(SIGXFSZ, SIG_IGN);  // a file size limit becomes a write error
}

int stop_signal() { return requested.load(); }

}  // namespace trainer::checkpoint
