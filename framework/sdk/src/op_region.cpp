#include "op_region.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/variable.h>
#include <trainer/sdk/error.hpp>

#include <cmath>
#include <sstream>
#include <utility>

namespace trainer::recompute {
namespace {

thread_local OpRegion* current = nullptr;
thread_local OpTrace* current_trace = nullptr;

/// Pseudo-random values of every magnitude in [1, 60000], the same every time: they must not look like any real
/// activation, and must cross any threshold that a bias moves values away from. Each fits every floating dtype but fp8.
at::Tensor finite_poison(const at::Tensor& like) {
  at::Tensor wave = at::arange(like.numel(), like.options().dtype(at::kFloat));
  wave.mul_(12.9898).sin_().add_(1).mul_(5.5).exp_();  // in one buffer
  return wave.reshape(like.sizes()).to(like.scalar_type());
}

void apply_poison(OpRegion::Outputs& outputs, Poison poison) {
  for (c10::IValue& value : outputs) {
    if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().is_floating_point()) continue;
    at::Tensor tensor = value.toTensor();
    if (poison == Poison::nan)
      tensor.fill_(std::nan(""));
    else
      tensor.copy_(finite_poison(tensor).mul_(poison == Poison::positive ? 1.0 : -1.0));
  }
}

/// Aliases that see in-place changes of their originals: below autograd, `detach` alone gives a version of its own.
OpRegion::Outputs detached(const OpRegion::Outputs& outputs) {
  OpRegion::Outputs copy;
  for (const c10::IValue& value : outputs) {
    if (!value.isTensor() || !value.toTensor().defined()) {
      copy.push_back(value);
      continue;
    }
    at::Tensor alias = value.toTensor().detach();
    torch::autograd::impl::set_version_counter(alias, torch::autograd::impl::version_counter(value.toTensor()));
    copy.emplace_back(std::move(alias));
  }
  return copy;
}

int64_t bytes_of(const OpRegion::Outputs& outputs) {
  int64_t bytes = 0;
  for (const c10::IValue& value : outputs)
    if (value.isTensor() && value.toTensor().defined()) bytes += static_cast<int64_t>(value.toTensor().nbytes());
  return bytes;
}

}  // namespace

OpRegion* active_region() { return current; }
OpTrace* active_trace() { return current_trace; }
SuspendRegion::SuspendRegion()
    : before_(std::exchange(current, nullptr)), trace_before_(std::exchange(current_trace, nullptr)) {}
SuspendRegion::~SuspendRegion() {
  current = before_;
  current_trace = trace_before_;
}
OpTrace::Scope::Scope(OpTrace* trace) : before_(std::exchange(current_trace, trace)) {}
OpTrace::Scope::~Scope() { current_trace = before_; }

OpRegion::Outputs heavy_call(const std::string& op, const std::string& arguments, double flops,
                             const std::function<OpRegion::Outputs()>& compute) {
  if (current_trace != nullptr) current_trace->calls.push_back(op + arguments);
  if (current != nullptr) return current->call(op, arguments, flops, compute);
  const SuspendRegion inside;
  return compute();
}

OpRegion::Scope::Scope(OpRegion& region, Mode mode) : before_(current) {
  if (current != nullptr)
    throw Error(ExitCode::failed, "block \"" + region.block_.info().name + "\" runs inside the recomputed block \"" +
                                      current->block_.info().name + "\", " + current->progress() +
                                      "; recomputed blocks cannot be nested");
  region.mode_ = mode;
  region.position_ = 0;
  region.ran_ = 0;
  region.ran_flops_ = 0;
  region.counts_.clear();
  if (mode == Mode::record) region.calls_.clear(), region.likes_.clear(), region.kept_.clear();
  current = &region;
}
OpRegion::Scope::~Scope() { current = before_; }

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "none";
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << tensor.sizes();
  return text.str();
}

std::string OpRegion::where(const HeavyOp& op) const {
  return "block \"" + block_.info().name + "\", " + op.op + " #" + std::to_string(op.index);
}

std::string OpRegion::progress() const {
  if (position_ == 0) return "before its first heavy operation";
  const HeavyOp& last = calls_[static_cast<std::size_t>(position_) - 1];
  return "after its " + last.op + " #" + std::to_string(last.index) + " " + last.arguments;
}

