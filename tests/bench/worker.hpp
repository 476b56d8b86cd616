/// @file What the workers of tools/bench share: settings from the command line, a question a line, the clock.
#pragma once

#include <base/heap.hpp>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <iostream>
#include <string>

namespace trainer::bench {

/// Of this process, all threads.
inline double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Seconds {
  double wall = 0, cpu = 0;
};

inline Seconds timed(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  const double cpu = cpu_seconds();
  work();
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return {wall, cpu_seconds() - cpu};
}

/// Answers every line of stdin until it ends. `answer` prints a line.
inline void serve(const std::function<void(const std::string& question)>& answer) {
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    answer(line);
    std::fflush(stdout);
  }
}

/// The whole of a worker's main: `run` gets the JSON of its only argument.
inline int worker_main(int argc, char** argv, const std::function<void(const nlohmann::json& settings)>& run) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s SETTINGS\n", argv[0]);
    return 2;
  }
  keep_freed_memory();  // as the program does
  try {
    run(nlohmann::json::parse(argv[1]));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

}  // namespace trainer::bench
