/// @file What `save` of a recipe means: presets, operator names, and single calls.
#pragma once

#include <trainer/sdk/memory.hpp>

#include <functional>
#include <string>
#include <vector>

namespace trainer::selective {

/// Keeps the outputs of the heavy operations that a recipe names. Entries:
///   "attention"            every attention, with its log-sum-exp
///   "matmul"               every matrix product, frozen linears included
///   "every_second_matmul"  the second, fourth, ... matrix product of a block
///   "mm", "frozen_linear"  every call of that operator
///   "single:mm#1"          the second call of an operator in blocks of one type
class SaveList final : public SavePolicy {
 public:
  /// Throws Error (bad_recipe) for an entry of no known form, with the nearest name.
  explicit SaveList(const std::vector<std::string>& entries);
  bool keep(const HeavyOp& op) override;
  /// Throws Error (bad_recipe) naming entries that matched no operation, with the operations there were.
  void require_all_matched() const;

 private:
  struct Entry {
    std::string text;
    std::function<bool(const HeavyOp& op, int64_t matmul)> matches;
    bool matched = false;
  };
  std::vector<Entry> entries_;
  std::vector<std::string> seen_;  ///< "type:op#index" of every call, for the message
  int64_t last_position_ = -1, matmuls_ = 0;
};

}  // namespace trainer::selective
