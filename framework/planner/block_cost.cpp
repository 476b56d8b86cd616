#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>
#include <planner/block_cost.hpp>
#include <planner/byte_counter.hpp>
#include <planner/dead_values.hpp>
#include <planner/shape_kernels.hpp>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

namespace trainer::planner {
namespace {

/// The parameters' gradients are put aside and come back, so that a measurement leaves nothing behind.
class GradientsAside {
 public:
  explicit GradientsAside(std::vector<Parameter*> parameters) : parameters_(std::move(parameters)) {
    for (Parameter* parameter : parameters_) before_.push_back(std::exchange(grad(parameter), at::Tensor()));
  }
  ~GradientsAside() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) grad(parameters_[i]) = before_[i];
  }
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;
  [[nodiscard]] int64_t bytes() const {
    int64_t bytes = 0;
    for (Parameter* parameter : parameters_)
      if (grad(parameter).defined()) bytes += static_cast<int64_t>(grad(parameter).nbytes());
    return bytes;
  }

 private:
  static at::Tensor& grad(Parameter* parameter) { return parameter->value().mutable_grad(); }
  std::vector<Parameter*> parameters_;
  std::vector<at::Tensor> before_;
};

/// A save policy that notes what it was asked.
class Noted final : public SavePolicy {
 public:
  explicit Noted(SavePolicy* policy) : policy_(policy) {}
  bool keep(const HeavyOp& op) override {
    calls.push_back(op);
    const bool keeps = policy_ != nullptr && policy_->keep(op);
    if (keeps) kept.insert(op.position);
    return keeps;
  }
  std::vector<HeavyOp> calls;
  std::set<int64_t> kept;  ///< positions

 private:
  SavePolicy* policy_;
};

bool needs_gradient(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); });
}

/// Backward from outputs that the chain no longer holds itself.
void backward(std::vector<at::Tensor> outputs) {
  torch::autograd::edge_list roots;
  torch::autograd::variable_list gradients;
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    roots.push_back(torch::autograd::impl::gradient_edge(output));
    gradients.push_back(at::empty_like(output));
  }
  outputs.clear();
  if (roots.empty()) return;
  torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false, /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
}

at::Device device_of(const Flow& flow) {
  for (const auto* list : {&flow.carried, &flow.shared})
    for (const at::Tensor& tensor : *list)
      if (tensor.defined()) return tensor.device();
  return at::kMeta;
}

/// The engine looks for dead values only where it can put other numbers in the place of all inputs.
bool may_elide(const Flow& flow) {
  for (const auto* list : {&flow.carried, &flow.shared})
    for (const at::Tensor& tensor : *list)
      if (tensor.defined() && !tensor.is_floating_point()) return false;
  return true;
}

/// Bytes of one run above what was held before it.
struct RunBytes {
  int64_t kept = 0, forward_peak = 0, backward_peak = 0, gradients = 0;
};

/// Forward and backward; what they do is added to the FLOPs of `cost`.
RunBytes run_once(Block& block, const Flow& flow, const BlockRun& run, BlockCost& cost, bool& recomputed) {
  const at::Device device = device_of(flow);
  const Flow inputs = detached_flow(flow);
  const GradientsAside gradients(block.trainable());
  RunBytes bytes;
  const PeakMark whole(device);
  std::vector<at::Tensor> outputs;
  {
    const FlopCounter flops;
    outputs = run_block(block, inputs, run);
    bytes.kept = whole.held();
    bytes.forward_peak = whole.above();
    cost.forward_flops += flops.flops();
  }
  recomputed = run.options.recompute && needs_gradient(outputs);
  const PeakMark mark(device);
  const FlopCounter flops;
  backward(std::move(outputs));
  bytes.backward_peak = mark.peak() - whole.begin();
  cost.backward_flops += flops.flops();
  bytes.gradients = gradients.bytes();
  return bytes;
}

/// Of the packed weights of a block in the dtype in which it computes.
int64_t expanded_bytes(const Block& block, const Flow& flow) {
  int64_t elements = 0;
  for (const Linear& linear : block.info().linears) {
    const LinearState& state = linear.state();
    if (state.frozen && dynamic_cast<const DenseWeight*>(state.frozen.get()) == nullptr)
      elements += state.in * state.out;
  }
  for (const at::Tensor& tensor : flow.carried)
    if (tensor.defined() && tensor.is_floating_point()) return elements * static_cast<int64_t>(tensor.element_size());
  return elements * static_cast<int64_t>(sizeof(float));
}

/// What a search for dead values holds beyond a rehearsal of it without values, in sizes of what the block carries: at
/// most six on the miniatures, where it was measured (tests/memory).
constexpr int64_t kTrialCopies = 6;

