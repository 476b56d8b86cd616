/// @file See cuda.hpp.
#include "cuda.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <filesystem>

namespace trainer::fused {
namespace {

constexpr const char* kLibrary = "libtrainer_cuda_kernels.so";

/// Beside the SDK's library where that is installed, else in the build folder next to it.
std::filesystem::path library_path() {
  Dl_info own{};
  if (dladdr(reinterpret_cast<const void*>(&cuda_kernels), &own) == 0 || own.dli_fname == nullptr) return kLibrary;
  const std::filesystem::path folder = std::filesystem::path(own.dli_fname).parent_path();
  for (const auto& path : {folder / kLibrary, folder.parent_path() / "kernels" / kLibrary})
    if (std::filesystem::exists(path)) return path;
  return {};
}

const kernels::CudaKernels* open_kernels() {
  const std::filesystem::path path = library_path();
  if (path.empty()) return nullptr;
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // for the life of the process
  if (library == nullptr) {
    TORCH_WARN("the CUDA kernels cannot be opened, LibTorch's operators are used instead: ", dlerror());
    return nullptr;
  }
  const auto table = reinterpret_cast<kernels::CudaKernelsOf>(dlsym(library, kernels::kCudaKernelsSymbol));
  const kernels::CudaKernels* const found = table != nullptr ? table(kernels::kArgumentsLayout) : nullptr;
  if (found == nullptr) TORCH_WARN(path, " is of another build; LibTorch's operators are used instead");
  return found;
}

}  // namespace

const kernels::CudaKernels* cuda_kernels() {
  static const kernels::CudaKernels* const found = open_kernels();
  return found;
}

void launch(const at::Tensor& tensor, const std::function<int(const kernels::CudaKernels&, kernels::Stream)>& call) {
  TORCH_CHECK(cuda_kernels() != nullptr, "this build has no CUDA kernels");
  const c10::DeviceGuard guard(tensor.device());
  const c10::impl::VirtualGuardImpl device(tensor.device().type());
  const int error = call(*cuda_kernels(), device.getStreamNativeHandle(device.getStream(tensor.device())));
  TORCH_CHECK(error == 0, "a fused CUDA kernel did not start: CUDA error ", error);
}

}  // namespace trainer::fused
