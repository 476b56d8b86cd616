/// @file One fuzz target: a reader of ours fed with bytes. An Error is the right answer to bad bytes; anything else
/// that leaves the target (another exception, a signal, a sanitizer's report, a broken promise) is a finding.
///
/// Each target is built twice: as a libFuzzer program (`tools/fuzz`), and into the test `fuzz_corpus`, which replays
/// the committed inputs with any compiler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <trainer/sdk/error.hpp>
#include <vector>

namespace trainer::fuzz {

using Function = void (*)(std::string_view bytes);

struct Target {
  const char* name;  ///< also of its folder in corpus/
  Function function;
};

/// Every target that is linked into the program.
inline std::vector<Target>& targets() {
  static std::vector<Target> all;
  return all;
}

struct Registration {
  Registration(const char* name, Function function) { targets().push_back({name, function}); }
};

/// What the reader promises of an input that it took.
inline void require(bool kept, const char* promise) {
  if (kept) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

/// One reader, of several that a target feeds with the same bytes.
template <typename Read>
void run_one(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    require(*error.what() != '\0', "a refusal says why");
  }
}

inline void run(Function function, std::string_view bytes) {
  run_one([&] { function(bytes); });
}

}  // namespace trainer::fuzz

#ifdef TRAINER_LIBFUZZER
#define TRAINER_FUZZ_TARGET(name, function)                                                    \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {               \
    trainer::fuzz::run(function, std::string_view(reinterpret_cast<const char*>(data), size)); \
    return 0;                                                                                  \
  }
#else
#define TRAINER_FUZZ_TARGET(name, function) static const trainer::fuzz::Registration registration(name, function)
#endif
