#include <ATen/TensorOperators.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <execution/forward.hpp>
#include <execution/stage_executor.hpp>
#include <plugin/guard.hpp>

#include <map>
#include <optional>
#include <utility>

namespace trainer::execution {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Where the gradient of a received tensor is left for the stage that made it.
struct Slot : torch::CustomClassHolder {
  at::Tensor grad;
};

/// What a stage receives, as a node of its graph. The node takes the gradient as it comes: a leaf's `.grad` would be
/// laid out anew. It is also the root for the part of a shared tensor's gradient that later stages made. As a root it
/// gets that part first, and adds its own stage's parts in the order in which a single graph would add them; a root at
/// a view of it, or a sum made at the end, would add them in another order and round otherwise.
struct Received : torch::autograd::Function<Received> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, const c10::intrusive_ptr<Slot>& slot) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["slot"] = c10::IValue::make_capsule(slot);
    return tensor;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    c10::static_intrusive_pointer_cast<Slot>(ctx->saved_data["slot"].toCapsule())->grad = std::move(grads[0]);
    return {at::Tensor(), at::Tensor()};
  }
};

/// One host thread issues everything: backward runs in sequence order on this thread, whatever the devices.
class OneHostThread {
 public:
  OneHostThread() : before_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  ~OneHostThread() { c10::AutogradState::get_tls_state().set_multithreading_enabled(before_); }
  OneHostThread(const OneHostThread&) = delete;
  OneHostThread& operator=(const OneHostThread&) = delete;

 private:
  bool before_;
};

/// Carried tensors, then shared ones.
std::vector<at::Tensor> flat(const Flow& flow) {
  std::vector<at::Tensor> tensors = flow.carried;
  tensors.insert(tensors.end(), flow.shared.begin(), flow.shared.end());
  return tensors;
}

bool needs_gradient(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }

/// Tensors of an example on the way to the stage that reads them; those of one name may come from anywhere.
class NamedParcels {
 public:
  NamedParcels() = default;
  NamedParcels(Transfers& transfers, const NamedTensors& tensors, at::Device to) {
    for (const auto& [name, tensor] : tensors)
      parcels_.emplace(name, tensor.defined() ? transfers.send({tensor}, tensor.device(), to) : Parcel{{tensor}, {}});
  }
  NamedTensors receive(Transfers& transfers, at::Device device) {
    NamedTensors tensors;
    for (auto& [name, parcel] : parcels_) tensors[name] = transfers.receive(std::move(parcel), device).front();
    parcels_.clear();
    return tensors;
  }

 private:
  std::map<std::string, Parcel> parcels_;
};

/// A flow between two stages.
struct FlowParcel {
  Parcel parcel;
  std::size_t carried = 0;          ///< how many of its tensors
  std::vector<bool> requires_grad;  ///< of each
  std::vector<int64_t> sizes;
};

/// A stage of a micro-batch between its forward and its backward.
struct Graph {
  std::vector<c10::intrusive_ptr<Slot>> received;  ///< of the flat input; null where no gradient is wanted
  std::vector<at::Tensor> made;                    ///< the flat output; undefined where it needs no gradient
  at::Tensor loss;                                 ///< of the last stage, instead
};

}  // namespace

/// The state of one call of `run`.
class StageExecutor::Step {
 public:
  Step(StageExecutor& executor, std::size_t micro_batches, const StageInputs& inputs, RecomputeState& state)
      : executor_(executor),
        inputs_(inputs),
        recompute_state_(state),
        losses_(micro_batches),
        examples_(micro_batches),
        targets_(micro_batches),
        chains_(micro_batches),
        forward_(micro_batches),
        backward_(micro_batches),
        graphs_(executor.stages_.size(), std::vector<Graph>(micro_batches)) {}

  void run(const ScheduleStep& task) {
    const auto stage = static_cast<std::size_t>(task.stage), micro = static_cast<std::size_t>(task.micro_batch);
    const c10::DeviceGuard guard(executor_.stages_[stage].device);
    if (task.pass == Pass::forward)
      forward(stage, micro);
    else
      backward(stage, micro);
  }
  std::vector<at::Tensor> losses() { return std::move(losses_); }

 private:
  void forward(std::size_t index, std::size_t micro) {
    const Stage& stage = executor_.stages_[index];
    if (stage.prologue) take_example(micro);
    Graph& graph = graphs_[index][micro];
    plugin::guard(executor_.plugins_, "forward", [&] {
      Flow flow = stage.prologue ? executor_.model_.prologue(examples_[micro].inputs) : unpack(index, micro, graph);
      if (stage.prologue) chains_[micro].emplace(executor_.model_, flow, static_cast<int64_t>(micro));
      if (inputs_.before_blocks)
        inputs_.before_blocks({Pass::forward, static_cast<int64_t>(index), static_cast<int64_t>(micro)});
      flow = run_blocks(*chains_[micro], std::move(flow), stage.first, stage.end, executor_.memory_, &recompute_state_);
      if (stage.epilogue) {
        Example& example = examples_[micro];
        example.targets = targets_[micro].receive(executor_.transfers_, stage.device);
        graph.loss = executor_.objective_.loss(example, Prediction(executor_.model_, flow));
        losses_[micro] = graph.loss.detach();
      } else {
        hand_over(index, micro, graph, flow);
      }
    });
    if (stage.epilogue) examples_[micro] = {};
  }

