#include "elision.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <sstream>

#include "recompute_checks.hpp"

namespace trainer::recompute {
namespace {

/// Values in [-scale, scale] without structure, the same every time; `salt` makes tensors differ.
at::Tensor pseudo_random(const at::Tensor& like, double scale, std::size_t salt) {
  at::Tensor values = at::arange(like.numel(), like.options().dtype(at::kFloat).requires_grad(false));
  values.add_(static_cast<double>(salt) * 1009.0).mul_(78.233).sin_().mul_(scale);  // in one buffer
  return values.reshape(like.sizes()).to(like.scalar_type());
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

enum class Variation { random, zeros, ones };

/// Other values for the first `flow` of `leaves`: constants for what needs no gradient, which may be a mask.
void vary(const std::vector<at::Tensor>& leaves, std::size_t flow, Variation variation,
          std::vector<at::Tensor>& varied) {
  for (std::size_t i = 0; i < flow; ++i) {
    const at::Tensor& leaf = leaves[i];
    const bool constant = variation != Variation::random && !leaf.requires_grad();
    varied[i] = constant ? at::full_like(leaf, variation == Variation::ones ? 1 : 0)
                         : pseudo_random(leaf, 1.0, 200 + i).requires_grad_(leaf.requires_grad());
  }
}

/// Takes out of `dead` what is read on other inputs; all of it where the block makes other calls on them.
void keep_unread(OpRegion& region, std::set<int64_t>& dead, const std::function<std::vector<at::Tensor>()>& gradients) {
  try {
    const std::vector<at::Tensor> truth = gradients();
    if (unread(region, dead, truth, gradients)) return;
    std::erase_if(dead, [&](int64_t position) { return !unread(region, {position}, truth, gradients); });
    if (!unread(region, dead, truth, gradients)) dead.clear();
  } catch (const OtherCalls&) {
    dead.clear();
  }
}

/// A search on tensors without values: nothing is found, and held at its highest is what a search holds. Poison in all
/// values at once takes as much room as in each of them alone; other inputs are the last that comes to what is held.
void rehearse(OpRegion& region, const std::vector<at::Tensor>& truth,
              const std::function<std::vector<at::Tensor>()>& gradients, const std::function<void()>& vary_inputs) {
  for (std::size_t i = 0; i < region.calls().size(); ++i) {
    const auto position = static_cast<int64_t>(i);
    if (!region.is_kept(position) && region.has_floating_outputs(position)) region.poison[position] = Poison::positive;
  }
  static_cast<void>(all_same(truth, gradients()));
  vary_inputs();
  const std::vector<at::Tensor> other = gradients();
  static_cast<void>(all_same(other, gradients()));
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

/// Reruns a block on `leaves` with the region's settings and returns the gradients of the leaves that require one.
using Trial = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& leaves,
                                                    const std::vector<at::Tensor>& output_grads)>;

/// Text that is equal exactly for runs with the same dead values, but for frozen numbers that hide one: block type, the
/// flow's numbers (`sizes`), shapes, dtypes, strides, which inputs, outputs and which of the block's parameters have
/// gradients, and what is kept.
std::string elision_site(const Block& block, const std::vector<int64_t>& sizes, const OpRegion& region,
                         const std::vector<at::Tensor>& leaves, const std::vector<at::Tensor>& output_grads) {
  std::ostringstream text;
  text << block.info().type << at::IntArrayRef(sizes);
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

/// The key of a block's answer in RecomputeState::dead, and the answers that other blocks of its site have there, the
/// largest first.
std::string answer_key(const std::string& site, const Block& block) { return site + '\n' + block.info().name; }

using Answers = std::vector<std::set<int64_t>>;
Answers answers_at(const std::string& site, const RecomputeState& state) {
  const std::string begin = site + '\n';
  Answers answers;
  for (auto it = state.dead.lower_bound(begin); it != state.dead.end() && it->first.starts_with(begin); ++it)
    if (std::find(answers.begin(), answers.end(), it->second) == answers.end()) answers.push_back(it->second);
  std::stable_sort(answers.begin(), answers.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return answers;
}

/// Positions of dead calls. `leaves`: the block's inputs, the last `parameters` of them trained parameters. `known`:
/// the first of them that holds here is the answer; they are searched for when none does.
std::set<int64_t> find_dead(OpRegion& region, const std::vector<at::Tensor>& leaves, std::size_t parameters,
                            const std::vector<at::Tensor>& output_grads, const Answers& known, const Trial& trial) {
  if (!known.empty() && known.front().empty()) return {};
  const std::size_t flow = leaves.size() - parameters;
  for (std::size_t i = 0; i < flow; ++i)
    if (!leaves[i].is_floating_point()) return {};
  const TrialSettings settings(region);
  std::vector<at::Tensor> random = leaves, grads = output_grads;
  for (std::size_t i = flow; i < leaves.size(); ++i)
    random[i] = pseudo_random(leaves[i], 0.1, i).requires_grad_(leaves[i].requires_grad());
  for (std::size_t i = 0; i < grads.size(); ++i)
    if (grads[i].defined()) grads[i] = pseudo_random(grads[i], 1.0, 100 + i);
  const auto gradients = [&] { return trial(random, grads); };
  const std::vector<at::Tensor> truth = gradients();
  if (leaves.front().is_meta()) {
    rehearse(region, truth, gradients, [&] { vary(leaves, flow, Variation::random, random); });
    return {};
  }
  for (const std::set<int64_t>& answer : known)
    if (answer.empty() || unread(region, answer, truth, gradients)) return answer;
  std::set<int64_t> dead;
  for (std::size_t i = 0; i < region.calls().size(); ++i) {
    const auto position = static_cast<int64_t>(i);
    if (region.is_kept(position) || !region.has_floating_outputs(position)) continue;
    if (unread(region, {position}, truth, gradients)) dead.insert(position);
  }
  // All together: two values may each be unread only while the other is there.
  if (!unread(region, dead, truth, gradients)) return {};
  for (const Variation variation : {Variation::random, Variation::zeros, Variation::ones}) {
    if (dead.empty()) break;
    vary(leaves, flow, variation, random);
    keep_unread(region, dead, gradients);
  }
  return dead;
}

std::string text_of(const OpRegion& region, const std::set<int64_t>& positions) {
  std::string text;
  for (const int64_t position : positions) {
    const HeavyOp& op = region.calls()[static_cast<std::size_t>(position)];
    text += (text.empty() ? "" : " or ") + op.op + "#" + std::to_string(op.index);
  }
  return text;
}

/// Throws unless the gradients on real values are bit-equal whatever stands in the place of the dead ones.
void require_still_dead(const Block& block, OpRegion& region, const std::set<int64_t>& dead,
                        const std::vector<at::Tensor>& leaves, const std::vector<at::Tensor>& output_grads,
                        const Trial& trial) {
  if (dead.empty()) return;
  const TrialSettings settings(region);
  const auto gradients = [&] { return trial(leaves, output_grads); };
  const std::vector<at::Tensor> truth = gradients();
  if (!unread(region, dead, truth, gradients))
    throw Error(ExitCode::failed, "block \"" + block.info().name + "\": the result of " + text_of(region, dead) +
                                      " is read now, but nothing read it when this was tested; gradients would be "
                                      "wrong. Set elide = false in the recipe and report the model.");
}

/// The answer for a block at its site: the known one, tested again where it is stale, or one that is found now.
const std::set<int64_t>& dead_calls(const Recomputation& recomputation, const std::vector<at::Tensor>& leaves,
                                    const std::vector<at::Tensor>& output_grads) {
  const Block& block = recomputation.block;
  OpRegion& region = *recomputation.region;
  RecomputeState& state = *recomputation.run.state;
  const Trial trial = [&](const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& grads) {
    return recomputation.gradients(inputs, grads);
  };
  const std::string site = elision_site(block, recomputation.shape.sizes, region, leaves, output_grads);
  const std::string key = answer_key(site, block);
  if (const auto known = state.dead.find(key); known != state.dead.end()) {
    if (state.stale.contains(key)) {
      require_still_dead(block, region, known->second, leaves, output_grads, trial);
      state.stale.erase(key);  // not before: what failed must fail again
    }
    return known->second;
  }
  auto found = find_dead(region, leaves, recomputation.parameters.size(), output_grads, answers_at(site, state), trial);
  return state.dead.emplace(key, std::move(found)).first->second;
}

}  // namespace

void leave_out_dead(const Recomputation& recomputation, const std::vector<at::Tensor>& leaves,
                    const std::vector<at::Tensor>& output_grads, bool keep_graph) {
  if (!recomputation.region) return;
  const RecomputeState* state = recomputation.run.state;
  // Without values nothing can be found; where checks are asked for all the same, what a search holds is to be counted.
  if (recomputation.run.options.elide && state != nullptr && (!leaves.front().is_meta() || state->always))
    recomputation.region->dead = dead_calls(recomputation, leaves, output_grads);
  recomputation.region->keep_outputs = keep_graph;
}

}  // namespace trainer::recompute
