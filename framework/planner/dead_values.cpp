// LibTorch is compiled with it, and the layout of at::RecordFunction depends on it.
#ifndef NDEBUG
#define NDEBUG
#endif
#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>
#include <torch/csrc/autograd/variable.h>
#include <planner/dead_values.hpp>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>

namespace trainer::planner {
namespace {

/// The SDK's one operator that writes over its input; in a block it counts as the heavy call of this name.
constexpr const char* kUpInPlace = "trainer::low_rank_up_";
constexpr const char* kUpCall = "low_rank_up";

}  // namespace

/// Listens to every operator of this thread as long as it lives.
class ValueTrace::Recorder {
 public:
  explicit Recorder(std::vector<Event>& events) : events_(events), before_(current_) {
    current_ = this;
    at::RecordFunctionCallback callback(&started, &ended);
    callback.needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION});
    handle_ = at::addThreadLocalCallback(callback);
  }
  ~Recorder() {
    at::removeCallback(handle_);
    current_ = before_;
  }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Storages that were seen and are still there.
  [[nodiscard]] std::set<Storage> alive() const {
    std::set<Storage> list;
    for (std::size_t i = 0; i < seen_.size(); ++i)
      if (!seen_[i].expired()) list.insert(i);
    return list;
  }

 private:
  struct Open final : at::ObserverContext {
    std::vector<Storage> inputs;
    std::size_t first = 0;
    double flops = 0;
  };

  static std::unique_ptr<at::ObserverContext> started(const at::RecordFunction& function) {
    auto open = std::make_unique<Open>();
    bool floating = true;
    for (const c10::IValue& value : function.inputs()) current_->add(value, open->inputs, floating);
    open->first = current_->events_.size();
    open->flops = current_->flops_.flops();
    return open;
  }
  static void ended(const at::RecordFunction& function, at::ObserverContext* context) {
    const auto& open = static_cast<const Open&>(*context);
    std::vector<Event>& events = current_->events_;
    Event event;
    event.name = function.name();
    event.inputs = open.inputs;
    for (const c10::IValue& value : function.outputs()) current_->add(value, event.outputs, event.floating);
    event.first = open.first;
    event.flops = current_->flops_.flops() - open.flops;
    for (std::size_t i = open.first; i < events.size(); ++i) event.flops -= events[i].flops;
    events.push_back(std::move(event));
  }

  void add(const c10::IValue& value, std::vector<Storage>& list, bool& floating) {
    if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) add(item, list, floating);
    } else if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().has_storage()) {
      floating = false;
    } else {
      const at::Tensor& tensor = value.toTensor();
      floating = floating && tensor.is_floating_point();
      list.push_back(number_of(tensor.storage()));
    }
  }
  Storage number_of(const c10::Storage& storage) {
    const auto [known, fresh] = numbers_.try_emplace(storage.unsafeGetStorageImpl(), seen_.size());
    if (fresh) seen_.push_back(storage.getWeakStorageImpl());  // keeps the address from being used again
    return known->second;
  }

  static thread_local Recorder* current_;
  std::vector<Event>& events_;
  Recorder* before_;
  at::CallbackHandle handle_ = 0;
  const FlopCounter flops_;
  std::map<const c10::StorageImpl*, Storage> numbers_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> seen_;
};
thread_local ValueTrace::Recorder* ValueTrace::Recorder::current_ = nullptr;

ValueTrace::ValueTrace(Block& block, const Flow& flow) {
  Recorder recorder(events_);
  std::vector<torch::autograd::Edge> graph;
  for (const at::Tensor& output : run_block(block, flow, {}))
    if (output.defined() && output.requires_grad()) graph.push_back(torch::autograd::impl::gradient_edge(output));
  // The outputs are gone: what is there now is there for the backward, or was before.
  kept_for_backward_ = recorder.alive();
}

std::vector<int64_t> ValueTrace::positions_of(const std::vector<HeavyOp>& calls) const {
  std::vector<int64_t> positions(events_.size(), -1);
  std::size_t next = 0;
  double inside = 0;  // what a frozen linear has done so far
  for (std::size_t i = 0; i < events_.size(); ++i) {
    if (events_[i].flops <= 0) continue;
    if (next == calls.size()) return {};
    const HeavyOp& call = calls[next];
    inside += events_[i].flops;
    const std::string& name = events_[i].name;
    const bool named =
        name == "aten::" + call.op || name == "trainer::" + call.op || (name == kUpInPlace && call.op == kUpCall);
    const bool fits = call.op == "frozen_linear" ? inside <= call.flops : inside == call.flops && named;
    if (!fits) return {};
    positions[i] = static_cast<int64_t>(next);
    if (inside == call.flops) ++next, inside = 0;
  }
  return next == calls.size() ? positions : std::vector<int64_t>{};
}

std::set<int64_t> ValueTrace::dead(const std::vector<HeavyOp>& calls, const std::set<int64_t>& kept) const {
  const std::vector<int64_t> positions = positions_of(calls);
  if (positions.empty()) return {};
  std::set<Storage> read = kept_for_backward_;
  std::set<int64_t> live;
  for (std::size_t i = events_.size(); i > 0; --i) {
    const Event& event = events_[i - 1];
    const int64_t position = positions[i - 1];
    if (kept.contains(position)) {  // what it was made from is not asked for, nor is what it was written over
      if (event.name == kUpInPlace)
        for (const Storage output : event.outputs) read.erase(output);
      continue;
    }
    // A kept value that passes through the operator around it is explained by its own event.
    std::set<Storage> explained;
    for (std::size_t inner = event.first; inner + 1 < i; ++inner)
      if (kept.contains(positions[inner]))
        explained.insert(events_[inner].outputs.begin(), events_[inner].outputs.end());
    const bool is_read = std::any_of(event.outputs.begin(), event.outputs.end(), [&](Storage output) {
      return read.contains(output) && !explained.contains(output);
    });
    if (position >= 0 && (is_read || !event.floating)) live.insert(position);
    if (is_read) read.insert(event.inputs.begin(), event.inputs.end());
  }
  std::set<int64_t> unread;
  for (std::size_t i = 0; i < calls.size(); ++i)
    if (const auto position = static_cast<int64_t>(i); !kept.contains(position) && !live.contains(position))
      unread.insert(position);
  return unread;
}

double ValueTrace::dead_flops(const std::vector<HeavyOp>& calls, const std::set<int64_t>& kept) const {
  double flops = 0;
  for (const int64_t position : dead(calls, kept)) flops += calls[static_cast<std::size_t>(position)].flops;
  return flops;
}

}  // namespace trainer::planner
