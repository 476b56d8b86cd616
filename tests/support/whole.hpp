/// @file Tests that take long have a quick form, a share in which every choice is met; the whole form, in the suite
/// "whole", is the same program with this variable. TRAINER_TEST_SHARE cuts that into shares.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace trainer::testing {

inline bool whole() { return std::getenv("TRAINER_TEST_WHOLE") != nullptr; }

/// With TRAINER_TEST_SHARE=K/N every N-th of `all`, from the K-th on, counted from 1; else all. The N shares have no
/// item in common.
template <typename Item>
std::vector<Item> share_of(std::vector<Item> all) {
  const char* text = std::getenv("TRAINER_TEST_SHARE");
  if (text == nullptr || !whole()) return all;
  std::size_t end = 0;
  const std::string share = text;
  const std::size_t first = std::stoul(share, &end), of = std::stoul(share.substr(end + 1));
  if (share[end] != '/' || first < 1 || first > of) throw std::invalid_argument("TRAINER_TEST_SHARE=" + share);
  std::vector<Item> items;
  for (std::size_t i = first - 1; i < all.size(); i += of) items.push_back(std::move(all[i]));
  return items;
}

}  // namespace trainer::testing
