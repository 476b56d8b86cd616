#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <prove/difference.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <sstream>

namespace trainer::prove {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double relative(double apart, double scale) {
  const double value = scale > 0 ? apart / scale : apart;
  return std::isfinite(value) ? value : kInfinity;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

std::vector<int64_t> index_of(int64_t flat, at::IntArrayRef sizes) {
  std::vector<int64_t> index(sizes.size());
  for (std::size_t d = sizes.size(); d-- > 0; flat /= sizes[d]) index[d] = flat % sizes[d];
  return index;
}

Spot shape_difference(const std::string& what, const at::Tensor& got, const at::Tensor& expected) {
  std::ostringstream text;
  text << what << " is " << got.scalar_type() << got.sizes() << " instead of " << expected.scalar_type()
       << expected.sizes();
  return {text.str(), {}, 0, 0, kInfinity};
}

/// The first element with other bits, and the one that is furthest apart; both with the tensor's largest distance.
std::pair<Spot, Spot> spots(const std::string& what, const at::Tensor& got, const at::Tensor& expected) {
  if (got.sizes() != expected.sizes() || got.scalar_type() != expected.scalar_type()) {
    const Spot spot = shape_difference(what, got, expected);
    return {spot, spot};
  }
  const at::Tensor a = got.contiguous().view(-1), b = expected.contiguous().view(-1);
  const auto size = static_cast<std::size_t>(a.element_size());
  const auto* const x = static_cast<const char*>(a.data_ptr());
  const auto* const y = static_cast<const char*>(b.data_ptr());
  int64_t first = 0;
  while (std::memcmp(x + static_cast<std::size_t>(first) * size, y + static_cast<std::size_t>(first) * size, size) == 0)
    ++first;
  const at::Tensor wide = b.to(at::kDouble), apart = (a.to(at::kDouble) - wide).abs();
  const int64_t furthest = apart.argmax().item<int64_t>();  // what is not a number is the largest
  const double largest = relative(apart[furthest].item<double>(), wide.abs().max().item<double>());
  const auto spot = [&](int64_t at) {
    return Spot{what, index_of(at, got.sizes()), a[at].item<double>(), b[at].item<double>(), largest};
  };
  return {spot(first), spot(furthest)};
}

/// Collects the differences of two runs.
class Notes {
 public:
  void add(const Spot& first, const Spot& furthest, bool tensor) {
    if (!found_) found_ = Difference{first, furthest};
    if (furthest.apart > found_->largest.apart) found_->largest = furthest;
    if (tensor) ++found_->tensors;
  }
  void compare(const std::string& what, const at::Tensor& got, const at::Tensor& expected) {
    if (same_bits(got, expected)) return;
    const auto [first, furthest] = spots(what, got, expected);
    add(first, furthest, true);
  }
  /// Records that cannot be compared further.
  std::optional<Difference> broken(const std::string& what) {
    const Spot spot{what, {}, 0, 0, kInfinity};
    if (!found_) add(spot, spot, false);
    return found_;
  }
  [[nodiscard]] const std::optional<Difference>& found() const { return found_; }

 private:
  std::optional<Difference> found_;
};

bool is_number(const Spot& spot) { return !spot.element.empty() || spot.expected != 0 || spot.got != 0; }

}  // namespace

std::string Spot::text() const {
  if (!is_number(*this)) return what;
  std::ostringstream where;
  where << what;
  if (!element.empty()) where << " at " << at::IntArrayRef(element);
  char numbers[96];
  std::snprintf(numbers, sizeof numbers, ": %.9g instead of %.9g", got, expected);
  return where.str() + numbers;
}

std::string Difference::text() const {
  if (!is_number(first)) return first.text();
  char number[96];
  std::snprintf(number, sizeof number, "; largest difference %.1e of its maximum", largest.apart);
  std::string text = first.text() + number;
  if (largest.what != first.what || largest.element != first.element) text += ", in " + largest.text();
  if (tensors > 0) text += "; " + std::to_string(tensors) + (tensors == 1 ? " tensor differs" : " tensors differ");
  return text;
}

std::optional<Difference> first_difference(const Trajectory& run, const Trajectory& expected) {
  Notes notes;
  if (run.losses.size() != expected.losses.size()) return notes.broken("number of steps");
  for (std::size_t step = 0; step < run.losses.size(); ++step) {
    const double got = run.losses[step], wanted = expected.losses[step];
    if (std::memcmp(&got, &wanted, sizeof(double)) == 0) continue;
    const Spot spot{"loss of step " + std::to_string(step + 1),
                    {},
                    got,
                    wanted,
                    relative(std::abs(got - wanted), std::abs(wanted))};
    notes.add(spot, spot, false);
  }
  if (run.gradients.size() != expected.gradients.size() || run.weights.size() != expected.weights.size())
    return notes.broken("number of trained tensors with a gradient");
  std::size_t longest = 0;
  for (const auto& [name, list] : run.gradients) {
    const auto other = expected.gradients.find(name);
    if (other == expected.gradients.end() || other->second.size() != list.size())
      return notes.broken("number of gradients of " + name);
    longest = std::max(longest, list.size());
  }
  for (std::size_t i = 0; i < longest; ++i)
    for (const auto& [name, list] : run.gradients)
      if (i < list.size())
        notes.compare("gradient " + std::to_string(i) + " of " + name, list[i], expected.gradients.at(name)[i]);
  for (const auto& [name, weight] : run.weights) {
    const auto other = expected.weights.find(name);
    if (other == expected.weights.end()) return notes.broken("no trained tensor " + name);
    notes.compare("weight " + name, weight, other->second);
  }
  return notes.found();
}

bool Distance::within(double tolerance) const {
  return loss <= tolerance && gradients <= kGradients * tolerance && later <= 2 * kGradients * tolerance;
}

std::string Distance::text() const {
  char text[96];
  std::snprintf(text, sizeof text, "loss %.2g, gradients %.2g apart (%.2g after steps)", loss, gradients, later);
  return text;
}

Distance distance(const Trajectory& run, const Trajectory& expected) {
  Distance result;
  const Distance incomparable{kInfinity, kInfinity, kInfinity};
  if (run.losses.size() != expected.losses.size() || run.gradients.size() != expected.gradients.size())
    return incomparable;
  for (std::size_t step = 0; step < run.losses.size(); ++step)
    result.loss = std::max(
        result.loss, relative(std::abs(run.losses[step] - expected.losses[step]), std::abs(expected.losses[step])));
  std::vector<double> apart, norm;  // squares, by micro-batch
  for (const auto& [name, list] : run.gradients) {
    const auto other = expected.gradients.find(name);
    if (other == expected.gradients.end() || other->second.size() != list.size()) return incomparable;
    apart.resize(std::max(apart.size(), list.size()));
    norm.resize(apart.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].sizes() != other->second[i].sizes()) return incomparable;
      const at::Tensor wide = other->second[i].to(at::kDouble);
      apart[i] += (list[i].to(at::kDouble) - wide).square().sum().item<double>();
      norm[i] += wide.square().sum().item<double>();
    }
  }
  const std::size_t first = run.losses.empty() ? 0 : apart.size() / run.losses.size();  // micro-batches of a step
  for (std::size_t i = 0; i < apart.size(); ++i) {
    double& largest = i < first ? result.gradients : result.later;
    largest = std::max(largest, relative(std::sqrt(apart[i]), std::sqrt(norm[i])));
  }
  return result;
}

}  // namespace trainer::prove
