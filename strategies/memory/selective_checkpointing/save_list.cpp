#include "save_list.hpp"

#include <trainer/sdk/names.hpp>

#include <algorithm>
#include <array>

namespace trainer::selective {
namespace {

constexpr std::array kMatmuls{"mm",
                              "addmm",
                              "bmm",
                              "baddbmm",
                              "mv",
                              "addmv",
                              "addbmm",
                              "_addmm_activation",
                              "_scaled_mm",
                              "_scaled_mm_v2",
                              "_grouped_mm",
                              "_int_mm",
                              "frozen_linear",
                              "low_rank_down",
                              "low_rank_up"};
constexpr std::array kAttentions{"_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
                                 "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
                                 "_scaled_dot_product_fused_attention_overrideable"};
constexpr std::array kRandom{"bernoulli", "dropout",          "multinomial", "native_dropout", "normal",
                             "rand",      "rand_like",        "randint",     "randn",          "randn_like",
                             "randperm",  "rrelu_with_noise", "uniform"};
constexpr std::array kPresets{"attention", "matmul", "every_second_matmul"};

template <typename List>
bool contains(const List& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

std::vector<std::string> valid_names() {
  std::vector<std::string> names(kPresets.begin(), kPresets.end());
  names.insert(names.end(), kMatmuls.begin(), kMatmuls.end());
  names.insert(names.end(), kAttentions.begin(), kAttentions.end());
  names.emplace_back("convolution");
  return names;
}

[[noreturn]] void refuse(const std::string& text, const std::string& name) {
  if (contains(kRandom, name))
    throw Error(ExitCode::bad_recipe, "memory.selective_checkpointing.save: \"" + text +
                                          "\": random operators cannot be kept; a block must draw no random numbers, "
                                          "they come to it through its flow");
  throw Error(ExitCode::bad_recipe,
              "memory.selective_checkpointing.save: \"" + text + "\" is no preset, operator or call that can be kept" +
                  did_you_mean(name, valid_names()) +
                  "; give attention, matmul, every_second_matmul, an operator (mm, frozen_linear, ...) or one call as "
                  "\"TYPE:OPERATOR#INDEX\"");
}

std::string call_text(const HeavyOp& op) { return op.block_type + ":" + op.op + "#" + std::to_string(op.index); }

/// "single:mm#1"; empty parts or no number are refused.
std::function<bool(const HeavyOp&, int64_t)> one_call(const std::string& text) {
  const std::size_t colon = text.find(':'), hash = text.rfind('#');
  const std::string name = hash > colon ? text.substr(colon + 1, hash - colon - 1) : text;
  const std::string index = hash == std::string::npos ? "" : text.substr(hash + 1);
  const bool number = !index.empty() && index.size() < 9 && index.find_first_not_of("0123456789") == std::string::npos;
  if (colon == 0 || !number || !contains(valid_names(), name) || contains(kPresets, name)) refuse(text, name);
  return [text](const HeavyOp& op, int64_t) { return call_text(op) == text; };
}

}  // namespace

SaveList::SaveList(const std::vector<std::string>& entries) {
  for (const std::string& text : entries) {
    if (text == "attention")
      entries_.push_back({text, [](const HeavyOp& op, int64_t) { return contains(kAttentions, op.op); }});
    else if (text == "matmul")
      entries_.push_back({text, [](const HeavyOp&, int64_t matmul) { return matmul >= 0; }});
    else if (text == "every_second_matmul")
      entries_.push_back({text, [](const HeavyOp&, int64_t matmul) { return matmul >= 0 && matmul % 2 == 1; }});
    else if (text.find(':') != std::string::npos)
      entries_.push_back({text, one_call(text)});
    else if (contains(valid_names(), text))
      entries_.push_back({text, [text](const HeavyOp& op, int64_t) { return op.op == text; }});
    else
      refuse(text, text);
  }
}

bool SaveList::keep(const HeavyOp& op) {
  if (op.position <= last_position_) matmuls_ = 0;  // positions rise within a block: another block begins
  last_position_ = op.position;
  const int64_t matmul = contains(kMatmuls, op.op) ? matmuls_++ : -1;
  if (const std::string text = call_text(op); !contains(seen_, text)) seen_.push_back(text);
  bool kept = false;
  for (Entry& entry : entries_)
    if (entry.matches(op, matmul)) kept = entry.matched = true;
  return kept;
}

void SaveList::require_all_matched() const {
  for (const Entry& entry : entries_) {
    if (entry.matched) continue;
    std::string calls;
    for (const std::string& text : seen_) calls += (calls.empty() ? "" : ", ") + text;
    throw Error(ExitCode::bad_recipe, "memory.selective_checkpointing.save: \"" + entry.text +
                                          "\" matches no operation of this model; its heavy operations are " + calls);
  }
}

}  // namespace trainer::selective
