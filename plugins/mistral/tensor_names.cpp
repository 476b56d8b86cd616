/// @file Finding and checking tensors by name.
#include "tensor_names.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <span>
#include <string_view>
#include <trainer/sdk/error.hpp>
#include <utility>

namespace trainer::mistral {

namespace {

constexpr std::string_view kEmbeddings = "embed_tokens.weight";
constexpr std::size_t kShown = 8;  // problems listed before "and N more"

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

/// " (nearest: \"x\")", or "" when no name is less than a third away.
std::string nearest(std::string_view name, const std::vector<std::string>& names) {
  std::size_t best = name.size() / 3;
  const std::string* found = nullptr;
  for (const std::string& candidate : names) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best) best = distance, found = &candidate;
  }
  return found == nullptr ? "" : " (nearest: \"" + *found + "\")";
}

std::string shown(at::IntArrayRef shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

bool plain(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kDouble;
}

class Check {
 public:
  Check(const WeightSource& source, const LmConfig& config, int64_t layers)
      : source_(source), config_(config), layers_(layers), names_(source.names()) {}

  std::string run() {
    prefix_ = choose_prefix();
    expected_[prefix_ + std::string(kEmbeddings)] = {config_.vocab, config_.hidden};
    for (int64_t i = 0; i < layers_; ++i)
      for (LayerTensor& tensor : layer_tensors(config_))
        expected_[prefix_ + "layers." + std::to_string(i) + "." + tensor.name] = std::move(tensor.shape);
    for (const std::string& name : names_)
      if (!expected_.contains(name)) others_.push_back(name);
    for (const auto& [name, shape] : expected_) check(name, shape);
    refuse_left_out();
    report();
    return prefix_;
  }

 private:
  [[nodiscard]] std::string choose_prefix() const {
    static constexpr std::string_view kPrefixes[] = {"language_model.model.", "model.language_model.", "model."};
    const bool multimodal = config_.family == Family::mistral;
    for (const std::string_view prefix : std::span(kPrefixes).subspan(multimodal ? 0 : 2)) {
      const std::string head = std::string(prefix) + "layers.";
      const auto at = std::lower_bound(names_.begin(), names_.end(), head);
      const bool has_layers = at != names_.end() && at->starts_with(head);
      if (has_layers || source_.find(std::string(prefix) + std::string(kEmbeddings)) != nullptr)
        return std::string(prefix);
    }
    return "model.";
  }

  void check(const std::string& name, const std::vector<int64_t>& shape) {
    const TensorInfo* info = source_.find(name);
    if (info == nullptr) {
      // Looking for near names takes a while in a large file: only for what is shown.
      problems_.push_back("\"" + name + "\" is missing" + (problems_.size() < kShown ? nearest(name, others_) : ""));
    } else if (info->shape != shape) {
      problems_.push_back("\"" + name + "\" has shape " + shown(info->shape) + ", config.json asks for " +
                          shown(shape));
    } else if (!plain(info->dtype)) {
      problems_.push_back("\"" + name + "\" is stored as " + c10::toString(info->dtype) +
                          "; only float32, bfloat16, float16 and float64 are read");
    }
  }

  /// Biases, scales and norms that this code does not apply would change the result without a word.
  void refuse_left_out() {
    const std::string head = prefix_ + "layers.";
    for (const std::string& name : others_) {
      if (!name.starts_with(head) || name.ends_with("rotary_emb.inv_freq")) continue;
      const int64_t layer = std::strtoll(name.c_str() + head.size(), nullptr, 10);
      if (layer < layers_)
        problems_.push_back("\"" + name + "\" is not part of this architecture and would be left out");
    }
  }

  void report() const {
    if (problems_.empty()) return;
    std::string message = source_.describe() + " does not hold the text encoder \"" + name_of(config_.family) +
                          "\" that its config.json describes:";
    for (std::size_t i = 0; i < std::min(kShown, problems_.size()); ++i) message += "\n  " + problems_[i];
    if (problems_.size() > kShown) message += "\n  and " + std::to_string(problems_.size() - kShown) + " more";
    throw Error(ExitCode::bad_input, message);
  }

  const WeightSource& source_;
  const LmConfig& config_;
  int64_t layers_;
  std::vector<std::string> names_;
  std::string prefix_;
  std::map<std::string, std::vector<int64_t>> expected_;
  std::vector<std::string> others_;  // names of the file that are not expected
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<LayerTensor> layer_tensors(const LmConfig& c) {
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  std::vector<LayerTensor> tensors = {
      {"input_layernorm.weight", {c.hidden}},
      {"self_attn.q_proj.weight", {q, c.hidden}},
      {"self_attn.k_proj.weight", {kv, c.hidden}},
      {"self_attn.v_proj.weight", {kv, c.hidden}},
      {"self_attn.o_proj.weight", {c.hidden, q}},
      {"post_attention_layernorm.weight", {c.hidden}},
      {"mlp.gate_proj.weight", {c.intermediate, c.hidden}},
      {"mlp.up_proj.weight", {c.intermediate, c.hidden}},
      {"mlp.down_proj.weight", {c.hidden, c.intermediate}},
  };
  if (c.qk_norm()) {
    tensors.push_back({"self_attn.q_norm.weight", {c.head_dim}});
    tensors.push_back({"self_attn.k_norm.weight", {c.head_dim}});
  }
  return tensors;
}

std::string find_tensors(const WeightSource& source, const LmConfig& config, int64_t layers) {
  return Check(source, config, layers).run();
}

}  // namespace trainer::mistral
