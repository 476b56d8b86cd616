/// @file The recompute engine: forward without grad keeping inputs only; backward reruns the block on alias leaves and
/// returns gradients, so that the outer graph accumulates each of them once.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <trainer/sdk/error.hpp>

#include "elision.hpp"
#include "recompute_checks.hpp"
#include "resident.hpp"
#include "verifier.hpp"

namespace trainer {
namespace {

using recompute::FlatInputs;
using recompute::Recomputation;
using recompute::Resident;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// An input that an ActivationStore keeps. A store may hold the tensor itself for a while; then a change in place would
/// reach it, and must be found as it is for what autograd saves.
struct Stored {
  std::shared_ptr<void> handle;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  int64_t version = 0;

  [[nodiscard]] bool changed(const at::Tensor& taken) const {
    const auto original = storage.lock();
    return original && taken.has_storage() && taken.storage().unsafeGetStorageImpl() == original.get() &&
           recompute::versions({taken}).front() != version;
  }
};

[[noreturn]] void refuse_change_after_forward(const Block& block) {
  throw Error(ExitCode::failed, "block \"" + block.info().name +
                                    "\" cannot be recomputed: one of its inputs or parameters was changed in place "
                                    "after its forward");
}

/// Same shape, dtype and device, no memory: what the recompute's outputs are compared with.
std::vector<at::Tensor> without_data(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> list;
  for (const at::Tensor& tensor : tensors)
    list.push_back(tensor.defined() ? tensor.detach().new_empty({}).expand(tensor.sizes()) : at::Tensor());
  return list;
}

/// What the node of a recomputed block keeps besides saved variables.
struct Kept : Recomputation {
  using Recomputation::Recomputation;
  std::vector<bool> requires_grad;  ///< of each flat input
  std::vector<Stored> stored;       ///< flow inputs, when an ActivationStore keeps them

  void release() {
    stored.clear();
    outputs.clear();
  }
};

struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static variable_list forward(AutogradContext* ctx, at::TensorList flat, const c10::intrusive_ptr<Kept>& kept) {
    ctx->set_materialize_grads(false);
    const std::vector<at::Tensor> inputs(flat.begin(), flat.end());
    variable_list outputs = kept->record(inputs);
    save(ctx, *kept, inputs);
    ctx->saved_data["kept"] = c10::IValue::make_capsule(kept);
    kept->outputs = without_data(outputs);
    std::erase_if(outputs, [](const at::Tensor& output) { return !output.defined(); });  // a node has none of these
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto kept = c10::static_intrusive_pointer_cast<Kept>(ctx->saved_data["kept"].toCapsule());
    refuse_second_derivative(kept->block);
    const Resident resident(kept->run, Pass::backward);
    const std::vector<at::Tensor> leaves = recompute::alias_leaves(restore(ctx, *kept));
    const bool keep_graph = torch::autograd::get_current_graph_task_keep_graph();
    if (kept->verifier) kept->verifier->replay_whole(*kept, leaves);
    recompute::leave_out_dead(*kept, leaves, grads, keep_graph);
    std::vector<at::Tensor> again = kept->verifier ? kept->verifier->replay(*kept, leaves) : kept->replay(leaves);
    recompute::require_equal(kept->block, kept->outputs, again, /*compare_bits=*/false, recompute::kRecompute);
    recompute::report_replay(*kept);
    // The node lives as long as the loss; what it keeps besides saved variables must go with them, block by block.
    if (!keep_graph) kept->release();
    variable_list found = recompute::gradients_of(std::move(again), std::move(grads), leaves);
    found.emplace_back();  // of `kept`, an argument of the forward
    return found;
  }

 private:
  static void refuse_second_derivative(const Block& block) {
    if (at::GradMode::is_enabled())
      throw Error(ExitCode::failed, "block \"" + block.info().name +
                                        "\" is recomputed and has no second derivative (create_graph); exclude it from "
                                        "checkpointing to differentiate twice");
  }

  static void save(AutogradContext* ctx, Kept& kept, const std::vector<at::Tensor>& inputs) {
    for (const at::Tensor& tensor : inputs) kept.requires_grad.push_back(tensor.requires_grad());
    const std::size_t flow_inputs = inputs.size() - kept.parameters.size();
    if (kept.run.store == nullptr) {
      ctx->save_for_backward(inputs);
      return;
    }
    const std::vector<int64_t> versions = recompute::versions(inputs);
    for (std::size_t i = 0; i < flow_inputs; ++i)
      kept.stored.push_back({kept.run.store->put(inputs[i], kept.run.site),
                             c10::weak_intrusive_ptr<c10::StorageImpl>(inputs[i].storage().getWeakStorageImpl()),
                             versions[i]});
    ctx->save_for_backward({inputs.begin() + static_cast<std::ptrdiff_t>(flow_inputs), inputs.end()});
  }

