/// @file What `blocks` of a recipe means: which blocks are recomputed.
#pragma once

#include <trainer/sdk/memory.hpp>

#include <string>
#include <vector>

namespace trainer::selective {

/// "all"; "every N": one block in N is left unchecked, the last ones of the chain, since their backward runs first and
/// frees their memory before earlier blocks need room to recompute; or patterns of block names ("single.*") that are
/// recomputed, all others are not. Blocks that take no part in training are never asked for and do not count.
class BlockChoice {
 public:
  /// Throws Error (bad_recipe) for another form.
  explicit BlockChoice(const Value& value);
  bool recomputed(const Site& site);
  /// Once every block was asked for. Throws Error (bad_recipe) naming what had no effect: a pattern that matched no
  /// block, an N above their number.
  void require_all_matched() const;

 private:
  int64_t every_ = 0;  ///< 0: none is left out
  int64_t count_ = 0;  ///< blocks that take part, once one was asked for
  std::vector<std::string> patterns_;
  std::vector<bool> matched_;
  std::vector<std::string> names_;  ///< of all blocks that were asked for
};

}  // namespace trainer::selective
