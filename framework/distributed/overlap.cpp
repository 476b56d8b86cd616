#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <distributed/overlap.hpp>

#include <algorithm>
#include <optional>
#include <utility>

namespace trainer::distributed {

/// Runs when a backward has added to a parameter's gradient: once in a graph, whatever the number of its uses.
class OverlappedAverage::Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(OverlappedAverage& owner, std::size_t index) : owner_(owner), index_(index) {}
  void operator()(const at::Tensor&) override { owner_.arrived(index_); }

 private:
  OverlappedAverage& owner_;
  std::size_t index_;
};

OverlappedAverage::OverlappedAverage(Group& group, std::vector<at::Tensor> parameters, int64_t most)
    : group_(group),
      parameters_(parameters.rbegin(), parameters.rend()),
      buckets_(buckets_of(parameters_, most)),
      bucket_of_(parameters_.size()),
      expected_(parameters_.size(), 0),
      came_(parameters_.size(), 0) {
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    std::fill(bucket_of_.begin() + static_cast<std::ptrdiff_t>(buckets_[b].first),
              bucket_of_.begin() + static_cast<std::ptrdiff_t>(buckets_[b].end), b);
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i], std::make_unique<Hook>(*this, i));
}

OverlappedAverage::~OverlappedAverage() {
  for (at::Tensor& parameter : parameters_) torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  end_thread();
}

void OverlappedAverage::end_thread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    given_up_ = true;
  }
  changed_.notify_all();
  group_.abandon();  // it may wait for ranks that now wait for this one
  thread_.join();
}

void OverlappedAverage::begin() {
  came_.assign(parameters_.size(), 0);
  missing_.assign(buckets_.size(), known_ ? 0 : 1);
  for (std::size_t i = 0; known_ && i < parameters_.size(); ++i) missing_[bucket_of_[i]] += expected_[i] > 0 ? 1 : 0;
  late_ = all_came_ = false;
  begun_early_ = complete_early_ = 0;
  ready_.assign(buckets_.size(), nullptr);
  means_.clear();
  meant_.clear();
  finite_ = true;
  problem_ = nullptr;
  thread_ = std::thread([this] { exchange(); });
}

void OverlappedAverage::arrived(std::size_t index) {
  const int64_t came = ++came_[index];
  if (!known_) return;
  if (came > expected_[index]) late_ = true;
  if (came != expected_[index]) return;
  bool complete = false;
  {
    const std::lock_guard lock(mutex_);
    const std::size_t bucket = bucket_of_[index];
    complete = missing_[bucket] == 1;
    if (complete) ready_[bucket] = mark(bucket);
    --missing_[bucket];
  }
  if (complete) changed_.notify_all();
}

at::Tensor OverlappedAverage::packed(const Bucket& bucket) const {
  std::vector<at::Tensor> flat;
  for (std::size_t i = bucket.first; i < bucket.end; ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    flat.push_back(gradient.defined() ? gradient.reshape({-1})
                                      : at::zeros({parameters_[i].numel()}, parameters_[i].options()));
  }
  const at::Tensor joined = at::cat(flat);
  return group_.carries(joined.device()) ? joined : joined.cpu();
}

std::shared_ptr<c10::Event> OverlappedAverage::mark(std::size_t bucket) const {
  const at::Device device = device_of(bucket);
  if (device.is_cpu()) return nullptr;
  auto event = std::make_shared<c10::Event>(device.type());
  event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

void OverlappedAverage::send(std::size_t bucket, const c10::Event* ready) {
  const at::Device device = device_of(bucket);
  std::optional<c10::StreamGuard> beside;
  if (!device.is_cpu()) {
    auto stream =
        std::find_if(streams_.begin(), streams_.end(), [&](c10::Stream one) { return one.device() == device; });
    if (stream == streams_.end())
      stream = streams_.insert(stream, c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
    if (ready != nullptr) ready->block(*stream);  // null: nothing came for it in the step before
    beside.emplace(*stream);
    for (std::size_t i = buckets_[bucket].first; i < buckets_[bucket].end; ++i)
      if (const at::Tensor& gradient = parameters_[i].grad(); gradient.defined()) gradient.record_stream(*stream);
  }
  const at::Tensor flat = packed(buckets_[bucket]);
  finite_ = finite_ && at::isfinite(flat).all().item<bool>();
  means_.push_back(group_.mean(flat));
  meant_.push_back(mark(bucket));
}

void OverlappedAverage::take(std::size_t bucket) {
  if (meant_[bucket] != nullptr) {
    const at::Device device = device_of(bucket);
    const c10::Stream computing = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    meant_[bucket]->block(computing);
    if (!means_[bucket].is_cpu()) means_[bucket].record_stream(computing);
  }
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
  unpack(means_[bucket], gradients, buckets_[bucket]);
}

void OverlappedAverage::exchange() {
  const c10::NoGradGuard no_grad;
  try {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      std::shared_ptr<c10::Event> ready;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return given_up_ || all_came_ || missing_[b] == 0; });
        if (given_up_) return;
        begun_early_ += all_came_ ? 0 : 1;
        ready = ready_[b];
      }
      send(b, ready.get());
    }
  } catch (...) {
    problem_ = std::current_exception();
  }
}

First OverlappedAverage::finish() {
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      if (complete_early_ == static_cast<int64_t>(b) && missing_[b] == 0) ++complete_early_;  // they go in order
      if (ready_[b] == nullptr) ready_[b] = mark(b);
    }
    all_came_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (problem_) std::rethrow_exception(problem_);
  expected_ = came_;
  known_ = true;
  const c10::NoGradGuard no_grad;
  for (at::Tensor& parameter : parameters_)
    if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
  const at::Tensor told = group_.joined(at::tensor({int64_t{finite_ ? 0 : 1}, int64_t{late_ ? 1 : 0}}, at::kLong));
  First bad;
  bool any_late = false;
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (bad.rank < 0 && told[2 * rank].item<int64_t>() != 0) bad = {1, rank};
    any_late = any_late || told[2 * rank + 1].item<int64_t>() != 0;
  }
  if (!any_late) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) take(b);
    means_.clear();
    return bad;
  }
  means_.clear();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
  return group_.average(gradients);
}

}  // namespace trainer::distributed