void OpRegion::mismatch(const HeavyOp& op) const {
  std::string expected = "nothing more";
  if (const auto i = static_cast<std::size_t>(op.position); i < calls_.size())
    expected = calls_[i].op + " #" + std::to_string(calls_[i].index) + " " + calls_[i].arguments;
  throw OtherCalls(where(op) + ": the recompute calls " + op.op + " " + op.arguments + " where the forward called " +
                   expected + ". A block must make the same calls every time it runs.");
}

void OpRegion::require_all_replayed() const {
  if (position_ == static_cast<int64_t>(calls_.size())) return;
  const HeavyOp& missing = calls_[static_cast<std::size_t>(position_)];
  throw OtherCalls("block \"" + block_.info().name + "\": the recompute made " + std::to_string(position_) +
                   " heavy calls, the forward " + std::to_string(calls_.size()) + "; the first one missing is " +
                   missing.op + " #" + std::to_string(missing.index));
}

int64_t OpRegion::kept_bytes() const {
  int64_t bytes = 0;
  for (const auto& [position, kept] : kept_) bytes += bytes_of(kept.outputs);
  return bytes;
}

bool OpRegion::has_floating_outputs(int64_t position) const {
  for (const Like& like : likes_.at(static_cast<std::size_t>(position)))
    if (!like.tensor || !c10::isFloatingType(c10::typeMetaToScalarType(like.options.dtype()))) return false;
  return true;
}

OpRegion::Outputs OpRegion::call(const std::string& op, const std::string& arguments, double flops,
                                 const std::function<Outputs()>& compute) {
  const HeavyOp call{block_.info().type, op, arguments, counts_[op]++, position_++, flops};
  const SuspendRegion inside;
  return mode_ == Mode::record ? record(call, compute) : replay(call, compute);
}

OpRegion::Outputs OpRegion::record(HeavyOp op, const std::function<Outputs()>& compute) {
  Outputs outputs = compute();
  op.flops *= static_cast<double>(outputs.front().toTensor().numel());
  ++ran_, ran_flops_ += op.flops;
  calls_.push_back(op);
  std::vector<Like>& likes = likes_.emplace_back();
  for (const c10::IValue& value : outputs) {
    likes.emplace_back();
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& tensor = value.toTensor();
    likes.back() = {true, tensor.sizes().vec(), tensor.strides().vec(), tensor.options()};
  }
  if (policy_ != nullptr && policy_->keep(op)) {
    Kept kept{detached(outputs), {}};
    for (const c10::IValue& value : kept.outputs)
      kept.versions.push_back(
          value.isTensor() && value.toTensor().defined() ? static_cast<int64_t>(value.toTensor()._version()) : 0);
    kept_.emplace(op.position, std::move(kept));
  }
  return outputs;
}

OpRegion::Outputs OpRegion::take_kept(int64_t position) {
  const auto it = kept_.find(position);
  for (std::size_t i = 0; i < it->second.outputs.size(); ++i) {
    const c10::IValue& value = it->second.outputs[i];
    if (value.isTensor() && value.toTensor().defined() &&
        static_cast<int64_t>(value.toTensor()._version()) != it->second.versions[i])
      throw Error(ExitCode::failed, where(calls_[static_cast<std::size_t>(position)]) +
                                        ": its kept output was changed in place after the forward; exclude the op from "
                                        "what is kept, or write the block without the in-place operation");
  }
  if (keep_outputs) return detached(it->second.outputs);
  Outputs outputs = std::move(it->second.outputs);
  kept_.erase(it);
  return outputs;
}

OpRegion::Outputs OpRegion::replay(const HeavyOp& op, const std::function<Outputs()>& compute) {
  const auto i = static_cast<std::size_t>(op.position);
  if (i >= calls_.size() || calls_[i].op != op.op || calls_[i].arguments != op.arguments) mismatch(op);
  if (kept_.contains(op.position)) return take_kept(op.position);
  if (dead.contains(op.position)) {
    Outputs outputs;
    for (const Like& like : likes_[i]) outputs.emplace_back(at::empty_strided(like.sizes, like.strides, like.options));
    return outputs;
  }
  Outputs outputs = compute();
  ++ran_, ran_flops_ += calls_[i].flops;
  if (const auto it = poison.find(op.position); it != poison.end()) apply_poison(outputs, it->second);
  return outputs;
}

}  // namespace trainer::recompute
