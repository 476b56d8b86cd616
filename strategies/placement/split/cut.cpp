#include "cut.hpp"

#include <algorithm>
#include <limits>

namespace trainer::split {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();

Weighed operator+(Weighed a, const Weighed& b) {
  a.work += b.work;
  a.bytes += b.bytes;
  return a;
}

/// What stages cost, from sums over the first n blocks.
class Costs {
 public:
  Costs(const Chain& chain, const Devices& devices, Balance balance)
      : chain_(chain), devices_(devices), balance_(balance), sums_(chain.blocks.size() + 1) {
    for (std::size_t i = 0; i < chain.blocks.size(); ++i) sums_[i + 1] = sums_[i] + chain.blocks[i];
  }
  [[nodiscard]] Weighed stage(std::size_t begin, std::size_t end) const {
    Weighed sum{sums_[end].work - sums_[begin].work, sums_[end].bytes - sums_[begin].bytes};
    if (begin == 0) sum = sum + chain_.first;
    if (end == chain_.blocks.size()) sum = sum + chain_.last;
    return sum;
  }
  /// Of blocks [begin, end) on device `d`.
  [[nodiscard]] double share(std::size_t begin, std::size_t end, std::size_t d) const {
    const Weighed sum = stage(begin, end);
    if (!devices_.budgets.empty() && sum.bytes > devices_.budgets[d]) return kImpossible;
    return (balance_ == Balance::memory ? static_cast<double>(sum.bytes) : sum.work) / devices_.weights[d];
  }

 private:
  const Chain& chain_;
  const Devices& devices_;
  Balance balance_;
  std::vector<Weighed> sums_;
};

}  // namespace

std::optional<std::vector<std::size_t>> best_cut(const Chain& chain, const Devices& devices, Balance balance) {
  const std::size_t blocks = chain.blocks.size(), count = devices.weights.size();
  if (blocks < count) return std::nullopt;
  const Costs costs(chain, devices, balance);
  // largest[d][n]: the smallest possible largest share when the first n blocks lie on devices 0..d.
  std::vector<std::vector<double>> largest(count, std::vector<double>(blocks + 1, kImpossible));
  for (std::size_t n = 1; n <= blocks; ++n) largest[0][n] = costs.share(0, n, 0);
  for (std::size_t d = 1; d < count; ++d)
    for (std::size_t n = d + 1; n <= blocks; ++n)
      for (std::size_t begin = d; begin < n; ++begin)
        largest[d][n] = std::min(largest[d][n], std::max(largest[d - 1][begin], costs.share(begin, n, d)));
  const double best = largest[count - 1][blocks];
  if (best == kImpossible) return std::nullopt;
  std::vector<std::size_t> starts(count, 0);
  for (std::size_t d = count - 1, end = blocks; d > 0; end = starts[d--]) {
    std::size_t begin = d;
    while (std::max(largest[d - 1][begin], costs.share(begin, end, d)) > best) ++begin;
    starts[d] = begin;
  }
  return starts;
}

std::vector<Weighed> stages(const Chain& chain, const std::vector<std::size_t>& starts) {
  const Devices none{std::vector<double>(starts.size(), 1), {}};
  const Costs costs(chain, none, Balance::compute);
  std::vector<Weighed> sums;
  for (std::size_t d = 0; d < starts.size(); ++d)
    sums.push_back(costs.stage(starts[d], d + 1 < starts.size() ? starts[d + 1] : chain.blocks.size()));
  return sums;
}

}  // namespace trainer::split
