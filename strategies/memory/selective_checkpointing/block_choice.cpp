#include "block_choice.hpp"

#include <trainer/sdk/names.hpp>

#include <algorithm>

namespace trainer::selective {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ExitCode::bad_recipe, "memory.selective_checkpointing.blocks: \"" + text +
                                        "\" is neither \"all\", nor \"every N\" with N of 2 or more, nor a list of "
                                        "block names");
}

}  // namespace

BlockChoice::BlockChoice(const Value& value) {
  if (const auto* list = value.get_if<Array>()) {
    if (list->empty())
      throw Error(ExitCode::bad_recipe,
                  "memory.selective_checkpointing.blocks: the list is empty, so no block would be recomputed; name "
                  "blocks, or leave the strategy out");
    for (const Value& item : *list) patterns_.push_back(*item.get_if<std::string>());
    matched_.assign(patterns_.size(), false);
    return;
  }
  const std::string& text = *value.get_if<std::string>();
  if (text == "all") return;
  const std::string number = text.starts_with("every ") ? text.substr(6) : "";
  if (number.empty() || number.size() > 6 || number.find_first_not_of("0123456789") != std::string::npos ||
      std::stoll(number) < 2)
    refuse(text);
  every_ = std::stoll(number);
}

bool BlockChoice::recomputed(const Site& site) {
  count_ = site.count;
  if (patterns_.empty()) return every_ == 0 || site.index < site.count - site.count / every_;
  bool chosen = false;
  if (std::find(names_.begin(), names_.end(), site.block->info().name) == names_.end())
    names_.push_back(site.block->info().name);
  for (std::size_t i = 0; i < patterns_.size(); ++i)
    if (matches_glob(patterns_[i], site.block->info().name)) chosen = matched_[i] = true;
  return chosen;
}

void BlockChoice::require_all_matched() const {
  if (count_ == 0)
    throw Error(ExitCode::bad_recipe,
                "memory.selective_checkpointing: no block takes part in training (nothing in a block or before one is "
                "trained), so nothing can be recomputed; leave the strategy out");
  if (every_ > count_)
    throw Error(ExitCode::bad_recipe, "memory.selective_checkpointing.blocks: \"every " + std::to_string(every_) +
                                          "\" leaves no block out, " + std::to_string(count_) +
                                          " take part in training");
  for (std::size_t i = 0; i < patterns_.size(); ++i)
    if (!matched_[i])
      throw Error(ExitCode::bad_recipe, "memory.selective_checkpointing.blocks: \"" + patterns_[i] +
                                            "\" matches no block that takes part in training" +
                                            did_you_mean(patterns_[i], names_) + "; these are " + names_.front() +
                                            (names_.size() > 1 ? " to " + names_.back() : ""));
}

}  // namespace trainer::selective
