#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <cli/standard_streams.hpp>
#include <trainer/sdk/error.hpp>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

namespace trainer::cli {
namespace {

bool reader_gone() {
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  return ::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

}  // namespace

void open_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(stream, F_GETFD) == -1 && errno == EBADF)
      static_cast<void>(::open("/dev/null", O_RDWR));  // gets the lowest number that is free: this one
  // Most results fit, so that what keeps them from being written is still known when the program ends.
  static std::array<char, std::size_t{1} << 20> kept;
  if (::isatty(STDOUT_FILENO) == 0) std::setvbuf(stdout, kept.data(), _IOFBF, kept.size());
}

int after_output(int code) {
  errno = 0;
  std::cout.flush();
  const bool failed = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  const int why = errno;  // 0 where an earlier write failed, of more than the buffer holds
  if (!failed || why == EPIPE || reader_gone()) return code;
  std::fprintf(stderr, "error: not all results could be written to stdout%s%s\n", why != 0 ? ": " : "",
               why != 0 ? std::strerror(why) : "");
  return code != 0 ? code : static_cast<int>(ExitCode::io);
}

}  // namespace trainer::cli