int64_t carried_bytes(const Flow& flow) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : flow.carried)
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

BlockCost measure_once(Block& block, const Flow& flow, const BlockRun& how) {
  const c10::DeviceGuard guard(device_of(flow));
  const CheckpointOptions& options = how.options;
  RecomputeState sites;
  Noted noted(options.save);
  const bool elides = options.recompute && options.elide && may_elide(flow);
  BlockRun run = how;
  if (run.site.block == nullptr) run.site = {&block, 0, 1, 0};
  if (elides) run.options.save = &noted;
  run.state = &sites;
  BlockCost cost;
  bool recomputed = false;
  const RunBytes bytes = run_once(block, flow, run, cost, recomputed);
  cost.kept = bytes.kept;
  cost.forward_peak = cost.first_forward_peak = bytes.forward_peak;
  cost.backward_peak = cost.first_backward_peak = bytes.backward_peak;
  cost.gradients = bytes.gradients;
  cost.expanded_bytes = expanded_bytes(block, flow);
  if (const auto report = sites.reports.find(block.info().type); report != sites.reports.end()) {
    cost.recomputed_flops = report->second.recomputed_flops;
    cost.kept_ops = report->second.kept;
  } else if (recomputed) {
    cost.recomputed_flops = cost.forward_flops;
  }
  cost.backward_flops -= cost.recomputed_flops;
  if (!recomputed) return cost;
  RecomputeState untested;
  untested.always = true;
  run.options.save = options.save;
  run.state = &untested;
  BlockCost first;
  const RunBytes once = run_once(block, flow, run, first, recomputed);
  cost.first_forward_peak = std::max(bytes.forward_peak, once.forward_peak);
  const int64_t trials = elides ? kTrialCopies * carried_bytes(flow) : 0;
  cost.first_backward_peak = std::max(bytes.backward_peak, once.backward_peak + trials);
  if (elides) {
    const ValueTrace trace(block, detached_flow(flow));
    cost.elided_flops = trace.dead_flops(noted.calls, noted.kept);
    for (const int64_t position : trace.dead(noted.calls, {}))
      if (const HeavyOp& op = noted.calls[static_cast<std::size_t>(position)]; noted.kept.contains(position))
        cost.unread_ops.insert(op.op + "#" + std::to_string(op.index));
  }
  cost.recomputed_flops -= cost.elided_flops;
  return cost;
}

std::string text_of(const Block& block) { return "block \"" + block.info().name + "\""; }

}  // namespace

Flow detached_flow(const Flow& flow, std::optional<at::Device> device) {
  Flow leaves = flow;
  for (auto* list : {&leaves.carried, &leaves.shared})
    for (at::Tensor& tensor : *list) {
      if (!tensor.defined()) continue;
      const bool trained = tensor.requires_grad();
      tensor = tensor.detach();
      if (device) tensor = tensor.to(*device);
      tensor.requires_grad_(trained);
    }
  return leaves;
}

BlockCost measure(Block& block, const Flow& flow, const BlockRun& how) {
  return on_shapes(text_of(block), [&] { return measure_once(block, flow, how); });
}

std::vector<Flow> block_inputs(std::span<Block* const> blocks, const Flow& flow, std::span<const at::Device> devices) {
  std::vector<Flow> flows;
  std::map<std::string, std::vector<at::Tensor>> known;  // outputs have no values: equal runs have equal ones
  Flow next = detached_flow(flow);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Block* const block = blocks[i];
    const c10::DeviceGuard guard(devices[i]);
    next = detached_flow(next, devices[i]);
    flows.push_back(detached_flow(next));
    std::vector<at::Tensor>& outputs = known[cost_key(*block, next)];
    if (outputs.empty()) outputs = on_shapes(text_of(*block), [&] { return run_block(*block, next, {}); });
    next.carried = outputs;
    next = detached_flow(next);
  }
  return flows;
}

std::string cost_key(const Block& block, const Flow& flow) {
  std::ostringstream text;
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined())
      text << ';' << c10::toString(tensor.scalar_type()) << tensor.sizes() << (tensor.requires_grad() ? '+' : '-');
    else
      text << ";none";
  };
  text << block.info().type;
  for (const at::Tensor& tensor : flow.carried) add(tensor);
  for (const at::Tensor& tensor : flow.shared) add(tensor);
  for (const Parameter* parameter : block.trainable()) add(parameter->value());
  // Blocks of one type may differ in which of their layers an adapter or a format was put on.
  for (const Linear& linear : block.info().linears) {
    const LinearState& state = linear.state();
    text << ';' << (state.frozen ? state.frozen->bytes() : 0);
    if (state.adapter && state.adapter_enabled) text << 'A' << state.adapter->parameters().size();
  }
  return text.str();
}

}  // namespace trainer::planner