  /// The targets are on their way from here on, though the last stage needs them only at its end.
  void take_example(std::size_t micro) {
    Transfers& transfers = executor_.transfers_;
    const at::Device first = executor_.stages_.front().device;
    Example example = inputs_.example(static_cast<int64_t>(micro));
    targets_[micro] = NamedParcels(transfers, example.targets, executor_.stages_.back().device);
    example.inputs = NamedParcels(transfers, example.inputs, first).receive(transfers, first);
    example.targets.clear();
    examples_[micro] = std::move(example);
  }

  void hand_over(std::size_t index, std::size_t micro, Graph& graph, const Flow& flow) {
    FlowParcel& next = forward_[micro];
    std::vector<at::Tensor> tensors = flat(flow);
    next.carried = flow.carried.size();
    next.sizes = flow.sizes;
    next.requires_grad.clear();
    for (const at::Tensor& tensor : tensors) {
      next.requires_grad.push_back(needs_gradient(tensor));
      graph.made.push_back(needs_gradient(tensor) ? tensor : at::Tensor());
    }
    next.parcel = executor_.transfers_.send(std::move(tensors), executor_.stages_[index].device,
                                            executor_.stages_[index + 1].device);
  }

  Flow unpack(std::size_t index, std::size_t micro, Graph& graph) {
    FlowParcel parcel = std::exchange(forward_[micro], {});
    std::vector<at::Tensor> tensors =
        executor_.transfers_.receive(std::move(parcel.parcel), executor_.stages_[index].device);
    graph.received.resize(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!parcel.requires_grad[i]) continue;
      graph.received[i] = c10::make_intrusive<Slot>();
      tensors[i] = Received::apply(tensors[i].requires_grad_(true), graph.received[i]);
    }
    const auto middle = tensors.begin() + static_cast<std::ptrdiff_t>(parcel.carried);
    return {{tensors.begin(), middle}, {middle, tensors.end()}, std::move(parcel.sizes)};
  }

  void backward(std::size_t index, std::size_t micro) {
    Graph graph = std::exchange(graphs_[index][micro], {});
    if (executor_.stages_[index].epilogue) {
      if (inputs_.before_backward) inputs_.before_backward(losses_[micro]);
      (graph.loss / static_cast<double>(losses_.size())).backward();
    } else {
      backward_from_next(index, micro, graph);
    }
    if (index == 0) return;
    std::vector<at::Tensor> grads;
    for (const auto& slot : graph.received) grads.push_back(slot ? std::move(slot->grad) : at::Tensor());
    graph = {};
    backward_[micro] = executor_.transfers_.send(std::move(grads), executor_.stages_[index].device,
                                                 executor_.stages_[index - 1].device);
  }

  /// Roots come in the order in which a single graph would have met their gradients: of one block's inputs the last
  /// first. It matters where two of them are one tensor.
  void backward_from_next(std::size_t index, std::size_t micro, Graph& graph) {
    std::vector<at::Tensor> grads =
        executor_.transfers_.receive(std::exchange(backward_[micro], {}), executor_.stages_[index].device);
    std::vector<at::Tensor> roots, root_grads;
    for (std::size_t i = graph.made.size(); i-- > 0;) {
      if (!graph.made[i].defined() || !grads[i].defined()) continue;
      roots.push_back(std::move(graph.made[i]));
      root_grads.push_back(std::move(grads[i]));
    }
    graph.made.clear();
    if (!roots.empty()) torch::autograd::backward(roots, root_grads);
  }

  StageExecutor& executor_;
  const StageInputs& inputs_;
  RecomputeState& recompute_state_;
  std::vector<at::Tensor> losses_;
  std::vector<Example> examples_;             ///< without targets until the epilogue takes them
  std::vector<NamedParcels> targets_;         ///< for the epilogue
  std::vector<std::optional<Chain>> chains_;  ///< made by the prologue's stage
  std::vector<FlowParcel> forward_;           ///< what the next stage of a micro-batch receives
  std::vector<Parcel> backward_;              ///< gradients of the flat output, for the stage before
  std::vector<std::vector<Graph>> graphs_;    ///< by stage and micro-batch
};

StageExecutor::StageExecutor(Model& model, const Objective& objective, const MemoryStack& memory,
                             const PlacementPlan& plan, std::string plugins)
    : model_(model),
      objective_(objective),
      memory_(memory),
      plan_(plan),
      plugins_(std::move(plugins)),
      stages_(stages_of(plan)) {}
StageExecutor::~StageExecutor() = default;
StageExecutor::StageExecutor(StageExecutor&&) noexcept = default;

std::vector<at::Tensor> StageExecutor::run(int64_t micro_batches, const StageInputs& inputs, RecomputeState& state) {
  const OneHostThread one_thread;
  Step step(*this, static_cast<std::size_t>(micro_batches), inputs, state);
  for (const ScheduleStep& task : plan_.schedule) {
    if (inputs.before_step) inputs.before_step(task);
    step.run(task);
  }
  return step.losses();
}

}  // namespace trainer::execution
