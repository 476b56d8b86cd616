#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <distributed/overlap.hpp>

#include <algorithm>
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
  begun_early_ = 0;
  means_.clear();
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
    complete = --missing_[bucket_of_[index]] == 0;
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

void OverlappedAverage::exchange() {
  const c10::NoGradGuard no_grad;
  try {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return given_up_ || all_came_ || missing_[b] == 0; });
        if (given_up_) return;
        begun_early_ += all_came_ ? 0 : 1;
      }
      const at::Tensor flat = packed(buckets_[b]);
      finite_ = finite_ && at::isfinite(flat).all().item<bool>();
      means_.push_back(group_.mean(flat));
    }
  } catch (...) {
    problem_ = std::current_exception();
  }
}

First OverlappedAverage::finish() {
  {
    const std::lock_guard lock(mutex_);
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
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      std::vector<at::Tensor> gradients;
      for (const at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
      unpack(means_[b], gradients, buckets_[b]);
    }
    means_.clear();
    return bad;
  }
  means_.clear();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
  return group_.average(gradients);
}

}  // namespace trainer::distributed
