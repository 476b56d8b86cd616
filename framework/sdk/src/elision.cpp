#include "elision.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>
#include <trainer/sdk/error.hpp>

#include <sstream>

#include "recompute_checks.hpp"

namespace trainer::recompute {
namespace {

/// Values in [-scale, scale] without structure, the same every time; `salt` makes tensors differ.
at::Tensor pseudo_random(const at::Tensor& like, double scale, std::size_t salt) {
  const at::Tensor index = at::arange(like.numel(), like.options().dtype(at::kFloat).requires_grad(false));
  return (at::sin((index + static_cast<double>(salt) * 1009.0) * 78.233) * scale)
      .reshape(like.sizes())
      .to(like.scalar_type());
}

bool all_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined()) return false;
    if (a[i].defined() && !same_bits(a[i], b[i])) return false;
  }
  return true;
}

/// Whether the gradients stay `truth` with each poison in the values at `positions`. Poison rather than the
/// placeholders of a real elision: their memory is often that of the very values just freed, contents included.
bool unread(OpRegion& region, const std::set<int64_t>& positions, const std::vector<at::Tensor>& truth,
            const std::function<std::vector<at::Tensor>()>& gradients) {
  bool same = true;
  for (const Poison poison : {Poison::nan, Poison::positive, Poison::negative}) {
    region.poison.clear();
    for (const int64_t position : positions) region.poison[position] = poison;
    same = same && all_same(truth, gradients());
  }
  region.poison.clear();
  return same;
}

/// Puts the region's settings back when a trial ends or throws.
class TrialSettings {
 public:
  explicit TrialSettings(OpRegion& region) : region_(region) { region_.keep_outputs = true; }
  ~TrialSettings() {
    region_.dead.clear();
    region_.poison.clear();
    region_.keep_outputs = false;
  }
  TrialSettings(const TrialSettings&) = delete;
  TrialSettings& operator=(const TrialSettings&) = delete;

 private:
  OpRegion& region_;
};

}  // namespace

std::string elision_site(const Block& block, const OpRegion& region, const std::vector<at::Tensor>& leaves,
                         const std::vector<at::Tensor>& output_grads) {
  std::ostringstream text;
  text << block.info().type;
  for (const at::Tensor& tensor : leaves)
    text << ';' << c10::toString(tensor.scalar_type()) << tensor.sizes() << tensor.strides() << tensor.device()
         << (tensor.requires_grad() ? '+' : '-');
  // Shapes do not tell which of two parameters of one shape is trained, nor which linear has an adapter.
  text << '|';
  for (const Linear& linear : block.info().linears) {
    const LinearState& state = linear.state();
    const auto trained = [](const ParameterPtr& parameter) { return parameter && parameter->trainable() ? '+' : '-'; };
    text << trained(state.weight) << trained(state.bias);
    if (state.adapter && state.adapter_enabled)
      for (const Parameter* parameter : state.adapter->parameters()) text << (parameter->trainable() ? 'A' : 'a');
  }
  for (const ParameterPtr& parameter : block.info().parameters) text << (parameter->trainable() ? '+' : '-');
  text << '|';
  for (const at::Tensor& grad : output_grads) text << (grad.defined() ? '+' : '-');
  text << '|';
  for (const HeavyOp& op : region.calls()) text << op.op << (region.is_kept(op.position) ? '+' : '-');
  return text.str();
}

std::set<int64_t> find_dead(OpRegion& region, const std::vector<at::Tensor>& leaves, std::size_t parameters,
                            const std::vector<at::Tensor>& output_grads, const Trial& trial) {
  const TrialSettings settings(region);
  std::vector<at::Tensor> random = leaves, grads = output_grads;
  for (std::size_t i = leaves.size() - parameters; i < leaves.size(); ++i)
    random[i] = pseudo_random(leaves[i], 0.1, i).requires_grad_(leaves[i].requires_grad());
  for (std::size_t i = 0; i < grads.size(); ++i)
    if (grads[i].defined()) grads[i] = pseudo_random(grads[i], 1.0, 100 + i);
  const auto gradients = [&] { return trial(random, grads); };
  const std::vector<at::Tensor> truth = gradients();
  std::set<int64_t> dead;
  for (std::size_t i = 0; i < region.calls().size(); ++i) {
    const auto position = static_cast<int64_t>(i);
    if (region.is_kept(position) || !region.has_floating_outputs(position)) continue;
    if (unread(region, {position}, truth, gradients)) dead.insert(position);
  }
  // All together: two values may each be unread only while the other is there.
  return unread(region, dead, truth, gradients) ? dead : std::set<int64_t>{};
}

void require_still_dead(const Block& block, OpRegion& region, const std::set<int64_t>& dead,
                        const std::vector<at::Tensor>& leaves, const std::vector<at::Tensor>& output_grads,
                        const Trial& trial) {
  if (dead.empty()) return;
  const TrialSettings settings(region);
  const auto gradients = [&] { return trial(leaves, output_grads); };
  const std::vector<at::Tensor> truth = gradients();
  if (!unread(region, dead, truth, gradients))
    throw Error(ExitCode::failed, "block \"" + block.info().name +
                                      "\": a value that nothing read when elision was tested is read now; "
                                      "gradients would be wrong. Run with elision off and report the model.");
}

}  // namespace trainer::recompute
