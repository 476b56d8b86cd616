/// @file The one place that opens shared libraries: LibTorch, the engine, plugins, kernels. Never closes one.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>

namespace trainer::plugin {

enum class Scope { local, global };

/// The dynamic loader's own words, for example "libcudart.so.13: cannot open shared object file: ...".
struct OpenError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws OpenError when the file is no shared library or ends before what its headers promise; one that cannot be read
/// is left to `open`.
void require_whole(const std::filesystem::path& file);

/// Opens `file` (absolute) with all symbols bound now, for the life of the process. Throws OpenError.
/// The returned handle serves `find` only.
const void* open(const std::filesystem::path& file, Scope scope);

/// Address of an exported symbol, or nullptr.
const void* find(const void* library, const std::string& symbol);

/// The same as a function pointer type.
template <typename Function>
Function find_function(const void* library, const std::string& symbol) {
  return reinterpret_cast<Function>(const_cast<void*>(find(library, symbol)));
}

}  // namespace trainer::plugin
