/// @file The recompute engine: forward without grad keeping inputs only; backward reruns the block on alias leaves and
/// returns gradients, so that the outer graph accumulates each of them once.
#include "elision.hpp"
#include "recompute_checks.hpp"
#include "resident.hpp"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <trainer/sdk/error.hpp>

#include <optional>
#include <set>

namespace trainer {
namespace {

using recompute::FlatInputs;
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

/// What a recomputed block keeps between forward and backward, besides its inputs.
struct Kept : torch::CustomClassHolder {
  Block* block = nullptr;
  BlockRun run;
  Flow shape;  ///< undefined where the flow is; tensors are replaced by the saved ones
  std::vector<Parameter*> parameters;
  std::vector<bool> requires_grad;          ///< of each flat input
  std::vector<Stored> stored;               ///< flow inputs, when an ActivationStore keeps them
  std::vector<at::Tensor> forward_outputs;  ///< metadata (1 element of storage), or the outputs when verifying
  bool verifying = false;
  recompute::OpTrace trace;                     ///< heavy calls of the forward, when verifying
  std::unique_ptr<recompute::OpRegion> region;  ///< null: every operation is recomputed, unseen
  RecomputeReport report;                       ///< of this block, from its forward on

  void release() {
    stored.clear();
    forward_outputs.clear();
  }
};

std::vector<at::Tensor> forward_on(Block& block, const Flow& like, const std::vector<Parameter*>& parameters,
                                   const std::vector<at::Tensor>& flat) {
  const std::vector<at::Tensor> substitutes(flat.end() - static_cast<std::ptrdiff_t>(parameters.size()), flat.end());
  const ParameterSubstitution substitution(parameters, substitutes);
  return block.forward(recompute::unflatten(like, flat));
}

/// The same inside the block's region, if it has one, its heavy calls noted in `trace`.
std::vector<at::Tensor> forward_in_region(const Kept& kept, recompute::OpRegion::Mode mode,
                                          const std::vector<at::Tensor>& flat, recompute::OpTrace* trace = nullptr) {
  const recompute::OpTrace::Scope tracing(trace);
  std::optional<recompute::OpRegion::Scope> scope;
  if (kept.region) scope.emplace(*kept.region, mode);
  std::vector<at::Tensor> outputs = forward_on(*kept.block, kept.shape, kept.parameters, flat);
  if (kept.region && mode == recompute::OpRegion::Mode::replay) kept.region->require_all_replayed();
  return outputs;
}

/// Same shape, dtype and device, no memory: what the recompute's outputs are compared with.
std::vector<at::Tensor> without_data(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> list;
  for (const at::Tensor& tensor : tensors)
    list.push_back(tensor.defined() ? tensor.detach().new_empty({}).expand(tensor.sizes()) : at::Tensor());
  return list;
}

/// One run with gradients on, from declared inputs alone: its graph may end in them only. Done before and after the
/// forward of a first run: a member that a block fills once carries the graph of the run before, one that it fills
/// every time that of the run after, into the next run that reads it.
/// `copies`: of the flow's tensors, so that a change in place harms nobody here and is left for the forward to find.
std::vector<at::Tensor> run_from_inputs(Block& block, const Flow& flow, const std::vector<Parameter*>& parameters,
                                        const FlatInputs& inputs, bool copies, const RecomputeState* sites,
                                        recompute::OpTrace* trace = nullptr) {
  const at::AutoGradMode grad_on(true);
  const recompute::OpTrace::Scope tracing(trace);
  const std::vector<at::Tensor> leaves = recompute::alias_leaves(inputs.tensors);
  std::vector<at::Tensor> given = leaves;
  for (std::size_t i = 0; copies && i + parameters.size() < given.size(); ++i) given[i] = given[i].clone();
  std::vector<at::Tensor> outputs = forward_on(block, flow, parameters, given);
  recompute::refuse_foreign_leaves(block, outputs, leaves, inputs, sites);
  return outputs;
}

/// Where a block's report stands: under its type. A plan may run blocks of one type differently; the treatment that is
/// met first has the type alone, each other one says what it keeps, so that none hides another.
RecomputeReport& report_of(const Kept& kept) {
  auto& reports = kept.run.state->reports;
  const std::string& type = kept.block->info().type;
  const auto first = reports.find(type);
  if (first == reports.end() || first->second.kept == kept.report.kept) return reports[type];
  std::string list;
  for (const std::string& op : kept.report.kept) list += (list.empty() ? "" : ", ") + op;
  return reports[type + " keeping " + (list.empty() ? "nothing" : list)];
}

struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static variable_list forward(AutogradContext* ctx, at::TensorList flat, const c10::intrusive_ptr<Kept>& kept) {
    ctx->set_materialize_grads(false);
    const std::vector<at::Tensor> inputs(flat.begin(), flat.end());
    variable_list outputs =
        forward_in_region(*kept, recompute::OpRegion::Mode::record, inputs, kept->verifying ? &kept->trace : nullptr);
    save(ctx, *kept, inputs);
    ctx->saved_data["kept"] = c10::IValue::make_capsule(kept);
    kept->forward_outputs = without_data(outputs);
    std::erase_if(outputs, [](const at::Tensor& output) { return !output.defined(); });  // a node has none of these
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
    const bool keep_graph = torch::autograd::get_current_graph_task_keep_graph();
    if (kept->region) {
      if (kept->verifying) verify_whole(*kept, leaves);
      prepare_replay(*kept, leaves, grads, keep_graph);
    }
    const at::AutoGradMode grad_on(true);
    recompute::OpTrace calls;
    std::vector<at::Tensor> again =
        forward_in_region(*kept, recompute::OpRegion::Mode::replay, leaves, kept->verifying ? &calls : nullptr);
    // With a region, bits were compared before: a dead value is a placeholder, and what it reaches holds anything.
    const bool compare = kept->verifying && !kept->region;
    recompute::require_equal(block, kept->forward_outputs, again, compare, kRecompute);
    if (kept->verifying) recompute::require_same_calls(block, kept->trace, calls, kRecompute);
    if (kept->region) add_replay(*kept);
    // The node lives as long as the loss; what it keeps besides saved variables must go with them, block by block.
    if (!keep_graph) kept->release();
    return gradients(std::move(again), std::move(grads), leaves);
  }