  static std::vector<at::Tensor> restore(AutogradContext* ctx, const Kept& kept) {
    std::vector<at::Tensor> inputs, saved;
    try {
      saved = ctx->get_saved_variables();  // first: it is what refuses a second backward through a freed graph
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      if (text.find("inplace") == std::string::npos && text.find("in-place") == std::string::npos) throw;
      refuse_change_after_forward(kept.block);
    }
    for (const Stored& stored : kept.stored) {
      inputs.push_back(kept.run.store->take(stored.handle, kept.run.site));
      if (stored.changed(inputs.back())) refuse_change_after_forward(kept.block);
    }
    for (at::Tensor& tensor : saved) inputs.push_back(std::move(tensor));
    // Integer and frozen inputs, and whatever a store returned, get back the flag that they had.
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].requires_grad() != kept.requires_grad[i])
        inputs[i] = inputs[i].detach().requires_grad_(kept.requires_grad[i]);
    return inputs;
  }
};

/// Each differentiable input through a node of its own (see the header).
std::vector<at::Tensor> own_nodes(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> views;
  views.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) views.push_back(tensor.requires_grad() ? tensor.view_as(tensor) : tensor);
  return views;
}

/// The engine: the block as one node of the graph, and what every step checks.
std::vector<at::Tensor> run_recomputed(const c10::intrusive_ptr<Kept>& kept, const Flow& flow,
                                       const FlatInputs& inputs) {
  const std::vector<int64_t> before = recompute::versions(inputs.tensors);
  const std::vector<at::Tensor> defined = Checkpoint::apply(at::TensorList(inputs.tensors), kept);
  recompute::refuse_changed_inputs(kept->block, inputs, before);
  recompute::report_forward(*kept, flow);
  std::vector<at::Tensor> outputs;
  for (auto next = defined.begin(); const at::Tensor& output : kept->outputs)
    outputs.push_back(output.defined() ? *next++ : at::Tensor());
  return outputs;
}

/// The engine, with its checks around it where the site is new.
std::vector<at::Tensor> run_verified(Block& block, const Flow& flow, const BlockRun& run,
                                     const std::vector<Parameter*>& parameters, const FlatInputs& inputs) {
  recompute::refuse_autocast(block, inputs);
  const auto kept = c10::make_intrusive<Kept>(block, flow, run, parameters);
  kept->verifier = recompute::Verifier::of(*kept, flow, inputs);
  const auto engine = [&] { return run_recomputed(kept, flow, inputs); };
  return kept->verifier ? kept->verifier->around_forward(*kept, flow, inputs, engine) : engine();
}

}  // namespace

std::vector<at::Tensor> run_block(Block& block, const Flow& flow, const BlockRun& run) {
  if (!block.takes_part(flow)) return flow.carried;
  if (recompute::OpTrace* outer = recompute::active_trace(); outer != nullptr) outer->nested = true;
  const Resident resident(run, Pass::forward);
  if (!at::GradMode::is_enabled()) return block.forward(flow);
  const std::vector<Parameter*> parameters = block.trainable();
  const FlatInputs inputs = recompute::flatten(flow, parameters);
  bool differentiable = false;
  for (const at::Tensor& tensor : inputs.tensors) differentiable = differentiable || tensor.requires_grad();
  if (!differentiable) {
    std::vector<at::Tensor> outputs = block.forward(flow);
    // With no differentiable input the outputs have no graph, unless the block reads what it does not declare.
    if (run.options.recompute && run.state != nullptr)
      recompute::refuse_foreign_leaves(block, outputs, {}, inputs, run.state);
    return outputs;
  }
  if (run.options.recompute) return run_verified(block, flow, run, parameters, inputs);
  if (run.residency == nullptr) return recompute::forward_on(block, flow, parameters, own_nodes(inputs.tensors));
  // Autograd runs the backward of such a block node by node: nodes of our own around it call for its weights.
  const recompute::BackwardStay stay(run);
  return stay.outputs(recompute::forward_on(block, flow, parameters, stay.inputs(inputs.tensors)));
}

}  // namespace trainer
