/// @file The recompute engine: forward without grad keeping inputs only; backward reruns the block on alias leaves and
/// returns gradients, so that the outer graph accumulates each of them once.
#include "recompute_checks.hpp"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <trainer/sdk/error.hpp>

#include <optional>

namespace trainer {
namespace {

using recompute::FlatInputs;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Calls the residency around one run of a block, also when the run throws.
class Resident {
 public:
  Resident(const BlockRun& run, Pass pass) : run_(run), pass_(pass) {
    if (run_.residency != nullptr) run_.residency->before(run_.site, pass_);
  }
  ~Resident() {
    if (run_.residency != nullptr) run_.residency->after(run_.site, pass_);
  }
  Resident(const Resident&) = delete;
  Resident& operator=(const Resident&) = delete;

 private:
  const BlockRun& run_;
  Pass pass_;
};

/// What a recomputed block keeps between forward and backward, besides its inputs.
struct Kept : torch::CustomClassHolder {
  Block* block = nullptr;
  BlockRun run;
  Flow shape;  ///< undefined where the flow is; tensors are replaced by the saved ones
  std::vector<Parameter*> parameters;
  std::vector<bool> requires_grad;                  ///< of each flat input
  std::vector<std::shared_ptr<void>> stored;        ///< flow inputs, when an ActivationStore keeps them
  std::vector<at::Tensor> forward_outputs;          ///< metadata (1 element of storage), or the outputs when verifying
  bool verifying = false;
};

std::vector<at::Tensor> forward_on(Block& block, const Flow& like, const std::vector<Parameter*>& parameters,
                                   const std::vector<at::Tensor>& flat) {
  const std::vector<at::Tensor> substitutes(flat.end() - static_cast<std::ptrdiff_t>(parameters.size()), flat.end());
  const ParameterSubstitution substitution(parameters, substitutes);
  return block.forward(recompute::unflatten(like, flat));
}

/// Same shape, dtype and device, no memory: what the recompute's outputs are compared with.
std::vector<at::Tensor> without_data(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> list;
  for (const at::Tensor& tensor : tensors)
    list.push_back(tensor.defined() ? tensor.detach().new_empty({1}).expand(tensor.sizes()) : at::Tensor());
  return list;
}

/// First run of a site: the block must compute the same with gradients on, from its declared inputs alone. After the
/// forward without grad, since a member cached by an earlier block then still carries that block's graph.
void verify(Block& block, const Flow& flow, const std::vector<Parameter*>& parameters, const FlatInputs& inputs,
            const std::vector<at::Tensor>& outputs, const VerifiedSites* sites) {
  const at::AutoGradMode grad_on(true);
  const std::vector<at::Tensor> leaves = recompute::alias_leaves(inputs.tensors);
  const std::vector<at::Tensor> again = forward_on(block, flow, parameters, leaves);
  recompute::refuse_foreign_leaves(block, again, leaves, sites);
  recompute::require_equal(block, outputs, again, /*compare_bits=*/true, "with gradients on");
}

struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static variable_list forward(AutogradContext* ctx, at::TensorList flat, const c10::intrusive_ptr<Kept>& kept) {
    ctx->set_materialize_grads(false);
    const std::vector<at::Tensor> inputs(flat.begin(), flat.end());
    variable_list outputs = forward_on(*kept->block, kept->shape, kept->parameters, inputs);
    save(ctx, *kept, inputs);
    ctx->saved_data["kept"] = c10::IValue::make_capsule(kept);
    kept->forward_outputs = without_data(outputs);
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto kept = c10::static_intrusive_pointer_cast<Kept>(ctx->saved_data["kept"].toCapsule());
    Block& block = *kept->block;
    if (at::GradMode::is_enabled())
      throw Error(ExitCode::failed, "block \"" + block.info().name +
                                        "\" is recomputed and has no second derivative (create_graph); exclude it from "
                                        "checkpointing to differentiate twice");
    const Resident resident(kept->run, Pass::backward);
    const std::vector<at::Tensor> leaves = recompute::alias_leaves(restore(ctx, *kept));
    variable_list outputs, received;
    {
      const at::AutoGradMode grad_on(true);
      std::vector<at::Tensor> again = forward_on(block, kept->shape, kept->parameters, leaves);
      recompute::require_equal(block, kept->forward_outputs, again, kept->verifying, "in the recompute");
      for (std::size_t i = 0; i < again.size(); ++i) {
        if (!grads[i].defined() || !again[i].defined() || !again[i].requires_grad()) continue;
        outputs.push_back(std::move(again[i]));
        received.push_back(std::move(grads[i]));
      }
    }
    return gradients(outputs, received, leaves);
  }