 private:
  static constexpr const char* kRecompute = "in the recompute";

  /// A replay that leaves nothing out, for its outputs alone.
  static void verify_whole(Kept& kept, const std::vector<at::Tensor>& leaves) {
    kept.region->dead.clear();
    kept.region->keep_outputs = true;
    const at::AutoGradMode grad_on(true);
    const std::vector<at::Tensor> again = forward_in_region(kept, recompute::OpRegion::Mode::replay, leaves);
    recompute::require_equal(*kept.block, kept.forward_outputs, again, /*compare_bits=*/true, kRecompute);
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
      refuse_change_after_forward(*kept.block);
    }
    for (const Stored& stored : kept.stored) {
      inputs.push_back(kept.run.store->take(stored.handle, kept.run.site));
      if (stored.changed(inputs.back())) refuse_change_after_forward(*kept.block);
    }
    for (at::Tensor& tensor : saved) inputs.push_back(std::move(tensor));
    // Integer and frozen inputs, and whatever a store returned, get back the flag that they had.
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].requires_grad() != kept.requires_grad[i])
        inputs[i] = inputs[i].detach().requires_grad_(kept.requires_grad[i]);
    return inputs;
  }

  /// One gradient a flat input; the last, undefined one is the Kept argument's.
  static variable_list gradients(std::vector<at::Tensor> again, variable_list grads,
                                 const std::vector<at::Tensor>& leaves) {
    variable_list outputs, received, wanted, result(leaves.size() + 1);
    std::erase_if(again, [](const at::Tensor& output) { return !output.defined(); });
    for (std::size_t i = 0; i < again.size(); ++i) {
      if (!grads[i].defined() || !again[i].requires_grad()) continue;
      outputs.push_back(std::move(again[i]));
      received.push_back(std::move(grads[i]));
    }
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

  /// Which heavy calls of this replay need not run; on the first backward of a block at a site, found by trial.
  static void prepare_replay(Kept& kept, const std::vector<at::Tensor>& leaves, const variable_list& grads,
                             bool keep_graph) {
    recompute::OpRegion& region = *kept.region;
    RecomputeState* sites = kept.run.state;
    if (kept.run.options.elide && sites != nullptr && (!leaves.front().is_meta() || sites->always)) {
      const recompute::Trial trial = [&](const std::vector<at::Tensor>& inputs, const variable_list& output_grads) {
        const at::AutoGradMode grad_on(true);
        return gradients(forward_in_region(kept, recompute::OpRegion::Mode::replay, inputs), output_grads, inputs);
      };
      const std::string site = recompute::elision_site(*kept.block, kept.shape.sizes, region, leaves, grads);
      const std::string key = recompute::answer_key(site, *kept.block);
      auto known = sites->dead.find(key);
      if (known == sites->dead.end()) {
        known = sites->dead
                    .emplace(key, recompute::find_dead(region, leaves, kept.parameters.size(), grads,
                                                       recompute::answers_at(site, *sites), trial))
                    .first;
      } else if (sites->stale.contains(key)) {
        recompute::require_still_dead(*kept.block, region, known->second, leaves, grads, trial);
        sites->stale.erase(key);  // not before: what failed must fail again
      }
      region.dead = known->second;
    }
    region.keep_outputs = keep_graph;
  }

  static void add_replay(Kept& kept) {
    if (kept.run.state == nullptr) return;
    RecomputeReport& report = kept.report;
    report.recomputed_calls = kept.region->ran();
    report.recomputed_flops = kept.region->ran_flops();
    report.elided_calls = static_cast<int64_t>(kept.region->dead.size());
    report.elided_flops = 0;
    report.dead.clear();
    for (const int64_t position : kept.region->dead) {
      const HeavyOp& op = kept.region->calls()[static_cast<std::size_t>(position)];
      report.elided_flops += op.flops;
      report.dead.push_back(op.op + "#" + std::to_string(op.index));
    }
    report_of(kept) = report;
  }
};

