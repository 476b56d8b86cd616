#include <trainer/sdk/names.hpp>

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
  const std::size_t allowed = longer < 5 ? 1 : std::max<std::size_t>(2, longer / 3);
  const bool continues = shorter >= 3 && a.substr(0, shorter) == b.substr(0, shorter);
  if (!continues && longer - shorter > allowed) return kFar;
  std::size_t distance = edit_distance(a, b);
  if (continues) distance = std::min(distance, allowed);
  return distance > allowed || distance >= longer ? (longer == 0 ? 0 : kFar) : distance;
}

/// Nearness of two dotted names: siblings by their own part (a long common prefix would make all of them near); others
/// by it too, as the right name in another place, or on the whole, as a misspelt place.
std::size_t dotted_nearness(std::string_view a, std::string_view b) {
  const std::size_t dot_a = a.rfind('.'), dot_b = b.rfind('.');
  if (dot_a == std::string_view::npos && dot_b == std::string_view::npos) return nearness(a, b);
  const auto after = [](std::string_view name, std::size_t dot) {
    return dot == std::string_view::npos ? name : name.substr(dot + 1);
  };
  const std::size_t own_part = nearness(after(a, dot_a), after(b, dot_b));
  const bool siblings = dot_a == dot_b && a.substr(0, dot_a) == b.substr(0, dot_b);
  if (siblings || std::count(a.begin(), a.end(), '.') != std::count(b.begin(), b.end(), '.')) return own_part;
  return std::min(own_part, nearness(a, b));
}

/// Nearness of two tensor names by the dotted parts between those that both begin and end with; near too when only
/// whole parts at one end are left of one and nothing of the other (a file with "model." before every name).
std::size_t tensor_nearness(std::string_view a, std::string_view b) {
  const auto first = [](std::string_view name) { return name.substr(0, name.find('.')); };
  const auto last = [](std::string_view name) { return name.substr(name.rfind('.') + 1); };
  std::size_t shared = 0;
  for (; !a.empty() && !b.empty() && first(a) == first(b); ++shared) {
    const std::size_t with_dot = first(a).size() + 1;
    a.remove_prefix(std::min(with_dot, a.size()));
    b.remove_prefix(std::min(with_dot, b.size()));
  }
  for (; !a.empty() && !b.empty() && last(a) == last(b); ++shared) {
    const std::size_t with_dot = last(a).size() + 1;
    a.remove_suffix(std::min(with_dot, a.size()));
    b.remove_suffix(std::min(with_dot, b.size()));
  }
  if (a.empty() != b.empty()) return shared >= 2 ? 1 : kFar;
  return nearness(a, b);
}

/// The names of `valid` that `compare` calls near, nearest first, then by their distance on the whole.
template <typename Compare>
std::vector<std::string> nearest(std::string_view name, std::span<const std::string> valid, std::size_t limit,
                                 const Compare& compare) {
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
    const std::size_t distance = compare(wanted, candidate);
    if (distance != kFar) near.push_back({distance, edit_distance(wanted, candidate), i});
  }
  std::stable_sort(near.begin(), near.end(), [](const Candidate& a, const Candidate& b) {
    return std::pair(a.distance, a.whole) < std::pair(b.distance, b.whole);
  });
  std::vector<std::string> names;
  // Next to a near miss, a far one only distracts.
  for (std::size_t i = 0; i < near.size() && i < limit && near[i].distance <= near[0].distance + 1; ++i)
    names.push_back(valid[near[i].index]);
  return names;
}

std::string question(const std::vector<std::string>& names) {
  if (names.empty()) return {};
  std::string text = " (did you mean ";
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += '"' + names[i] + '"';
  }
  return text + "?)";
}

}  // namespace

std::vector<std::string> nearest_names(std::string_view name, std::span<const std::string> valid, std::size_t limit) {
  return nearest(name, valid, limit, dotted_nearness);
}

std::string did_you_mean(std::string_view name, std::span<const std::string> valid) {
  return question(nearest_names(name, valid));
}

std::string did_you_mean_tensor(std::string_view name, std::span<const std::string> valid) {
  return question(nearest(name, valid, 1, tensor_nearness));
}

bool matches_glob(std::string_view pattern, std::string_view text) {
  // Iterative: on a mismatch, go back to the last star and let it take one more character.
  std::size_t p = 0, t = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::string quote_name(std::string_view text) {
  constexpr std::size_t kShown = 120;
  constexpr char kDigits[] = "0123456789abcdef";
  std::size_t cut = std::min(text.size(), kShown);
  while (cut < text.size() && cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80)
    --cut;  // whole letters
  std::string safe = "\"";
  // C1 controls are 0xC2 and one of 0x80 to 0x9F in UTF-8: terminals obey them, too.
  const auto is_c1 = [&](std::size_t i) {
    return i + 1 < cut && text[i] == '\xC2' && static_cast<unsigned char>(text[i + 1]) < 0xA0;
  };
  for (std::size_t i = 0; i < cut; ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F || is_c1(i) || (i > 0 && is_c1(i - 1))) {
      safe += std::string("\\x") + kDigits[byte >> 4] + kDigits[byte & 15];
    } else {
      safe += c;
    }
  }
  return safe + (cut < text.size() ? "...\"" : "\"");
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace trainer
