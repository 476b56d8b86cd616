/// @file Tests that take long have a quick form, a share in which every choice is met; the whole form, in the suite
/// "whole", is the same program with this variable. TRAINER_TEST_SHARE cuts that into shares.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace trainer::testing {

inline bool whole() { return std::getenv("TRAINER_TEST_WHOLE") != nullptr; }

/// Of `all` those of a share "K/N" (TRAINER_TEST_SHARE): every N-th, from the K-th on, counted from 1; all for null.
template <typename Item>
std::vector<Item> share_of(std::vector<Item> all, const char* share = std::getenv("TRAINER_TEST_SHARE")) {
  if (share == nullptr) return all;
  std::size_t end = 0;
  const std::string text = share;
  const std::size_t first = std::stoul(text, &end), of = std::stoul(text.substr(end + 1));
  if (text[end] != '/' || first < 1 || first > of) throw std::invalid_argument("no share: " + text);
  std::vector<Item> items;
  for (std::size_t i = first - 1; i < all.size(); i += of) items.push_back(std::move(all[i]));
  return items;
}

}  // namespace trainer::testing