/// Bytes of what the node of a recomputed block keeps of its flow, each storage counted once.
int64_t input_bytes(const Flow& flow, const BlockRun& run) {
  if (run.store != nullptr) return 0;
  std::set<const void*> seen;
  int64_t bytes = 0;
  for (const auto* list : {&flow.carried, &flow.shared})
    for (const at::Tensor& tensor : *list)
      if (tensor.defined() && seen.insert(tensor.storage().unsafeGetStorageImpl()).second)
        bytes += static_cast<int64_t>(tensor.storage().nbytes());
  return bytes;
}

void report_forward(Kept& kept, const Flow& flow) {
  if (kept.run.state == nullptr) return;
  kept.run.state->input_bytes[kept.block->info().type] = input_bytes(flow, kept.run);
  if (!kept.region) return;
  RecomputeReport& report = kept.report;
  report.forward_calls = kept.region->ran();
  report.forward_flops = kept.region->ran_flops();
  report.kept_bytes = kept.region->kept_bytes();
  for (const HeavyOp& op : kept.region->calls())
    if (kept.region->is_kept(op.position)) report.kept.push_back(op.op + "#" + std::to_string(op.index));
  report.kept_calls = static_cast<int64_t>(report.kept.size());
  report_of(kept) = report;
}

/// Each differentiable input through a node of its own (see the header).
std::vector<at::Tensor> own_nodes(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> views;
  views.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) views.push_back(tensor.requires_grad() ? tensor.view_as(tensor) : tensor);
  return views;
}

std::vector<at::Tensor> run_recomputed(Block& block, const Flow& flow, const BlockRun& run,
                                       const std::vector<Parameter*>& parameters, const FlatInputs& inputs) {
  recompute::refuse_autocast(block, inputs);
  auto kept = c10::make_intrusive<Kept>();
  kept->block = &block;
  kept->run = run;
  kept->parameters = parameters;
  kept->shape = flow;
  if (run.options.save != nullptr || run.options.elide) {
    kept->region = std::make_unique<recompute::OpRegion>(block, run.options.save);
  }
  // The flow's own tensors must not be kept alive here: they are saved, or stored, by the node.
  const at::Tensor placeholder = inputs.tensors.front().new_empty({0});
  for (auto* list : {&kept->shape.carried, &kept->shape.shared})
    for (at::Tensor& tensor : *list)
      if (tensor.defined()) tensor = placeholder;
  const std::string site = run.state != nullptr ? recompute::signature(block, flow, inputs) : "";
  // Without values there is nothing to verify; where it is asked for all the same, what it holds is to be counted.
  const bool first =
      run.state != nullptr &&
      (run.state->always || (!inputs.tensors.front().is_meta() && !run.state->signatures.contains(site)));
  kept->verifying = first;
  if (first || kept->region) recompute::install_heavy_kernels();
  if (first) run_from_inputs(block, flow, parameters, inputs, /*copies=*/true, run.state);
  const std::vector<int64_t> before = recompute::versions(inputs.tensors);
  const std::vector<at::Tensor> defined = Checkpoint::apply(at::TensorList(inputs.tensors), kept);
  std::vector<at::Tensor> outputs;
  for (auto next = defined.begin(); const at::Tensor& output : kept->forward_outputs)
    outputs.push_back(output.defined() ? *next++ : at::Tensor());
  recompute::refuse_changed_inputs(block, inputs, before);
  report_forward(*kept, flow);
  if (first) {
    recompute::OpTrace calls;
    const auto again = run_from_inputs(block, flow, parameters, inputs, /*copies=*/false, run.state, &calls);
    recompute::require_equal(block, outputs, again, /*compare_bits=*/true, "with gradients on");
    recompute::require_same_calls(block, kept->trace, calls, "with gradients on");
    kept->forward_outputs.clear();
    for (const at::Tensor& output : outputs)
      kept->forward_outputs.push_back(output.defined() ? output.detach() : output);
    run.state->signatures.insert(site);
  }
  return outputs;
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
  if (run.options.recompute) return run_recomputed(block, flow, run, parameters, inputs);
  if (run.residency == nullptr) return forward_on(block, flow, parameters, own_nodes(inputs.tensors));
  // Autograd runs the backward of such a block node by node: nodes of our own around it call for its weights.
  const recompute::BackwardStay stay(run);
  return stay.outputs(forward_on(block, flow, parameters, stay.inputs(inputs.tensors)));
}

}  // namespace trainer
