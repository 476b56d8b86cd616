#include <base/suggest.hpp>

#include <algorithm>
#include <limits>
#include <utility>

namespace trainer {
namespace {

constexpr std::size_t kFar = std::numeric_limits<std::size_t>::max();

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

/// Insertions, deletions, replacements and swaps of neighbours (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before_last, last);
    std::swap(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row[b.size()];
}

/// Edits between two names, or kFar when they are not near.
std::size_t nearness(std::string_view a, std::string_view b) {
  const std::size_t longer = std::max(a.size(), b.size()), shorter = std::min(a.size(), b.size());
  const std::size_t allowed = std::max<std::size_t>(2, longer / 3);
  const bool continues = shorter >= 3 && a.substr(0, shorter) == b.substr(0, shorter);
  if (!continues && longer - shorter > allowed) return kFar;
  std::size_t distance = edit_distance(a, b);
  if (continues) distance = std::min(distance, allowed);
  return distance > allowed || distance >= longer ? (longer == 0 ? 0 : kFar) : distance;
}

std::string_view last_part(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

}  // namespace

std::vector<std::string> nearest_names(std::string_view name, std::span<const std::string> valid, std::size_t limit) {
  constexpr std::size_t kLongestName = 256;  // the distance is quadratic; nobody misspells a name this long
  if (name.size() > kLongestName) return {};
  struct Candidate {
    std::size_t distance, whole, index;
  };
  const std::string wanted = lower(name);
  std::vector<Candidate> near;
  for (std::size_t i = 0; i < valid.size(); ++i) {
    if (valid[i].size() > kLongestName) continue;
    const std::string candidate = lower(valid[i]);
    std::size_t distance = nearness(wanted, candidate);
    if (wanted.find('.') != std::string::npos || candidate.find('.') != std::string::npos) {
      distance = std::min(distance, nearness(last_part(wanted), last_part(candidate)));
    }
    if (distance != kFar) near.push_back({distance, edit_distance(wanted, candidate), i});
  }
  std::stable_sort(near.begin(), near.end(), [](const Candidate& a, const Candidate& b) {
    return std::pair(a.distance, a.whole) < std::pair(b.distance, b.whole);
  });
  std::vector<std::string> names;
  for (std::size_t i = 0; i < near.size() && i < limit; ++i) names.push_back(valid[near[i].index]);
  return names;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> valid) {
  const std::vector<std::string> names = nearest_names(name, valid);
  if (names.empty()) return {};
  std::string text = " (did you mean ";
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += '"' + names[i] + '"';
  }
  return text + "?)";
}

}  // namespace trainer
