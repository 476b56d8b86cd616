#include "verifier.hpp"

#include <ATen/core/grad_mode.h>

namespace trainer::recompute {
namespace {

/// One run with gradients on, from declared inputs alone: its graph may end in them only.
/// `copies`: of the flow's tensors, so that a change in place harms nobody here and is left for the forward to find.
std::vector<at::Tensor> run_from_inputs(const Recomputation& recomputation, const Flow& flow, const FlatInputs& inputs,
                                        bool copies, OpTrace* trace) {
  const at::AutoGradMode grad_on(true);
  const OpTrace::Scope tracing(trace);
  const std::vector<at::Tensor> leaves = alias_leaves(inputs.tensors);
  std::vector<at::Tensor> given = leaves;
  for (std::size_t i = 0; copies && i + recomputation.parameters.size() < given.size(); ++i)
    given[i] = given[i].clone();
  std::vector<at::Tensor> outputs = forward_on(recomputation.block, flow, recomputation.parameters, given);
  refuse_foreign_leaves(recomputation.block, outputs, leaves, inputs, recomputation.run.state);
  return outputs;
}

/// The next runs of a block note their heavy calls in `trace`, as long as this lives.
class Traced {
 public:
  Traced(Recomputation& recomputation, OpTrace& trace) : recomputation_(recomputation) { recomputation.trace = &trace; }
  ~Traced() { recomputation_.trace = nullptr; }
  Traced(const Traced&) = delete;
  Traced& operator=(const Traced&) = delete;

 private:
  Recomputation& recomputation_;
};

constexpr const char* kGradients = "with gradients on";

}  // namespace

std::unique_ptr<Verifier> Verifier::of(const Recomputation& recomputation, const Flow& flow, const FlatInputs& inputs) {
  const RecomputeState* state = recomputation.run.state;
  if (state == nullptr) return nullptr;
  std::string site = signature(recomputation.block, flow, inputs);
  // Without values there is nothing to verify; where it is asked for all the same, what it holds is to be counted.
  if (!state->always && (inputs.tensors.front().is_meta() || state->signatures.contains(site))) return nullptr;
  install_heavy_kernels();
  return std::unique_ptr<Verifier>(new Verifier(std::move(site)));
}

std::vector<at::Tensor> Verifier::around_forward(Recomputation& recomputation, const Flow& flow,
                                                 const FlatInputs& inputs, const std::function<Tensors()>& forward) {
  const Block& block = recomputation.block;
  // Before and after: a member that a block fills once carries the graph of the run before, one that it fills every
  // time that of the run after, into the next run that reads it.
  run_from_inputs(recomputation, flow, inputs, /*copies=*/true, nullptr);
  Tensors outputs;
  {
    const Traced traced(recomputation, calls_);
    outputs = forward();
  }
  OpTrace calls;
  const Tensors again = run_from_inputs(recomputation, flow, inputs, /*copies=*/false, &calls);
  require_equal(block, outputs, again, /*compare_bits=*/true, kGradients);
  require_same_calls(block, calls_, calls, kGradients);
  recomputation.outputs.clear();
  for (const at::Tensor& output : outputs) recomputation.outputs.push_back(output.defined() ? output.detach() : output);
  recomputation.run.state->signatures.insert(site_);
  return outputs;
}

void Verifier::replay_whole(const Recomputation& recomputation, const Tensors& leaves) const {
  if (!recomputation.region) return;
  recomputation.region->dead.clear();
  recomputation.region->keep_outputs = true;
  const Tensors again = recomputation.replay(leaves);
  require_equal(recomputation.block, recomputation.outputs, again, /*compare_bits=*/true, kRecompute);
}

std::vector<at::Tensor> Verifier::replay(Recomputation& recomputation, const Tensors& leaves) const {
  OpTrace calls;
  const Traced traced(recomputation, calls);
  Tensors again = recomputation.replay(leaves);
  require_equal(recomputation.block, recomputation.outputs, again, !recomputation.region, kRecompute);
  require_same_calls(recomputation.block, calls_, calls, kRecompute);
  return again;
}

}  // namespace trainer::recompute
