/// @file Groups of several ranks inside of one process, a thread each, over loopback.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <distributed/group.hpp>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace trainer::distributed::testing {

inline int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(fd);
  return ntohs(address.sin_port);
}

inline Place place(int rank, int size, int port) { return {rank, size, rank, "127.0.0.1", port, false, "torchrun"}; }

/// Runs `work` once for each rank at the place that `place_of` gives it; what it threw, per rank.
inline std::vector<std::exception_ptr> run_at(int size, std::chrono::milliseconds timeout,
                                              const std::function<Place(int rank)>& place_of,
                                              const std::function<void(Group&)>& work) {
  std::vector<std::exception_ptr> problems(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        Group group(place_of(rank), timeout);
        group.together([&] { work(group); });
      } catch (...) {
        problems[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return problems;
}

/// At a port of their own.
inline std::vector<std::exception_ptr> run_ranks(int size, std::chrono::milliseconds timeout,
                                                 const std::function<void(Group&)>& work) {
  const int port = free_port();
  return run_at(
      size, timeout, [&](int rank) { return place(rank, size, port); }, work);
}

inline std::string message_of(const std::exception_ptr& problem) {
  if (!problem) return {};
  try {
    std::rethrow_exception(problem);
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// That no rank threw.
inline void expect_good(const std::vector<std::exception_ptr>& problems) {
  for (std::size_t rank = 0; rank < problems.size(); ++rank)
    EXPECT_FALSE(problems[rank]) << "rank " << rank << ": " << message_of(problems[rank]);
}

}  // namespace trainer::distributed::testing