 private:
  static void save(AutogradContext* ctx, Kept& kept, const std::vector<at::Tensor>& inputs) {
    for (const at::Tensor& tensor : inputs) kept.requires_grad.push_back(tensor.requires_grad());
    const std::size_t flow_inputs = inputs.size() - kept.parameters.size();
    if (kept.run.store == nullptr) {
      ctx->save_for_backward(inputs);
      return;
    }
    for (std::size_t i = 0; i < flow_inputs; ++i) kept.stored.push_back(kept.run.store->put(inputs[i], kept.run.site));
    ctx->save_for_backward({inputs.begin() + static_cast<std::ptrdiff_t>(flow_inputs), inputs.end()});
  }

  static std::vector<at::Tensor> restore(AutogradContext* ctx, const Kept& kept) {
    std::vector<at::Tensor> inputs;
    for (const auto& handle : kept.stored) inputs.push_back(kept.run.store->take(handle, kept.run.site));
    try {
      for (at::Tensor& tensor : ctx->get_saved_variables()) inputs.push_back(std::move(tensor));
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      if (text.find("inplace") == std::string::npos && text.find("in-place") == std::string::npos) throw;
      throw Error(ExitCode::failed, "block \"" + kept.block->info().name +
                                        "\" cannot be recomputed: one of its inputs or parameters was changed in place "
                                        "after its forward");
    }
    // Integer and frozen inputs, and whatever a store returned, get back the flag that they had.
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].requires_grad() != kept.requires_grad[i])
        inputs[i] = inputs[i].detach().requires_grad_(kept.requires_grad[i]);
    return inputs;
  }

  /// One gradient a flat input; the last, undefined one is the Kept argument's.
  static variable_list gradients(const variable_list& outputs, const variable_list& received,
                                 const std::vector<at::Tensor>& leaves) {
    variable_list wanted, result(leaves.size() + 1);
    for (const at::Tensor& leaf : leaves)
      if (leaf.requires_grad()) wanted.push_back(leaf);
    if (outputs.empty()) return result;
    const variable_list found = torch::autograd::grad(outputs, wanted, received, /*retain_graph=*/false,
                                                      /*create_graph=*/false, /*allow_unused=*/true);
    std::size_t next = 0;
    for (std::size_t i = 0; i < leaves.size(); ++i)
      if (leaves[i].requires_grad()) result[i] = found[next++];
    return result;
  }
};

/// Each differentiable input through a node of its own (see the header).
std::vector<at::Tensor> own_nodes(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> views;
  views.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) views.push_back(tensor.requires_grad() ? tensor.view_as(tensor) : tensor);
  return views;
}

std::vector<at::Tensor> run_recomputed(Block& block, const Flow& flow, const BlockRun& run,
                                       const std::vector<Parameter*>& parameters, const FlatInputs& inputs) {
  auto kept = c10::make_intrusive<Kept>();
  kept->block = &block;
  kept->run = run;
  kept->parameters = parameters;
  kept->shape = flow;
  // The flow's own tensors must not be kept alive here: they are saved, or stored, by the node.
  const at::Tensor placeholder = inputs.tensors.front().new_empty({0});
  for (auto* list : {&kept->shape.carried, &kept->shape.shared})
    for (at::Tensor& tensor : *list)
      if (tensor.defined()) tensor = placeholder;
  const std::string site = run.verified != nullptr ? recompute::signature(block, inputs) : "";
  const bool first = run.verified != nullptr && (run.verified->always || !run.verified->signatures.contains(site));
  kept->verifying = first;
  const std::vector<int64_t> before = recompute::versions(inputs.tensors);
  std::vector<at::Tensor> outputs = Checkpoint::apply(at::TensorList(inputs.tensors), kept);
  recompute::refuse_changed_inputs(block, inputs, before);
  if (first) {
    verify(block, flow, parameters, inputs, outputs, run.verified);
    kept->forward_outputs.clear();
    for (const at::Tensor& output : outputs) kept->forward_outputs.push_back(output.defined() ? output.detach() : output);
    run.verified->signatures.insert(site);
  }
  return outputs;
}

}  // namespace

std::vector<at::Tensor> run_block(Block& block, const Flow& flow, const BlockRun& run) {
  const Resident resident(run, Pass::forward);
  if (!at::GradMode::is_enabled()) return block.forward(flow);
  const std::vector<Parameter*> parameters = block.trainable();
  const FlatInputs inputs = recompute::flatten(flow, parameters);
  bool differentiable = false;
  for (const at::Tensor& tensor : inputs.tensors) differentiable = differentiable || tensor.requires_grad();
  if (!differentiable) return block.forward(flow);
  if (run.options.recompute) return run_recomputed(block, flow, run, parameters, inputs);
  return forward_on(block, flow, parameters, own_nodes(inputs.tensors));
}

}  // namespace trainer
