/// @file Detectors of the recompute engine. Graph nodes are touched in this file only: LibTorch 2.13 changes who owns
/// a Node, and one file then changes with it.
#include "recompute_checks.hpp"

#include <ATen/autocast_mode.h>
#include <ATen/ops/equal.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>
#include <trainer/sdk/error.hpp>

#include <sstream>
#include <unordered_set>

namespace trainer::recompute {
namespace {

std::string describe(const at::Tensor& tensor) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << " tensor " << tensor.sizes();
  return text.str();
}

/// The input that shares its data with a leaf: an alias of it from another run, kept by the block.
std::string name_by_data(const at::Tensor& leaf, const FlatInputs& inputs) {
  for (std::size_t i = 0; i < inputs.tensors.size(); ++i)
    if (leaf.numel() > 0 && inputs.tensors[i].has_storage() && leaf.has_storage() &&
        inputs.tensors[i].is_alias_of(leaf))
      return inputs.names[i];
  return "";
}

[[noreturn]] void fail(const Block& block, const std::string& message) {
  throw Error(ExitCode::failed, "block \"" + block.info().name + "\" " + message);
}

}  // namespace

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return true;
  // As bytes, so that equal NaNs are equal and 0.0 differs from -0.0; flat, since a scalar has no byte view.
  const auto bytes = [](const at::Tensor& tensor) { return tensor.detach().reshape(-1).contiguous().view(at::kByte); };
  const at::Tensor left = bytes(a), right = bytes(b);
  return left.is_meta() || at::equal(left, right);  // a dry run holds what a comparison holds, and finds no difference
}

FlatInputs flatten(const Flow& flow, const std::vector<Parameter*>& parameters) {
  FlatInputs flat;
  const auto add = [&](const std::vector<at::Tensor>& tensors, const char* what) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].defined()) continue;
      flat.tensors.push_back(tensors[i]);
      flat.names.push_back(what + ("[" + std::to_string(i) + "]"));
    }
  };
  add(flow.carried, "carried");
  add(flow.shared, "shared");
  for (Parameter* parameter : parameters) {
    flat.tensors.push_back(parameter->get());  // the substitute, when the block runs within another one
    flat.names.push_back(parameter->name());
  }
  return flat;
}

Flow unflatten(const Flow& like, const std::vector<at::Tensor>& tensors) {
  Flow flow = like;
  std::size_t next = 0;
  for (at::Tensor& tensor : flow.carried)
    if (tensor.defined()) tensor = tensors[next++];
  for (at::Tensor& tensor : flow.shared)
    if (tensor.defined()) tensor = tensors[next++];
  return flow;
}

std::vector<at::Tensor> alias_leaves(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> leaves;
  leaves.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) leaves.push_back(tensor.detach().requires_grad_(tensor.requires_grad()));
  return leaves;
}

void refuse_foreign_leaves(const Block& block, const std::vector<at::Tensor>& outputs,
                           const std::vector<at::Tensor>& allowed, const FlatInputs& inputs,
                           const RecomputeState* sites) {
  using torch::autograd::Node;
  std::unordered_set<const c10::TensorImpl*> known;
  for (const at::Tensor& tensor : allowed) known.insert(tensor.unsafeGetTensorImpl());
  std::unordered_set<Node*> seen;
  std::vector<Node*> open;
  const auto visit = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  for (const at::Tensor& output : outputs)
    if (output.defined() && output.grad_fn()) visit(output.grad_fn().get());
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node);
        leaf != nullptr && !known.contains(leaf->variable.unsafeGetTensorImpl())) {
      std::string name = sites != nullptr && sites->name_of ? sites->name_of(leaf->variable) : "";
      if (name.empty()) name = name_by_data(leaf->variable, inputs);
      if (!name.empty()) name = "\"" + name + "\", ";
      fail(block,
           "reads a differentiable tensor that is neither in its flow nor one of its parameters: it leads to " + name +
               "a " + describe(leaf->variable) +
               ". Its gradient would be lost when the block is recomputed. Pass the tensor through Flow::shared, "
               "or register the parameter with Block::own.");
    }
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
}

void require_equal(const Block& block, const std::vector<at::Tensor>& expected, const std::vector<at::Tensor>& got,
                   bool compare_bits, const std::string& when) {
  if (expected.size() != got.size())
    fail(block, "returned " + std::to_string(expected.size()) + " tensors in forward and " +
                    std::to_string(got.size()) + " " + when);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const at::Tensor &a = expected[i], &b = got[i];
    const std::string which = "output " + std::to_string(i);
    if (a.defined() != b.defined()) fail(block, "returned " + which + " only once: it is undefined " + when);
    if (!a.defined()) continue;
    if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type() || a.device() != b.device())
      fail(block, "returned " + which + " as a " + describe(a) + " in forward and as a " + describe(b) + " " + when);
    if (compare_bits && !same_bits(a, b))
      fail(block, "computed other values for " + which + " " + when +
                      " than in forward. A block must be a pure function of its flow and parameters: look for random "
                      "numbers, state kept between calls, or an operation that is not deterministic.");
  }
}

void require_same_calls(const Block& block, const OpTrace& expected, const OpTrace& got, const std::string& when) {
  if (expected.nested || got.nested || expected.calls == got.calls) return;
  std::size_t first = 0;
  while (first < expected.calls.size() && first < got.calls.size() && expected.calls[first] == got.calls[first])
    ++first;
  const auto text = [&](const OpTrace& trace) {
    return first < trace.calls.size() ? trace.calls[first] : std::string("nothing more");
  };
  fail(block, "made other heavy calls " + when + " than in forward: call " + std::to_string(first) + " is " +
                  text(got) + ", in forward it was " + text(expected) +
                  ". A block must make the same calls every time it runs, with gradients and without.");
}

std::vector<int64_t> versions(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> list;
  list.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors)
    list.push_back(tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version()));
  return list;
}

void refuse_changed_inputs(const Block& block, const FlatInputs& inputs, const std::vector<int64_t>& before) {
  const std::vector<int64_t> after = versions(inputs.tensors);
  for (std::size_t i = 0; i < after.size(); ++i)
    if (after[i] != before[i])
      fail(block, "changed its input " + inputs.names[i] + " in place; a recompute would read the changed values");
}

void refuse_autocast(const Block& block, const FlatInputs& inputs) {
  const at::DeviceType device = inputs.tensors.front().device().type();
  if ((device == at::kCPU || device == at::kCUDA) && at::autocast::is_autocast_enabled(device))
    fail(block, "runs under autocast, which its recompute would not see; load the model in the dtype it computes in");
}

std::string signature(const Block& block, const Flow& flow, const FlatInputs& inputs) {
  // By name, not by type alone: a member cached by an earlier block of the same type is seen only in the later one.
  std::ostringstream text;
  text << block.info().name << ':' << block.info().type << at::IntArrayRef(flow.sizes);
  for (std::size_t i = 0; i < inputs.tensors.size(); ++i) {
    const at::Tensor& tensor = inputs.tensors[i];
    text << ';' << inputs.names[i] << c10::toString(tensor.scalar_type()) << tensor.sizes() << tensor.strides()
         << tensor.device() << (tensor.requires_grad() ? '+' : '-');
  }
  return text.str();
}

}  // namespace trainer::recompute
