/// @file One literal that names everything two C++ binaries must share to exchange objects. Each field guards against a
/// failure seen in practice: a changed vtable (sdk, headers), another LibTorch or string ABI (torch, cxx11abi), another
/// compiler or standard library layout (cxxabi, compiler, libstdcxx), mixed sanitizers (asan kills a plain host inside
/// dlopen).
#pragma once

#include <torch/version.h>
#include <trainer/sdk/abi.h>
#include <trainer/sdk/headers.h>

#include <cstddef>

#define TRAINER_STR2(x) #x
#define TRAINER_STR(x) TRAINER_STR2(x)
#if defined(__clang__)
#define TRAINER_COMPILER "clang" TRAINER_STR(__clang_major__)
#else
#define TRAINER_COMPILER "gcc" TRAINER_STR(__GNUC__)
#endif
#if defined(__SANITIZE_ADDRESS__)
#define TRAINER_ASAN "1"
#else
#define TRAINER_ASAN "0"
#endif
#define TRAINER_SDK_FINGERPRINT                                                      \
  "sdk=" TRAINER_SDK_VERSION ";headers=" TRAINER_SDK_HEADERS ";torch=" TORCH_VERSION \
  ";cxx11abi=" TRAINER_STR(_GLIBCXX_USE_CXX11_ABI) ";cxxabi=" TRAINER_STR(           \
      __GXX_ABI_VERSION) ";compiler=" TRAINER_COMPILER                               \
                         ";libstdcxx=" TRAINER_STR(_GLIBCXX_RELEASE) ";asan=" TRAINER_ASAN
