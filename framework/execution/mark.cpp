// LibTorch is compiled with it, and the layout of at::RecordFunction depends on it.
#ifndef NDEBUG
#define NDEBUG
#endif
#include <ATen/record_function.h>
#include <execution/mark.hpp>

namespace trainer::execution {

Mark::Mark(const char* name) : function_(std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE)) {
  if (function_->isActive()) function_->before(name);
}

Mark::~Mark() = default;

}  // namespace trainer::execution
