#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <distributed/address.hpp>
#include <trainer/sdk/error.hpp>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

namespace trainer::distributed {
namespace {

/// The local end of a UDP socket towards an address, as a number; empty when there is no way.
std::string local_end(const addrinfo& to) {
  const int fd = ::socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return {};
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  std::array<char, NI_MAXHOST> text{};
  const bool found = ::connect(fd, to.ai_addr, to.ai_addrlen) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
                     ::getnameinfo(reinterpret_cast<const sockaddr*>(&own), length, text.data(), text.size(), nullptr,
                                   0, NI_NUMERICHOST) == 0;
  ::close(fd);
  return found ? text.data() : std::string();
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string address_towards(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  const int problem = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (problem != 0)
    throw Error(ExitCode::unavailable,
                "the address of rank 0, \"" + host + "\" (MASTER_ADDR), is not known here: " + ::gai_strerror(problem));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next)
    if (std::string own = local_end(*one); !own.empty()) return own;
  throw Error(ExitCode::unavailable,
              "there is no way from here to \"" + host + "\" (MASTER_ADDR): " + std::strerror(errno));
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

}  // namespace trainer::distributed
